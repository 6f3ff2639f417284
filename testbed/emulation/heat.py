"""Thermal model of a device: it heats up under load, and a hot device lowers its clock.

Heat h is a share: 0 at rest, 1 in the steady state under full load on all cores. A part of it
follows the load within seconds, the rest within minutes (`profiles.schema.Thermal` states the
equations). The clock is lowered while h is at least `Thermal.limit`.

The solution is exact under constant load, so the result does not depend on the update interval.
"""

from dataclasses import dataclass
from math import exp

from fairbed.profiles.schema import Thermal


@dataclass(slots=True)
class Heat:
    """The heat of one device, which starts cold."""

    thermal: Thermal
    now: float = 0.0
    """Seconds on the device's own clock."""
    slow: float = 0.0
    """Heat of board and case, a share."""
    fast: float = 0.0
    """Heat of the chip over its board, a share."""

    def advance(self, now: float, load: float) -> None:
        """Advance to `now`.

        Args:
            now: Seconds, not before the last call.
            load: Share of all cores that were busy since the last call; clipped to 0 to 1.
        """
        load, passed = min(max(load, 0.0), 1.0), max(0.0, now - self.now)
        self.slow = load + (self.slow - load) * exp(-passed / self.thermal.time_constant_s)
        self.fast = load + (self.fast - load) * exp(-passed / self.thermal.fast_lag[1])
        self.now = now

    @property
    def share(self) -> float:
        """The heat h."""
        fast_share = self.thermal.fast_lag[0]
        return fast_share * self.fast + (1.0 - fast_share) * self.slow

    @property
    def is_throttled(self) -> bool:
        """Whether heat lowers the clock."""
        return self.share >= self.thermal.limit

    @property
    def clock_ratio(self) -> float:
        """Clock / nominal clock."""
        return self.thermal.sustained_clock_ratio if self.is_throttled else 1.0

    @property
    def celsius(self) -> float | None:
        """Temperature of the processor; None where the profile lacks one of its limits."""
        idle, rise, limit = (
            None if number is None else number.value
            for number in (
                self.thermal.idle_celsius,
                self.thermal.rise_celsius,
                self.thermal.limit_celsius,
            )
        )
        if idle is not None and rise is not None:
            return idle + rise * self.share
        if idle is None or limit is None or self.thermal.limit == 0.0:
            return None
        return idle + (limit - idle) * self.share / self.thermal.limit
