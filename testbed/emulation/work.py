"""Costs of the steps of a task on this machine: devices are charged for work, not for time.

The processor time of the same step varies by half on a shared machine, with its caches and its
other load; on the emulated device it would not. So each step is charged with its cost in a
calibration, the same for every device of the fleet.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

Seconds = Annotated[float, Meta(ge=0.0, le=1e6)]


class StepCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processor time of one kind of step, in seconds of one core of this machine."""

    fixed_s: Seconds
    per_example_s: Seconds

    def seconds(self, n_examples: int) -> float:
        """Return the cost of a step on so many examples."""
        return self.fixed_s + self.per_example_s * n_examples


def passes_s(
    cost: StepCost, n_examples: NDArray[np.int64], steps: NDArray[np.int64], batch_size: int
) -> NDArray[np.float64]:
    """Return the cost of steps over the same examples, seconds, shape (K,).

    Every pass takes all examples in batches; its last batch is what is left of them.

    Args:
        cost: Of a step.
        n_examples: Shape (K,).
        steps: Shape (K,); a pass may be cut short.
        batch_size: Of all batches but the last of a pass.
    """
    whole, rest = np.divmod(n_examples, batch_size)
    passes, more = np.divmod(steps, np.maximum(whole + (rest > 0), 1))
    batch_s = cost.seconds(batch_size)
    rest_s = np.where(rest > 0, cost.fixed_s + cost.per_example_s * rest, 0.0)
    total_s: NDArray[np.float64] = passes * (whole * batch_s + rest_s) + more * batch_s
    return total_s


class WorkCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Costs of the steps of a task with one batch size, and of its codecs if measured."""

    train: StepCost
    evaluate: StepCost
    decode_s: Seconds = 0.0
    """Of one packed model. Live devices are charged what it takes, as for all that is no step."""
    encode_s: Seconds = 0.0
    """Of one update, likewise."""

    def of(self, section: str) -> StepCost | None:
        """Return the cost of a step in a compute section; None where processor time is charged."""
        return {"train": self.train, "evaluate": self.evaluate}.get(section)


class TaskCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a task costs wherever it runs, in seconds of one core of the reference machine.

    What nobody told is not written down: files of before packing was counted stay what they were.
    """

    step_s: Seconds
    """A mini-batch of training, whatever its size."""
    example_s: Seconds
    """Each example of it."""
    evaluation_step_s: Seconds
    evaluation_example_s: Seconds
    load_s: Seconds = 0.0
    """Opening session and data, beside reading the storage; unless a profile knows better."""
    decode_s: Seconds = 0.0
    """Making a model whole that came packed, by the codec of the run."""
    encode_s: Seconds = 0.0
    """Making an update ready for the wire, by the codec of the run."""

    @classmethod
    def of(cls, costs: WorkCosts, core_speed: float) -> "TaskCosts":
        """Return what steps cost that were measured on a machine of this speed.

        Args:
            costs: In seconds of one core of that machine.
            core_speed: Of that machine, in cores of the reference machine.
        """
        return cls(
            step_s=costs.train.fixed_s * core_speed,
            example_s=costs.train.per_example_s * core_speed,
            evaluation_step_s=costs.evaluate.fixed_s * core_speed,
            evaluation_example_s=costs.evaluate.per_example_s * core_speed,
            decode_s=costs.decode_s * core_speed,
            encode_s=costs.encode_s * core_speed,
        )

    @property
    def train(self) -> StepCost:
        """Of a step of training."""
        return StepCost(fixed_s=self.step_s, per_example_s=self.example_s)

    @property
    def evaluate(self) -> StepCost:
        """Of a step of evaluation."""
        return StepCost(fixed_s=self.evaluation_step_s, per_example_s=self.evaluation_example_s)


def fit_cost(small: tuple[int, float], large: tuple[int, float]) -> StepCost:
    """Return the line through two measurements, none of its terms negative.

    Args:
        small: Examples and seconds of a small step.
        large: The same of a larger one.
    """
    (n_small, small_s), (n_large, large_s) = small, large
    if not 0 < n_small < n_large:
        raise ValueError(f"steps: must be of two sizes, small first, got {n_small} and {n_large}")
    slope = (large_s - small_s) / (n_large - n_small)
    slope = min(max(slope, 0.0), large_s / n_large)
    return StepCost(fixed_s=max(0.0, large_s - slope * n_large), per_example_s=slope)
