"""Thermal model of a device: it heats up under load, and a hot device lowers its clock.

Heat h is a share: 0 at rest, 1 in the steady state under full load on all cores. It follows the
load with a first-order lag. The clock is lowered while h is at least the value that `onset_s` of
full load reaches from rest:

    dh/dt = (load - h) / time_constant_s
    throttled while h >= 1 - exp(-onset_s / time_constant_s)

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
    share: float = 0.0
    """h."""

    def advance(self, now: float, load: float) -> None:
        """Advance to `now`.

        Args:
            now: Seconds, not before the last call.
            load: Share of all cores that were busy since the last call; clipped to 0 to 1.
        """
        load = min(max(load, 0.0), 1.0)
        decay = exp(-max(0.0, now - self.now) / self.thermal.time_constant_s)
        self.share = load + (self.share - load) * decay
        self.now = now

    @property
    def is_throttled(self) -> bool:
        """Whether heat lowers the clock."""
        return self.share >= self._limit

    @property
    def clock_ratio(self) -> float:
        """Clock / nominal clock."""
        return self.thermal.sustained_clock_ratio if self.is_throttled else 1.0

    @property
    def celsius(self) -> float | None:
        """Temperature of the processor; None where the profile lacks one of its limits."""
        idle, limit = self.thermal.idle_celsius, self.thermal.limit_celsius
        if idle is None or limit is None or self._limit == 0.0:
            return None
        return idle.value + (limit.value - idle.value) * self.share / self._limit

    @property
    def _limit(self) -> float:
        return 1.0 - exp(-self.thermal.onset_s / self.thermal.time_constant_s)
