"""Checks of updates and weights that every aggregation rule shares."""

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Note, Stack, Updates
from fairbed.coordinator.algorithms.aggregation.running_sum import total_of
from fairbed.coordinator.algorithms.arrays import Bools, Floats, Vector

WEIGHT_TOLERANCE = 1e-9
"""How far from 1 the sum of a probability vector may be."""


def usable(vector: Vector, stack: Stack, *, needs_loss: bool) -> Bools:
    """Return which of K updates may enter the next version of `vector`, shape (K,).

    An update is not usable if its model has the wrong shape or a non-finite value, or its count
    is not positive; where the rule needs the loss, also if that is NaN, infinite or negative. A
    faulty device raises no exception.

    Raises:
        ValueError: The rule needs losses and the stack has none.
    """
    if needs_loss and stack.loss_before is None:
        raise ValueError(
            "aggregation: loss_before must be given for this rule, got None; "
            "have the devices evaluate the model before training"
        )
    if stack.models.shape[1:] != vector.shape:
        return np.zeros(len(stack.rows), dtype=np.bool_)
    is_sound: Bools = (stack.n_k > 0) & np.isfinite(stack.models).all(axis=1)
    if needs_loss and stack.loss_before is not None:
        is_sound &= np.isfinite(stack.loss_before) & (stack.loss_before >= 0.0)
    return is_sound


def normalised(weights: Floats) -> Floats:
    """Return weights, shape (K,), scaled to sum 1.

    Raises:
        ValueError: A weight is negative or not finite, or all are zero.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        p: Floats = weights / np.float64(total_of(weights))
    if not (np.all(p >= 0.0) and abs(float(p.sum()) - 1.0) < WEIGHT_TOLERANCE):
        raise ValueError(
            f"aggregation: weights must be >= 0 and not all 0, got {weights.tolist()}; "
            "check the example counts"
        )
    return p


def losses_beyond(rule: str, M: float, gap: float, updates: Updates) -> list[Note]:
    """Return a note if losses are above M - `gap`, where they cease to count by their size.

    Args:
        rule: Name of the rule.
        M: Upper bound of the losses, nats.
        gap: Lower bound of M - F, nats.
        updates: The round.
    """
    is_beyond = updates.losses > M - gap
    if not is_beyond.any():
        return []
    beyond = np.flatnonzero(is_beyond)
    rows = beyond[np.argsort(-updates.losses[beyond], kind="stable")]
    text = (
        f"{rule}: losses must be at most {M - gap:.4g} with aggregation.M = {M:g}, got "
        f"{len(rows)} of {len(updates)} above it, up to {updates.losses.max():.4g}; they count "
        "alike: repeat the run with a larger M"
    )
    return [Note("losses", text, tuple(updates.rows[rows].tolist()))]
