"""One device on its course: its timeline, the heat of what it does, and when to look next."""

from math import floor, inf

from profiles.schema import Thermal
from testbed.emulation.conditions import Conditions
from testbed.emulation.heat import Heat
from testbed.emulation.timeline import Timeline

LOOK_S = 2.0
"""How often the load of devices that heat up is looked at, all at the same moments: their time
constants are minutes, and a look costs much the same for one as for all."""

_ROUNDING_S = 1e-6


class Course:
    """Answers for one device; times are seconds of the fleet since the run began.

    Args:
        timeline: Of the device.
        thermal: How it heats up; None does not.
        cores: Of the device: heat follows the load of all of them.
        threads: Of one training step.
        start: When this course is first asked; the device is cold then.
    """

    def __init__(
        self,
        timeline: Timeline,
        thermal: Thermal | None = None,
        *,
        cores: int = 1,
        threads: int = 1,
        start: float = 0.0,
    ) -> None:
        self._timeline = timeline
        self._heat = None if thermal is None else Heat(thermal, start)
        self._share = threads / cores
        self._look_at = -inf if thermal is not None else inf
        self._used: tuple[float, float] | None = None
        self._speed: float | None = None

    @property
    def is_constant(self) -> bool:
        """Nothing ever changes."""
        return self._heat is None and self._timeline.is_constant

    def asks_load(self, t: float) -> bool:
        """Tell whether it is time to say what the device has computed."""
        return t >= self._look_at - _ROUNDING_S

    def conditions(self, t: float) -> Conditions:
        """Return what the device is meant to have at `t`."""
        if self._heat is None:
            return self._timeline.conditions(t)
        heat = self._heat
        celsius = None if heat.celsius is None else round(heat.celsius)
        now = self._timeline.conditions(t, heat.clock_ratio, celsius)
        self._speed = now.speed_ratio
        return now

    def used(self, t: float, cpu_s: float | None) -> None:
        """Take in what the device has computed.

            load = computed / (elapsed * speed) * threads / cores

        With time dilated by k the device has k times the time at a k-th of the speed: the load
        is the same.

        Args:
            t: The present.
            cpu_s: Processor time of this machine that it has had in all; None while it is not
                alive: then it cools.
        """
        if self._heat is None:
            return
        before, self._used = self._used, None if cpu_s is None else (t, cpu_s)
        self._look_at = LOOK_S * (floor(t / LOOK_S + _ROUNDING_S) + 1)
        load = 0.0
        if before is not None and cpu_s is not None and self._speed and t > before[0]:
            load = (cpu_s - before[1]) / ((t - before[0]) * self._speed) * self._share
        self._heat.advance(t, load)

    def next_look(self, t: float) -> float:
        """Return when to look again, after `t`; `inf` is never."""
        change = self._timeline.next_change(t)
        return self._look_at if change is None else min(change, self._look_at)
