"""The memory of training on a device: what it needs, and how many examples it computes at once.

    peak = max(least, fixed + example m) + data        m examples are computed at once

A device fits if the peak is at most `SHARE` of its memory.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from fairbed.coordinator.algorithms.arrays import Ints

Bytes = Annotated[float, Meta(ge=0.0, le=1e15)]

SHARE = 0.75
"""Of the memory of a device; the rest is for its system, and for the error of the prediction. An
installed agent is limited to the same share (`device_agent.systemd`)."""


class TaskMemory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak memory of an agent that trains a task, from steps of two measured sizes."""

    fixed_bytes: Bytes
    """Interpreter, runtime, session and the copies of the model."""
    example_bytes: Bytes
    """Of each example that is computed at once."""
    least_bytes: Bytes = 0.0
    """Of the self-check, however few examples are computed at once."""

    @classmethod
    def between(
        cls, small: tuple[int, float], large: tuple[int, float], least: float = 0.0
    ) -> "TaskMemory":
        """Return the linear memory through two measurements, with both terms at least 0.

        Args:
            small: Examples and peak bytes of a small step.
            large: Examples and peak bytes of a larger step.
            least: Peak bytes before the first step.
        """
        (n, low), (m, high) = small, large
        slope = min(max((high - low) / (m - n), 0.0), high / m)
        return cls(fixed_bytes=high - slope * m, example_bytes=slope, least_bytes=least)

    def peak_bytes(self, n_examples: int, data_bytes: float = 0.0) -> float:
        """Return the predicted peak of an agent.

        Args:
            n_examples: Examples that are computed at once.
            data_bytes: Size of the device's examples in memory.
        """
        peak = max(self.least_bytes, self.fixed_bytes + self.example_bytes * n_examples)
        return peak + data_bytes

    def most_examples(self, memory_bytes: Ints, data_bytes: Ints) -> Ints:
        """Return how many examples may be computed at once, shape (N,); 0 if none fits.

        Args:
            memory_bytes: Memory of each device, shape (N,).
            data_bytes: Size of its examples in memory, shape (N,).
        """
        room = SHARE * memory_bytes - data_bytes
        most = (room - self.fixed_bytes) // max(self.example_bytes, 1.0)
        found: Ints = np.where(room < self.least_bytes, 0.0, np.maximum(most, 0.0)).astype(np.int64)
        return found


@dataclass(frozen=True, slots=True)
class Fitting:
    """Fits the mini-batches of a run into the memory of its devices."""

    memory: TaskMemory
    data_bytes: int
    """Size of one example in the memory of a device."""
    batch_size: int
    """Examples of a mini-batch."""
    largest_part: int
    """Examples that are computed at once, or at most."""
    chooses: bool
    """A device computes as many as fit into its memory."""

    def part_sizes(self, memory_bytes: Ints, n_k: Ints) -> Ints:
        """Return the examples that devices compute at once, shape (N,); 0 if they do not fit.

        Args:
            memory_bytes: Memory of each device, shape (N,).
            n_k: Its training examples, shape (N,).
        """
        most = self.memory.most_examples(memory_bytes, n_k * self.data_bytes)
        size = self.largest_part
        found: Ints = np.where(self.chooses | (most >= size), np.minimum(size, most), 0)
        return found

    def part_size(self, memory_bytes: int, n_k: int) -> int:
        """Return the same of one device."""
        return int(self.part_sizes(np.array([memory_bytes]), np.array([n_k]))[0])

    def micro_batch(self, memory_bytes: int, n_k: int) -> int | None:
        """Return the `Hyperparameters.micro_batch` of a device; None for a whole mini-batch."""
        size = self.part_size(memory_bytes, n_k)
        return size if 0 < size < self.batch_size else None

    def problem(self, memory_bytes: int, n_k: int) -> str:
        """Return why training does not fit into a device, and what to do; empty if it fits."""
        if self.part_size(memory_bytes, n_k):
            return ""
        data_bytes = n_k * self.data_bytes
        [most] = self.memory.most_examples(np.array([memory_bytes]), np.array([data_bytes]))
        size = 1 if self.chooses else self.largest_part
        peak = self.memory.peak_bytes(size, data_bytes)
        remedy = f"set training.micro_batch to at most {most}" if most else "leave it out"
        return (
            f"training on {size} example{'s' * (size > 1)} at once must need at most {SHARE:.0%} "
            f"of the {memory_bytes >> 20} MiB of the device, got {peak / 2**20:.0f} MiB; {remedy}"
        )
