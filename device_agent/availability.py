"""Rules of the owner for participation: hours of the day, or only while charging.

An unwilling device reports that in its context and is not selected; it finishes a started round.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

DAY_S = 86_400
"""Seconds of a day; changes of summer time are ignored, as hours are in local time."""

_TIME = re.compile(r"(\d{2}):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Hours:
    """A range of hours, in seconds of the day; an end before the begin is on the next day.

    Raises:
        ValueError: Begin and end are equal, or not within a day.
    """

    begin_s: int
    end_s: int

    def __post_init__(self) -> None:
        if not (0 <= self.begin_s < DAY_S and 0 < self.end_s <= DAY_S):
            raise ValueError("must be from 00:00 to 24:00")
        if self.begin_s == self.end_s:
            raise ValueError("must not begin and end at the same time")

    def contains(self, second_of_day: float) -> bool:
        """Return whether a second of the day is in the range; `end_s` is not."""
        if self.begin_s < self.end_s:
            return self.begin_s <= second_of_day < self.end_s
        return second_of_day >= self.begin_s or second_of_day < self.end_s


def parse_time(text: str) -> int:
    """Return a time of day such as `22:00`, in seconds after midnight; `24:00` is valid.

    Raises:
        ValueError: The text is not a time of day.
    """
    match = _TIME.fullmatch(text)
    second = 3600 * int(match[1]) + 60 * int(match[2]) if match else DAY_S + 1
    if second > DAY_S:
        raise ValueError(f"must be a time of day such as 22:00, got {text!r}")
    return second


def parse_hours(text: str) -> Hours:
    """Return a range of hours such as `22:00-06:00`.

    Raises:
        ValueError: The text is not a range of hours.
    """
    begin, dash, end = text.partition("-")
    try:
        if not dash:
            raise ValueError("must have two times of day")
        # An end at 00:00 means the end of the day.
        return Hours(parse_time(begin), parse_time(end) or DAY_S)
    except ValueError as exc:
        rule = str(exc).partition(", got")[0]
        raise ValueError(f"{rule}, got {text!r}; write hours such as 22:00-06:00") from None


def local_second() -> float:
    """Return the seconds since midnight in local time."""
    now = time.localtime()
    return 3600.0 * now.tm_hour + 60.0 * now.tm_min + now.tm_sec


def is_charging() -> bool:
    """Return whether a charger is plugged in; True without a battery or if unknown."""
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, psutil.Error):
        return True
    return battery is None or battery.power_plugged is not False


@dataclass(frozen=True, slots=True)
class OwnerSchedule:
    """Rules of the owner; a call returns whether the device may take part now."""

    hours: Sequence[Hours] = ()
    """Hours of participation in local time; empty means always."""
    only_charging: bool = False
    second_of_day: Callable[[], float] = local_second
    charger: Callable[[], bool] = is_charging

    def __call__(self) -> bool:
        """Return whether the device may take part now."""
        if self.hours:
            now = self.second_of_day()
            if not any(hours.contains(now) for hours in self.hours):
                return False
        return self.charger() if self.only_charging else True
