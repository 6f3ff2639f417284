"""What every rule does with the updates before and after its formula."""

from collections.abc import Sequence

import numpy as np

from coordinator.algorithms.aggregation.base import Reports
from coordinator.algorithms.arrays import Floats, Ints, Vector

WEIGHT_TOLERANCE = 1e-9
"""How far from 1 the sum of a probability vector may be."""


def usable(vector: Vector, reports: Reports, *, needs_loss: bool = False) -> Ints:
    """Return the positions of the reports that may enter the model, by row, shape (<= K,).

    A model of the wrong shape or with a non-finite value, a count that is not positive, and a
    needed loss that is NaN, infinite or negative are dropped: a device's fault is an outcome.
    In row order, so that the order of arrival changes no bit of the sums that follow.

    Raises:
        ValueError: The rule needs losses and the round brought none at all.
    """
    kept = np.array(
        [model.shape == vector.shape and np.isfinite(model).all() for model in reports.models],
        dtype=np.bool_,
    )
    kept &= reports.n_k > 0
    if needs_loss:
        if reports.loss_before is None:
            raise ValueError(
                "aggregation: loss_before must be given for this rule, got None; "
                "ask the devices to evaluate the model before training"
            )
        kept &= np.isfinite(reports.loss_before) & (reports.loss_before >= 0.0)
    by_row = np.argsort(reports.rows, kind="stable")
    return by_row[kept[by_row]].astype(np.int64)


def normalised(weights: Floats) -> Floats:
    """Return weights, shape (K,), scaled to a probability vector.

    Raises:
        ValueError: They do not make one: negative, not finite, or all zero.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        p: Floats = weights / weights.sum()
    if not (np.all(p >= 0.0) and abs(float(p.sum()) - 1.0) < WEIGHT_TOLERANCE):
        raise ValueError(
            f"aggregation: weights must be >= 0 and not all 0, got {weights.tolist()}; "
            "check the example counts"
        )
    return p


def weighted_sum(models: Sequence[Vector], weights: Floats) -> Floats:
    """Return sum_k weights_k models_k, in float64 and in this order.

    Args:
        models: K >= 1 vectors of one shape (P,).
        weights: Shape (K,).

    Returns:
        Shape (P,).
    """
    total = np.zeros(models[0].shape, dtype=np.float64)
    for weight, model in zip(weights, models, strict=True):
        total += weight * model.astype(np.float64)
    return total
