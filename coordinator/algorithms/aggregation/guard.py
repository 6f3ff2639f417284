"""What every rule does with the updates before and after its formula."""

import numpy as np

from coordinator.algorithms.aggregation.base import Reports
from coordinator.algorithms.arrays import Bools, Floats, Ints, Vector

WEIGHT_TOLERANCE = 1e-9
"""How far from 1 the sum of a probability vector may be."""


def usable(vector: Vector, reports: Reports, *, needs_loss: bool = False) -> Bools:
    """Return which reports may enter the model, shape (K,).

    A model of the wrong shape or with a non-finite value, a count that is not positive, and a
    needed loss that is NaN, infinite or negative are dropped: a device's fault is an outcome.

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
    return kept


def in_row_order(rows: Ints, kept: Bools) -> list[int]:
    """Return the positions of the kept reports by row, so that arrival order changes no bit."""
    return [int(at) for at in np.argsort(rows, kind="stable") if kept[at]]


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


def weighted_sum(models: list[Vector], weights: Floats, order: list[int]) -> Floats:
    """Return sum_k weights_k models_k over the positions in `order`, in float64, shape (P,)."""
    total = np.zeros(models[order[0]].shape, dtype=np.float64)
    for at in order:
        total += weights[at] * models[at].astype(np.float64)
    return total
