"""The catalogue of the numbers of a run, and of its newest round and evaluation."""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from fairbed.coordinator.report.measures.entry import (
    BYTES,
    FOUR_DIGITS,
    JOULES,
    PERCENT,
    RATIO,
    SECONDS,
    SIGNED_PERCENT,
    TWO_DIGITS,
    WHOLE,
    Compared,
    Evaluation,
    Format,
    Group,
    Round,
    RunMeasure,
    Summary,
    Tile,
)
from fairbed.coordinator.report.measures.scales import (
    COUNT,
    DEVICE_SHARE,
    ENERGY_SUM,
    ERROR,
    LOG_UTILITY,
    NATS,
    NOISE_RATIO,
    PREDICTION_ERROR,
    QUEUE,
    R_SQUARED,
    RATE,
    SELECTIONS,
    SHARE,
    TIME,
    VARIANCE,
    WORST_SHARE,
    MetricKind,
)
from fairbed.coordinator.report.quantities import MISSING, clock, device_time
from fairbed.coordinator.store.reader import LIVE

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.sampling_noise import SamplingNoise
    from fairbed.coordinator.report.facts import RunFacts
    from fairbed.coordinator.report.summary_schema import Attackers, RunSummary

TOO_FEW = "too few timed exchanges"
NO_HISTORY = "the store has no selections by device"
NO_QUEUES = "the store has no selections of all devices, or too many for queues"
NO_TESTS = "no device has held-out examples"
NO_BENIGN = "no benign device has held-out examples, or no device is malicious"
NO_PERSONAL = "no personal model was tested"
NO_NOISE = "fewer than two devices have held-out examples, or all accuracies are equal"

CLOCK = Format(lambda value: MISSING if value is None else clock(value))
DEVICE_TIME = Format(lambda value: MISSING if value is None else device_time(value))

Better = Literal["less", "more"]


def _evaluated(reason: str, needs: str = "") -> "Callable[[RunSummary], str]":
    """Return why a run lacks a number of the model's newest evaluation.

    Args:
        reason: Why an evaluated model lacks it.
        needs: `accuracy` or `error`: what the task must have; empty: either.
    """

    def why(s: "RunSummary") -> str:
        if s.accuracy.mean is None and s.error is None:
            return "the model was not evaluated"
        is_regression = s.task == "regression"
        if needs == "accuracy" and is_regression:
            return "the task is regression"
        if needs == "error":
            return "the model has diverged" if is_regression else "the task is not regression"
        return reason

    return why


def _no_utility(s: "RunSummary") -> str:
    reason = f"the loss of a device is at least aggregation.M = {s.utility.M:g}"
    return _evaluated(reason)(s)


def _fair(name: str) -> "Callable[[RunFacts], float | None]":
    """Return the source of a number of the fairness of the selection."""
    return lambda facts: getattr(facts.fairness, name)


def _guarantee_holds(facts: "RunFacts") -> float | None:
    holds = facts.fairness.invariant_holds
    return None if holds is None else float(holds)


def _queue(name: str) -> "Callable[[RunFacts], float | None]":
    """Return the source of a virtual queue after the newest round; none under a policy without."""

    def source(facts: "RunFacts") -> float | None:
        row = facts.newest
        if row is None or not (facts.fairness.beta is not None or row.queue_max):
            return None
        value: float = getattr(row, name)
        return value

    return source


def _mean_queue_sum(facts: "RunFacts") -> float | None:
    return float(facts.queues.total.mean()) if facts.queues else None


def _largest_queue(facts: "RunFacts") -> float | None:
    return float(facts.queues.largest.max()) if facts.queues else None


def _whole_energy(s: "RunSummary") -> float | None:
    return s.energy.total_j if s.energy is not None and s.energy.is_complete else None


def _of_benign(
    of_attackers: "Callable[[Attackers], float | None]",
    of_all: "Callable[[RunSummary], float | None]",
) -> Summary:
    """Return the source of a number of benign devices; without an attack all are benign."""

    def value(s: "RunSummary") -> float | None:
        if s.attackers is not None:
            return of_attackers(s.attackers)
        return None if s.status in LIVE else of_all(s)

    return Summary(value)


def _part_of_noise(name: str) -> "Callable[[SamplingNoise | None], float | None]":
    get = attrgetter(name)
    return lambda noise: None if noise is None else get(noise)


def _noise(
    key: str,
    group: Group,
    of: str,
    short: str,
    source: "Callable[[str], Summary]",
    why_none: "str | Callable[[RunSummary], str]",
) -> tuple[RunMeasure, ...]:
    """Return worst 10 % and variance corrected for the noise of the test sets, and its shares.

    Args:
        key: Begins the keys.
        group: Group of the comparison.
        of: Begins the names.
        short: Begins the short headings.
        source: Gives the source of a field of the noise.
        why_none: Why a run lacks them.
    """
    worst, variance = f"{of}worst 10 %", f"{of}variance"

    def one(ending: str, name: str, meaning: str, part: str, compare: Compared) -> RunMeasure:
        return RunMeasure(
            key=f"{key}_{ending}",
            name=name,
            meaning=meaning,
            source=source(part),
            why_none=why_none,
            compare=compare,
        )

    def compared(heading: str, better: Better | None, kind: MetricKind, digits: int) -> Compared:
        return Compared(
            group=group, short=f"{short}{heading}", better=better, kind=kind, digits=digits
        )

    return (
        one(
            "worst10_shrunken",
            f"{worst}, shrunken",
            "Worst 10 % of the posterior means of the accuracies",
            "worst10_shrunken",
            compared("worst shr", "more", WORST_SHARE, 3),
        ),
        one(
            "variance_corrected",
            f"{variance}, corrected",
            "Population variance of the accuracies without the noise of the test sets",
            "variance_corrected",
            compared("var cor", "less", VARIANCE, 4),
        ),
        one(
            "worst10_noise",
            f"noise in {worst}",
            "Share of its distance from the mean that identical devices would show",
            "worst10_share",
            compared("worst noise", None, NOISE_RATIO, 2),
        ),
        one(
            "variance_noise",
            f"noise in {variance}",
            "Share of the variance that is noise of the test sets",
            "variance_share",
            compared("var noise", None, NOISE_RATIO, 2),
        ),
    )


def _global_noise(part: str) -> Summary:
    get = _part_of_noise(part)
    return Summary(lambda s: get(s.accuracy.noise))


def _personal_noise(part: str) -> Summary:
    get = _part_of_noise(part)
    return Summary(lambda s: get(s.personal.noise) if s.personal else None)


def _benign_noise(part: str) -> Summary:
    get = _part_of_noise(part)
    return _of_benign(lambda a: get(a.noise), lambda s: get(s.accuracy.noise))


TIMES = (
    RunMeasure(
        key="virtual_s",
        name="total time",
        meaning="Sum of the durations of all rounds, without evaluation",
        source=Summary("virtual_s"),
        unit="s",
        format=CLOCK,
        json="virtual_s",
        show="rounds",
        report="in rounds",
        compare=Compared(group="time", short="total", better="less", kind=TIME, digits=1),
    ),
    RunMeasure(
        key="round_median_s",
        name="median round",
        meaning="Median duration of the rounds that are not void",
        source=Summary("round_s.median"),
        unit="s",
        format=SECONDS,
        why_none="every round was void",
        json="round_s.median",
        show="rounds",
        report="Speed",
        compare=Compared(group="time", short="round", better="less", kind=TIME),
    ),
    RunMeasure(
        key="round_p95_s",
        name="p95 round",
        meaning="95th percentile of the durations of the rounds that are not void",
        source=Summary("round_s.p95"),
        unit="s",
        format=SECONDS,
        why_none="every round was void",
        json="round_s.p95",
        show="rounds",
    ),
    RunMeasure(
        key="device_s",
        name="device-seconds",
        meaning="Time in which the devices were busy for the run, summed over the devices",
        source=Summary("device_s"),
        format=DEVICE_TIME,
        json="device_s",
        show="rounds",
        compare=Compared(group="time", short="device-s", better="less", kind=TIME, digits=1),
    ),
    RunMeasure(
        key="wall_s",
        name="machine time",
        meaning="Real time from the start to the last record",
        source=Summary("wall_s"),
        unit="s",
        format=CLOCK,
        json="wall_s",
        show="rounds",
        compare=Compared(group="time", short="machine", better="less", kind=TIME, digits=1),
    ),
    RunMeasure(
        key="round_duration_s",
        name="round",
        meaning="Duration of the newest closed round",
        source=Round("duration_s"),
        unit="s",
        format=SECONDS,
        tensorboard="round/duration_s",
    ),
    RunMeasure(
        key="round_longest_exchange_s",
        name="longest exchange",
        meaning="Longest exchange time of the newest closed round",
        source=Round("tau_max_s"),
        unit="s",
        format=SECONDS,
        tensorboard="round/longest_exchange_s",
    ),
    RunMeasure(
        key="round_loss_query_s",
        name="loss queries",
        meaning="Loss queries before the dispatch of the newest closed round",
        source=Round("loss_query_s"),
        unit="s",
        format=SECONDS,
        tensorboard="round/loss_query_s",
    ),
    RunMeasure(
        key="round_close_s",
        name="closing",
        meaning="From the last arrival to the next model, in the newest closed round",
        source=Round("close_s"),
        unit="s",
        format=SECONDS,
        tensorboard="round/close_s",
    ),
    RunMeasure(
        key="event_loop_lag_s",
        name="event loop lag",
        meaning="99th percentile of the delay of the coordinator's event loop in the newest round",
        source=Round("lag_p99_s"),
        unit="s",
        format=SECONDS,
        prometheus="event_loop_lag_seconds",
        tensorboard="round/event_loop_lag_s",
    ),
)
"""Times."""

EXCHANGES = (
    RunMeasure(
        key="energy_j",
        name="energy",
        meaning="Sum of the known energies of exchanges",
        source=Summary(_whole_energy),
        unit="J",
        format=JOULES,
        why_none="the power of a device is unknown",
        json="energy.total_j",
        show="energy",
        report="energy",
        compare=Compared(
            group="exchange", short="energy", better="less", kind=ENERGY_SUM, digits=1
        ),
    ),
    RunMeasure(
        key="tau_median_s",
        name="median exchange",
        meaning="Median exchange time of the timed exchanges",
        source=Summary("exchange.median_s"),
        unit="s",
        format=SECONDS,
        why_none=TOO_FEW,
        json="exchange.median_s",
        show="exchanges",
        report="median exchange",
        compare=Compared(group="exchange", short="tau", better="less", kind=TIME),
    ),
    RunMeasure(
        key="tau_p95_s",
        name="p95 exchange",
        meaning="95th percentile of the exchange time of the timed exchanges",
        source=Summary("exchange.p95_s"),
        unit="s",
        format=SECONDS,
        why_none=TOO_FEW,
        json="exchange.p95_s",
        show="exchanges",
        compare=Compared(group="exchange", short="p95 tau", better="less", kind=TIME),
    ),
    RunMeasure(
        key="unaccounted_ratio",
        name="in no phase",
        meaning="Median over timed exchanges of their share in no phase",
        source=Summary("exchange.unaccounted_ratio"),
        format=PERCENT,
        why_none=TOO_FEW,
        json="exchange.unaccounted_ratio",
        show="exchanges",
    ),
    RunMeasure(
        key="cell_wait_ratio",
        name="lost to others in a cell",
        meaning="Median over exchanges of devices in cells of the share lost to other devices",
        source=Summary("exchange.cell_wait_ratio"),
        format=PERCENT,
        why_none=TOO_FEW,
        json="exchange.cell_wait_ratio",
        show="exchanges",
    ),
    RunMeasure(
        key="down_bytes",
        name="down",
        meaning="Bytes of models on the network",
        source=Summary("bytes.down"),
        unit="byte",
        format=BYTES,
        json="bytes.down",
        show="traffic",
        report="Cost",
    ),
    RunMeasure(
        key="up_bytes",
        name="up",
        meaning="Bytes of updates on the network",
        source=Summary("bytes.up"),
        unit="byte",
        format=BYTES,
        json="bytes.up",
        show="traffic",
        report="Cost",
    ),
    RunMeasure(
        key="round_down_bytes",
        name="down",
        meaning="Bytes of models sent in the newest closed round",
        source=Round("bytes_down"),
        unit="byte",
        format=BYTES,
        tensorboard="network/down_bytes",
    ),
    RunMeasure(
        key="round_up_bytes",
        name="up",
        meaning="Bytes of updates received in the newest closed round",
        source=Round("bytes_up"),
        unit="byte",
        format=BYTES,
        tensorboard="network/up_bytes",
    ),
)
"""Exchanges: their times, energy and bytes."""

SELECTION = (
    RunMeasure(
        key="beta",
        name="guaranteed rate",
        meaning="Selection rate that the policy guarantees",
        source=_fair("beta"),
        why_none="the policy guarantees no rate",
        json="fairness.beta",
        show="selection",
        prometheus="selection_rate_guaranteed_ratio",
    ),
    RunMeasure(
        key="min_rate_selected",
        name="min rate selected",
        meaning="Lowest selections / rounds of a device since it joined",
        source=_fair("min_selection_rate"),
        why_none=NO_HISTORY,
        json="fairness.min_selection_rate",
        show="selection",
        report="lowest selection rate",
        compare=Compared(group="selection", short="min sel", better="more", kind=RATE),
        prometheus="selection_rate_min_ratio",
    ),
    RunMeasure(
        key="min_rate_aggregated",
        name="min rate aggregated",
        meaning="Lowest aggregated updates / rounds of a device since it joined",
        source=_fair("min_aggregation_rate"),
        why_none=NO_HISTORY,
        json="fairness.min_aggregation_rate",
        show="selection",
        compare=Compared(group="selection", short="min agg", better="more", kind=RATE),
        prometheus="aggregation_rate_min_ratio",
    ),
    RunMeasure(
        key="jain",
        name="Jain",
        meaning="Jain index of the selection counts: 1 if all are equal",
        source=_fair("jain"),
        why_none="no device was selected",
        json="fairness.jain",
        show="selection",
        report="Guarantee",
        compare=Compared(group="selection", short="Jain", better="more", kind=SELECTIONS),
        prometheus="selection_jain_ratio",
    ),
    RunMeasure(
        key="guarantee_holds",
        name="bound holds",
        meaning="1 if every device has its guaranteed rate up to its virtual queue, else 0",
        source=_guarantee_holds,
        format=WHOLE,
        why_none="the policy guarantees no rate",
        json="fairness.invariant_holds",
        show="bound",
        prometheus="guarantee_holds",
    ),
    RunMeasure(
        key="queue_total",
        name="virtual queues: sum",
        meaning="Sum of the virtual queues over devices after the newest closed round",
        source=_queue("queue_total"),
        format=TWO_DIGITS,
        why_none="the policy has no virtual queues",
        json="queues.total",
        show="fairness",
        report="Guarantee",
        room=Tile(
            label="QUEUES ΣZ",
            help="Sum of the virtual queues over devices after the newest closed round: what the "
            "fleet lacks for its guarantee.",
            priority=10,
        ),
        prometheus="virtual_queues",
    ),
    RunMeasure(
        key="queue_largest",
        name="virtual queues: largest",
        meaning="Largest virtual queue of a device after the newest closed round",
        source=_queue("queue_max"),
        format=TWO_DIGITS,
        why_none="the policy has no virtual queues",
        json="queues.largest",
        show="fairness",
        report="Guarantee",
        prometheus="virtual_queue_largest",
    ),
    RunMeasure(
        key="round_queue_sum",
        name="queues: sum",
        meaning="Sum of the virtual queues over devices after a round, 0 without queues",
        source=Round("queue_total"),
        format=TWO_DIGITS,
        tensorboard="queues/sum",
    ),
    RunMeasure(
        key="round_queue_largest",
        name="queues: largest",
        meaning="Largest virtual queue of a device after a round, 0 without queues",
        source=Round("queue_max"),
        format=TWO_DIGITS,
        tensorboard="queues/largest",
    ),
    RunMeasure(
        key="queue_mean_total",
        name="virtual queues: mean sum",
        meaning="Mean over all rounds of the sum of the virtual queues; in comparisons, for a "
        "policy without queues, of those that RBCS-F would have",
        source=_mean_queue_sum,
        format=TWO_DIGITS,
        why_none=NO_QUEUES,
        json="queues.mean_total",
        show="fairness",
        compare=Compared(
            group="selection", short="mean sum Z", better="less", kind=QUEUE, digits=1
        ),
    ),
    RunMeasure(
        key="queue_max",
        name="virtual queues: max",
        meaning="Largest virtual queue of a device after any round of the run; in comparisons as "
        "the mean sum",
        source=_largest_queue,
        format=TWO_DIGITS,
        why_none=NO_QUEUES,
        json="queues.max",
        show="fairness",
        compare=Compared(group="selection", short="max Z", better="less", kind=QUEUE, digits=2),
    ),
    RunMeasure(
        key="round_available",
        name="available devices",
        meaning="Devices that were available at the newest selection",
        source=Round("available"),
        format=WHOLE,
        prometheus="round_available_devices",
        tensorboard="devices/available",
    ),
    RunMeasure(
        key="round_selected",
        name="selected devices",
        meaning="Devices that were selected for the newest closed round",
        source=Round("selected"),
        format=WHOLE,
        prometheus="round_selected_devices",
        tensorboard="devices/selected",
    ),
    RunMeasure(
        key="round_aggregated",
        name="aggregated updates",
        meaning="Updates that were aggregated in the newest closed round",
        source=Round("aggregated"),
        format=WHOLE,
        prometheus="round_aggregated_devices",
        tensorboard="devices/aggregated",
    ),
)
"""Selection: rates, queues and cohorts."""

PREDICTION = (
    RunMeasure(
        key="mape",
        name="mean error of predictions",
        meaning="Mean of |predicted - measured| / measured, second half of the rounds",
        source=Summary("estimator.mape_second_half"),
        format=PERCENT,
        why_none="too few timed exchanges with a prediction",
        json="estimator.mape_second_half",
        show="prediction",
        report="Speed",
        compare=Compared(
            group="prediction", short="mean err", better="less", kind=PREDICTION_ERROR
        ),
    ),
    RunMeasure(
        key="median_ape",
        name="median error of predictions",
        meaning="Median of the same errors, second half of the rounds",
        source=Summary("estimator.median_ape"),
        format=PERCENT,
        why_none="too few timed exchanges with a prediction",
        json="estimator.median_ape",
        show="prediction",
        report="Speed",
        compare=Compared(group="prediction", short="med err", better="less", kind=PREDICTION_ERROR),
    ),
    RunMeasure(
        key="prediction_bias",
        name="bias of predictions",
        meaning="Mean of (predicted - measured) / measured; positive if predictions are too long, "
        "second half of the rounds",
        source=Summary("estimator.bias"),
        format=SIGNED_PERCENT,
        why_none="too few timed exchanges with a prediction",
        json="estimator.bias",
        show="prediction",
        report="Speed",
    ),
)
"""Predictions of exchange times."""


def _of_model(
    column: str,
    name: str,
    meaning: str,
    *,
    why_none: "str | Callable[[RunSummary], str]" = "",
    format: Format = RATIO,
    json: str = "",
    show: str = "",
    report: str = "",
    room: Tile | None = None,
    compare: Compared | None = None,
    prometheus: str = "",
    tensorboard: str = "",
) -> RunMeasure:
    """Return a column of the newest evaluation, whose name is the key."""
    return RunMeasure(
        key=column,
        name=name,
        meaning=meaning,
        source=Evaluation(column),
        format=format,
        why_none=why_none or _evaluated(NO_TESTS),
        json=json,
        show=show,
        report=report,
        room=room,
        compare=compare,
        prometheus=prometheus and f"model_{prometheus}",
        tensorboard=tensorboard,
    )


_NO_ACCURACY = _evaluated(NO_TESTS, "accuracy")
_NO_AUROC = _evaluated("no device has held-out examples of both classes")
_NO_POSITIONS = _evaluated("no class is predicted at several positions of an example")
_NO_CLASSES = _evaluated(
    "none of up to 256 classes is predicted at several positions of an example"
)
_NO_ERROR = _evaluated("", "error")

MODEL = (
    _of_model(
        "accuracy_mean",
        "final accuracy",
        "Accuracy on held-out data, mean over devices",
        why_none=_NO_ACCURACY,
        json="accuracy.mean",
        show="accuracy",
        report="accuracy, mean over devices",
        room=Tile(
            label="ACCURACY",
            help="Mean over devices, each on its own held-out examples; RMSE of regression.",
            priority=1,
        ),
        compare=Compared(group="accuracy", short="acc", better="more", kind=SHARE),
        prometheus="accuracy_mean_ratio",
        tensorboard="accuracy/mean",
    ),
    _of_model(
        "accuracy_worst10",
        "worst 10 %",
        "Mean accuracy of the worst tenth of the devices",
        why_none=_NO_ACCURACY,
        json="accuracy.worst10",
        show="accuracy",
        report="accuracy, worst 10 %",
        room=Tile(label="WORST 10 %", help="Mean over the worst tenth of the devices.", priority=5),
        compare=Compared(group="accuracy", short="worst", better="more", kind=WORST_SHARE),
        prometheus="accuracy_worst10_ratio",
        tensorboard="accuracy/worst10",
    ),
    _of_model(
        "accuracy_variance",
        "variance",
        "Population variance of the accuracies over devices",
        format=FOUR_DIGITS,
        why_none=_NO_ACCURACY,
        json="accuracy.variance",
        show="spread",
        report="Accuracy",
        compare=Compared(group="accuracy", short="var", better="less", kind=VARIANCE, digits=4),
    ),
    _of_model(
        "auroc_mean",
        "AUROC",
        "Area under the ROC curve, mean over the devices with both classes",
        why_none=_NO_AUROC,
        json="auroc.mean",
        show="AUROC",
        report="AUROC, mean over devices",
        compare=Compared(group="quality", short="AUROC", better="more", kind=SHARE),
        prometheus="auroc_mean_ratio",
        tensorboard="auroc/mean",
    ),
    _of_model(
        "auroc_pooled",
        "AUROC of all examples",
        "Area under the ROC curve over the examples of all devices",
        why_none=_NO_AUROC,
        json="auroc.pooled",
        show="AUROC",
        compare=Compared(group="quality", short="AUROC all", better="more", kind=SHARE),
        prometheus="auroc_pooled_ratio",
        tensorboard="auroc/pooled",
    ),
    _of_model(
        "perplexity",
        "perplexity",
        "exp of the loss over all positions",
        why_none=_NO_POSITIONS,
        json="positions.perplexity",
        show="positions",
        report="perplexity of positions",
        compare=Compared(group="quality", short="ppl", better="less", kind=ERROR),
        prometheus="perplexity",
        tensorboard="perplexity/pooled",
    ),
    _of_model(
        "exact_match_mean",
        "whole examples",
        "Share of examples that are right at all positions, mean over devices",
        format=PERCENT,
        why_none=_NO_POSITIONS,
        json="positions.exact_match_mean",
        show="positions",
        compare=Compared(group="quality", short="whole", better="more", kind=SHARE),
        prometheus="exact_match_mean_ratio",
        tensorboard="exact_match/mean",
    ),
    _of_model(
        "iou_mean",
        "IoU of classes",
        "Intersection over union of the classes, mean over devices",
        why_none=_NO_CLASSES,
        json="positions.iou_mean",
        show="classes",
        compare=Compared(group="quality", short="IoU", better="more", kind=SHARE),
        prometheus="iou_mean_ratio",
        tensorboard="iou/mean",
    ),
    _of_model(
        "class_accuracy_mean",
        "accuracy of a class",
        "Accuracy of a class at positions, mean over classes, then devices",
        why_none=_NO_CLASSES,
        json="positions.class_accuracy_mean",
        show="classes",
        compare=Compared(group="quality", short="class acc", better="more", kind=SHARE),
        prometheus="class_accuracy_mean_ratio",
        tensorboard="class_accuracy/mean",
    ),
    _of_model(
        "rmse_mean",
        "RMSE",
        "Root mean squared error, mean over devices",
        why_none=_NO_ERROR,
        json="error.rmse_mean",
        show="error",
        report="RMSE, mean over devices",
        compare=Compared(group="quality", short="RMSE", better="less", kind=ERROR),
        prometheus="rmse_mean",
        tensorboard="rmse/mean",
    ),
    _of_model(
        "rmse_worst10",
        "worst 10 % RMSE",
        "Mean error of the worst tenth of the devices",
        why_none=_NO_ERROR,
        json="error.rmse_worst10",
        show="error",
        report="RMSE, worst 10 %",
        compare=Compared(group="quality", short="RMSE worst", better="less", kind=ERROR),
        prometheus="rmse_worst10",
        tensorboard="rmse/worst10",
    ),
    _of_model(
        "r2_pooled",
        "R2 of all examples",
        "Coefficient of determination over the examples of all devices",
        why_none=_NO_ERROR,
        json="error.r2_pooled",
        show="spread",
        report="Error",
        compare=Compared(group="quality", short="R2", better="more", kind=R_SQUARED),
    ),
    _of_model(
        "accuracy_pooled",
        "accuracy by examples",
        "Accuracy over the held-out examples of all devices",
        why_none=_NO_ACCURACY,
        json="accuracy.pooled",
        show="spread",
        compare=Compared(group="fairness", short="acc by n", better="more", kind=SHARE),
        prometheus="accuracy_pooled_ratio",
        tensorboard="accuracy/pooled",
    ),
    _of_model(
        "accuracy_gini",
        "Gini of accuracy",
        "Gini coefficient of the accuracies over devices; unknown if every accuracy is 0",
        why_none=_evaluated("every accuracy is 0", "accuracy"),
        json="accuracy.gini",
        show="accuracy",
        compare=Compared(group="fairness", short="Gini", better="less", kind=SHARE, digits=4),
    ),
    _of_model(
        "accuracy_gap",
        "accuracy parity gap",
        "Accuracy of the best minus that of the worst device",
        why_none=_NO_ACCURACY,
        json="accuracy.gap",
        show="spread",
        compare=Compared(group="fairness", short="gap", better="less", kind=DEVICE_SHARE),
        tensorboard="accuracy/gap",
    ),
    *_noise("accuracy", "fairness", "", "", _global_noise, _evaluated(NO_NOISE, "accuracy")),
    _of_model(
        "accuracy_best10",
        "best 10 %",
        "Mean accuracy of the best tenth of the devices",
        why_none=_NO_ACCURACY,
        json="accuracy.best10",
        show="accuracy",
        report="Accuracy",
        prometheus="accuracy_best10_ratio",
        tensorboard="accuracy/best10",
    ),
    RunMeasure(
        key="accuracy_std",
        name="standard deviation",
        meaning="Population standard deviation of the accuracies over devices",
        source=Summary("accuracy.std"),
        why_none=_NO_ACCURACY,
        json="accuracy.std",
        show="spread",
    ),
    RunMeasure(
        key="accuracy_jain",
        name="Jain index of accuracy",
        meaning="Jain index of the accuracies over devices; unknown if every accuracy is 0",
        source=Summary("accuracy.jain"),
        why_none=_NO_ACCURACY,
        json="accuracy.jain",
        show="spread",
    ),
    RunMeasure(
        key="accuracy_worst10_pooled",
        name="worst 10 % by examples",
        meaning="Correct / examples of the worst tenth of the devices",
        source=Summary("accuracy.worst10_pooled"),
        why_none=_NO_ACCURACY,
        json="accuracy.worst10_pooled",
        show="spread",
    ),
    _of_model(
        "rmse_best10",
        "best 10 % RMSE",
        "Mean error of the best tenth of the devices",
        why_none=_NO_ERROR,
        json="error.rmse_best10",
        show="error",
        report="Error",
    ),
    _of_model(
        "rmse_std",
        "spread of the RMSE",
        "Population standard deviation of the error over devices",
        why_none=_NO_ERROR,
        json="error.rmse_std",
        show="spread",
    ),
    _of_model(
        "rmse_gap",
        "error gap",
        "Error of the worst minus that of the best device",
        why_none=_NO_ERROR,
        json="error.rmse_gap",
        show="spread",
    ),
    _of_model(
        "loss_mean",
        "loss",
        "Loss on held-out data, mean over devices: nats, or half the squared error of regression",
        json="loss.mean",
        show="accuracy",
        room=Tile(
            label="LOSS",
            help="Mean over devices: nats, or half the squared error of regression.",
            priority=9,
        ),
        prometheus="loss_mean",
        tensorboard="loss/mean",
    ),
    _of_model(
        "loss_std",
        "spread of the loss",
        "Standard deviation of the loss over devices",
        json="loss.std",
        show="accuracy",
        tensorboard="loss/std",
    ),
    _of_model(
        "test_accuracy",
        "accuracy of the test set",
        "Accuracy on the server's test set",
        json="accuracy.test_set",
        prometheus="test_accuracy_ratio",
        tensorboard="accuracy/test_set",
    ),
    _of_model(
        "test_loss",
        "loss of the test set",
        "Loss on the server's test set",
        tensorboard="loss/test_set",
    ),
    _of_model(
        "auroc_worst10",
        "worst 10 % AUROC",
        "Mean area under the ROC curve of the worst tenth of the devices",
        why_none=_NO_AUROC,
        json="auroc.worst10",
        show="AUROC",
        prometheus="auroc_worst10_ratio",
        tensorboard="auroc/worst10",
    ),
    _of_model(
        "test_auroc",
        "AUROC of the test set",
        "Area under the ROC curve on the server's test set",
        why_none=_NO_AUROC,
        json="auroc.test_set",
        prometheus="test_auroc_ratio",
        tensorboard="auroc/test_set",
    ),
    _of_model(
        "exact_match_pooled",
        "whole examples of all",
        "Share of the examples of all devices that are right at all positions",
        format=PERCENT,
        why_none=_NO_POSITIONS,
        json="positions.exact_match_pooled",
        show="positions",
        tensorboard="exact_match/pooled",
    ),
    _of_model(
        "iou_pooled",
        "IoU of all positions",
        "Intersection over union of the classes over all positions, mean over classes",
        why_none=_NO_CLASSES,
        json="positions.iou_pooled",
        show="classes",
        tensorboard="iou/pooled",
    ),
    _of_model(
        "class_accuracy_pooled",
        "accuracy of a class, all positions",
        "Accuracy of a class over all positions, mean over classes",
        why_none=_NO_CLASSES,
        json="positions.class_accuracy_pooled",
        show="classes",
        tensorboard="class_accuracy/pooled",
    ),
    _of_model(
        "rmse_pooled",
        "RMSE of all examples",
        "Root mean squared error over the examples of all devices",
        why_none=_NO_ERROR,
        json="error.rmse_pooled",
        show="spread",
        prometheus="rmse_pooled",
        tensorboard="rmse/pooled",
    ),
    _of_model(
        "mae_mean",
        "mean absolute error",
        "Mean absolute error, mean over devices",
        why_none=_NO_ERROR,
        json="error.mae_mean",
        show="error",
        prometheus="mae_mean",
        tensorboard="mae/mean",
    ),
    _of_model(
        "test_rmse",
        "RMSE of the test set",
        "Root mean squared error on the server's test set",
        why_none=_NO_ERROR,
        json="error.test_set",
        prometheus="test_rmse",
        tensorboard="rmse/test_set",
    ),
)
"""The global model in the newest evaluation."""

AGGREGATION = (
    RunMeasure(
        key="weight_divergence",
        name="divergence of weights from n",
        meaning="Mean over rounds of the Kullback-Leibler divergence of the weights from the "
        "shares of the examples",
        source=Summary("weights.divergence"),
        unit="nats",
        why_none="no update was aggregated",
        json="weights.divergence",
        show="weights",
        compare=Compared(group="fairness", short="KL of n", better=None, kind=NATS),
    ),
    RunMeasure(
        key="utility_log_product",
        name="log U(Multi)",
        meaning="Sum over devices of log(aggregation.M - loss)",
        source=Summary("utility.log_product"),
        why_none=_no_utility,
        json="utility.log_product",
        compare=Compared(group="fairness", short="log U", better="more", kind=LOG_UTILITY),
    ),
)
"""The merge."""

PERSONAL = (
    RunMeasure(
        key="personal_accuracy_mean",
        name="personal accuracy",
        meaning="Accuracy of the personal models on held-out data, mean over devices",
        source=Summary("personal.accuracy_mean"),
        why_none=NO_PERSONAL,
        json="personal.accuracy_mean",
        show="personal",
        report="Accuracy",
        compare=Compared(group="personal", short="personal", better="more", kind=SHARE),
    ),
    RunMeasure(
        key="personal_accuracy_worst10",
        name="personal worst 10 %",
        meaning="Mean accuracy of the worst tenth of the personal models",
        source=Summary("personal.accuracy_worst10"),
        why_none=NO_PERSONAL,
        json="personal.accuracy_worst10",
        show="personal",
        compare=Compared(group="personal", short="p worst", better="more", kind=WORST_SHARE),
    ),
    RunMeasure(
        key="personal_accuracy_variance",
        name="personal variance",
        meaning="Population variance of the accuracies of the personal models",
        source=Summary("personal.accuracy_variance"),
        format=FOUR_DIGITS,
        why_none=NO_PERSONAL,
        json="personal.accuracy_variance",
        compare=Compared(group="personal", short="p var", better="less", kind=VARIANCE, digits=4),
    ),
    *_noise("personal_accuracy", "personal", "personal ", "p ", _personal_noise, NO_PERSONAL),
)
"""Personal models."""

ATTACK = (
    RunMeasure(
        key="benign_accuracy_mean",
        name="benign accuracy",
        meaning="Accuracy on held-out data, mean over benign devices",
        source=_of_benign(lambda a: a.accuracy_mean, lambda s: s.accuracy.mean),
        why_none=NO_BENIGN,
        json="attackers.accuracy_mean",
        show="benign",
        report="Problems",
        compare=Compared(group="attack", short="benign", better="more", kind=SHARE),
    ),
    RunMeasure(
        key="benign_accuracy_worst10",
        name="benign worst 10 %",
        meaning="Mean accuracy of the worst tenth of the benign devices",
        source=_of_benign(lambda a: a.accuracy_worst10, lambda s: s.accuracy.worst10),
        why_none=NO_BENIGN,
        json="attackers.accuracy_worst10",
        show="benign",
        compare=Compared(group="attack", short="b worst", better="more", kind=WORST_SHARE),
    ),
    RunMeasure(
        key="benign_accuracy_variance",
        name="benign variance",
        meaning="Population variance of the accuracies over benign devices",
        source=_of_benign(lambda a: a.accuracy_variance, lambda s: s.accuracy.variance),
        format=FOUR_DIGITS,
        why_none=NO_BENIGN,
        json="attackers.accuracy_variance",
        compare=Compared(group="attack", short="b var", better="less", kind=VARIANCE, digits=4),
    ),
    *_noise("benign_accuracy", "attack", "benign ", "b ", _benign_noise, NO_BENIGN),
    RunMeasure(
        key="benign_loss_mean",
        name="benign loss",
        meaning="Loss on held-out data, mean over benign devices",
        source=_of_benign(lambda a: a.loss_mean, lambda s: s.loss.mean),
        unit="nats",
        why_none=NO_BENIGN,
        json="attackers.loss_mean",
        show="benign",
        compare=Compared(group="attack", short="b loss", better="less", kind=ERROR),
    ),
    RunMeasure(
        key="malicious_selections",
        name="malicious selections",
        meaning="Selections of malicious devices / selections",
        source=_of_benign(
            lambda a: a.selection_share,
            lambda s: 0.0 if any(s.selected.values()) else None,
        ),
        format=PERCENT,
        why_none="no device is malicious",
        json="attackers.selection_share",
        show="malicious",
        compare=Compared(group="attack", short="mal sel", better="less", kind=SELECTIONS),
    ),
    RunMeasure(
        key="malicious_weight",
        name="malicious weight",
        meaning="Sum of the weights of the updates of malicious devices, mean over merges",
        source=_of_benign(
            lambda a: a.weight_share,
            lambda s: None if s.weights.divergence is None else 0.0,
        ),
        format=PERCENT,
        why_none="no update was aggregated, or no device is malicious",
        json="attackers.weight_share",
        show="malicious",
        report="Problems",
        compare=Compared(group="attack", short="mal w", better="less", kind=RATE),
    ),
)
"""Malicious and benign devices."""

PRIVACY = (
    RunMeasure(
        key="epsilon_max",
        name="largest epsilon",
        meaning="epsilon of the device that has sent the most updates with local noise",
        source=Summary("privacy.epsilon_max"),
        why_none="no local noise, or its accountant is not installed",
        json="privacy.epsilon_max",
        show="privacy",
        compare=Compared(group="privacy", short="epsilon", better=None, kind=COUNT, digits=2),
    ),
)
"""Local noise."""

RUN: tuple[RunMeasure, ...] = (
    *TIMES,
    *EXCHANGES,
    *SELECTION,
    *PREDICTION,
    *MODEL,
    *AGGREGATION,
    *PERSONAL,
    *ATTACK,
    *PRIVACY,
)
"""All of them; a comparison has them in this order."""
