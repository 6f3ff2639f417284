"""The mini-batches of several devices, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.algorithms.arrays import Bools, Ints, Vector
from device_agent.trainer import mini_batches
from testbed.replay.cohort.base import Job
from wire.messages import Hyperparameters


@dataclass(frozen=True, slots=True)
class SideBySide:
    """One mini-batch of each of the first A devices of a chunk."""

    index: Ints
    """Place of each example in its device's data, shape (A, B); what is beyond `count` is padding
    with place 0."""
    count: Ints
    """Examples of each mini-batch, 1 .. B, shape (A,)."""
    is_first: Bools
    """Which of them open an epoch, shape (A,)."""

    @property
    def weights(self) -> Vector:
        """What each example weighs in its mean: 1 / count, and 0 for padding; shape (A, B)."""
        count = self.count[:, np.newaxis]
        is_real = np.arange(self.index.shape[1]) < count
        w: Vector = (is_real / count).astype(np.float32)
        return w


def steps_of(n_k: int, hyperparameters: Hyperparameters) -> int:
    """Return how many mini-batches a device of `n_k` examples takes."""
    steps = hyperparameters.epochs * -(-n_k // hyperparameters.batch_size)
    limit = hyperparameters.max_steps
    return steps if limit is None else min(steps, limit)


def longest_first(n_k: Sequence[int], hyperparameters: Hyperparameters) -> list[int]:
    """Return the places of devices by steps, most first, so that the active are always the first.

    Equal steps go by examples, and then by place: the order depends on nothing else.
    """
    steps = [steps_of(n, hyperparameters) for n in n_k]
    return sorted(range(len(n_k)), key=lambda at: (-steps[at], -n_k[at], at))


class Batches:
    """Draws the mini-batches of a chunk, with the devices' own function and seeds.

    Args:
        jobs: The chunk, those with more steps first.
        n_k: Examples of each, shape (G,), all positive.
        hyperparameters: Of the round.
    """

    def __init__(self, jobs: Sequence[Job], n_k: Ints, hyperparameters: Hyperparameters) -> None:
        self.steps = [steps_of(n, hyperparameters) for n in n_k.tolist()]
        """Mini-batches of each."""
        assert self.steps == sorted(self.steps, reverse=True), "those with more steps come first"
        self._width = int(min(n_k.max(), hyperparameters.batch_size))
        self._orders = [
            mini_batches(n, hyperparameters, np.random.Generator(np.random.PCG64(job.seed)))
            for n, job in zip(n_k.tolist(), jobs, strict=True)
        ]

    def next(self, active: int) -> SideBySide:
        """Return the next mini-batch of each of the first `active` devices."""
        index = np.zeros((active, self._width), dtype=np.int64)
        count, is_first = np.empty(active, dtype=np.int64), np.empty(active, dtype=np.bool_)
        for i in range(active):
            is_first[i], places = next(self._orders[i])
            count[i] = size = len(places)
            index[i, :size] = places
        return SideBySide(index, count, is_first)
