"""The configured speed and link of one device, averaged over any interval of a run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.store.tables import ConditionRow, TruthRow

Number: TypeAlias = Literal["speed_ratio", "down_bps", "up_bps"]
"""A quantity of a condition. The speed is in cores of the emulating machine."""

NOT_SLOWED = 1.0
"""Speed of a device that is as fast as a core of this machine, or faster."""


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Mean values of a device by interval of time, and the constant values outside of them."""

    start_s: Floats
    """Starts of the intervals on the run's clock, shape (R,)."""
    end_s: Floats
    means: dict[Number, Floats]
    """Each of shape (R,); a rate without limit is inf."""
    constant: dict[Number, float]
    """Values where no interval is stored."""

    def mean(self, number: Number, start_s: float, end_s: float) -> float:
        """Return the mean of a quantity over a time span, from the intervals that overlap it."""
        overlap_s = np.minimum(self.end_s, end_s) - np.maximum(self.start_s, start_s)
        overlaps: Bools = overlap_s > 0.0
        if not overlaps.any():
            return self.constant[number]
        return float(np.average(self.means[number][overlaps], weights=overlap_s[overlaps]))


def ground_truth_of(
    truth: TruthRow, conditions: Sequence[ConditionRow], host_core_speed: float
) -> GroundTruth:
    """Return the ground truth of a device.

    Args:
        truth: Its configuration.
        conditions: Its configured values over time; empty for a device that never changes.
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
