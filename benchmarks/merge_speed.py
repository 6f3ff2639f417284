"""Speed of the merge and of defences beside a plain copy, and of the weights of AAggFF and AFL.

    fairbed bench merge-speed [--devices 100] [--values 10000000] [--clients 1000000] [--silos 50]
        [--json]

All models are in memory, in one process on one core; times are processor time, medians of
`--repeats`, each repeat in turn with a copy of all models into as much memory (8 GB in all by
default). The merges:

- fedavg: each update enters the exact running sum when it arrives (checks included), and the sum is
  divided at the end.
- aaggff-d: models that arrived before are summed in one pass once the weights are known; the
  checks at their arrival are timed separately.
- aaggff-d, adam: the same, with the server step.
- median, trimmed-mean, geometric-median, krum, multi-krum: the end of the round of a defence, with
  the weights of fedavg.

Then what a checkpoint stores on disk: the model, and the moments of adam. Last, one round of the
weights alone: AAggFF-D and AFL with a million clients, of which a thousand report,
and AAggFF-S with 50 silos, after rounds that have made the weights unequal.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from experiments.processes import fresh_processes
from fairbed.coordinator.algorithms.aggregation.base import Report, Updates
from fairbed.coordinator.algorithms.aggregation.server_step import FedOpt
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator, make_rule
from fairbed.coordinator.store.model_files import save_model, save_state
from fairbed.testbed.progress import tracked

REPORTING = 1_000
"""Clients of AAggFF-D and AFL that report in a round."""
GAMMA = 1e-9
"""Step size of AFL: a report moves a weight by about 1e-6, so that a million weights stay above 0
and each pass of the projection takes all of them."""
ROUNDS = 5
"""Rounds of the weights that are timed, after as many that are not."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Processor times, seconds, medians."""

    devices: int
    values: int
    copy_s: float
    """Copy of all models into as many vectors, whose pages are in memory."""
    running_s: float
    """fedavg: all arrivals and the end of the round."""
    arrival_s: float
    """aaggff-d: the checks of all arrivals."""
    stored_s: float
    """aaggff-d: the end of the round."""
    stored_adam_s: float
    """The same with `server = "adam"`."""
    defence_s: dict[str, float]
    """The end of the round, by defence."""
    model_file_s: float
    """Elapsed time of storing the model after a round, on disk."""
    moments_bytes: int
    """The state of adam."""
    moments_file_s: float
    """Elapsed time of storing it, on disk."""
    clients: int
    aaggff_d_s: float
    """Weights of AAggFF-D, one round."""
    afl_s: float
    """Weights of AFL, one round."""
    silos: int
    aaggff_s_s: float
    """Weights of AAggFF-S, one round."""


DEFENCES = {
    "median": AggregationConfig(pseudo_gradient="median"),
    "trimmed-mean": AggregationConfig(pseudo_gradient="trimmed-mean"),
    "geometric-median": AggregationConfig(pseudo_gradient="geometric-median"),
    "krum": AggregationConfig(defence="krum"),
    "multi-krum": AggregationConfig(defence="multi-krum"),
}


class Resident(list[Vector]):
    """Models that are in memory already, so that storing one needs no copy."""

    def all(self) -> Sequence[Vector]:
        """Return the models."""
        return self


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench merge-speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--values", type=int, default=10_000_000, help="of a model, float32")
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--silos", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with fresh_processes(1) as pool:
        sizes = options.devices, options.values, options.clients, options.silos
        speeds = pool.submit(measure, *sizes, options.repeats).result()
    if options.json:
        print(msgspec.json.encode(asdict(speeds)).decode())
        return 0
    copied = speeds.copy_s
    title = f"{speeds.devices} updates of {speeds.values:,} values"
    print(f"{title:<40}  processor time  copy / time  time / copy")
    for name, spent in (
        ("copy", copied),
        ("fedavg, running sum", speeds.running_s),
        ("aaggff-d, checks at arrival", speeds.arrival_s),
        ("aaggff-d, sum of stored models", speeds.stored_s),
        ("aaggff-d, the same and adam", speeds.stored_adam_s),
        *speeds.defence_s.items(),
    ):
        print(f"{name:<40}{spent:>14.2f} s{copied / spent:>13.2f}{spent / copied:>13.1f}")
    for name, spent in (
        (f"weights of aaggff-d, {speeds.clients:,} clients", speeds.aaggff_d_s),
        (f"weights of afl, {speeds.clients:,} clients", speeds.afl_s),
        (f"weights of aaggff-s, {speeds.silos} silos", speeds.aaggff_s_s),
    ):
        print(f"{name:<46}{spent * 1e3:>8.1f} ms")
    moments = f"moments of adam, {speeds.moments_bytes / 1e6:.0f} MB"
    for name, spent in (
        ("model on disk, elapsed", speeds.model_file_s),
        (f"{moments}, on disk, elapsed", speeds.moments_file_s),
    ):
        print(f"{name:<46}{spent * 1e3:>8.0f} ms")
    return 0


def measure(devices: int, values: int, clients: int, silos: int, repeats: int) -> Speeds:
    """Measure everything in this process."""
    rng = np.random.default_rng(0)
    models = [rng.standard_normal(values, dtype=np.float32) for _ in range(devices)]
    sent = rng.standard_normal(values, dtype=np.float32)
    places = np.zeros((devices, values), dtype=np.float32)

    def copy() -> None:
        for place, model in zip(places, models, strict=True):
            np.copyto(place, model)

    merges = {
        "running": AggregationConfig(rule="fedavg"),
        "stored": AggregationConfig(rule="aaggff-d"),
        "adam": AggregationConfig(rule="aaggff-d", server="adam"),
        **DEFENCES,
    }
    spent: dict[str, list[float]] = {"copy": [], "arrival": [], **{name: [] for name in merges}}
    copy()
    for _ in tracked(range(repeats), "repeats", "merge-speed"):
        for name, config in merges.items():
            spent["copy"].append(_spent_s(copy))
            arrival_s, end_s = _merge_s(config, sent, models)
            if name == "running":
                spent[name].append(arrival_s + end_s)
                continue
            spent[name].append(end_s)
            if name not in DEFENCES:  # theirs also compute norms
                spent["arrival"].append(arrival_s)
    medians = {name: statistics.median(times) for name, times in spent.items()}
    return Speeds(
        devices=devices,
        values=values,
        copy_s=medians["copy"],
        running_s=medians["running"],
        arrival_s=medians["arrival"],
        stored_s=medians["stored"],
        stored_adam_s=medians["adam"],
        defence_s={name: medians[name] for name in DEFENCES},
        **_stored(sent, repeats),
        clients=clients,
        aaggff_d_s=weights_s("aaggff-d", clients, min(REPORTING, clients)),
        afl_s=weights_s("afl", clients, min(REPORTING, clients)),
        silos=silos,
        aaggff_s_s=weights_s("aaggff-s", silos, silos),
    )


def weights_s(rule: str, clients: int, reporting: int) -> float:
    """Return the median processor time of the weights of a round."""
    rng = np.random.default_rng(1)
    weights = make_rule(AggregationConfig(rule=rule, gamma=GAMMA), reporting)
    times = []
    for _ in range(2 * ROUNDS):
        ones = np.ones(reporting)
        updates = Updates(
            rows=np.sort(rng.choice(clients, reporting, replace=False)),
            n_k=ones.astype(np.int64),
            steps=ones.astype(np.int64),
            shares=ones,
            losses=rng.lognormal(0.0, 1.0, reporting),
            squared_norms=ones,
            learning_rate=0.1,
            registered=clients,
        )
        times.append(_spent_s(lambda updates=updates: weights.decide(updates)))  # type: ignore[misc]
    return statistics.median(times[ROUNDS:])


def _stored(sent: Vector, repeats: int) -> dict[str, Any]:
    """Return size and elapsed times of a checkpoint, by their names in `Speeds`."""
    step, times = FedOpt("adam", 0.01), list[tuple[float, float]]()
    step.step(sent, sent.astype(np.float64))
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        for _ in range(repeats):
            began = time.perf_counter()
            save_model(Path(name), 1, sent)
            between = time.perf_counter()
            state = msgspec.msgpack.encode(step.to_state())
            save_state(Path(name), 1, state)
            times.append((between - began, time.perf_counter() - between))
    return {
        "model_file_s": statistics.median(model_s for model_s, _ in times),
        "moments_bytes": len(state),
        "moments_file_s": statistics.median(moments_s for _, moments_s in times),
    }


def _merge_s(
    config: AggregationConfig, sent: Vector, models: Sequence[Vector]
) -> tuple[float, float]:
    """Return the processor time of all arrivals, and of the end of the round, seconds."""
    aggregator = make_aggregator(config, per_round=len(models))
    merge = aggregator.begin(sent, len(sent), 0.1, Resident, len(models))
    used = time.process_time()
    for k, model in enumerate(models):
        merge.add(Report(row=k, n_k=1 + k, model=model, loss_before=1.0 + k / 10.0))
    arrival_s = time.process_time() - used
    return arrival_s, _spent_s(merge.finish)


def _spent_s(work: Callable[[], object]) -> float:
    used = time.process_time()
    work()
    return time.process_time() - used
