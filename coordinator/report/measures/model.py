"""The numbers of the global model in the newest evaluation, and of the merge."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from fairbed.coordinator.algorithms.fairness import tenths_by_examples
from fairbed.coordinator.report.measures.entry import (
    FOUR_DIGITS,
    OWN,
    PERCENT,
    RATIO,
    WHOLE,
    Compared,
    Evaluation,
    Format,
    Group,
    Number,
    RunMeasure,
    Summary,
    Tile,
)
from fairbed.coordinator.report.measures.noise import Better, noise_measures, part_of_noise
from fairbed.coordinator.report.measures.scales import (
    DEVICE_SHARE,
    ERROR,
    LOG_UTILITY,
    NATS,
    PRODUCT,
    R_SQUARED,
    SHARE,
    VARIANCE,
    WORST_SHARE,
    MetricKind,
)

if TYPE_CHECKING:
    from fairbed.coordinator.report.facts import RunFacts
    from fairbed.coordinator.report.summary_schema import RunSummary

NO_CLASSES_OF_DEVICES = "no device has held-out examples of both classes"
NO_TESTS = "no device has held-out examples"
NO_NOISE = "fewer than two devices have held-out examples, or all accuracies are equal"


def _evaluated(reason: str, needs: str = "") -> "Callable[[RunSummary], str]":
    """Return why a run lacks a number of the model's newest evaluation.

    Args:
        reason: Why an evaluated model lacks it.
        needs: `accuracy` or `error`: what the task must have; empty: either.
    """

    def why(s: "RunSummary") -> str:
        if s.accuracy.mean is None and s.error is None:
            is_known = s.has_client and s.loss.mean is not None
            return "the client measures none" if is_known else "the model was not evaluated"
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


def _no_product(s: "RunSummary") -> str:
    if s.utility.log_product is not None:
        return "it is too large for a number; log U(Multi) has it"
    return _no_utility(s)


def _global_noise(part: str) -> Summary:
    get = part_of_noise(part)
    return Summary(lambda s: get(s.accuracy.noise))


def _shown(
    short: str,
    better: Better,
    kind: MetricKind,
    *,
    group: Group = "fairness",
    digits: int = 3,
    heading: str = "",
) -> Compared:
    """Return how a measure is compared whose differences are tested where a grid declares it."""
    return Compared(
        group=group,
        short=short,
        better=better,
        kind=kind,
        digits=digits,
        heading=heading,
        is_tested=False,
    )


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
_NO_AUROC = _evaluated(NO_CLASSES_OF_DEVICES)
_NO_POSITIONS = _evaluated("no class is predicted at several positions of an example")
_NO_CLASSES = _evaluated(
    "none of up to 256 classes is predicted at several positions of an example"
)
_NO_ERROR = _evaluated("", "error")

_NO_METRIC = _evaluated("evaluation.worst names no metric, or no device has a value of it")


def _of_tenths(part: str) -> "Callable[[RunFacts], Number]":
    """Return the source of a number of the AUROC over devices."""

    def source(facts: "RunFacts") -> Number:
        rows = [row for row in facts.device_metrics.values() if row.auroc is not None]
        if not rows:
            return Number(None, None, NO_CLASSES_OF_DEVICES)
        found = tenths_by_examples(
            np.array([row.auroc for row in rows], dtype=np.float64),
            np.array([row.n for row in rows], dtype=np.int64),
        )
        value = float(getattr(found, part))
        return Number(value) if np.isfinite(value) else Number(None, None, "every AUROC is 0")

    return source


def _devices_with_auroc(facts: "RunFacts") -> Number:
    count = sum(row.auroc is not None for row in facts.device_metrics.values())
    return Number(float(count)) if count else Number(None, None, NO_CLASSES_OF_DEVICES)


def _of_auroc(
    key: str,
    name: str,
    meaning: str,
    source: "Callable[[RunFacts], Number]",
    compare: Compared | None,
    *,
    format: Format = RATIO,
    report: str = "",
) -> RunMeasure:
    """Return a number of the AUROC over devices, computed from their rows."""
    return RunMeasure(
        key=key,
        name=name,
        meaning=meaning,
        source=source,
        format=format,
        why_none=_NO_AUROC,
        json=f"{OWN}{key}",
        show="AUROC",
        report=report,
        applies=lambda s: s.auroc is not None,
        compare=compare,
    )


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
        compare=Compared(has_table=True, group="accuracy", short="acc", better="more", kind=SHARE),
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
        compare=Compared(
            has_table=True, group="accuracy", short="worst", better="more", kind=WORST_SHARE
        ),
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
        "metric_mean",
        "metric",
        "Mean over devices in the metric that evaluation.worst names",
        format=FOUR_DIGITS,
        why_none=_NO_METRIC,
        prometheus="metric_mean",
        tensorboard="metric/mean",
    ),
    _of_model(
        "metric_worst10",
        "worst 10 % of the metric",
        "Mean of the worst tenth of the devices in the metric that evaluation.worst names",
        format=FOUR_DIGITS,
        why_none=_NO_METRIC,
        room=Tile(
            label="WORST 10 % OF METRIC",
            help="Mean of the worst tenth of the devices in the metric of evaluation.worst, in the "
            "place of that of accuracy.",
            priority=5,
        ),
        prometheus="metric_worst10",
        tensorboard="metric/worst10",
    ),
    _of_model(
        "metric_pooled",
        "metric of all examples",
        "Metric of evaluation.worst over the examples of all devices",
        format=FOUR_DIGITS,
        why_none=_NO_METRIC,
        prometheus="metric_pooled",
        tensorboard="metric/pooled",
    ),
    _of_model(
        "auroc_mean",
        "AUROC",
        "Area under the ROC curve, mean over the devices with both classes",
        why_none=_NO_AUROC,
        json="auroc.mean",
        show="AUROC",
        report="AUROC, mean over devices",
        compare=Compared(has_table=True, group="quality", short="AUROC", better="more", kind=SHARE),
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
        compare=Compared(has_table=True, group="quality", short="RMSE", better="less", kind=ERROR),
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
        compare=Compared(
            has_table=True, group="quality", short="RMSE worst", better="less", kind=ERROR
        ),
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
    *noise_measures(
        "accuracy",
        "fairness",
        "",
        "",
        _global_noise,
        _evaluated(NO_NOISE, "accuracy"),
        has_table=True,
    ),
    _of_model(
        "accuracy_best10",
        "best 10 %",
        "Mean accuracy of the best tenth of the devices",
        why_none=_NO_ACCURACY,
        json="accuracy.best10",
        show="accuracy",
        report="Accuracy",
        compare=_shown("best", "more", WORST_SHARE),
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
        compare=_shown("worst by n", "more", WORST_SHARE),
    ),
    RunMeasure(
        key="accuracy_best10_pooled",
        name="best 10 % by examples",
        meaning="Correct / examples of the best tenth of the devices",
        source=Summary("accuracy.best10_pooled"),
        why_none=_NO_ACCURACY,
        json="accuracy.best10_pooled",
        compare=_shown("best by n", "more", WORST_SHARE),
    ),
    _of_model(
        "rmse_best10",
        "best 10 % RMSE",
        "Mean error of the best tenth of the devices",
        why_none=_NO_ERROR,
        json="error.rmse_best10",
        show="error",
        report="Error",
        compare=_shown("RMSE best", "less", ERROR, group="quality"),
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
        compare=_shown("AUROC worst", "more", WORST_SHARE, group="quality"),
        prometheus="auroc_worst10_ratio",
        tensorboard="auroc/worst10",
    ),
    _of_auroc(
        "auroc_best10",
        "best 10 % AUROC",
        "Mean area under the ROC curve of the best tenth of the devices",
        _of_tenths("best10_of_devices"),
        _shown("AUROC best", "more", WORST_SHARE, group="quality"),
    ),
    _of_auroc(
        "auroc_gini",
        "Gini of AUROC",
        "Gini coefficient of the AUROC over the devices with both classes",
        _of_tenths("gini"),
        _shown("AUROC Gini", "less", SHARE, digits=4),
        format=FOUR_DIGITS,
        report="Gini of AUROC",
    ),
    _of_auroc(
        "auroc_by_examples",
        "AUROC by examples",
        "Area under the ROC curve, mean over devices, each weighted by its held-out examples",
        _of_tenths("mean"),
        _shown("AUROC by n", "more", SHARE, group="quality"),
    ),
    _of_auroc(
        "auroc_worst10_by_examples",
        "worst 10 % AUROC by examples",
        "Area under the ROC curve, mean over the worst tenth of the devices by examples",
        _of_tenths("worst10"),
        _shown("AUROC worst by n", "more", WORST_SHARE, group="quality"),
    ),
    _of_auroc(
        "auroc_best10_by_examples",
        "best 10 % AUROC by examples",
        "Area under the ROC curve, mean over the best tenth of the devices by examples",
        _of_tenths("best10"),
        _shown("AUROC best by n", "more", WORST_SHARE, group="quality"),
    ),
    _of_auroc(
        "auroc_devices",
        "devices with both classes",
        "Devices whose held-out examples have both classes: those that the AUROC is over",
        _devices_with_auroc,
        None,
        format=WHOLE,
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
        compare=Compared(group="quality", short="RMSE by n", better="less", kind=ERROR),
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
        key="utility_average",
        name="U(Average)",
        meaning="Mean over devices of the utility aggregation.M - loss",
        source=Summary("utility.average"),
        unit="nats",
        why_none=_no_utility,
        json="utility.average",
        show="utility",
        compare=_shown("U(Average)", "more", LOG_UTILITY),
    ),
    RunMeasure(
        key="utility_least",
        name="least utility",
        meaning="Least utility of a device",
        source=Summary("utility.least"),
        unit="nats",
        why_none=_no_utility,
        json="utility.least",
        show="utility",
        compare=_shown("least U", "more", LOG_UTILITY),
    ),
    RunMeasure(
        key="utility_product",
        name="U(Multi)",
        meaning="Product over devices of their utilities",
        source=Summary("utility.product"),
        why_none=_no_product,
        json="utility.product",
        show="utility",
        compare=_shown("U(Multi)", "more", PRODUCT),
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
