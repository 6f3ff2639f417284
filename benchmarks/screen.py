"""Cost of the control room: processor time, bytes drawn, time to open, memory, delay of keys.

    fairbed bench screen [--devices 12,200,1000] [--screen all] [--hertz 4] [--json]
    fairbed bench screen --open 500x1000 [--remote] [--per-round 100] [--repeats 3]
    fairbed bench screen --hour [--devices 1000] [--speed 20]
    fairbed bench screen --keys 10 [--devices 1000]
    fairbed bench screen --watchers 2 [--remote] [--rounds 12] [--repeats 3]
    fairbed bench screen --live [--rounds 12] [--repeats 3]

`fairbed watch` shows a synthetic run on a terminal of that size: every device sends its context at
1 Hz and at each change of phase, and a round of a third of the devices, 20 at most, takes three to
four seconds. No device trains; the result is the processor time of the viewer. With
`--hertz` it refreshes at that rate and at normal priority, which measures the program itself where
other processes are busy: `fairbed watch` gives way to them. The other measurements:

- `--open` opens a finished synthetic run of that many rounds and devices, with a selection and an
  evaluation of each device in each round and as much telemetry as a store retains. `opens` ends
  with the first frame that shows all rounds; `in_app` begins when the terminal is taken over, so
  it contains neither the interpreter nor imports. `reads_cpu` is the part in the store. With
  `--remote` it measures the snapshot for a viewer on another machine: pages, bytes as they travel,
  and the processor time of reading it at the run and of writing it at the viewer.
- `--hour` writes an hour of the run's clock as fast as `--speed` and this machine allow, while the
  viewer shows each screen in turn; the slope of its memory is that of the second half.
- `--keys` is the time from a key to the end of the first frame with the content of its screen,
  that many times for each screen, while the run goes on.
- `--watchers` runs the quickstart, and compares the processor time of the coordinator per
  round with that many viewers and without, in turns within one run. With `--remote` the viewers
  get their rows over the broker, as on another machine, from the relay, a process of its own.
- `--live` runs the quickstart, alternately without and with a control room, and counts invalid
  exchanges.

Linux and macOS; `--watchers` on Linux only.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import psutil

from benchmarks._live_run import LiveRun
from benchmarks._meter import cpu_s, median, percentile
from benchmarks._synthetic_run import SyntheticRun
from benchmarks._terminal import Terminal, on_terminal
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.reader import LIVE, Quality
from fairbed.coordinator.store.replication import (
    Cursor,
    Replica,
    RowSource,
    decode_page,
    encode_page,
)
from fairbed.coordinator.tui.app import LONGEST_PAUSE_S, TABS
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.view import RunView
from fairbed.testbed.broker.permissions import OPERATOR
from fairbed.testbed.broker.run_accounts import login_of
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.progress import tracked
from fairbed.testbed.run_folder import read_endpoint

WARM_S = 5.0
"""Time until the control room is drawn and has shown a round; its start is measured separately."""

SHOWS_S = 60.0
"""Time limit for a screen to show its content."""

HOUR_S = 3600.0

SAMPLES = 240
"""Measurements of memory in an hour of the run's clock."""

CONTENTS: Mapping[str, str] = {
    "overview": r"(?s)Fleet · [1-9].*pi-000.*round \d",
    "fleet": r"(?s)Fleet · [1-9].*pi-000",
    "rounds": r"(?s)Rounds by phase.*round \d",
    "fairness": r"(?s)rates from .*pi-000",
    "estimator": r"median error|no error \(",
    "runs": r"(?s)synthetic.*running",
    "events": r"round \d+: \d+ of \d+ aggregated",
}
"""Pattern of the text that a screen has, and has only when its content is shown."""

MANY_ROUNDS = 100_000
"""Rounds of a run that is ended long before."""

SETTLE_S = 2.0
"""Time after a key that is not measured."""

FIXED_RATE = "benchmarks._fixed_rate_viewer"

SETTLE_ROUNDS = 2
"""Rounds after a viewer starts or ends that are not measured."""

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.toml"

LOAD_INTERVAL_S = 0.5
"""Interval of the checks whether a run has ended."""

RUN_S = 900.0
"""Time limit of a run."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one control room."""

    devices: int
    screen: str
    seconds: float
    start_cpu_s: float
    """Processor time of the start: the interpreter, the style sheet, the first screens."""
    core_share: float
    """Processor time / time after the start; 1 is a core."""
    frames_per_s: float
    """Changes of the screen."""
    bytes_per_s: float
    """Output to the terminal."""


@dataclass(frozen=True, slots=True)
class Opening:
    """One start of a viewer of a finished run."""

    opens_s: float
    """From the start of the process to the first complete screen."""
    in_app_s: float
    """From the first byte to the terminal to the first complete screen."""
    opens_cpu_s: float
    """Processor time of the viewer until then."""
    reads_cpu_s: float
    """Processor time of reading the store, measured in this process."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a viewer while a run goes on, MiB."""

    devices: int
    hours: float
    """Hours of the run's clock."""
    speed: float
    """Seconds of the run's clock per second."""
    start_mib: float
    middle_mib: float
    end_mib: float
    slope_mib_per_hour: float
    """Slope of the least-squares line through the second half, per hour of the run's clock."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Time from a key to its screen, seconds."""

    screen: str
    keys: int
    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of a run as a viewer on another machine gets them first."""

    rounds: int
    detailed_rounds: int
    """Rounds with all rows."""
    pages: int
    n_bytes: int
    """Compressed."""
    largest_bytes: int
    """Of one page."""
    source_cpu_s: float
    replica_cpu_s: float
    replica_mib: float
    """Size of the store at the viewer."""


@dataclass(frozen=True, slots=True)
class Watching:
    """Processor time of a coordinator per round, seconds: one value per turn."""

    watchers: int
    rounds: int
    alone_cpu_s: tuple[float, ...]
    watched_cpu_s: tuple[float, ...]
    relay_cpu_s: tuple[float, ...]
    """Of the process that sends rows to viewers on other machines; 0 without such viewers."""

    @property
    def ratio(self) -> float:
        """Median of the watched turns / median of the others."""
        return median(self.watched_cpu_s) / median(self.alone_cpu_s)


@dataclass(frozen=True, slots=True)
class Turn:
    """The quality of two runs of the quickstart."""

    headless: Quality
    watched: Quality


Size = tuple[int, int]
"""Columns and lines."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench screen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--open", metavar="ROUNDSxDEVICES", help="open a finished run")
    kinds.add_argument("--hour", action="store_true", help="memory over an hour of a run")
    kinds.add_argument("--keys", type=int, default=0, metavar="N", help="delay of N keys a screen")
    kinds.add_argument("--watchers", type=int, default=0, metavar="N", help="cost for the run")
    parser.add_argument(
        "--remote",
        action="store_true",
        help="with --watchers, --open: as on another machine, with rows from the broker",
    )
    kinds.add_argument("--live", action="store_true", help="count invalid exchanges of real runs")
    parser.add_argument("--devices", default="12,200,1000", help="fleets, one after the other")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured (default 30)")
    parser.add_argument("--size", default="140x40", metavar="COLUMNSxLINES")
    parser.add_argument("--screen", choices=[*(x.name for x in TABS), "all"], default=TABS[0].name)
    parser.add_argument(
        "--hertz", type=float, default=0.0, help="fixed refresh rate, at normal priority"
    )
    parser.add_argument("--per-round", type=int, default=0, help="selected devices")
    parser.add_argument("--speed", type=float, default=20.0, help="of the clock (default 20)")
    parser.add_argument("--rounds", type=int, default=12, help="of a real run (default 12)")
    parser.add_argument("--repeats", type=int, default=3, help="of a measurement (default 3)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"\d+(,\d+)*", options.devices):
        parser.error(f"--devices: must be counts such as 12,200, got {options.devices}")
    for name in ("size", "open"):
        text = getattr(options, name)
        if text is not None and not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
            parser.error(f"--{name}: must be two counts such as 140x40, got {text}")
    result, table = _measure(options)
    print(msgspec.json.encode(result).decode() if options.json else table)
    return 0


def _measure(options: argparse.Namespace) -> tuple[object, str]:
    """Return the results of the requested measurement, and the same as a table."""
    columns, lines = options.size.split("x")
    size = int(columns), int(lines)
    fleets = [int(devices) for devices in options.devices.split(",")]
    if options.open:
        rounds, devices = options.open.split("x")
        if options.remote:
            snapshot = take_snapshot(int(rounds), int(devices), options.per_round)
            return snapshot, _snapshot_table(snapshot)
        openings = open_finished(
            int(rounds), int(devices), options.per_round, options.repeats, size, options.hertz
        )
        return openings, _openings_table(openings)
    if options.hour:
        memories = [watch_hours(devices, 1.0, options.speed, size) for devices in fleets]
        return memories, _memories_table(memories)
    if options.keys:
        delays = press_keys(fleets[-1], options.keys, size, hertz=options.hertz)
        return delays, _delays_table(delays)
    if options.watchers:
        watching = watch_run(
            options.watchers, options.rounds, options.repeats, size, is_remote=options.remote
        )
        return watching, _watching_table(watching)
    if options.live:
        turns = [_turn(options.rounds, size) for _ in range(options.repeats)]
        return turns, _turns_table(turns)
    tabs = [x.name for x in TABS] if options.screen == "all" else [options.screen]
    cells = [(devices, tab) for devices in fleets for tab in tabs]
    costs = [
        measure(devices, options.seconds, size, tab=tab, hertz=options.hertz)
        for devices, tab in tracked(cells, "screens", "screen")
    ]
    return costs, _costs_table(costs)


def measure(
    devices: int,
    seconds: float,
    size: Size,
    warm_s: float = WARM_S,
    *,
    tab: str = TABS[0].name,
    hertz: float = 0.0,
) -> Cost:
    """Return the cost of a control room of `size` on one of its screens.

    Raises:
        RuntimeError: The control room did not stay open.
    """
    with _watched_run(devices, size, hertz) as (run, pid, terminal):
        _warm(run, terminal, warm_s)
        start_cpu_s = cpu_s(pid)
        if tab != TABS[0].name:
            terminal.press(next(x.key for x in TABS if x.name == tab))
            run.write_for(SETTLE_S)
        before_s, since = cpu_s(pid), time.monotonic()
        start_bytes, start_frames = terminal.n_bytes, terminal.n_frames
        run.write_for(seconds)
        spent_s, lasted_s = cpu_s(pid) - before_s, time.monotonic() - since
        n_bytes, n_frames = terminal.n_bytes - start_bytes, terminal.n_frames - start_frames
        terminal.press("q")
    return Cost(
        devices,
        tab,
        seconds,
        start_cpu_s,
        spent_s / lasted_s,
        n_frames / lasted_s,
        n_bytes / lasted_s,
    )


@contextmanager
def _watched_run(
    devices: int, size: Size, hertz: float = 0.0
) -> Iterator[tuple[SyntheticRun, int, Terminal]]:
    """Yield a live synthetic run, and the process and the terminal of its viewer."""
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name) / "run"
        run = SyntheticRun(folder, devices)
        try:
            with _viewer(folder, size, hertz) as (pid, terminal):
                yield run, pid, terminal
        finally:
            run.close()


def _warm(run: SyntheticRun, terminal: Terminal, seconds: float) -> None:
    """Continue the run for some seconds, and longer if the viewer has not shown a round yet.

    Raises:
        RuntimeError: It shows none.
    """
    deadline = time.monotonic() + seconds + SHOWS_S
    terminal.expect(r"pi-000|round \d")  # perhaps in different frames
    run.write_for(seconds)
    while not terminal.has_found:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the screen must show a round within {SHOWS_S:g} s")
        run.write_for(1.0)


def open_finished(
    rounds: int, devices: int, per_round: int, repeats: int, size: Size, hertz: float = 0.0
) -> list[Opening]:
    """Return the costs of opening a finished run, `repeats` times.

    Raises:
        RuntimeError: The control room did not show the last round.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name) / "run"
        run = SyntheticRun(folder, devices, rounds=rounds, per_round=per_round)
        try:
            run.write_rounds(rounds)
        finally:
            run.close()
        return [_open(folder, rf"{rounds}/{rounds} ", size, hertz) for _ in range(repeats)]


def take_snapshot(rounds: int, devices: int, per_round: int) -> Snapshot:
    """Return the costs of the first rows for a viewer on another machine."""
    sizes, source_s, replica_s = [], 0.0, 0.0
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder, theirs = Path(name) / "run", Path(name) / "replica"
        run = SyntheticRun(folder, devices, rounds=rounds, per_round=per_round)
        try:
            run.write_rounds(rounds)
        finally:
            run.close()
        theirs.mkdir()
        replica, cursor, has_more = Replica(theirs), Cursor(), True
        with RunReader(folder) as reader:
            source = RowSource(reader)
            while has_more:
                before_s = time.process_time()
                data = encode_page(source.page(cursor))
                source_s += time.process_time() - before_s
                before_s = time.process_time()
                page = decode_page(data)
                replica.apply(page)
                replica_s += time.process_time() - before_s
                sizes.append(len(data))
                cursor, has_more = page.cursor, page.has_more
        replica.close()
        with RunReader(theirs) as reader:
            oldest = reader.run().oldest_round
        mib = (theirs / DATABASE).stat().st_size / 2**20
    return Snapshot(
        rounds=rounds,
        detailed_rounds=rounds + 1 - oldest,
        pages=len(sizes),
        n_bytes=sum(sizes),
        largest_bytes=max(sizes),
        source_cpu_s=source_s,
        replica_cpu_s=replica_s,
        replica_mib=mib,
    )


def _viewer(folder: Path, size: Size, hertz: float) -> AbstractContextManager[tuple[int, Terminal]]:
    if hertz:
        return on_terminal([str(folder), str(hertz)], *size, module=FIXED_RATE)
    return on_terminal(["watch", str(folder)], *size)


def _open(folder: Path, content: str, size: Size, hertz: float) -> Opening:
    since_s = time.monotonic()
    with _viewer(folder, size, hertz) as (pid, terminal):
        terminal.expect(content)
        opened_s = terminal.wait(SHOWS_S)
        opens_cpu_s = cpu_s(pid)
        terminal.press("q")
    before_s = time.process_time()
    with RunReader(folder) as reader:
        ViewReader(reader).refresh(RunView())
    reads_cpu_s = time.process_time() - before_s
    return Opening(opened_s - since_s, opened_s - terminal.began_s, opens_cpu_s, reads_cpu_s)


def watch_hours(
    devices: int, hours: float, speed: float, size: Size, warm_s: float = WARM_S
) -> Memory:
    """Return the memory of a viewer over hours of the run's clock, on all screens in turn.

    Raises:
        RuntimeError: The control room did not stay open.
    """
    span_s = hours * HOUR_S / SAMPLES
    with _watched_run(devices, size) as (run, pid, terminal):
        _warm(run, terminal, warm_s)
        viewer, began_s = psutil.Process(pid), time.monotonic()
        samples = []
        for sample in range(SAMPLES + 1):
            samples.append(viewer.memory_info().rss / 2**20)
            terminal.press(TABS[sample % len(TABS)].key)
            run.write_for(span_s, speed)
        reached = hours * HOUR_S / (time.monotonic() - began_s)
        terminal.press("q")
    later = samples[SAMPLES // 2 :]
    at_hours = np.arange(len(later)) * span_s / HOUR_S
    slope = float(np.polyfit(at_hours, later, 1)[0])
    return Memory(devices, hours, reached, samples[0], later[0], later[-1], slope)


def press_keys(
    devices: int, keys: int, size: Size, warm_s: float = WARM_S, hertz: float = 0.0
) -> list[Delay]:
    """Return the delay of the key of each screen while a run goes on.

    Raises:
        RuntimeError: A screen did not show its content.
    """
    pauses = random.Random(0)
    delays_s: dict[str, list[float]] = {tab.name: [] for tab in TABS}
    with _watched_run(devices, size, hertz) as (run, _, terminal):
        _warm(run, terminal, warm_s)
        for number in range(keys * len(TABS)):
            tab = TABS[(number + 1) % len(TABS)]  # the first one is open
            terminal.expect(CONTENTS[tab.name])
            pressed_s = time.monotonic()
            terminal.press(tab.key)
            run.write_for(1.0 + pauses.random())  # at any time of the interval between two frames
            delays_s[tab.name].append(terminal.wait(SHOWS_S) - pressed_s)
        terminal.press("q")
    every = [delay for of_screen in delays_s.values() for delay in of_screen]
    return [
        Delay(name, len(values), percentile(values, 50), percentile(values, 95))
        for name, values in (*delays_s.items(), ("all", every))
    ]


def watch_run(
    watchers: int, rounds: int, repeats: int, size: Size, *, is_remote: bool = False
) -> Watching:
    """Return the processor time of a coordinator without and with viewers, in turns.

    Raises:
        RuntimeError: A control room did not stay open, or the run failed.
    """
    alone, watched, relay = [], [], []
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name) / "run"
        with _quickstart(folder, MANY_ROUNDS) as run:
            _wait_for_round(folder, 1)
            shown = str(_login_of(folder) if is_remote else folder)
            for _ in range(repeats):
                alone.append(_cpu_per_round(run, rounds)["coordinator"])
                with ExitStack() as stack:
                    terminals = [
                        stack.enter_context(on_terminal(["watch", shown], *size))[1]
                        for _ in range(watchers)
                    ]
                    for terminal in terminals:
                        terminal.expect(r"Fleet · [1-9]")
                    for terminal in terminals:
                        terminal.wait(SHOWS_S)
                    spent_s = _cpu_per_round(run, rounds)
                    watched.append(spent_s["coordinator"])
                    relay.append(spent_s["relay"])
                    for terminal in terminals:
                        terminal.press("q")
    return Watching(watchers, rounds, tuple(alone), tuple(watched), tuple(relay))


def _login_of(folder: Path) -> Path:
    """Write the address of a run into a file, as an enrolled viewer has it."""
    endpoint = read_endpoint(folder)
    assert endpoint is not None
    path = folder.with_name("viewer.toml")
    path.write_text(f'broker_url = "{login_of(endpoint, *OPERATOR)}"\n', encoding="utf-8")
    return path


def _cpu_per_round(run: LiveRun, rounds: int) -> dict[str, float]:
    """Return the processor time of each kind of process per round in the next rounds, seconds."""
    before = _wait_for_round(run.folder, _rounds_completed(run.folder) + SETTLE_ROUNDS)
    before_s = run.cpu_s()
    after = _wait_for_round(run.folder, before + rounds)
    return {kind: (s - before_s[kind]) / (after - before) for kind, s in run.cpu_s().items()}


def _wait_for_round(folder: Path, number: int) -> int:
    deadline = time.monotonic() + RUN_S
    while (completed := _rounds_completed(folder)) < number:
        if _is_over(folder) or time.monotonic() > deadline:
            raise RuntimeError(f"the run must reach round {number}, got {completed}")
        time.sleep(LOAD_INTERVAL_S / 10)
    return completed


def _rounds_completed(folder: Path) -> int:
    with suppress(StoreError), RunReader(folder) as reader:
        return reader.run().rounds_completed
    return 0


@contextmanager
def _quickstart(folder: Path, rounds: int) -> Iterator[LiveRun]:
    command = [*_quickstart_command(folder, rounds), "--headless"]
    with subprocess.Popen(
        guarded([sys.executable, "-m", "fairbed.testbed.cli.main", *command]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield LiveRun(process, folder, rounds)
        finally:
            process.terminate()


def _quickstart_command(folder: Path, rounds: int) -> list[str]:
    return ["run", str(QUICKSTART), "--set", f"rounds={rounds}", "--out", str(folder)]


def _turn(rounds: int, size: Size) -> Turn:
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        headless, watched = Path(name) / "headless", Path(name) / "watched"
        with _quickstart(headless, rounds):
            _wait_for_end(headless)
        with on_terminal(_quickstart_command(watched, rounds), *size) as (_, terminal):
            _wait_for_end(watched)
            time.sleep(2 * LONGEST_PAUSE_S)  # until the screen shows the end, so q opens no dialog
            terminal.press("q")
        return Turn(_quality(headless), _quality(watched))


def _wait_for_end(folder: Path) -> None:
    deadline = time.monotonic() + RUN_S
    while not _is_over(folder):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the run must be over within {RUN_S:g} s")
        time.sleep(LOAD_INTERVAL_S)


def _is_over(folder: Path) -> bool:
    with suppress(StoreError), RunReader(folder) as reader:
        return reader.run().status not in LIVE
    return False


def _quality(folder: Path) -> Quality:
    with RunReader(folder) as reader:
        return reader.quality()


def _costs_table(costs: Sequence[Cost]) -> str:
    return _lines(
        ("devices", "screen", "share of a core", "to start, s", "frames/s", "kB/s to the terminal"),
        (
            (
                f"{cost.devices}",
                cost.screen,
                f"{cost.core_share:.1%}",
                f"{cost.start_cpu_s:.2f}",
                f"{cost.frames_per_s:.1f}",
                f"{cost.bytes_per_s / 1e3:.1f}",
            )
            for cost in costs
        ),
    )


def _openings_table(openings: Sequence[Opening]) -> str:
    return _lines(
        ("opens, s", "in the app, s", "processor, s", "of it reading, s"),
        (
            (
                f"{x.opens_s:.2f}",
                f"{x.in_app_s:.2f}",
                f"{x.opens_cpu_s:.2f}",
                f"{x.reads_cpu_s:.2f}",
            )
            for x in openings
        ),
    )


def _snapshot_table(found: Snapshot) -> str:
    return _lines(
        ("rounds", "detailed", "pages", "MiB", "largest, MiB", "source", "replica", "store, MiB"),
        [
            (
                f"{found.rounds}",
                f"{found.detailed_rounds}",
                f"{found.pages}",
                f"{found.n_bytes / 2**20:.2f}",
                f"{found.largest_bytes / 2**20:.2f}",
                f"{found.source_cpu_s:.2f} s",
                f"{found.replica_cpu_s:.2f} s",
                f"{found.replica_mib:.1f}",
            )
        ],
    )


def _memories_table(memories: Sequence[Memory]) -> str:
    return _lines(
        ("devices", "speed", "MiB at the start", "middle", "end", "slope, MiB/h"),
        (
            (
                f"{x.devices}",
                f"{x.speed:.0f}",
                f"{x.start_mib:.1f}",
                f"{x.middle_mib:.1f}",
                f"{x.end_mib:.1f}",
                f"{x.slope_mib_per_hour:+.1f}",
            )
            for x in memories
        ),
    )


def _delays_table(delays: Sequence[Delay]) -> str:
    return _lines(
        ("screen", "keys", "p50, ms", "p95, ms"),
        ((x.screen, f"{x.keys}", f"{1e3 * x.p50_s:.0f}", f"{1e3 * x.p95_s:.0f}") for x in delays),
    )


def _watching_table(watching: Watching) -> str:
    table = _lines(
        ("turn", "alone, ms/round", f"{watching.watchers} watchers, ms/round", "relay, ms/round"),
        (
            (f"{number}", *(f"{1e3 * spent_s:.1f}" for spent_s in turn))
            for number, turn in enumerate(
                zip(
                    watching.alone_cpu_s, watching.watched_cpu_s, watching.relay_cpu_s, strict=True
                ),
                start=1,
            )
        ),
    )
    return f"{table}\nratio of the medians: {watching.ratio:.3f}"


def _turns_table(turns: Sequence[Turn]) -> str:
    return _lines(
        ("turn", "invalid, headless", "invalid, with a room"),
        (
            (
                f"{number}",
                f"{turn.headless.invalid} of {turn.headless.done}",
                f"{turn.watched.invalid} of {turn.watched.done}",
            )
            for number, turn in enumerate(turns, start=1)
        ),
    )


def _lines(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table whose columns are aligned at the right."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "   ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
