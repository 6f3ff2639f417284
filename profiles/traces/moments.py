"""Times in text: dates with or without a time zone, and clocks that are set back.

The differences of times matter, not the times. So any zone will do that a whole file shares, and
zones that change within a file need known offsets.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone

import numpy as np

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.trace import Floats

HOUR_S, DAY_S = 3600.0, 86_400.0

SUNDAY = 6

FOLD_HOURS = range(4)
"""Hours of the local day in which clocks are set back at the end of summer time."""

_OFFSETS_H = {
    **{"UTC": 0.0, "GMT": 0.0, "Z": 0.0, "WET": 0.0, "WEST": 1.0, "BST": 1.0, "IST": 5.5},
    **{"CET": 1.0, "CEST": 2.0, "MET": 1.0, "MEST": 2.0, "EET": 2.0, "EEST": 3.0, "MSK": 3.0},
    **{"NST": -3.5, "NDT": -2.5, "AST": -4.0, "ADT": -3.0, "EST": -5.0, "EDT": -4.0},
    **{"CST": -6.0, "CDT": -5.0, "MST": -7.0, "MDT": -6.0, "PST": -8.0, "PDT": -7.0},
    **{"AKST": -9.0, "AKDT": -8.0, "HST": -10.0, "HDT": -9.0, "JST": 9.0, "KST": 9.0},
    **{"AWST": 8.0, "ACST": 9.5, "ACDT": 10.5, "AEST": 10.0, "AEDT": 11.0},
    **{"NZST": 12.0, "NZDT": 13.0, "HKT": 8.0, "SGT": 8.0, "IDT": 6.5},
}
"""Hours east of UTC by abbreviation. IDT is one hour after the IST of Israel; a file with IST alone
needs no offset."""

_AMBIGUOUS = {"BST": {"GMT"}, "IST": {"IDT"}, "CST": {"CDT"}, "AST": {"ADT"}, "IDT": {"IST"}}
"""Abbreviations with several meanings, and the zones beside which the meaning is known."""

_ZONE = re.compile(
    r"\s*\(?((?:UTC|GMT)?[+-]\d{1,2}(?::?\d{2})?|[A-Z][A-Za-z]+/[A-Za-z_/]+|[A-Za-z]{1,5})\)?$"
)
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?")
_ISO = re.compile(
    r"(?:(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:[T_]|\s+))?(\d{1,2}):(\d{2})(?::(\d{2}(?:[.,]\d+)?))?"
)
_TIME_OF_DAY = datetime(2001, 1, 1)  # noqa: DTZ001  # a Monday: no fold on it


def moment_s(text: str, form: str | None, where: str) -> float:
    """Return the seconds since 1970 of a time; without a zone it is taken as UTC.

    Args:
        text: Year, month, day and time with or without a zone, a time of day, or a time in `form`.
        form: Format of `strptime`; None or `iso` is a date with the year first.
        where: File and row in errors.

    Raises:
        TraceError: It is no such time, or has an unknown zone.
    """
    moment, zone = _parsed(text.strip(), form, where)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp() - HOUR_S * _offset_h(zone, where)


def check_zones(texts: Iterable[str], form: str | None, where: str) -> None:
    """Check that the zones in a file have offsets that are known beside each other.

    Raises:
        TraceError: One of several zones has more than one meaning.
    """
    zones = {found.group(1).upper() for text in texts if (found := _ZONE.search(text.strip()))}
    zones -= {"AM", "PM"}
    for zone in sorted(zones & _AMBIGUOUS.keys()):
        others = zones - {zone}
        if others and not others <= _AMBIGUOUS[zone]:
            raise TraceError(
                f"{where}: times must have zones of known offset, got {zone}, which has several "
                f"meanings, beside {', '.join(sorted(others))}; replace it by an offset such as "
                "+01:00"
            )


def _parsed(text: str, form: str | None, where: str) -> tuple[datetime, str]:
    """Return a time, and the name of its zone; an offset that `strptime` reads is in the time."""
    if form is not None and form != "iso":
        wanted = form.replace("%Z", "").strip()
        for tried in (text, _ZONE.sub("", text)):
            if tried == text and "%Z" in form:
                continue
            try:
                moment = datetime.strptime(tried, wanted)  # noqa: DTZ007  # zone: see moment_s
            except ValueError:
                continue
            zone = "" if tried == text else text[len(tried) :].strip(" ()")
            return moment, zone
        raise _no_time(text, form, where)
    found = _ISO.match(text)
    if found is None:
        raise _no_time(text, form, where)
    year, _, month, day, hour, minute, second = found.groups()
    rest = text[found.end() :].strip(" ()")
    half, _, zone = rest.partition(" ")
    hours = int(hour)
    if half.upper() in ("AM", "PM"):
        if not 1 <= hours <= 12:
            raise _no_time(text, form, where)
        hours, rest = hours % 12 + 12 * (half.upper() == "PM"), zone
    try:
        date = _TIME_OF_DAY if year is None else datetime(int(year), int(month), int(day))  # noqa: DTZ001
        if hours > 23 or int(minute) > 59 or (year is None and second is None):
            raise ValueError(text)
        seconds = float((second or "0").replace(",", "."))
        return date + timedelta(hours=hours, minutes=int(minute), seconds=seconds), rest
    except ValueError:
        raise _no_time(text, form, where) from None


def _no_time(text: str, form: str | None, where: str) -> TraceError:
    return TraceError(
        f"{where}: must be a time as {form or 'ISO 8601'}, got {text[:40]!r}; "
        "correct the row, or give the format: t=COLUMN:%Y-%m-%d_%H:%M:%S"
    )


def _offset_h(zone: str, where: str) -> float:
    if not zone or "/" in zone:  # a region without an offset: local time, like no zone at all
        return 0.0
    if found := _OFFSET.fullmatch(zone.upper()):
        sign, hours, minutes = found.groups()
        return (int(hours) + int(minutes or 0) / 60.0) * (-1.0 if sign == "-" else 1.0)
    if (offset := _OFFSETS_H.get(zone.upper())) is not None:
        return offset
    raise TraceError(
        f"{where}: unknown time zone {zone[:20]!r}; remove it from every row, or replace it by an "
        "offset such as +01:00"
    )


def after_folds(times: Floats, *, is_local: bool) -> tuple[Floats, list[str]]:
    """Return times without the hour that local clocks repeat, and a line per correction.

    Local times that fall by an hour on a Sunday night are the end of summer time, and times of day
    that fall by more than half a day passed midnight. Other times that fall are left as they are.

    Args:
        times: Seconds since 1970 in the order of the file, shape (R,).
        is_local: They come from text without a zone.
    """
    steps = np.diff(times)
    falls = np.flatnonzero(steps < 0.0)
    if not is_local or not falls.size:
        return times, []
    usual_s = float(np.median(steps[steps > 0.0])) if (steps > 0.0).any() else 1.0
    added, lines = np.zeros(len(times)), list[str]()
    for row in falls:
        moment = datetime.fromtimestamp(times[row + 1], tz=timezone.utc)
        is_of_day = moment.date() == _TIME_OF_DAY.date() or moment.year == 1900
        if is_of_day and steps[row] < -DAY_S / 2.0:
            added[row + 1 :] += DAY_S
            lines.append(f"midnight after {row + 1} rows: 1 day added to later rows")
        elif (
            moment.weekday() == SUNDAY
            and moment.hour in FOLD_HOURS
            and abs(steps[row] + HOUR_S) <= min(10.0 * usual_s, HOUR_S / 2.0)
        ):
            added[row + 1 :] += HOUR_S
            lines.append(
                f"clock set back 1 h after {row + 1} rows, at the end of summer time: 1 h added "
                "to later rows"
            )
    return times + added, lines


def is_local(text: str) -> bool:
    """Return whether a time in text has no offset: none at all, or the name of a region."""
    zone = _ZONE.search(text.strip())
    return zone is None or "/" in zone.group(1) or zone.group(1).upper() in ("AM", "PM")
