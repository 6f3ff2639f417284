"""Hours of the day at which devices take part, as a series on the run's clock. Pure."""

from collections.abc import Sequence

from device_agent.hours import DAY_S, parse_hours, parse_time
from profiles.series import Series


def hours_series(hours: Sequence[str], begins: str) -> Series:
    """Return 1 while hours such as `22:00-06:00` hold and 0 otherwise, day after day.

    Args:
        hours: At least one.
        begins: Time of day at which the run begins, such as `18:00`.

    Raises:
        ValueError: These are no hours, or this is no time of day.
    """
    known = [parse_hours(text) for text in hours]
    edges = sorted({0, *(edge % DAY_S for one in known for edge in (one.begin_s, one.end_s))})
    values = [float(any(one.hold_at(edge) for one in known)) for edge in edges]
    day = Series(tuple(float(edge) for edge in edges), tuple(values), float(DAY_S))
    return day.starting_at(parse_time(begins))
