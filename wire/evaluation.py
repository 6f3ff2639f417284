"""What an evaluation measures beside the loss: by task, from the scores of the examples.

    classification    correct: examples whose largest logit is that of their label
    two classes       also AUROC, the area under the receiver operating characteristic curve
    regression        mean absolute error and R2, the coefficient of determination

The loss is the cross-entropy in nats, or half the squared error, so that sqrt(2 loss) is the RMSE.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Targets: TypeAlias = NDArray[np.int64] | NDArray[np.float32]
"""What a model shall predict, shape (n,): classes, int64, or numbers, float32, for regression."""

Scores: TypeAlias = NDArray[np.float32]
"""One number per example, shape (n,): the prediction, or z_1 - z_0 of two logits."""


class Evaluation(NamedTuple):
    """Evaluation of a model on a batch of examples."""

    loss_sum: float
    """Sum of the losses."""
    correct: int
    """Examples that are classified correctly; 0 for regression."""
    scores: Scores | None = None
    """Of each example; None for three classes or more."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What an evaluation measured beside the loss; None for what its task does not have."""

    correct: int | None = None
    """Examples that are classified correctly."""
    auroc: float | None = None
    """None also if all examples are of one class, or a score is not finite."""
    mae: float | None = None
    """Mean absolute error; infinite if a prediction is not finite."""
    r2: float | None = None
    """None also if all targets are equal, or a prediction is not finite."""

    @classmethod
    def of(cls, y: Targets, correct: int, scores: Scores | None) -> "Quality":
        """Return the measures of the task that targets and scores belong to.

        Args:
            y: Shape (n,), n >= 1; float32 for regression.
            correct: Examples that are classified correctly.
            scores: Shape (n,); None for three classes or more.
        """
        if y.dtype.kind == "f":
            assert scores is not None, "regression has scores"
            return cls(mae=mean_absolute_error(y, scores), r2=r_squared(y, scores))
        return cls(correct=correct, auroc=None if scores is None else auroc(y, scores))


def quality_in(
    kind: str, correct: int | None, auroc: float | None, mae: float | None, r2: float | None
) -> Quality | None:
    """Return what a device reports of its task; None if that is missing.

    Args:
        kind: `TaskSpec.kind`.
        correct: As in `Quality`, without meaning for regression; likewise the others.
        auroc: Only with two classes.
        mae: Only for regression.
        r2: Only for regression.
    """
    if kind == "regression":
        return None if mae is None else Quality(mae=mae, r2=r2)
    return None if correct is None else Quality(correct=correct, auroc=auroc)


def auroc(y: Targets, scores: Scores) -> float | None:
    """Return the area under the ROC curve, exact: a tie of two classes counts one half.

        AUROC = (sum over positives i, negatives j of [s_i > s_j] + 1/2 [s_i = s_j]) / (P N)

    Args:
        y: Classes, 0 or 1, shape (n,).
        scores: Larger means more likely of class 1, shape (n,).

    Returns:
        None if all examples are of one class, or a score is not finite.

    Source:
        Mann-Whitney U / (P N): Hanley & McNeil, Radiology 143 (1982).
    """
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
    targets = y.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        spread = float(np.square(targets - targets.mean()).sum())
        error = float(np.square(targets - predictions).sum())
    return 1.0 - error / spread if spread > 0.0 and math.isfinite(error) else None
