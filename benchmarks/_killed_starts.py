"""Starts of runs that are killed: at each file and step, at random, and many with one HOME.

    python -m benchmarks._killed_starts POINT FOLDER COMMAND...

runs `fairbed COMMAND...` and kills it with SIGKILL at its POINT-th step: a file or folder in FOLDER
that it opens for writing, makes, renames or removes, a database that it opens, or a program that it
starts. At most MAX_POINTS are counted; the number is written to FOLDER.points when it ends.
"""

import argparse
import atexit
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.progress import progress

EXPERIMENT = """
name = "starts"
seed = {seed}
rounds = 2
[data]
dataset = "digits"
[model]
name = "softmax"
[selection]
per_round = 2
[round]
deadline_s = 30.0
[broker]
kind = "{broker}"
[emulation]
backend = "process"
{emulation}
[[fleet]]
count = 2
{fleet}
"""

EMULATED = 'profile = "raspberry-pi-4b"'

FIRST_S = 0.5
"""Latest instant of a kill at random, seconds after the start of the process."""

END_S = 90.0
"""Longest run without a kill, on a busy machine."""

RUNS = 4
"""Runs that are started at once with one HOME."""

HOME_LATEST_S = 2.5
"""Latest instant of a kill of them, seconds: a start takes about as long."""

MAX_POINTS = 10_000

_IN_FOLDER = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "shutil.rmtree",
    "sqlite3.connect",
}
"""Events of `sys.addaudithook` that are a step if an argument is in the folder."""


class StartsResult(Struct, frozen=True, kw_only=True):
    """Starts that were killed."""

    part: str
    kills: int
    survived: int
    """Kills after which the same command went on."""
    points: int
    """Different steps at which a start was killed; 0 if all were at random instants."""
    back_median_s: float
    """Of the runs that were not killed: from the start of the process to its end."""
    back_max_s: float
    failures: list[str]
    """One line for each start that was refused or did nothing."""

    @property
    def line(self) -> str:
        """One line for people."""
        where = f" at {self.points} steps" if self.points else ""
        return (
            f"{self.part}: {self.survived} of {self.kills} kills survived{where}; whole runs of 2 "
            f"rounds {self.back_median_s:.1f} s, at most {self.back_max_s:.1f} s"
        )


class Started:
    """A run that is started by one command again and again."""

    def __init__(self, top: Path, options: argparse.Namespace, *, is_emulated: bool) -> None:
        top.mkdir(parents=True)
        self.folder, self._log = top / "run", top / "run.log"
        experiment = top / "starts.toml"
        experiment.write_text(
            EXPERIMENT.format(
                seed=options.seed,
                broker=options.broker,
                emulation="" if not is_emulated else "dilation = 1.0",
                fleet=EMULATED if is_emulated else 'name = "pi"',
            ),
            encoding="utf-8",
        )
        self.command = ["run", str(experiment), "--headless", "--out", str(self.folder)]
        self.environ = dict(os.environ)

    def start(self, point: int = MAX_POINTS) -> "subprocess.Popen[bytes]":
        """Start the run, which is killed at a step."""
        with self._log.open("wb") as log:
            return subprocess.Popen(
                guarded(
                    [
                        sys.executable,
                        "-m",
                        __spec__.name,
                        str(point),
                        str(self.folder),
                        *self.command,
                    ]
                ),
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self.environ,
            )

    def points(self) -> int:
        """Return the number of steps of the last start that was not killed."""
        return int(self.folder.with_suffix(".points").read_text(encoding="ascii"))

    def last_line(self) -> str:
        """Return the last line of its output."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "no output"

    def is_done(self) -> bool:
        """Return whether the run is done."""
        with suppress(StoreError), RunReader(self.folder) as reader:
            return reader.run().status == "done"
        return False


def measure_starts(options: argparse.Namespace, top: Path) -> StartsResult:
    """Kill starts at each of their steps, and at random in their first `FIRST_S`.

    Each start but the last finds what the one before has left; when a run is done, the next start
    has a new folder.
    """
    rng = random.Random(f"{options.seed} start")
    failures, back_s, kills, folders = list[str](), list[float](), 0, 0

    def new_run() -> Started:
        nonlocal folders
        folders += 1
        return Started(top / f"start-{folders}", options, is_emulated=False)

    def finish(run: Started, point: int) -> None:
        process, began = run.start(), time.monotonic()
        try:
            status = process.wait(END_S)
        except subprocess.TimeoutExpired:
            _end(process)
            failures.append(f"step {point}: the run must end within {END_S:g} s")
            return
        back_s.append(time.monotonic() - began)
        if status:
            failures.append(f"step {point}: ended with {status}: {run.last_line()}")

    whole = new_run()
    finish(whole, 0)
    if failures:
        raise SystemExit(f"the run without kills failed: {failures[0]}")
    most = whole.points()
    steps = [1 + number * most // options.kills for number in range(min(options.kills, most))]
    steps = sorted(set(steps))
    run = new_run()
    with progress(options.kills, "kills", "start", is_ticking=False) as bar:
        while kills < options.kills:
            point = steps[kills] if kills < len(steps) else 0
            process = run.start(point or MAX_POINTS)
            try:
                status = process.wait(END_S if point else rng.uniform(0.0, FIRST_S))
            except subprocess.TimeoutExpired:
                _end(process)
                status = -signal.SIGKILL
                if point:
                    failures.append(f"step {point}: a start must end within {END_S:g} s")
            kills += 1
            bar.update(kills)
            if status not in (0, -signal.SIGKILL):
                failures.append(f"step {point}: ended with {status}: {run.last_line()}")
                run = new_run()
            elif run.is_done():
                run = new_run()
            elif kills % options.whole_every == 0:
                finish(run, point)
                run = new_run()
    if not run.is_done():
        finish(run, steps[-1])
    return StartsResult(
        part="start",
        kills=kills,
        survived=kills - len(failures),
        points=min(kills, len(steps)),
        back_median_s=statistics.median(back_s or [float("nan")]),
        back_max_s=max(back_s, default=float("nan")),
        failures=failures,
    )


def measure_home(options: argparse.Namespace, top: Path) -> StartsResult:
    """Start runs of emulated devices at once with one empty HOME, and kill owners at random.

    All wait for one calibration of this machine. When the kills are over, each run must be done.
    """
    rng = random.Random(f"{options.seed} home")
    home = top / "home"
    home.mkdir()
    runs = [Started(top / f"home-{n}", options, is_emulated=True) for n in range(RUNS)]
    for run in runs:
        run.environ |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    processes = [run.start() for run in runs]
    failures, back_s, kills = list[str](), list[float](), 0
    with progress(options.kills, "kills", "home", is_ticking=False) as bar:
        while kills < options.kills:
            time.sleep(rng.uniform(0.0, HOME_LATEST_S / RUNS))
            place = rng.randrange(RUNS)
            run, process = runs[place], processes[place]
            if process.poll() is None:
                _end(process)
                kills += 1
                bar.update(kills)
            elif process.returncode:
                failures.append(f"run {place}: {process.returncode}: {run.last_line()}")
            if run.is_done():
                shutil.rmtree(run.folder)
            processes[place] = run.start()
    began = time.monotonic()
    for place, process in enumerate(processes):
        try:
            status = process.wait(max(began + END_S - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            _end(process)
            failures.append(
                f"run {place}: must be done within {END_S:g} s: {runs[place].last_line()}"
            )
            continue
        back_s.append(time.monotonic() - began)
        if status:
            failures.append(f"run {place}: {status}: {runs[place].last_line()}")
    return StartsResult(
        part="home",
        kills=kills,
        survived=kills - len(failures),
        points=0,
        back_median_s=statistics.median(back_s or [float("nan")]),
        back_max_s=max(back_s, default=float("nan")),
        failures=failures,
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


class _Steps:
    """Counts the steps of this process, and kills it at one of them."""

    def __init__(self, point: int, folder: str) -> None:
        self._point, self._folder, self._count = point, folder, 0
        self._process = os.getpid()

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count an event of `sys.addaudithook`."""
        if not self._is_step(event, arguments) or os.getpid() != self._process:
            return
        self._count += 1
        if self._count == self._point:
            os.kill(self._process, signal.SIGKILL)

    def _is_step(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "subprocess.Popen":
            return True
        if event == "open":
            path, mode, flags = arguments
            is_written = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (
                isinstance(mode, str) and mode[:1] in ("w", "a", "x")
            )
            return is_written and self._folder in str(path)
        return event in _IN_FOLDER and any(self._folder in str(one) for one in arguments)

    def write(self, path: Path) -> None:
        """Write how many steps there were."""
        if os.getpid() == self._process:
            path.write_text(str(self._count), encoding="ascii")


def main(arguments: Sequence[str]) -> int:
    """Run a command that is killed at one of its steps."""
    from fairbed.testbed.cli.main import console

    point, folder, *command = arguments
    steps = _Steps(int(point), folder)
    sys.argv = ["fairbed", *command]
    atexit.register(steps.write, Path(folder).with_suffix(".points"))
    sys.addaudithook(steps.on_event)
    return console()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
