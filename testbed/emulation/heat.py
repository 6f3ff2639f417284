"""Thermal model of a device: it heats up under load, and its clock drops.

Heat is a share: 0 at rest, 1 after full load on all cores for ever. It follows the load with a
lag, and the clock drops while it is above what `onset_s` of full load bring:

    dh/dt = (load - h) / time_constant_s
    throttled while h >= 1 - exp(-onset_s / time_constant_s)

While the load does not change this is solved exactly, so the time between two updates costs no
accuracy, and the heat does not depend on how often it is read.
"""

from dataclasses import dataclass
from math import exp

from fairbed.profiles.schema import Thermal


@dataclass(slots=True)
class Heat:
    """The heat of one device; cold at first."""

    thermal: Thermal
    now: float = 0.0
    """Seconds on the device's own clock."""
    share: float = 0.0
    """h."""

    def advance(self, now: float, load: float) -> None:
        """Move on to `now`, under this load since the last call.

        Args:
            now: Seconds, not before the last call.
            load: Share of all cores that were busy, 0 to 1; what is beyond is cut.
        """
        load = min(max(load, 0.0), 1.0)
        decay = exp(-max(0.0, now - self.now) / self.thermal.time_constant_s)
        self.share = load + (self.share - load) * decay
        self.now = now

    @property
    def is_throttled(self) -> bool:
        """The clock is held down."""
        return self.share >= self._limit

    @property
    def clock_ratio(self) -> float:
        """Clock relative to the nominal one."""
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
