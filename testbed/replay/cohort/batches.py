"""Mini-batches of several devices, stacked into one array."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats, Ints, Vector
from fairbed.device_agent.trainer import EpochOrders, local_steps
from fairbed.wire.evaluation import Targets, positions_of
from fairbed.wire.messages import Hyperparameters

if TYPE_CHECKING:
    from fairbed.wire.augment import Augmenter


@dataclass(frozen=True, slots=True)
class StackedBatch:
    """One mini-batch of each of the first A devices of a chunk."""

    index: Ints
    """Row of each example in the data set, shape (A, B); beyond `count`, padding with a row of the
    same device."""
    count: Ints
    """Examples of each mini-batch, 1 .. B, or their positions, shape (A,)."""
    weights: Vector
    """Weight of each example in its mean: 1 / count, and 0 for padding; shape (A, B)."""
    begins: Ints
    """Devices that begin an epoch with it, ascending, shape (<= A,)."""
    step: int = 0
    """Number of the mini-batch in the round, from 0."""


def by_positions(batch: StackedBatch, y: Targets) -> StackedBatch:
    """Return the mini-batch with weights and counts of positions: 1 / sum_j c_j, and sum_j c_j.

    Args:
        batch: A mini-batch of each of A devices.
        y: Its targets, shape (A, B, *y_shape); with one each it is the same mini-batch.
    """
    if y.ndim == batch.index.ndim:
        return batch
    is_padding = batch.weights == 0
    c = positions_of(y.reshape(-1, *y.shape[2:])).reshape(batch.index.shape)
    count: Ints = np.where(is_padding, 0, c).sum(axis=1)
    weights = np.where(is_padding, 0.0, 1.0 / count[:, np.newaxis]).astype(np.float32)
    return replace(batch, count=count, weights=weights)


def augmented(
    augmenter: "Augmenter", batch: StackedBatch, x: NDArray[Any], y: Targets, seeds: Sequence[int]
) -> tuple[NDArray[Any], Targets, Targets | None, Floats]:
    """Return a stacked mini-batch after the augmentations that each device draws.

    Args:
        augmenter: The augmentations.
        batch: Which examples are padding; these are left as they are.
        x: Shape (A, B, *x_shape); not changed.
        y: Shape (A, B, *y_shape); not changed.
        seeds: Seed of each of the A devices.

    Returns:
        x and y, the targets of examples that were mixed in or None, and the weight of the loss with
        y, shape (A,).
    """
    x, y = x.copy(), y.copy()
    other, shares = None, np.ones(len(x))
    sizes = (batch.weights != 0).sum(axis=1).tolist()
    for k, n in enumerate(sizes):
        found = augmenter.batch(x[k, :n].copy(), y[k, :n].copy(), seeds[k], batch.step)
        x[k, :n], y[k, :n] = found.x, found.y
        if found.other is not None:
            other = y.copy() if other is None else other
            other[k, :n], shares[k] = found.other, found.share
    return x, y, other, shares


def longest_first(n_k: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Return the indices of devices by steps, most first, so that active devices always come first.

    Devices with equal steps are ordered by examples n_k, then by index.
    """
    return sorted(range(len(n_k)), key=lambda at: (-steps[at], -n_k[at], at))


class Batches:
    """Draws the mini-batches of a chunk, with the devices' own function and seeds.

    Args:
        seeds: Seed of the order of each device's mini-batches; devices with more steps first.
        rows: Rows of each device's examples in the data set; not empty.
        hyperparameters: Hyperparameters of the round.
        steps: Mini-batches of each device, in descending order; not set: as in the round.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        rows: Sequence[Ints],
        hyperparameters: Hyperparameters,
        steps: Sequence[int] | None = None,
    ) -> None:
        self._rows, self._batch_size = rows, hyperparameters.batch_size
        sizes = [len(device_rows) for device_rows in rows]
        self.steps = list(steps or [local_steps(n, hyperparameters) for n in sizes])
        """Mini-batches of each device."""
        assert self.steps == sorted(self.steps, reverse=True), "devices with more steps come first"
        n_k: Ints = np.array(sizes, dtype=np.int64)
        self._is_even = min(sizes) == max(sizes)
        """All devices have the same number of examples, so that their epochs are in step."""
        self._per_epoch: Ints = -(-n_k // self._batch_size)
        last_start = (self._per_epoch - 1) * self._batch_size
        self._all = np.arange(len(sizes))
        self._columns = np.arange(min(max(sizes), self._batch_size))
        self._full = np.full(len(sizes), self._batch_size)
        self._last = n_k - last_start
        """Examples of the last mini-batch of an epoch."""
        self._full_weights = _weights(self._full, len(self._columns))
        self._last_weights = _weights(self._last, len(self._columns))
        self._seeds, self._orders = seeds, EpochOrders()
        first = np.array([device_rows[0] for device_rows in rows], dtype=np.int64)
        width = int(last_start.max()) + len(self._columns)
        width = min(width, max(self.steps) * self._batch_size)
        self._order: Ints = np.repeat(first[:, np.newaxis], width, axis=1)
        """Rows of each device in the order of its epoch, up to its last step, shape (G, width)."""
        self._step = 0

    def next(self, active: int) -> StackedBatch:
        """Return the next mini-batch of the first `active` devices; valid until the next call."""
        step, self._step = self._step, self._step + 1
        return self._even(step, active) if self._is_even else self._uneven(step, active)

    def _even(self, step: int, active: int) -> StackedBatch:
        per_epoch = int(self._per_epoch[0])
        place = step % per_epoch
        begins = self._all[: 0 if place else active]
        self._begin(begins, step)
        start = place * self._batch_size
        index = self._order[:active, start : start + len(self._columns)]
        is_last = place == per_epoch - 1
        count = self._last if is_last else self._full
        weights = self._last_weights if is_last else self._full_weights
        return StackedBatch(index, count[:active], weights[:active], begins, step)

    def _uneven(self, step: int, active: int) -> StackedBatch:
        per_epoch = self._per_epoch[:active]
        place = step % per_epoch
        begins = np.flatnonzero(place == 0)
        self._begin(begins, step)
        start = place * self._batch_size
        index = self._order[self._all[:active, np.newaxis], start[:, np.newaxis] + self._columns]
        count, weights = self._full[:active], self._full_weights[:active]
        is_last = place == per_epoch - 1
        if is_last.any():
            count = np.where(is_last, self._last[:active], count)
            weights = np.where(is_last[:, np.newaxis], self._last_weights[:active], weights)
        return StackedBatch(index, count, weights, begins, step)

    def _begin(self, which: Ints, step: int) -> None:
        """Begin an epoch of some devices: draw the order of its examples."""
        epochs = step // self._per_epoch[which]
        for i, epoch in zip(which.tolist(), epochs.tolist(), strict=True):
            rows = self._rows[i]
            target = self._order[i, : len(rows)]
            order = self._orders.draw(self._seeds[i], epoch, len(rows))
            rows.take(order[: len(target)], out=target, mode="clip")


def _weights(count: Ints, width: int) -> Vector:
    """Return 1 / count for the first `count` examples and 0 for padding, shape (A, width)."""
    size = count[:, np.newaxis]
    w: Vector = ((np.arange(width) < size) / size).astype(np.float32)
    return w
