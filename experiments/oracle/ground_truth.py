"""What one device was meant to have, looked up over any stretch of a run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.store.tables import ConditionRow, TruthRow

Number: TypeAlias = Literal["speed_ratio", "down_bps", "up_bps"]
"""Of a condition. The speed is in cores of the emulating machine."""

NOT_SLOWED = 1.0
"""Speed of a device that is as fast as a core of this machine, or faster."""


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Stretches of time and their means; where none is known, what never changed."""

    start_s: Floats
    """On the run's clock, shape (R,)."""
    end_s: Floats
    means: dict[Number, Floats]
    """Each of shape (R,); a rate without limit is inf."""
    constant: dict[Number, float]

    def mean(self, number: Number, start_s: float, end_s: float) -> float:
        """Return the mean of a number over a stretch of time, of what is known of it."""
        overlap_s = np.minimum(self.end_s, end_s) - np.maximum(self.start_s, start_s)
        met: Bools = overlap_s > 0.0
        if not met.any():
            return self.constant[number]
        return float(np.average(self.means[number][met], weights=overlap_s[met]))


def ground_truth_of(
    truth: TruthRow, conditions: Sequence[ConditionRow], host_core_speed: float
) -> GroundTruth:
    """Return the past of a device.

    Args:
        truth: What was configured for it.
        conditions: What it was meant to have over time; none for a device that never changes.
        host_core_speed: Speed of one core of the emulating machine, in cores of the reference
            machine.
    """
    is_emulated = truth.profile != "this-machine"
    return GroundTruth(
        start_s=np.array([row.at_s - row.duration_s for row in conditions], dtype=np.float64),
        end_s=np.array([row.at_s for row in conditions], dtype=np.float64),
        means={
            "speed_ratio": np.array([_speed(row.speed_ratio) for row in conditions]),
            "down_bps": np.array([_rate(row.down_bps) for row in conditions]),
            "up_bps": np.array([_rate(row.up_bps) for row in conditions]),
        },
        constant={
            "speed_ratio": _speed(truth.cpu_speed / host_core_speed if is_emulated else None),
            "down_bps": _rate(truth.down_bps),
            "up_bps": _rate(truth.up_bps),
        },
    )


def _speed(ratio: float | None) -> float:
    return NOT_SLOWED if ratio is None else min(ratio, NOT_SLOWED)


def _rate(bps: float | None) -> float:
    return inf if bps is None else bps
