"""Cost of the control room for its machine: processor time, bytes drawn.

    fairbed bench screen [--devices 12,200] [--seconds 30] [--size 140x40] [--json]
    fairbed bench screen --live [--rounds 12] [--repeats 3]

`fairbed watch` shows a synthetic run in real time on a terminal of that size: every device sends
its context at 1 Hz and at each change of phase, and a round of a third of the devices, 20 at most,
takes three to four seconds. No device trains; the result is the processor time of the viewer. With
`--live` the quickstart runs, alternately without and with a control room, and the result is the
number of invalid exchanges. Linux and macOS.
"""

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks._meter import cpu_s
from benchmarks._synthetic_run import SyntheticRun
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.reader import LIVE, Quality
from fairbed.coordinator.tui.app import LONGEST_PAUSE_S

WARM_S = 5.0
"""Time until the control room is drawn and has shown a round; its start is measured separately."""

CLOSE_S = 30.0
"""Time limit for the control room to close."""

CHUNK_BYTES = 1 << 16

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.toml"

LOAD_INTERVAL_S = 0.5
"""Interval of the checks whether a run has ended."""

RUN_S = 900.0
"""Time limit of a run."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one control room."""

    devices: int
    seconds: float
    start_cpu_s: float
    """Processor time of the start: the interpreter, the style sheet, the first screens."""
    core_share: float
    """Processor time / time after the start; 1 is a core."""
    bytes_per_s: float
    """Output to the terminal."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The quality of two runs of the quickstart."""

    headless: Quality
    watched: Quality


class _Terminal:
    """A pseudo-terminal that counts its output."""

    def __init__(self, columns: int, lines: int) -> None:
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.n_bytes = 0
        self._reader = threading.Thread(target=self._read, name="bench.terminal", daemon=True)
        self._reader.start()

    def press(self, key: str) -> None:
        """Send a key."""
        os.write(self._ours, key.encode())

    def close(self) -> None:
        """Close the terminal."""
        os.close(self.theirs)
        self._reader.join(CLOSE_S)
        os.close(self._ours)

    def _read(self) -> None:
        with suppress(OSError):  # Linux raises it when the other end is closed
            while data := os.read(self._ours, CHUNK_BYTES):
                self.n_bytes += len(data)


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench screen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", default="12,200", help="fleets, one after the other")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured (default 30)")
    parser.add_argument("--size", default="140x40", metavar="COLUMNSxLINES")
    parser.add_argument("--live", action="store_true", help="count invalid exchanges of real runs")
    parser.add_argument("--rounds", type=int, default=12, help="of a real run (default 12)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of real runs (default 3)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"\d+(,\d+)*", options.devices):
        parser.error(f"--devices: must be counts such as 12,200, got {options.devices}")
    if not (size := re.fullmatch(r"(\d+)x(\d+)", options.size)):
        parser.error(f"--size: must be COLUMNSxLINES such as 140x40, got {options.size}")
    shape = int(size[1]), int(size[2])
    if options.live:
        turns = [_turn(options.rounds, shape) for _ in range(options.repeats)]
        print(msgspec.json.encode(turns).decode() if options.json else _table(turns))
        return 0
    costs = [
        measure(int(devices), options.seconds, shape) for devices in options.devices.split(",")
    ]
    if options.json:
        print(msgspec.json.encode(costs).decode())
    else:
        print("devices   share of a core   to start, s   kB/s to the terminal")
        for cost in costs:
            print(
                f"{cost.devices:>7}{cost.core_share:>18.1%}{cost.start_cpu_s:>14.2f}"
                f"{cost.bytes_per_s / 1e3:>23.1f}"
            )
    return 0


def measure(devices: int, seconds: float, size: tuple[int, int], warm_s: float = WARM_S) -> Cost:
    """Return the cost of a control room of `size` in columns and lines.

    Raises:
        RuntimeError: The control room did not stay open.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name) / "run"
        synthetic = SyntheticRun(folder, devices)
        try:
            with _room(["watch", str(folder)], size) as (pid, terminal):
                synthetic.write_for(warm_s)
                start_cpu_s, start_bytes, since = cpu_s(pid), terminal.n_bytes, time.monotonic()
                synthetic.write_for(seconds)
                spent_s, lasted_s = cpu_s(pid) - start_cpu_s, time.monotonic() - since
                n_bytes = terminal.n_bytes - start_bytes
                terminal.press("q")
        finally:
            synthetic.close()
    return Cost(devices, seconds, start_cpu_s, spent_s / lasted_s, n_bytes / lasted_s)


def _turn(rounds: int, size: tuple[int, int]) -> Turn:
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        headless, watched = Path(name) / "headless", Path(name) / "watched"
        command = ["run", str(QUICKSTART), "--set", f"rounds={rounds}", "--out"]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "fairbed.testbed.cli.main",
                *command,
                str(headless),
                "--headless",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=RUN_S,
            check=True,
        )
        with _room([*command, str(watched)], size) as (_, terminal):
            deadline = time.monotonic() + RUN_S
            while not _is_over(watched):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the run must be over within {RUN_S:g} s")
                time.sleep(LOAD_INTERVAL_S)
            time.sleep(2 * LONGEST_PAUSE_S)  # until the screen shows the end, so q opens no dialog
            terminal.press("q")
        return Turn(_quality(headless), _quality(watched))


def _is_over(folder: Path) -> bool:
    with suppress(StoreError), RunReader(folder) as reader:
        return reader.run().status not in LIVE
    return False


def _quality(folder: Path) -> Quality:
    with RunReader(folder) as reader:
        return reader.quality()


def _table(turns: list[Turn]) -> str:
    lines = ["turn   invalid, headless   invalid, with a room"]
    lines += [
        f"{number:>4}{f'{turn.headless.invalid} of {turn.headless.done}':>20}"
        f"{f'{turn.watched.invalid} of {turn.watched.done}':>23}"
        for number, turn in enumerate(turns, start=1)
    ]
    return "\n".join(lines)


@contextmanager
def _room(command: list[str], size: tuple[int, int]) -> Iterator[tuple[int, _Terminal]]:
    terminal = _Terminal(*size)
    try:
        room = subprocess.Popen(
            [sys.executable, "-m", "fairbed.testbed.cli.main", *command],
            stdin=terminal.theirs,
            stdout=terminal.theirs,
            stderr=terminal.theirs,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            start_new_session=True,
        )
        try:
            yield room.pid, terminal
            if room.wait(CLOSE_S) != 0:
                raise RuntimeError(f"the control room ended with exit code {room.returncode}")
        finally:
            room.kill()
            room.wait()
    finally:
        terminal.close()
