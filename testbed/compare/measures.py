"""Read the metrics and curves of a cell from its run.

Virtual queues are computed for policies without queues, too: all arms have the same guarantee.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.fairness import selection_rates
from fairbed.coordinator.algorithms.sampling_noise import SamplingNoise
from fairbed.coordinator.report.device_time import device_seconds
from fairbed.coordinator.report.quantities import (
    ERROR_MEAN,
    ERROR_MEDIAN,
    QUEUE_MAX,
    QUEUE_MEAN_SUM,
    ROUND_MEDIAN,
    TAU_MEDIAN,
    TAU_P95,
)
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_schema import RunSummary
from fairbed.coordinator.store import Provenance, RunReader
from fairbed.coordinator.store.reader import LIVE, SelectionCounts
from fairbed.coordinator.store.tables import MetricRow, RoundRow, SelectionRow

MAX_ENTRIES = 50_000_000
"""Maximum of rounds x devices for which queues are computed from the selection history."""


@dataclass(frozen=True, slots=True)
class VirtualQueues:
    """Queues Z over all devices after each round, each of shape (T,)."""

    total: Floats
    largest: Floats


def virtual_queues(counted: Bools, first: Ints, beta: float) -> VirtualQueues:
    """Return the virtual queues of a selection history.

        Z_n <- max(Z_n + beta - x_n, 0)   in each round since n joined

    Unlike those of rbcs-f, no queue is capped or frozen.

    Args:
        counted: x, shape (T, N).
        first: Index of each device's first round, shape (N,).
        beta: Guaranteed rate.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783), equation 8.
    """
    queues: Floats = np.zeros(counted.shape[1])
    total, largest = np.zeros(len(counted)), np.zeros(len(counted))
    for t, x in enumerate(counted):
        queues = np.where(first <= t, np.maximum(queues + beta - x, 0.0), 0.0)
        total[t], largest[t] = queues.sum(), queues.max(initial=0.0)
    return VirtualQueues(total, largest)


def virtual_queues_of(
    reader: RunReader, rounds: Sequence[int], counts: Sequence[SelectionCounts], beta: float
) -> VirtualQueues | None:
    """Return the queues of a run's selection history; None if it is too large.

    Args:
        reader: Reads the run.
        rounds: Its closed rounds, shape (T,).
        counts: Counts of all devices, over all rounds.
        beta: Guaranteed rate.
    """
    if not counts or len(rounds) * len(counts) > MAX_ENTRIES:
        return None
    at_round = {round_id: t for t, round_id in enumerate(rounds)}
    at_device = {count.device: n for n, count in enumerate(counts)}
    counted: Bools = np.zeros((len(rounds), len(counts)), dtype=np.bool_)
    column = f"is_{reader.plan.selection.queue_counts}"
    for round_id, device in reader.columns(SelectionRow, ("round", "device"), f"WHERE {column}"):
        counted[at_round[round_id], at_device[device]] = True
    first = np.array([len(rounds) - count.rounds for count in counts], dtype=np.int64)
    return virtual_queues(counted, first, beta)


Group: TypeAlias = Literal[
    "time",
    "exchange",
    "selection",
    "prediction",
    "accuracy",
    "quality",
    "fairness",
    "personal",
    "attack",
    "privacy",
]

MAX_POINTS = 1_000
"""Maximum number of rounds in the curves of a run; longer runs have every k-th round."""


class RunSize(Struct, frozen=True, kw_only=True):
    """How much of each event a run has: the counts that limit the resolution of its metrics."""

    rounds: int
    """Closed rounds, at least 1."""
    devices: int
    """Devices, at least 1."""
    selections: int
    """Selections over all rounds and devices, at least 1."""
    test_examples: int | None
    """Held-out examples of all devices in the last evaluation; None if unknown."""


Scale: TypeAlias = Literal["linear", "log"]
Resolution: TypeAlias = Callable[[RunSize, float], float]
"""Smallest change of a metric that can be observed in a run of this size, near this value."""

CLOCK_S = 1e-3
"""Resolution of times, seconds: timers of an event loop wait for whole milliseconds."""
ENERGY_RESOLUTION_J = 0.01
"""`CLOCK_S` at 10 W, a board at work."""
RATIO_RESOLUTION = 1e-3
"""Of the error of predictions, which is a ratio of two times."""
LEAST_EXAMPLES = 100
"""Assumed for a run whose number of test examples is unknown."""


@dataclass(frozen=True, slots=True)
class MetricKind:
    """The kind of number that a metric is."""

    lowest: float | None
    """Smallest possible value; None without a bound, likewise `highest`."""
    highest: float | None
    scale: Scale
    """`log`: positive, and compared by ratios."""
    resolution: Resolution


def _examples(size: RunSize) -> int:
    return size.test_examples or LEAST_EXAMPLES


def _one_example(size: RunSize, value: float) -> float:
    return 1.0 / _examples(size)


def _one_example_of_the_worst(size: RunSize, value: float) -> float:
    worst = max(1, size.devices // 10)
    return size.devices / (worst * _examples(size))


def _one_example_of_one_device(size: RunSize, value: float) -> float:
    return size.devices / _examples(size)


def _variance_of_one_example(size: RunSize, value: float) -> float:
    """Return 2 s / n + 1 / n^2: how one of n examples changes the variance s^2 over devices."""
    n = _examples(size)
    return float(2.0 * np.sqrt(max(value, 0.0)) / n + 1.0 / n**2)


def _share_of_one_example(size: RunSize, value: float) -> float:
    return abs(value) / _examples(size)


TIME = MetricKind(0.0, None, "log", lambda size, value: CLOCK_S)
ENERGY_SUM = MetricKind(0.0, None, "log", lambda size, value: ENERGY_RESOLUTION_J)
RATE = MetricKind(0.0, 1.0, "linear", lambda size, value: 1.0 / size.rounds)
QUEUE = MetricKind(0.0, None, "linear", lambda size, value: 1.0 / size.rounds)
SELECTIONS = MetricKind(0.0, 1.0, "linear", lambda size, value: 1.0 / size.selections)
PREDICTION_ERROR = MetricKind(0.0, None, "linear", lambda size, value: RATIO_RESOLUTION)
SHARE = MetricKind(0.0, 1.0, "linear", _one_example)
WORST_SHARE = MetricKind(0.0, 1.0, "linear", _one_example_of_the_worst)
DEVICE_SHARE = MetricKind(0.0, 1.0, "linear", _one_example_of_one_device)
VARIANCE = MetricKind(0.0, None, "log", _variance_of_one_example)
ERROR = MetricKind(0.0, None, "linear", _share_of_one_example)
R_SQUARED = MetricKind(None, 1.0, "linear", _one_example)
LOG_UTILITY = MetricKind(None, None, "linear", _one_example_of_one_device)
COUNT = MetricKind(0.0, None, "linear", lambda size, value: 1.0)
NOISE_RATIO = MetricKind(0.0, None, "linear", lambda size, value: RATIO_RESOLUTION)
NATS = MetricKind(0.0, None, "linear", lambda size, value: RATIO_RESOLUTION)


@dataclass(frozen=True, slots=True)
class Metric:
    """Description of a number of a cell."""

    key: str
    group: Group
    heading: str
    short: str
    """Heading in tables of all metrics."""
    unit: str
    """Empty for a ratio or a count."""
    better: Literal["less", "more"] | None
    """None: it describes the arm, and differences are not tested."""
    digits: int
    """Digits after the decimal point."""
    quantity: MetricKind
    """Range, scale and resolution."""


def _without_noise(group: Group, key: str, of: str, short: str) -> tuple[Metric, ...]:
    """Return worst 10 % and variance corrected for the noise of the test sets, and its shares."""
    worst, variance = f"{of}worst 10 %", f"{of}variance"
    return (
        Metric(
            f"{key}_worst10_shrunken",
            group,
            f"{worst}, shrunken",
            f"{short}worst shr",
            "",
            "more",
            3,
            WORST_SHARE,
        ),
        Metric(
            f"{key}_variance_corrected",
            group,
            f"{variance}, corrected",
            f"{short}var cor",
            "",
            "less",
            4,
            VARIANCE,
        ),
        Metric(
            f"{key}_worst10_noise",
            group,
            f"noise in {worst}",
            f"{short}worst noise",
            "",
            None,
            2,
            NOISE_RATIO,
        ),
        Metric(
            f"{key}_variance_noise",
            group,
            f"noise in {variance}",
            f"{short}var noise",
            "",
            None,
            2,
            NOISE_RATIO,
        ),
    )


METRICS = (
    Metric("virtual_s", "time", "total time", "total", "s", "less", 1, TIME),
    Metric("round_median_s", "time", ROUND_MEDIAN.name, "round", "s", "less", 3, TIME),
    Metric("device_s", "time", "device-seconds", "device-s", "", "less", 1, TIME),
    Metric("wall_s", "time", "machine time", "machine", "s", "less", 1, TIME),
    Metric("energy_j", "exchange", "energy", "energy", "J", "less", 1, ENERGY_SUM),
    Metric("tau_median_s", "exchange", TAU_MEDIAN.name, "tau", "s", "less", 3, TIME),
    Metric("tau_p95_s", "exchange", TAU_P95.name, "p95 tau", "s", "less", 3, TIME),
    Metric("min_rate_selected", "selection", "min rate selected", "min sel", "", "more", 3, RATE),
    Metric(
        "min_rate_aggregated", "selection", "min rate aggregated", "min agg", "", "more", 3, RATE
    ),
    Metric("jain", "selection", "Jain", "Jain", "", "more", 3, SELECTIONS),
    Metric(
        "queue_mean_total", "selection", QUEUE_MEAN_SUM.name, "mean sum Z", "", "less", 1, QUEUE
    ),
    Metric("queue_max", "selection", QUEUE_MAX.name, "max Z", "", "less", 2, QUEUE),
    Metric("mape", "prediction", ERROR_MEAN.name, "mean err", "", "less", 3, PREDICTION_ERROR),
    Metric(
        "median_ape", "prediction", ERROR_MEDIAN.name, "med err", "", "less", 3, PREDICTION_ERROR
    ),
    Metric("accuracy_mean", "accuracy", "final accuracy", "acc", "", "more", 3, SHARE),
    Metric("accuracy_worst10", "accuracy", "worst 10 %", "worst", "", "more", 3, WORST_SHARE),
    Metric("accuracy_variance", "accuracy", "variance", "var", "", "less", 4, VARIANCE),
    Metric("auroc_mean", "quality", "AUROC", "AUROC", "", "more", 3, SHARE),
    Metric("auroc_pooled", "quality", "AUROC of all examples", "AUROC all", "", "more", 3, SHARE),
    Metric("perplexity", "quality", "perplexity", "ppl", "", "less", 3, ERROR),
    Metric("exact_match_mean", "quality", "whole examples", "whole", "", "more", 3, SHARE),
    Metric("iou_mean", "quality", "IoU of classes", "IoU", "", "more", 3, SHARE),
    Metric(
        "class_accuracy_mean", "quality", "accuracy of a class", "class acc", "", "more", 3, SHARE
    ),
    Metric("rmse_mean", "quality", "RMSE", "RMSE", "", "less", 3, ERROR),
    Metric("rmse_worst10", "quality", "worst 10 % RMSE", "RMSE worst", "", "less", 3, ERROR),
    Metric("r2_pooled", "quality", "R2 of all examples", "R2", "", "more", 3, R_SQUARED),
    Metric("accuracy_pooled", "fairness", "accuracy by examples", "acc by n", "", "more", 3, SHARE),
    Metric("accuracy_gini", "fairness", "Gini of accuracy", "Gini", "", "less", 4, SHARE),
    Metric("accuracy_gap", "fairness", "accuracy parity gap", "gap", "", "less", 3, DEVICE_SHARE),
    *_without_noise("fairness", "accuracy", "", ""),
    Metric(
        "weight_divergence",
        "fairness",
        "divergence of weights from n",
        "KL of n",
        "nats",
        None,
        3,
        NATS,
    ),
    Metric("utility_log_product", "fairness", "log U(Multi)", "log U", "", "more", 3, LOG_UTILITY),
    Metric(
        "personal_accuracy_mean", "personal", "personal accuracy", "personal", "", "more", 3, SHARE
    ),
    Metric(
        "personal_accuracy_worst10",
        "personal",
        "personal worst 10 %",
        "p worst",
        "",
        "more",
        3,
        WORST_SHARE,
    ),
    Metric(
        "personal_accuracy_variance",
        "personal",
        "personal variance",
        "p var",
        "",
        "less",
        4,
        VARIANCE,
    ),
    *_without_noise("personal", "personal_accuracy", "personal ", "p "),
    Metric("benign_accuracy_mean", "attack", "benign accuracy", "benign", "", "more", 3, SHARE),
    Metric(
        "benign_accuracy_worst10",
        "attack",
        "benign worst 10 %",
        "b worst",
        "",
        "more",
        3,
        WORST_SHARE,
    ),
    Metric(
        "benign_accuracy_variance", "attack", "benign variance", "b var", "", "less", 4, VARIANCE
    ),
    *_without_noise("attack", "benign_accuracy", "benign ", "b "),
    Metric("benign_loss_mean", "attack", "benign loss", "b loss", "nats", "less", 3, ERROR),
    Metric(
        "malicious_selections",
        "attack",
        "malicious selections",
        "mal sel",
        "",
        "less",
        3,
        SELECTIONS,
    ),
    Metric("malicious_weight", "attack", "malicious weight", "mal w", "", "less", 3, RATE),
    Metric("epsilon_max", "privacy", "largest epsilon", "epsilon", "", None, 2, COUNT),
)
"""Metrics of every run; those of a target or a budget are added when these are known."""
TOTAL_TIME, FINAL_ACCURACY, MACHINE_TIME = "virtual_s", "accuracy_mean", "wall_s"
FINAL_ERROR = "rmse_mean"
"""Of regression, which has no accuracy."""
ENERGY = "energy_j"
"""Known where the profile of every device has its power."""
SCORES = tuple(metric.key for metric in METRICS if metric.group == "accuracy")
"""Metrics of each evaluation: columns of its row in the store."""
QUALITY = tuple(metric.key for metric in METRICS if metric.group == "quality")
"""Metrics of the last evaluation that only some tasks have."""
FAIRNESS = tuple(metric.key for metric in METRICS if metric.group == "fairness")
"""Metrics of the last evaluation; utilities compare only under the same `aggregation.M`."""
UPDATES = "updates"
"""Updates aggregated so far: progress without training."""

PERSONAL = tuple(metric.key for metric in METRICS if metric.group == "personal")
"""Metrics of runs whose devices train personal models."""
UNDER_ATTACK = tuple(metric.key for metric in METRICS if metric.group == "attack")
"""Metrics of a comparison in which an experiment has `[fleet.malicious]`."""
UNDER_ATTACK_IF_TRAINED = tuple(key for key in UNDER_ATTACK if key != "malicious_selections")
"""Those that need training."""


class RunCurves(Struct, frozen=True, kw_only=True):
    """A run over time; times are seconds of the fleet, without evaluation."""

    rounds: tuple[int, ...]
    closed_s: tuple[float, ...]
    """End of each of these rounds."""
    device_s: tuple[float, ...]
    """Device-seconds up to the end of each of these rounds."""
    updates: tuple[int, ...]
    """Updates aggregated up to the end of each of these rounds."""
    queue_total: tuple[float, ...]
    """Sum of Z after each of these rounds; empty if unknown."""
    evaluated: tuple[int, ...]
    """All rounds after which the model was evaluated."""
    evaluated_s: tuple[float, ...]
    evaluated_device_s: tuple[float, ...]
    scores: dict[str, tuple[float, ...]]
    """Metrics of each evaluation, by the keys of `SCORES`."""

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Mean accuracy over devices of each evaluation."""
        return self.scores[FINAL_ACCURACY]


class RunMeasures(Struct, frozen=True, kw_only=True):
    """Metrics and curves of a finished run."""

    values: dict[str, float | None]
    """Values by the keys of `METRICS`; None is undefined or unknown."""
    missing: dict[str, str]
    """Why a value is None, by its key; the reasons of equal causes are equal texts."""
    size: RunSize
    curves: RunCurves
    warnings: dict[str, str] = {}
    """First text of each kind of warning of the run (`RunSummary.warnings`)."""
    inputs: dict[str, str] = {}
    """Hash of each input (`testbed.inputs`), and versions of packages."""
    has_attack: bool = False
    """Whether its experiment has `[fleet.malicious]`, which may make no device malicious."""


def measure(folder: Path) -> RunMeasures:
    """Return the metrics and curves of a finished run.

    Raises:
        StoreError: There is no run, or its store cannot be read.
    """
    with RunReader(folder) as reader:
        summary = summarise_run(reader)
        rounds, counts = reader.rounds(), reader.selection_counts()
        evaluations, device_s = reader.metrics(), device_seconds(reader)
        queues = _queues(reader, rounds, counts)
        tested = sum(row.n for row in reader.device_metrics())
    personal, energy = summary.personal, summary.energy
    privacy, auroc, error = summary.privacy, summary.auroc, summary.error
    positions = summary.positions
    values = {
        "virtual_s": summary.virtual_s,
        "round_median_s": summary.round_s.median,
        "device_s": summary.device_s,
        "wall_s": summary.wall_s,
        "energy_j": energy.total_j if energy is not None and energy.is_complete else None,
        "tau_median_s": summary.exchange.median_s,
        "tau_p95_s": summary.exchange.p95_s,
        "min_rate_selected": _least_rate(counts, "selected"),
        "min_rate_aggregated": _least_rate(counts, "aggregated"),
        "jain": summary.fairness.jain,
        "queue_mean_total": float(queues.total.mean()) if queues and rounds else None,
        "queue_max": float(queues.largest.max()) if queues and rounds else None,
        "mape": summary.estimator.mape_second_half,
        "median_ape": summary.estimator.median_ape,
        "accuracy_mean": summary.accuracy.mean,
        "accuracy_worst10": summary.accuracy.worst10,
        "accuracy_variance": summary.accuracy.variance,
        "accuracy_pooled": summary.accuracy.pooled,
        "accuracy_gini": summary.accuracy.gini,
        "accuracy_gap": summary.accuracy.gap,
        **_noise_values("accuracy", summary.accuracy.noise),
        "auroc_mean": auroc.mean if auroc else None,
        "auroc_pooled": auroc.pooled if auroc else None,
        "perplexity": positions.perplexity if positions else None,
        "exact_match_mean": positions.exact_match_mean if positions else None,
        "iou_mean": positions.iou_mean if positions else None,
        "class_accuracy_mean": positions.class_accuracy_mean if positions else None,
        "rmse_mean": error.rmse_mean if error else None,
        "rmse_worst10": error.rmse_worst10 if error else None,
        "r2_pooled": error.r2_pooled if error else None,
        "weight_divergence": summary.weights.divergence,
        "utility_log_product": summary.utility.log_product,
        "personal_accuracy_mean": personal.accuracy_mean if personal else None,
        "personal_accuracy_worst10": personal.accuracy_worst10 if personal else None,
        "personal_accuracy_variance": personal.accuracy_variance if personal else None,
        **_noise_values("personal_accuracy", personal.noise if personal else None),
        **_under_attack(summary),
        "epsilon_max": privacy.epsilon_max if privacy else None,
    }
    if not tested and evaluations and evaluations[-1].test_n is not None:
        tested = evaluations[-1].test_n
    size = RunSize(
        rounds=max(1, len(rounds)),
        devices=max(1, summary.devices),
        selections=max(1, sum(count.selected for count in counts)),
        test_examples=tested or None,
    )
    missing = {key: _why_missing(key, summary) for key, value in values.items() if value is None}
    curves = _curves(rounds, device_s, queues, evaluations)
    return RunMeasures(
        values=values,
        missing=missing,
        size=size,
        curves=curves,
        warnings={warning.kind: warning.text for warning in summary.warnings},
        inputs=inputs_in(summary.provenance),
        has_attack=summary.attackers is not None,
    )


def _why_missing(key: str, summary: RunSummary) -> str:
    """Return why a run lacks a metric; without numbers of the run, so that equal causes agree."""
    group = {metric.key: metric.group for metric in METRICS}[key]
    was_evaluated = summary.accuracy.mean is not None or summary.error is not None
    if group in ("accuracy", "quality", "fairness") and key != "weight_divergence":
        if not was_evaluated:
            return "the model was not evaluated"
        if key == "utility_log_product":
            return f"the loss of a device is at least aggregation.M = {summary.utility.M:g}"
        is_regression = summary.task == "regression"
        if key.startswith("accuracy") and is_regression:
            return "the task is regression"
        if key.endswith(OF_NOISE):
            return "fewer than two devices have held-out examples, or all accuracies are equal"
        if key == "accuracy_gini":
            return "every accuracy is 0"
        if key.startswith("auroc"):
            return "no device has held-out examples of both classes"
        if key in ("perplexity", "exact_match_mean"):
            return "no class is predicted at several positions of an example"
        if key in ("iou_mean", "class_accuracy_mean"):
            return "none of up to 256 classes is predicted at several positions of an example"
        if key.startswith(("rmse", "r2")):
            return "the model has diverged" if is_regression else "the task is not regression"
        return "no device has held-out examples"
    if key == ENERGY:
        return "the power of a device is unknown"
    return _WHY_MISSING.get(key, _WHY_MISSING.get(group, "it was not recorded"))


_WHY_MISSING = {
    "round_median_s": "every round was void",
    "exchange": "too few timed exchanges",
    "prediction": "too few timed exchanges with a prediction",
    "jain": "no device was selected",
    "queue_mean_total": "the selection history is too large for queues",
    "queue_max": "the selection history is too large for queues",
    "selection": "the store has no selections by device",
    "weight_divergence": "no update was aggregated",
    "personal": "no personal model was tested",
    "malicious_selections": "no device is malicious",
    "malicious_weight": "no update was aggregated, or no device is malicious",
    "attack": "no benign device has held-out examples, or no device is malicious",
    "privacy": "no local noise, or its accountant is not installed",
}
"""Why a run lacks a metric, by its key or its group."""


def _noise_values(key: str, noise: SamplingNoise | None) -> dict[str, float | None]:
    """Return the values of the metrics of `_without_noise`."""
    return {
        f"{key}_worst10_shrunken": noise.worst10_shrunken if noise else None,
        f"{key}_variance_corrected": noise.variance_corrected if noise else None,
        f"{key}_worst10_noise": noise.worst10_share if noise else None,
        f"{key}_variance_noise": noise.variance_share if noise else None,
    }


NOISE = "_noise"
"""Ends the key of a share of noise; before it is the key of the metric."""
OF_NOISE = ("_shrunken", "_corrected", NOISE)
"""Ends of the keys of `_without_noise`."""


def inputs_in(provenance: Provenance) -> dict[str, str]:
    """Return the inputs of a run, and the versions of packages."""
    return provenance.packages | provenance.inputs


def _under_attack(summary: RunSummary) -> dict[str, float | None]:
    """Return the metrics of benign and malicious devices; all devices are benign without attack."""
    found = summary.attackers
    if found is not None:
        return {
            "benign_accuracy_mean": found.accuracy_mean,
            "benign_accuracy_worst10": found.accuracy_worst10,
            "benign_accuracy_variance": found.accuracy_variance,
            **_noise_values("benign_accuracy", found.noise),
            "benign_loss_mean": found.loss_mean,
            "malicious_selections": found.selection_share,
            "malicious_weight": found.weight_share,
        }
    if summary.status in LIVE:  # its malicious devices are not revealed
        return dict.fromkeys(UNDER_ATTACK)
    return {
        "benign_accuracy_mean": summary.accuracy.mean,
        "benign_accuracy_worst10": summary.accuracy.worst10,
        "benign_accuracy_variance": summary.accuracy.variance,
        **_noise_values("benign_accuracy", summary.accuracy.noise),
        "benign_loss_mean": summary.loss.mean,
        "malicious_selections": 0.0 if any(summary.selected.values()) else None,
        "malicious_weight": None if summary.weights.divergence is None else 0.0,
    }


def _least_rate(
    counts: Sequence[SelectionCounts], kind: Literal["selected", "aggregated"]
) -> float | None:
    """Return the lowest count / (rounds since the device joined) over all devices."""
    if not counts:
        return None
    n_times = np.array([getattr(count, kind) for count in counts], dtype=np.int64)
    rounds = np.array([count.rounds for count in counts], dtype=np.int64)
    return float(selection_rates(n_times, rounds).min())


def _queues(
    reader: RunReader, rounds: Sequence[RoundRow], counts: Sequence[SelectionCounts]
) -> VirtualQueues | None:
    """Return the queues of the policy; those of the selection history if it has no queues."""
    beta = reader.plan.selection.beta
    if reader.plan.beta is None and beta is not None:
        return virtual_queues_of(reader, [row.round for row in rounds], counts, beta)
    return VirtualQueues(
        np.array([row.queue_total for row in rounds]), np.array([row.queue_max for row in rounds])
    )


def _curves(
    rounds: Sequence[RoundRow],
    device_s: Floats,
    queues: VirtualQueues | None,
    evaluations: Sequence[MetricRow],
) -> RunCurves:
    ends: Floats = np.cumsum([row.duration_s for row in rounds], dtype=np.float64)
    updates = np.cumsum([row.aggregated for row in rounds], dtype=np.int64)
    index = {row.round: position for position, row in enumerate(rounds)}
    known = [row for row in evaluations if row.round in index and row.accuracy_mean is not None]
    at = np.array([index[row.round] for row in known], dtype=np.int64)
    every = max(1, -(-len(rounds) // MAX_POINTS))
    shown = slice(every - 1, None, every)
    return RunCurves(
        rounds=tuple(row.round for row in rounds[shown]),
        closed_s=tuple(ends[shown].tolist()),
        device_s=tuple(device_s[shown].tolist()),
        updates=tuple(updates[shown].tolist()),
        queue_total=tuple(queues.total[shown].tolist()) if queues else (),
        evaluated=tuple(row.round for row in known),
        evaluated_s=tuple(ends[at].tolist()),
        evaluated_device_s=tuple(device_s[at].tolist()),
        scores={key: tuple(getattr(row, key) for row in known) for key in SCORES},
    )
