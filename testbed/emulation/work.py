"""What steps of a task cost on this machine, so that devices are charged for work, not for time.

The processor time of one and the same step varies by half on a shared machine, with its caches and
its neighbours; on the device that is emulated it would not. So a step is charged with what it cost
in a calibration, the same for every device of the fleet.
"""

from typing import Annotated

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(ge=0.0, le=1e6)]


class StepCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processor time of one kind of step, in seconds of one core of this machine."""

    fixed_s: Seconds
    per_example_s: Seconds

    def seconds(self, n_examples: int) -> float:
        """Return the cost of a step on so many examples."""
        return self.fixed_s + self.per_example_s * n_examples


class WorkCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Costs of the steps of one task with one batch size."""

    train: StepCost
    evaluate: StepCost

    def of(self, section: str) -> StepCost | None:
        """Return the cost of a step in a compute section; None where time is what counts."""
        return {"train": self.train, "evaluate": self.evaluate}.get(section)


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
