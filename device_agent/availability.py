"""When the owner lets a device take part: at some hours of the day, or only while it charges.

An unwilling device reports so in its context and is not selected; it finishes a round that it has
begun.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

DAY_S = 86_400
"""A day with as many hours as most; local time says which one it is, whatever summer time does."""

_TIME = re.compile(r"(\d{2}):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Hours:
    """From one time of day until another, across midnight if that is earlier; seconds of the day.

    Raises:
        ValueError: It begins and ends at the same time, or not within a day.
    """

    begin_s: int
    end_s: int

    def __post_init__(self) -> None:
        if not (0 <= self.begin_s < DAY_S and 0 < self.end_s <= DAY_S):
            raise ValueError("must be from 00:00 to 24:00")
        if self.begin_s == self.end_s:
            raise ValueError("must not begin and end at the same time")

    def hold_at(self, second_of_day: float) -> bool:
        """Tell whether they hold at a second of the day; the last one does not."""
        if self.begin_s < self.end_s:
            return self.begin_s <= second_of_day < self.end_s
        return second_of_day >= self.begin_s or second_of_day < self.end_s


def parse_time(text: str) -> int:
    """Return a time of day such as `22:00`, in seconds after midnight; `24:00` is its end.

    Raises:
        ValueError: It is none.
    """
    match = _TIME.fullmatch(text)
    second = 3600 * int(match[1]) + 60 * int(match[2]) if match else DAY_S + 1
    if second > DAY_S:
        raise ValueError(f"must be a time of day such as 22:00, got {text!r}")
    return second


def parse_hours(text: str) -> Hours:
    """Return hours such as `22:00-06:00`.

    Raises:
        ValueError: They are none.
    """
    begin, dash, end = text.partition("-")
    try:
        if not dash:
            raise ValueError("must have two times of day")
        # An end at 00:00 is the end of the day, not its beginning.
        return Hours(parse_time(begin), parse_time(end) or DAY_S)
    except ValueError as exc:
        rule = str(exc).partition(", got")[0]
        raise ValueError(f"{rule}, got {text!r}; write hours such as 22:00-06:00") from None


def local_second() -> float:
    """Return the seconds since midnight, local time."""
    now = time.localtime()
    return 3600.0 * now.tm_hour + 60.0 * now.tm_min + now.tm_sec


def is_charging() -> bool:
    """Tell whether a charger is plugged in; without a battery, or where that is unknown, it is."""
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, psutil.Error):
        return True
    return battery is None or battery.power_plugged is not False


@dataclass(frozen=True, slots=True)
class OwnerSchedule:
    """Rules of an owner; a call tells whether the device may take part now."""

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
