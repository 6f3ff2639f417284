"""What an evaluation measures beside the loss: by task, from counts and scores.

    classification    correct: positions whose largest logit is that of their label
    two classes       also AUROC, the area under the receiver operating characteristic curve
    classes at        also the intersection over union and the accuracy of each class, and their
    positions         means, up to `wire.artifact.MAX_COUNTED` classes
    multi-label       correct labels, and the mean of the AUROC of each label
    regression        mean absolute error and R2, the coefficient of determination

An example has one position, or several: the tokens of a text, the pixels of a picture, its labels.
Then `exact` counts the examples that are right at all of them. The loss is the mean over positions:
the cross-entropy in nats, or half the squared error, so that sqrt(2 loss) is the RMSE.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Targets: TypeAlias = NDArray[np.int64] | NDArray[np.float32]
"""What a model shall predict, shape (n, *y_shape): classes, int64, or numbers, float32, for
regression. With a y_shape, a class of -1 is a position without a label."""

ClassCounts: TypeAlias = NDArray[np.int64]
"""Positions of each class that are right, that are predicted so, and that have it as label, shape
(3, classes): those of batches and devices add up."""

Sums: TypeAlias = NDArray[np.float64]
"""Sum and weight of a metric, shape (2, columns): those of batches and devices add up."""

Scores: TypeAlias = NDArray[np.float32]
"""One number per target, in its shape: the prediction, z_1 - z_0 of two logits, or the logit of a
label."""


def positions_of(y: Targets) -> NDArray[np.int64]:
    """Return the number of positions of each example that have a target, shape (n,).

    That is 1 for y of shape (n,), and every number of regression; it depends on y alone.
    """
    if are_complete(y):
        return np.full(len(y), math.prod(y.shape[1:]), np.int64)
    counts: NDArray[np.int64] = (y.reshape(len(y), -1) >= 0).sum(axis=1, dtype=np.int64)
    return counts


def are_complete(y: Targets) -> bool:
    """Return whether all positions of all examples must have a target: all but token labels."""
    return y.ndim == 1 or y.dtype.kind == "f"


def mean_weights(y: Targets, factor: float = 1.0) -> NDArray[np.float32]:
    """Return the weight of each example in a mean over all positions, 1 / sum c_j, shape (n,).

    All are multiplied by `factor`.
    """
    positions = y.size if are_complete(y) else int(positions_of(y).sum())
    return np.full(len(y), factor / positions, np.float32)


def unlabelled(y: Targets) -> int | None:
    """Return the first example without a target at any position; None if there is none."""
    counts = positions_of(y)
    return None if counts.all() else int(np.argmin(counts))


class Evaluation(NamedTuple):
    """Evaluation of a model on a batch of examples; sums and counts of batches add up."""

    loss_sum: float
    """Sum of the losses over the positions."""
    correct: int
    """Positions that are classified correctly; 0 for regression."""
    scores: Scores | None = None
    """Of each target; None for three classes or more, and for positions other than labels."""
    exact: int = 0
    """Examples that are classified correctly at all positions; 0 with one position each."""
    absolute_sum: float = 0.0
    """Sum of |y - prediction| over the positions of regression; 0 with one position each."""
    class_counts: ClassCounts | None = None
    """None unless `TaskSpec.counts_classes`."""
    count_sum: float | None = None
    """Sum of the weights c of the examples in the loss; None: the number of their positions."""
    square_sum: float | None = None
    """Sum of the squared errors of regression; None: twice the loss."""
    metrics: tuple[Sums, ...] = ()
    """Sum and weight of each of `TaskSpec.named_metrics`, shape (2, columns)."""

    def loss_of(self, y: Targets) -> float:
        """Return the mean loss, given the targets of these examples; NaN if none has a weight."""
        count = self.count_sum
        if count is None:
            return self.loss_sum / int(positions_of(y).sum())
        return self.loss_sum / count if count else math.nan

    @classmethod
    def of_outputs(cls, found: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation in the outputs of a graph (`TaskSpec.evaluation_outputs`)."""
        return cls(
            loss_sum=float(found["loss_sum"]),
            correct=int(found.get("correct_sum", 0)),
            scores=found.get("scores"),
            exact=int(found.get("exact_sum", 0)),
            absolute_sum=float(found.get("absolute_sum", 0.0)),
            class_counts=found.get("class_counts"),
            count_sum=_optional(found, "count_sum"),
            square_sum=_optional(found, "square_sum"),
            metrics=tuple(
                np.asarray(found[f"metric.{at}"], np.float64).reshape(2, -1)
                for at in range(len(found))
                if f"metric.{at}" in found
            ),
        )

    @classmethod
    def pooled(cls, parts: Sequence["Evaluation"]) -> "Evaluation":
        """Return the evaluation of all examples; without scores if a part has none."""
        scores = [part.scores for part in parts if part.scores is not None]
        counts = [part.class_counts for part in parts if part.class_counts is not None]
        return cls(
            loss_sum=sum((part.loss_sum for part in parts), 0.0),
            correct=sum(part.correct for part in parts),
            scores=np.concatenate(scores) if scores and len(scores) == len(parts) else None,
            exact=sum(part.exact for part in parts),
            absolute_sum=sum((part.absolute_sum for part in parts), 0.0),
            class_counts=np.sum(counts, axis=0) if counts else None,
            count_sum=_sum_known(part.count_sum for part in parts),
            square_sum=_sum_known(part.square_sum for part in parts),
            metrics=tuple(
                np.sum(each, axis=0) for each in zip(*(p.metrics for p in parts), strict=True)
            ),
        )


def _optional(found: Mapping[str, Any], name: str) -> float | None:
    return float(found[name]) if name in found else None


def _sum_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


@dataclass(frozen=True, slots=True)
class Quality:
    """What an evaluation measured beside the loss; None for what its task does not have."""

    correct: int | None = None
    """Positions that are classified correctly."""
    auroc: float | None = None
    """None also if all examples are of one class, or a score is not finite; of labels the mean."""
    mae: float | None = None
    """Mean absolute error; infinite if a prediction is not finite."""
    r2: float | None = None
    """None also if all targets are equal, or a prediction is not finite."""
    positions: int | None = None
    """Positions with a target; None with one each, so that examples count."""
    exact: int | None = None
    """Examples that are classified correctly at all positions; None with one position each."""
    iou: float | None = None
    """Intersection over union, the mean of the classes that are a label or predicted somewhere."""
    class_accuracy: float | None = None
    """Accuracy of the positions of each class, the mean of the classes that are a label."""
    rmse: float | None = None
    """Root mean squared error with another loss than half the square; None: it follows from it."""
    sums: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Sums, then weights, of the metrics by name (`wire.named_metrics`)."""

    @classmethod
    def of(cls, y: Targets, found: Evaluation) -> "Quality":
        """Return the measures of the task that targets and evaluation belong to.

        Args:
            y: Shape (n, *y_shape), n >= 1; float32 for regression.
            found: Evaluation of all these examples.
        """
        scores = found.scores
        positions = None if y.ndim == 1 else int(positions_of(y).sum())
        if y.dtype.kind != "f":
            exact = None if y.ndim == 1 else found.exact
            area = None if scores is None else auroc(y, scores)
            counts = found.class_counts
            return cls(
                correct=found.correct,
                auroc=area,
                positions=positions,
                exact=exact,
                iou=None if counts is None else mean_defined(class_ious(counts)),
                class_accuracy=None if counts is None else mean_defined(class_accuracies(counts)),
            )
        squares, rmse = found.square_sum, None
        if squares is not None:
            rmse = math.sqrt(squares / y.size) if 0.0 <= squares < math.inf else math.inf
        if scores is not None:
            return cls(mae=mean_absolute_error(y, scores), r2=r_squared(y, scores), rmse=rmse)
        mean = found.absolute_sum / y.size
        mae = mean if math.isfinite(mean) else math.inf
        error = 2.0 * found.loss_sum if squares is None else squares
        return cls(mae=mae, r2=_r_squared(y, error), positions=positions, rmse=rmse)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a model predicts of an example."""

    kind: str = "classification"
    """`wire.artifact.TaskKind`, or `client`: what the client of the task measures."""
    y_shape: tuple[int, ...] = ()
    """Shape of the targets; () is one class or number."""
    has_own_loss: bool = False
    """The loss is not that of the kind."""
    sums: tuple[tuple[str, int], ...] = ()
    """Name of each metric by name, and how many sums and weights it has."""
    has_signed_loss: bool = False
    """The loss may be below 0."""


ONE_CLASS = Predicted()
"""One of several classes."""

OF_CLIENT = Predicted("client")
"""Whatever a client predicts: it may report an accuracy, and always a loss."""


class Measured(Protocol):
    """What a device reports of a model on its test examples: a message with these fields."""

    @property
    def n(self) -> int:
        """Number of examples."""
        ...

    @property
    def positions(self) -> int | None:
        """Positions with a target; None with one position each."""
        ...

    @property
    def correct(self) -> int | None:
        """As in `Quality`; likewise the others."""
        ...

    @property
    def auroc(self) -> float | None:
        """Only with two classes, and for multi-label."""
        ...

    @property
    def mae(self) -> float | None:
        """Only for regression."""
        ...

    @property
    def r2(self) -> float | None:
        """Only for regression."""
        ...

    @property
    def exact(self) -> int | None:
        """Only for classes at several positions; likewise the next two."""
        ...

    @property
    def iou(self) -> float | None:
        """None also for many classes."""
        ...

    @property
    def class_accuracy(self) -> float | None:
        """As the one before."""
        ...

    @property
    def rmse(self) -> float | None:
        """Only for regression with another loss."""
        ...

    @property
    def sums(self) -> Mapping[str, tuple[float, ...]]:
        """Of the metrics by name; empty in a personal score."""
        ...


def fault_in_measures(task: Predicted, found: Measured) -> str | None:
    """Return what is missing or impossible in the report of a device; None if nothing is."""
    if not found.n:
        return None
    most = math.prod(task.y_shape) * found.n
    if found.sums and {name: len(x) for name, x in found.sums.items()} != dict(task.sums):
        return "must have the sums of the metrics of the run"
    if task.kind == "regression" and task.has_own_loss and found.rmse is None:
        return "must have the root mean squared error (rmse)"
    if not task.y_shape and found.positions is not None:
        return "must have no positions, as each example has one target"
    if task.y_shape and (found.positions is None or not found.n <= found.positions <= most):
        return f"must have {found.n} to {most} positions, got {found.positions}"
    if task.kind == "regression":
        return None if found.mae is not None else "must have the mean absolute error (mae)"
    if task.kind == "client":
        return None
    if found.correct is None:
        return "must have the number of correct test examples"
    if task.y_shape and found.exact is None:
        return "must have the number of examples that are correct at all positions (exact)"
    return None


def quality_in(task: Predicted, found: Measured) -> Quality:
    """Return what a device reports, which has no fault."""
    if task.kind == "regression":
        rmse, sums = found.rmse if task.has_own_loss else None, found.sums
        return Quality(mae=found.mae, r2=found.r2, positions=found.positions, rmse=rmse, sums=sums)
    if task.kind == "client":
        return Quality(correct=found.correct)
    exact = found.exact if task.y_shape else None
    positions = found.positions
    return Quality(
        correct=found.correct,
        auroc=found.auroc,
        positions=positions,
        exact=exact,
        iou=found.iou if task.y_shape else None,
        class_accuracy=found.class_accuracy if task.y_shape else None,
        sums=found.sums,
    )


def class_ious(counts: ClassCounts) -> NDArray[np.float64]:
    """Return the intersection over union of each class, shape (classes,).

        IoU_c = right_c / (predicted_c + labelled_c - right_c), NaN if the class is neither

    Source:
        Everingham et al., IJCV 88 (2010), section 4.3 (segmentation accuracy).
    """
    right, predicted, labelled = counts
    return _ratios(right, predicted + labelled - right)


def class_accuracies(counts: ClassCounts) -> NDArray[np.float64]:
    """Return the share of right positions of each class, shape (classes,); NaN without labels."""
    return _ratios(counts[0], counts[2])


def _ratios(part: NDArray[np.int64], of: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return part / of; NaN where `of` is 0."""
    ratios = np.full(len(of), np.nan)
    np.divide(part, of, out=ratios, where=of > 0)
    return ratios


def mean_defined(values: NDArray[np.float64]) -> float | None:
    """Return the mean of the values that are not NaN; None if all are."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def auroc(y: Targets, scores: Scores) -> float | None:
    """Return the area under the ROC curve, exact: a tie of two classes counts one half.

        AUROC = (sum over positives i, negatives j of [s_i > s_j] + 1/2 [s_i = s_j]) / (P N)

    Of several labels it is the mean over those that occur and are lacking ("macro").

    Args:
        y: Classes, 0 or 1, shape (n,), or labels, shape (n, L), with -1 where one is unknown.
        scores: Larger means more likely of class 1, in the shape of y.

    Returns:
        None if all examples are of one class, or a score is not finite.

    Source:
        Mann-Whitney U / (P N): Hanley & McNeil, Radiology 143 (1982).
    """
    if y.ndim > 1:
        columns = zip(y.T, scores.T, (y >= 0).T, strict=True)
        areas = [auroc(labels[known], found[known]) for labels, found, known in columns]
        defined = [area for area in areas if area is not None]
        return sum(defined) / len(defined) if defined else None
    is_positive = y == 1
    positives = int(np.count_nonzero(is_positive))
    negatives = len(y) - positives
    if not positives or not negatives or not np.isfinite(scores).all():
        return None
    values, place = np.unique(scores, return_inverse=True)
    of_positives = np.bincount(place[is_positive], minlength=len(values))
    of_negatives = np.bincount(place[~is_positive], minlength=len(values))
    below = np.cumsum(of_negatives) - of_negatives
    twice = int(of_positives @ (2 * below + of_negatives))
    return twice / (2 * positives * negatives)


def mean_absolute_error(y: Targets, predictions: Scores) -> float:
    """Return the mean of |y - prediction|, both of shape (n,); infinite if it is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(np.abs(y.astype(np.float64) - predictions).mean())
    return mean if math.isfinite(mean) else math.inf


def r_squared(y: Targets, predictions: Scores) -> float | None:
    """Return 1 - sum (y - prediction)^2 / sum (y - mean y)^2, both of shape (n,).

    None if all targets are equal, or a prediction is not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.square(y.astype(np.float64) - predictions).sum())
    return _r_squared(y, error)


def _r_squared(y: Targets, error: float) -> float | None:
    """Return R2 of targets of any shape, given the sum of the squared errors."""
    return Spread.of(y).r_squared(error)


class Spread(NamedTuple):
    """Squared deviations of targets from the mean of each output; those of devices can be joined.

    R2 of several outputs is 1 minus the errors of all of them divided by all these deviations: each
    output weighs by its variance, and 0 is as good as predicting the mean of each.

    Source:
        Chan, Golub & LeVeque, The American Statistician 37 (1983), eq. 2.1 (joining).
    """

    n: int
    mean: NDArray[np.float64]
    """Of each output, shape (outputs,)."""
    squares: float
    """Sum of the squared deviations of all outputs."""

    @classmethod
    def of(cls, y: Targets) -> "Spread":
        """Return the spread of targets of regression, shape (n, *y_shape)."""
        targets = y.reshape(len(y), -1).astype(np.float64)
        mean = targets.mean(axis=0)
        with np.errstate(invalid="ignore", over="ignore"):
            return cls(len(y), mean, float(np.square(targets - mean).sum()))

    @classmethod
    def joined(cls, parts: Sequence["Spread"]) -> "Spread":
        """Return the spread of all targets; at least one part."""
        counts = np.array([part.n for part in parts])
        means = np.array([part.mean for part in parts])
        mean = counts @ means / counts.sum()
        between = counts @ np.square(means - mean).sum(axis=1)
        return cls(int(counts.sum()), mean, float(between + sum(p.squares for p in parts)))

    def r_squared(self, error: float) -> float | None:
        """Return R2, given the sum of the squared errors; None as for `r_squared`."""
        is_known = self.squares > 0.0 and math.isfinite(error)
        return 1.0 - error / self.squares if is_known else None
