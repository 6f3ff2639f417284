"""Cost of one selection: contexts in, cohort out, queues and estimates updated.

    fairbed bench selection [--devices 1000000] [--per-round 1000] [--rounds 7] [--arm NAME]
        [--json]

Every policy and both estimators run with the number of devices and with a tenth and a hundredth of
it, each in a separate process. The results are: processor time of the first round, when no device
has been observed, and of later rounds (median), when every device has been observed and virtual
queues differ; peak memory beyond that of an empty process; and the exponent e of time ~ N^e from
the smallest to the largest fleet, where N log N has about 1.09. Nothing is trained. Last, the
paper's 40 devices for 500 rounds: the decisions alone, and a whole replay with the virtual clock
and the rows of the store, which a thread writes: processor time of both, and elapsed time.
"""

import argparse
import math
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from benchmarks._decision_cost import DecisionBench
from benchmarks._meter import peak_rss_bytes
from experiments.processes import fresh_processes
from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.progress import tracked
from fairbed.testbed.replay.run import replay_experiment

PAPER = Path(__file__).parents[1] / "examples" / "rbcs-f-paper.toml"
PAPER_DEVICES, PAPER_PER_ROUND, PAPER_ROUNDS = 40, 8, 500

PART_OF_FAIR_SHARE = 0.5
"""The guaranteed rate, relative to that of a uniform selection."""


def arms(devices: int, per_round: int) -> dict[str, SelectionConfig]:
    """Return the measured settings, by name."""
    beta = PART_OF_FAIR_SHARE * min(1.0, per_round / devices)

    def arm(policy: str, estimator: str = "ridge", **others: object) -> SelectionConfig:
        raw = {"policy": policy, "estimator": estimator, "per_round": per_round, "beta": beta}
        return msgspec.convert({**raw, **others}, SelectionConfig)

    return {
        "rbcs-f, ridge": arm("rbcs-f"),
        "rbcs-f, phases": arm("rbcs-f", "phases"),
        "rbcs-f, discounted": arm("rbcs-f", discount=0.95),
        "rbcs-f, merged count": arm("rbcs-f", queue_counts="aggregated"),
        "oort": arm("oort"),
        "power-of-choice": arm("power-of-choice"),
        "fedcs": arm("fedcs", deadline_s=3.0),
        "uniform": arm("uniform"),
    }


@dataclass(frozen=True, slots=True)
class Cost:
    """One policy on one fleet."""

    arm: str
    devices: int
    first_s: float
    """Processor time of the first round."""
    later_s: float
    """Processor time of later rounds, median."""
    peak_mib: float
    """Peak memory beyond an empty process."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench selection", description=__doc__)
    parser.add_argument("--devices", type=int, default=1_000_000)
    parser.add_argument("--per-round", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--arm", help="only this one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    known = list(arms(options.devices, options.per_round))
    if options.arm is not None and options.arm not in known:
        parser.error(f"--arm: must be one of {'; '.join(known)}, got {options.arm!r}")
    sizes = sorted({max(options.per_round, options.devices // part) for part in (100, 10, 1)})
    cells = [(name, n) for name in ([options.arm] if options.arm else known) for n in sizes]
    costs = [
        alone(name, devices, options.per_round, options.rounds)
        for name, devices in tracked(cells, "cells", "selection")
    ]
    paper = paper_s()
    if options.json:
        result = {"costs": [asdict(cost) for cost in costs], **paper}
        print(msgspec.json.encode(result).decode())
    else:
        _print(costs, sizes, paper)
    return 0


def alone(name: str, devices: int, per_round: int, rounds: int) -> Cost:
    """Run `measure` in a separate process."""
    with fresh_processes(1) as pool:
        return pool.submit(measure, name, devices, per_round, rounds).result()


def measure(name: str, devices: int, per_round: int, rounds: int) -> Cost:
    """Return the cost of rounds of a policy in this process."""
    empty_mib = _peak_mib()
    bench = DecisionBench(arms(devices, per_round)[name], devices)
    first_s = bench.round_s()
    bench.warm_up()
    later_s = statistics.median(bench.round_s() for _ in range(rounds))
    return Cost(name, devices, first_s, later_s, _peak_mib() - empty_mib)


def growth(small: Cost, large: Cost) -> float:
    """Return e of later_s ~ N^e between two fleets."""
    return math.log(large.later_s / small.later_s) / math.log(large.devices / small.devices)


def paper_s() -> dict[str, float]:
    """Return the processor and elapsed time of 500 rounds of the paper's 40 devices, seconds."""
    config = arms(PAPER_DEVICES, PAPER_PER_ROUND)["rbcs-f, ridge"]
    bench = DecisionBench(config, PAPER_DEVICES)
    decisions_s = sum(bench.round_s() for _ in range(PAPER_ROUNDS))
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        used, began = time.process_time(), time.perf_counter()
        experiment = load_experiment(PAPER, [f"rounds={PAPER_ROUNDS}"])
        replay_experiment(experiment, Path(folder) / "run", "run", lambda replayed: None)
        replayed_s, wall_s = time.process_time() - used, time.perf_counter() - began
    return {
        "paper_decisions_s": decisions_s,
        "paper_replay_s": replayed_s,
        "paper_replay_wall_s": wall_s,
    }


def _print(costs: list[Cost], sizes: list[int], paper: dict[str, float]) -> None:
    print(
        f"{'processor time per round':<24}{'devices':>10}{'first':>10}{'later':>10}{'memory':>12}"
    )
    for cost in costs:
        times = f"{cost.first_s:>8.3f} s{cost.later_s:>8.3f} s"
        print(f"{cost.arm:<24}{cost.devices:>10,}{times}{cost.peak_mib:>8.0f} MiB")
    by_arm: dict[str, list[Cost]] = {}
    for cost in costs:
        by_arm.setdefault(cost.arm, []).append(cost)
    if len(sizes) > 1:
        print(f"\ngrowth from {sizes[0]:,} to {sizes[-1]:,} devices, time ~ N^e")
        for name, of_arm in by_arm.items():
            print(f"{name:<24}{growth(of_arm[0], of_arm[-1]):>10.2f}")
    print(f"\n{PAPER_DEVICES} devices, {PAPER_ROUNDS} rounds")
    print(f"{'decisions':<24}{paper['paper_decisions_s']:>8.2f} s")
    print(f"{'the whole replay':<24}{paper['paper_replay_s']:>8.2f} s")
    print(f"{'the same on the clock':<24}{paper['paper_replay_wall_s']:>8.2f} s")


def _peak_mib() -> float:
    return peak_rss_bytes(os.getpid()) / 2**20
