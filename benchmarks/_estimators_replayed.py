"""The fleets of `benchmarks.estimators` on the virtual clock, seed by seed.

One live run is one sample of the links. Replays of the same file draw them again for every seed,
without training and in a second each, and so separate chance from improvement.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.oracle.errors import KNOWN, errors_of_run
from fairbed.coordinator.algorithms.estimation.prequential import Errors
from fairbed.coordinator.report.quantities import percent
from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import Experiment, FleetConfig
from fairbed.testbed.progress import tracked
from fairbed.testbed.replay.run import replay_experiment

PHASES = "phases"

CONSTANT = "constant"
"""The fleet with constant links."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One fleet, replayed once per seed."""

    fleet: str
    links: tuple[str, ...]
    """Links of its groups, as the experiment names them."""
    rounds: int
    seeds: int
    wire_median: float
    """Share of the transfers in an exchange time."""
    number: str
    """Statistic of the errors of a seed: median or mean."""
    errors: dict[str, list[float]]
    """By estimator, one per seed, of the second half of the rounds."""
    coverage: dict[str, list[float]]
    """Share of these exchanges within their interval of 80 %, of the seeds with intervals."""
    interval: dict[str, list[float]]
    """Median of upper over lower end of these intervals."""

    @property
    def ratios(self) -> list[float]:
        """The errors of `phases` relative to those of `known`."""
        pairs = zip(self.errors[PHASES], self.errors[KNOWN], strict=True)
        return [phases / known for phases, known in pairs]


def replay(
    fleet: str, experiment_of: Callable[[int], Experiment], seeds: int, folder: Path
) -> Replayed:
    """Replay one fleet for the seeds from 1 on, each under `folder`.

    Args:
        fleet: Its name: errors of `CONSTANT` are means, others medians.
        experiment_of: Returns the experiment for a seed.
        seeds: Number of seeds.
        folder: Receives the replays; completed ones are not repeated.

    Raises:
        SystemExit: A seed has no exchange in its second half.
    """
    number = "mean" if fleet == CONSTANT else "median"
    errors, coverage, interval = (dict[str, list[float]]() for _ in range(3))
    shares, experiment = list[float](), experiment_of(1)
    for seed in tracked(range(1, seeds + 1), "seeds", fleet):
        experiment = experiment_of(seed)
        run = folder / f"{fleet}-{seed}"
        replay_experiment(experiment, run, run.name, lambda replayed: None)
        for name, found in errors_of_run(run, counted_after=experiment.rounds / 2).items():
            errors.setdefault(name, []).append(_number(found, number, f"{fleet}, seed {seed}"))
            if found.coverage is not None and found.interval is not None:
                coverage.setdefault(name, []).append(found.coverage)
                interval.setdefault(name, []).append(found.interval)
        with RunReader(run) as reader:
            done = [x for x in reader.exchanges() if x.outcome == "done" and x.tau_s]
        shares += [((x.download_s or 0.0) + (x.upload_s or 0.0)) / (x.tau_s or 1.0) for x in done]
    return Replayed(
        fleet=fleet,
        links=tuple(dict.fromkeys(_link(group) for group in experiment.fleet)),
        rounds=experiment.rounds,
        seeds=seeds,
        wire_median=statistics.median(shares),
        number=number,
        errors=errors,
        coverage=coverage,
        interval=interval,
    )


def table(one: Replayed, factor: float) -> str:
    """Return the errors of all seeds as a Markdown table, with the ratio to `known`.

    Args:
        one: A fleet.
        factor: Greatest ratio of the errors of `phases` to those of `known`.
    """
    lines = [
        f"{one.fleet} ({', '.join(one.links)}): {one.seeds} seeds, {one.rounds} rounds each, "
        f"{100 * one.wire_median:.0f} % of tau on the wire (median)",
        "",
        f"| {one.number} error | median of the seeds | lowest | highest |",
        "|---|---|---|---|",
    ]
    for name, errors in one.errors.items():
        cells = map(percent, (statistics.median(errors), min(errors), max(errors)))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    ratio = [] if one.fleet == CONSTANT else [_ratio(one, factor)]
    return "\n".join([*lines, "", *ratio, *_beaten(one)])


def _ratio(one: Replayed, factor: float) -> str:
    ratios = one.ratios
    within = sum(ratio <= factor for ratio in ratios)
    return (
        f"- phases, in errors of known: {statistics.median(ratios):.2f} (median), "
        f"{min(ratios):.2f} to {max(ratios):.2f}; at most {factor:g} in {within} of {len(ratios)}"
    )


def _beaten(one: Replayed) -> list[str]:
    lines = []
    for name in ("last value", "device mean", "ridge"):
        pairs = zip(one.errors[PHASES], one.errors[name], strict=True)
        better = sum(phases < other for phases, other in pairs)
        lines.append(f"- phases, below {name}: in {better} of {one.seeds}")
    return lines


def _number(errors: Errors, number: str, where: str) -> float:
    found = errors.mape if number == "mean" else errors.median_ape
    if found is None:
        raise SystemExit(f"{where}: must have exchanges in its second half, got none; add rounds")
    return found


def _link(group: FleetConfig) -> str:
    """Return the name of the links of a group."""
    return group.trace or " ".join(group.links) or f"links of {group.profile or group.population}"
