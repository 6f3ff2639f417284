"""Faults at random against live fleets: is anything lost, counted twice or left behind?

    fairbed bench chaos --minutes 10 --seed 1 [--broker mosquitto,nats]
        [--backend process,namespace,container,separate] [--kinds KIND,...] [--json]
    fairbed bench chaos --rounds 5000 --seed 1 --broker mosquitto --backend process
    fairbed bench chaos --replay-days 7 --seed 1 [--json]

Each broker with each backend gets an equal part of the minutes, and at least one step. `separate`
are agents that joined a coordinator by themselves. A step is one fault or two that overlap:
coordinator, broker, agent, fork server or link helper killed or stopped, a device without link, a
full disk, damaged chunks, a hostile device, or clocks that jump. After each step the run must close
`RECOVERED_ROUNDS` rounds with an update, by itself or, after the end of its process, resumed. Then
all invariants are checked (`benchmarks/_chaos/audit.py`, `belongings.py`, and bounds of memory).

`--rounds` goes on for so many rounds with an update, instead of minutes, and limits the growth of
the memory of each kind of process per round (`benchmarks/_chaos/memory.py`). So that processes live
long enough to show it, the faults that end the run follow each other, after all others, and
`ROUNDS_PER_STEP` rounds pass after each of the others.

The schedule is a pure function of the seed, and printed. Exits with 1 after a violation, with the
command that repeats it. `--replay-days` kills a replay of so much virtual time again and again,
and compares it with one that nothing disturbed (`benchmarks/_chaos/replays.py`).

A full disk and jumps of clocks need root on Linux; elsewhere these faults do nothing.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import get_args

import msgspec
import psutil
from msgspec import Struct

from benchmarks._chaos.audit import StoreAudit
from benchmarks._chaos.live_fleet import BETA, LiveFleet, RunEndedError
from benchmarks._chaos.memory import MemoryLog, Slope
from benchmarks._chaos.replays import ReplayResult, replay_under_chaos
from benchmarks._chaos.schedule import SETUPS, Fault, Kind, Setup, Step, kinds_of, steps
from fairbed.coordinator.store import StoreError
from fairbed.testbed.broker.configuration import BrokerKind

DEVICES = 3
RECOVERED_ROUNDS = 2
RECOVERY_S = 90.0
"""Longest time from the end of the last fault of a step to so many more rounds: a deadline of 10 s,
a broker that counts a client as lost after 22 s, and a machine that is busy."""
END_S = {"coordinator killed": 5.0, "clock jump": 5.0}
END_OTHERS_S = 30.0
"""Longest end of a run's process after a fault that ends it."""

GROWTH_MIB = 40.0
"""Largest growth of a process above its first sample: what imports and buffers may add, not a leak
of some kB in each round."""
NATS_GROWTH_MIB = 320.0
"""The same for the NATS server, which collects its garbage late: it takes 250 to 280 MiB within
1,000 rounds, and goes up and down below that from then on. So its slope is not judged."""

ROUNDS_PER_STEP = 125
"""Rounds after a step that does not end the run, with `--rounds`: more than twenty of them make a
life of the run of 3,000 to 4,300 rounds."""
SAMPLE_S = 1.0
"""Interval of the samples of memory meanwhile."""


class StepResult(Struct, frozen=True, kw_only=True):
    """One step."""

    number: int
    step: str
    """The faults, in one line."""
    kinds: list[str]
    round: int
    """Closed rounds after it."""
    recovery_s: float | None
    """From the end of the last fault to the rounds that show the recovery, a resume included; None
    without a recovery."""
    ended: str
    """Exit status and last line of the run's process, if it ended; else empty."""
    memory_mib: dict[str, float]
    """Resident memory of the largest process of each kind after it; empty if the run has ended."""
    violations: list[str]


class SetupResult(Struct, frozen=True, kw_only=True):
    """All steps with one broker and one backend."""

    broker: str
    backend: str
    seed: int
    steps: list[StepResult]
    rounds: int
    void_rounds: int
    lives: int
    """Starts of the run's process."""
    outcomes: dict[str, int]
    """How many exchanges ended in which way."""
    hostile_packets: int
    """Packets of hostile devices, and damaged chunks."""
    peak_mib: dict[str, float]
    """Largest resident memory of a process of each kind, sampled after each step."""
    slopes: dict[str, Slope]
    """Growth of the memory of each kind of process that lived long enough."""
    violations: list[str]
    """Of the end of the run."""
    repeat: str
    """Command that repeats the schedule up to the last step."""

    @property
    def failures(self) -> list[str]:
        """All violations, one line each."""
        found = [f"step {step.number}: {text}" for step in self.steps for text in step.violations]
        return found + [f"end: {text}" for text in self.violations]


class Result(Struct, frozen=True, kw_only=True):
    """All setups, or a replay."""

    setups: list[SetupResult]
    replay: ReplayResult | None = None

    @property
    def failures(self) -> list[str]:
        """All violations, one line each."""
        found = [
            f"{one.broker}, {one.backend}: {text}" for one in self.setups for text in one.failures
        ]
        return found + (self.replay.violations if self.replay else [])


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="fairbed-chaos-") as name:
        if options.replay_days:
            folder = Path(name)
            replay = replay_under_chaos(folder, options.replay_days, options.seed)
            result = Result(setups=[], replay=replay)
        else:
            result = Result(setups=_live(Path(name), options))
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        _print(result)
    for failure in result.failures:
        print(f"chaos: {failure}", file=sys.stderr)
    return 1 if result.failures else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fairbed bench chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds of each setup, instead of minutes"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broker", default="mosquitto,nats")
    parser.add_argument("--backend", default=",".join(SETUPS))
    parser.add_argument("--kinds", default="", help="only these kinds of faults")
    parser.add_argument(
        "--steps", type=int, default=0, help="most steps of each setup; 0: no limit"
    )
    parser.add_argument("--replay-days", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.brokers = _chosen(parser, "--broker", options.broker, get_args(BrokerKind))
    options.backends = _chosen(parser, "--backend", options.backend, SETUPS)
    names = sorted({kind.name for setup in SETUPS for kind in kinds_of(setup)})
    options.names = _chosen(parser, "--kinds", options.kinds, names) if options.kinds else names
    return options


def _chosen(
    parser: argparse.ArgumentParser, option: str, text: str, names: Sequence[str]
) -> list[str]:
    chosen = text.split(",")
    for name in chosen:
        if name not in names:
            parser.error(f"{option}: must be of {', '.join(names)}, got {name!r}")
    return chosen


def _live(folder: Path, options: argparse.Namespace) -> list[SetupResult]:
    pairs = [(broker, setup) for setup in options.backends for broker in options.brokers]
    results = []
    for broker, setup in pairs:
        kinds = [kind for kind in kinds_of(setup) if kind.name in options.names]
        place = folder / f"{setup}-{broker}"
        place.mkdir()
        extent = Extent(
            limit_s=inf if options.rounds else options.minutes * 60.0 / len(pairs),
            steps=options.steps or 10**9,
            rounds=options.rounds,
        )
        results.append(disturb(place, setup, broker, options.seed, kinds, extent))
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How long a run is disturbed: to the first of these limits."""

    limit_s: float
    steps: int
    rounds: int
    """Rounds with an update, `ROUNDS_PER_STEP` after each step that does not end the run; 0: no
    limit, and the steps follow each other."""


def disturb(
    folder: Path,
    setup: Setup,
    broker: BrokerKind,
    seed: int,
    kinds: Sequence[Kind],
    extent: Extent,
) -> SetupResult:
    """Disturb one run step by step, for at least one step; check it after each."""
    audit, results = StoreAudit(BETA), list[StepResult]()
    outcomes, peaks = defaultdict[str, int](int), dict[str, float]()
    violations: list[str] = []
    deadline, memory = time.monotonic() + extent.limit_s, MemoryLog()
    with LiveFleet(folder, setup, broker, DEVICES, seed) as fleet:
        fleet.start()
        first = dict(fleet.memory_mib())
        for step in steps(seed, kinds, DEVICES, has_long_lives=extent.rounds > 0):
            print(f"{setup}, {broker}: {step.line}", file=sys.stderr, flush=True)
            results.append(_do(fleet, step, audit, outcomes, first, peaks))
            for text in results[-1].violations:
                print(f"violated: {text}", file=sys.stderr, flush=True)
            if not fleet.is_alive:
                break  # what follows would not be this schedule any more
            if extent.rounds and not step.may_end_run:
                violations = _watch(fleet, memory, fleet.done_rounds() + ROUNDS_PER_STEP)
            is_long = 0 < extent.rounds <= fleet.done_rounds()
            if violations or is_long or time.monotonic() > deadline or step.number >= extent.steps:
                break
        violations += _end(fleet, audit, outcomes)
        slopes = memory.slopes()
        violations += [
            f"memory of {kind}: must grow by at most {slope.limit_kb:.2f} kB a round, "
            f"got {slope.kb_per_round:.2f}"
            for kind, slope in slopes.items()
            if not slope.is_within_noise and not _is_nats(broker, kind)
        ]
        extent_option = f"--rounds {extent.rounds}" if extent.rounds else "--minutes 60"
        return SetupResult(
            broker=broker,
            backend=setup,
            seed=seed,
            steps=results,
            rounds=len(audit.closed),
            void_rounds=sum(row.status == "void" for row in audit.closed),
            lives=fleet.lives,
            outcomes=dict(outcomes),
            hostile_packets=fleet.hostile_packets,
            peak_mib=peaks,
            slopes=slopes,
            violations=violations,
            repeat=f"fairbed bench chaos --seed {seed} --broker {broker} --backend {setup} "
            f"{extent_option} --steps {len(results)}",
        )


def _watch(fleet: LiveFleet, memory: MemoryLog, rounds: int) -> list[str]:
    """Sample the memory until so many rounds have closed with an update; return what is wrong."""
    while (done := fleet.done_rounds()) < rounds:
        for kind, process, rss_bytes in fleet.memory():
            memory.add(kind, process, done, rss_bytes)
        try:
            fleet.await_rounds(1, RECOVERY_S)
        except RunEndedError as exc:
            return [str(exc)]
        time.sleep(SAMPLE_S)
    return []


def _do(
    fleet: LiveFleet,
    step: Step,
    audit: StoreAudit,
    outcomes: dict[str, int],
    first: dict[str, float],
    peaks: dict[str, float],
) -> StepResult:
    """Do one step: its faults, the recovery, the checks."""
    time.sleep(step.wait_s)
    fleet.belongings.see(fleet.owner)
    violations: list[str] = []
    recovery_s: float | None = None
    ended = ""
    _cause(fleet, step)
    over = time.monotonic()
    try:
        if step.ends_run and _has_part(fleet, step.faults[-1]):
            ended = _resume(fleet, step, violations)
        try:
            fleet.await_rounds(RECOVERED_ROUNDS, RECOVERY_S)
        except RunEndedError:
            if fleet.is_alive or ended:
                raise
            ended = _resume(fleet, step, violations)  # a full disk may have ended it
            fleet.await_rounds(RECOVERED_ROUNDS, RECOVERY_S)
        recovery_s = time.monotonic() - over
    except RunEndedError as exc:
        violations.append(str(exc))
    violations += _check_store(fleet, audit, outcomes)
    memory_mib: dict[str, float] = {}
    if fleet.is_alive:
        memory_mib = dict(fleet.memory_mib())
        violations += _check_machine(fleet, memory_mib, first, peaks)
    return StepResult(
        number=step.number,
        step=step.line,
        kinds=[fault.kind.name for fault in step.faults],
        round=len(audit.closed),
        recovery_s=recovery_s,
        ended=ended,
        memory_mib=memory_mib,
        violations=violations,
    )


def _cause(fleet: LiveFleet, step: Step) -> None:
    """Begin and end the faults of a step at their times; return when all are over."""
    began = time.monotonic()
    ends: list[tuple[float, Callable[[], None]]] = []

    def wait_until(at_s: float) -> None:
        for end_s, end in sorted(ends, key=lambda one: one[0]):
            if end_s <= at_s:
                time.sleep(max(0.0, began + end_s - time.monotonic()))
                end()
                ends.remove((end_s, end))
        time.sleep(max(0.0, began + at_s - time.monotonic()))

    for fault in step.faults:
        wait_until(fault.delay_s)
        if fleet.is_alive:
            ends.append((fault.end_s, fleet.cause(fault)))
    wait_until(max(fault.end_s for fault in step.faults))


def _resume(fleet: LiveFleet, step: Step, violations: list[str]) -> str:
    """Wait for the end of the run's process, check it, and resume the run; return how it ended.

    Raises:
        RunEndedError: It did not end in time, or cannot be resumed.
    """
    last = step.faults[-1]
    ending = fleet.await_end(END_S.get(last.kind.name, END_OTHERS_S))
    if not step.may_end_run:
        violations.append(f"the run ended with status {ending.status}: {ending.line}")
    if ending.status not in (0, 1, -9) or "Traceback" in ending.line:
        violations.append(f"the run must end with one line, got {ending.status}: {ending.line}")
    violations += [f"after the run's end: {left}" for left in fleet.belongings.left_alive()]
    violations += [f"after the run's end: {left}" for left in fleet.belongings.left_listening()]
    fleet.belongings.forget()
    fleet.start(fleet.jump_s(last))
    return f"{ending.status}: {ending.line}"


def _has_part(fleet: LiveFleet, fault: Fault) -> bool:
    """Return whether the fault found its process: not every backend has every helper."""
    if fault.kind.name in ("fork server killed", "link helper killed"):
        with suppress(RunEndedError):
            fleet.await_end(2.0)
        return not fleet.is_alive
    return True


def _check_store(fleet: LiveFleet, audit: StoreAudit, outcomes: dict[str, int]) -> list[str]:
    try:
        found = audit.check_kept(fleet.rounds())
        for rows in fleet.rows(audit.closed[-1].round if audit.closed else 0):
            found += audit.check_next(rows)
            for exchange in rows.exchanges:
                outcomes[exchange.outcome] += 1
        found += fleet.check_files()
    except StoreError as exc:
        return [f"the store must be readable: {exc}"]
    return found


def _is_nats(broker: str, kind: str) -> bool:
    return (broker, kind) == ("nats", "broker")


def _check_machine(
    fleet: LiveFleet, memory_mib: dict[str, float], first: dict[str, float], peaks: dict[str, float]
) -> list[str]:
    found = []
    for kind, mib in memory_mib.items():
        peaks[kind] = max(peaks.get(kind, 0.0), mib)
        most = NATS_GROWTH_MIB if _is_nats(fleet.broker, kind) else GROWTH_MIB
        if mib > first.setdefault(kind, mib) + most:
            found.append(f"memory of {kind}: {mib:.0f} MiB, at first {first[kind]:.0f}")
    stems = fleet.belongings.stems()
    if len(stems) > 1:
        found.append(f"a run must have one set of namespaces, got {sorted(stems)}")
    return found


def _end(fleet: LiveFleet, audit: StoreAudit, outcomes: dict[str, int]) -> list[str]:
    """End the run; return what is wrong then."""
    violations: list[str] = []
    if fleet.is_alive:
        fleet.belongings.see(fleet.owner)
        try:
            ending = fleet.end()
            if ending.status:
                violations.append(f"must end with status 0, got {ending.status}: {ending.line}")
        except (RunEndedError, psutil.Error) as exc:
            violations.append(str(exc))
        violations += _check_store(fleet, audit, outcomes)
        left = [*fleet.belongings.left_alive(), *fleet.belongings.left_listening()]
        violations += [*left, *sorted(fleet.belongings.stems())]
        again = StoreAudit(BETA)
        for rows in fleet.rows(0):
            violations += again.check_next(rows)
    return violations


def _print(result: Result) -> None:
    """Print a line for each setup, and for each kind of fault the recoveries."""
    for one in result.setups:
        memory = ", ".join(f"{kind} {mib:.0f}" for kind, mib in sorted(one.peak_mib.items()))
        print(
            f"{one.broker}, {one.backend}, seed {one.seed}: {len(one.steps)} steps, {one.rounds} "
            f"rounds ({one.void_rounds} void), {one.lives} lives, {len(one.failures)} violations; "
            f"peak MiB: {memory}"
        )
        for kind, slope in sorted(one.slopes.items()):
            print(
                f"  memory of {kind}: {slope.kb_per_round:+.2f} kB a round, at most "
                f"{slope.limit_kb:.2f}; {slope.rounds} rounds of {slope.series} lives"
            )
        recoveries = defaultdict[str, list[float]](list)
        for step in one.steps:
            if step.recovery_s is not None:
                recoveries[" + ".join(step.kinds)].append(step.recovery_s)
        for kinds, values in sorted(recoveries.items()):
            middle, most = statistics.median(values), max(values)
            print(f"  {kinds:<48}{len(values):>4}  recovery {middle:.1f} s, at most {most:.1f} s")
        if one.failures:
            print(f"  repeat: {one.repeat}")
    if result.replay is not None:
        print(result.replay.line)
