"""When the owner lets a device take part: at some hours of the day, or only while it charges.

A device that is not let in says so in its context and is not chosen; a round that it has begun
it finishes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from device_agent.hours import Hours


def local_second() -> float:
    """Return the seconds since midnight, local time."""
    now = time.localtime()
    return 3600.0 * now.tm_hour + 60.0 * now.tm_min + now.tm_sec


def is_charging() -> bool:
    """Tell whether a charger is plugged in; without a battery, or if nobody can tell, it is."""
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, psutil.Error):
        return True
    return battery is None or battery.power_plugged is not False


@dataclass(frozen=True, slots=True)
class Owner:
    """What an owner allows; called with nothing, it tells whether the device may take part now."""

    hours: Sequence[Hours] = ()
    """Of the day, in local time; none is always."""
    only_charging: bool = False
    second_of_day: Callable[[], float] = local_second
    charges: Callable[[], bool] = is_charging

    def __call__(self) -> bool:
        """Tell whether the device may take part now."""
        if self.hours:
            now = self.second_of_day()
            if not any(hours.hold_at(now) for hours in self.hours):
                return False
        return self.charges() if self.only_charging else True
