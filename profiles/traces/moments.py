"""Times in text: dates with or without a time zone, and clocks that are set back.

The differences of times matter, not the times. So any zone will do that a whole file shares. Zones
that change within a file need known offsets: an abbreviation with several meanings (CST, IST) is
read beside others only if all regions that use these abbreviations have the same differences.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import numpy as np

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.trace import Floats

HOUR_S, DAY_S = 3600.0, 86_400.0

SUNDAY = 6

FOLD_HOURS = range(4)
"""Hours of the local day in which clocks are set back at the end of summer time."""

FOLD_MONTHS = (3, 4, 9, 10, 11)
"""Months in which summer time begins or ends."""

_REGIONS: tuple[Mapping[str, float], ...] = (
    {"UTC": 0.0, "Z": 0.0, "UT": 0.0, "UCT": 0.0, "ZULU": 0.0, "GMT": 0.0},
    {"WET": 0.0, "WEST": 1.0},
    {"CET": 1.0, "CEST": 2.0, "MET": 1.0, "MEST": 2.0, "MEZ": 1.0, "MESZ": 2.0},
    {"EET": 2.0, "EEST": 3.0},
    {"GMT": 0.0, "BST": 1.0},  # Britain
    {"GMT": 0.0, "IST": 1.0},  # Ireland
    {"MSK": 3.0, "MSD": 4.0},
    {"MSK": 4.0},  # 2011 to 2014
    {"IST": 2.0, "IDT": 3.0},  # Israel
    {"IST": 5.5},  # India
    {"BST": 6.0},  # Bangladesh
    {"BST": 11.0},  # Bougainville
    {"BST": -11.0, "BDT": -10.0},  # Bering
    {"BDT": 6.0},  # Bangladesh
    {
        **{"NST": -3.5, "NDT": -2.5, "AST": -4.0, "ADT": -3.0, "EST": -5.0, "EDT": -4.0},
        **{"CST": -6.0, "CDT": -5.0, "MST": -7.0, "MDT": -6.0, "PST": -8.0, "PDT": -7.0},
        **{"AKST": -9.0, "AKDT": -8.0, "HST": -10.0, "HDT": -9.0},
    },
    {"CST": -5.0, "CDT": -4.0},  # Cuba
    {"CST": 8.0, "CDT": 9.0},  # China
    {
        **{"AEST": 10.0, "AEDT": 11.0, "ACST": 9.5, "ACDT": 10.5, "AWST": 8.0, "AWDT": 9.0},
        **{"LHST": 10.5, "LHDT": 11.0},
    },
    {"EST": 10.0, "EDT": 11.0, "CST": 9.5, "CDT": 10.5, "WST": 8.0, "WDT": 9.0},  # Australia
    {"EST": 11.0, "CST": 10.5},  # Australian summer time, in editions before 2014
    {"AST": 3.0, "ADT": 4.0},  # Arabia
    {"AMT": -4.0, "AMST": -3.0},  # Amazon
    {"AMT": 4.0, "AMST": 5.0},  # Armenia
    {"BRT": -3.0, "BRST": -2.0},
    {"ECT": -5.0},  # Ecuador
    {"ECT": -4.0},  # Eastern Caribbean
    {"GST": 4.0},  # Gulf
    {"GST": 10.0},  # Guam
    {"GST": -2.0},  # South Georgia
    {"MST": 6.5},  # Myanmar
    {"MST": 8.0},  # Malaysia
    {"NST": -11.0},  # Nome
    {"PST": 8.0, "PDT": 9.0},  # Philippines
    {"SST": -11.0},  # Samoa
    {"SST": 8.0},  # Singapore
    {"WST": 13.0},  # Samoa
    {"WIB": 7.0, "WITA": 8.0, "WIT": 9.0},
    {"WIT": 7.0},  # editions before 2013
    {"KST": 9.0, "KDT": 10.0},
    {"KST": 8.5},  # North Korea, 2015 to 2018
    {"JST": 9.0},
    {"HKT": 8.0, "HKST": 9.0},
    {"NZST": 12.0, "NZDT": 13.0},
    {"CHST": 10.0},
    {"CAT": 2.0},
    {"EAT": 3.0},
    {"WAT": 1.0, "WAST": 2.0},
    {"SAST": 2.0},
    {"SGT": 8.0},
    {"PHT": 8.0},
    {"MYT": 8.0},
    {"ICT": 7.0},
    {"NPT": 5.75},
    {"PKT": 5.0, "PKST": 6.0},
    {"TRT": 3.0},
    {"IRST": 3.5, "IRDT": 4.5},
)
"""Hours east of UTC by abbreviation, of regions whose files may have these abbreviations together.

Source: tzdata 2026f and editions before 2017, which have invented abbreviations, times since 1970.
An abbreviation that is not here is refused."""

_OFFSETS_H: dict[str, float] = {}
for _region in reversed(_REGIONS):
    _OFFSETS_H |= _region
"""First meaning of each abbreviation."""

_ZONE = re.compile(
    r"\s*\(?((?:UTC|GMT)?[+-]\d{1,2}(?::?\d{2})?|[A-Z][A-Za-z]+/[A-Za-z_/]+|[A-Za-z]{1,5})\)?$"
)
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?")
_REGION = re.compile(r"(?<=[\dZz])\s*\[[A-Za-z_/+-]+\]$")
"""Region after an offset, as Java writes it."""

_ISO = re.compile(
    r"(?:(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:[T_]|\s+))?(\d{1,2}):(\d{2})(?::(\d{2}(?:[.,]\d+)?))?"
)
_TIME_OF_DAY = datetime(2001, 1, 1)  # noqa: DTZ001  # a Monday: no fold on it


NUMBER = "number"
"""In place of the zone of a time that is a number."""


def moment_of(text: str, form: str | None, where: str) -> tuple[float, str]:
    """Return the seconds since 1970 of a time and its zone, which is empty for a local time.

    A time without a zone counts as UTC, and an abbreviation has its first meaning: see `agreed`.

    Args:
        text: Year, month, day and time with or without a zone, a time of day, or a time in `form`.
        form: Format of `strptime`; without one: a date with the year first.
        where: File and row in errors.

    Raises:
        TraceError: It is no such time, or has an unknown zone.
    """
    moment, zone = _parsed(_REGION.sub("", text.strip()), form, where)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    elif not zone:
        zone = "+00:00"
    return moment.timestamp() - HOUR_S * _offset_h(zone, where), zone


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the zones of the times of a file have in common."""

    is_local: bool
    """The times are of a local clock, whose zone is not written or has no offset."""
    added_s: Mapping[str, float]
    """Seconds to add to the times of `moment_of`, by zone."""


def agreed(zones: Sequence[str], rows: Sequence[int], where: str) -> Agreed:
    """Return what the zones of a file have in common.

    Args:
        zones: Zone of each time of `moment_of`, or `NUMBER`.
        rows: Row of each time.
        where: Name of the file in errors.

    Raises:
        TraceError: Some times have a zone and others have none, or abbreviations beside each other
            have several meanings.
    """
    found = dict.fromkeys(zones)
    kinds = {_kind(zone): zone for zone in reversed(found)}
    if len(kinds) > 1:
        one, other = list(kinds.values())[:-3:-1]
        first, second = (rows[zones.index(zone)] for zone in (one, other))
        raise TraceError(
            f"{where}: times must all have a time zone or none, got {_shown(one)} in row {first} "
            f"and {_shown(other)} in row {second}; write all of them in one way"
        )
    names = {zone.upper(): zone for zone in found if zone.upper() in _OFFSETS_H}
    offsets_h = _offsets_h(names.keys(), found.keys() - names.values(), where)
    return Agreed(
        is_local=next(iter(kinds), "") not in (NUMBER, "zone"),
        added_s={
            zone: HOUR_S * (_OFFSETS_H[name] - offsets_h[name]) for name, zone in names.items()
        },
    )


def _kind(zone: str) -> str:
    if zone in ("", NUMBER) or "/" in zone:
        return zone
    return "zone"


def _shown(zone: str) -> str:
    return {"": "none", NUMBER: "a number"}.get(zone, zone)


def _offsets_h(names: Collection[str], offsets: Collection[str], where: str) -> Mapping[str, float]:
    """Return the hours east of UTC of abbreviations beside each other, and beside offsets."""
    meanings = {name: {region[name] for region in _REGIONS if name in region} for name in names}
    several = {name for name, hours in meanings.items() if len(hours) > 1}
    if not several or (len(names) == 1 and not offsets):
        return {name: _OFFSETS_H[name] for name in names}
    shared = [region for region in _REGIONS if region.keys() >= set(names)] if not offsets else []
    differences = {tuple(region[name] - region[min(names)] for name in names) for region in shared}
    if len(differences) == 1:
        return shared[0]
    name = min(several)
    others = sorted({*names, *offsets} - {name})
    raise TraceError(
        f"{where}: times must have zones of known offset, got {name}, which has several "
        f"meanings, beside {', '.join(others[:5])}; replace it by an offset such as +01:00"
    )


def _parsed(text: str, form: str | None, where: str) -> tuple[datetime, str]:
    """Return a time, and the name of its zone; an offset that `strptime` reads is in the time."""
    if form is not None:
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


def may_change_clock(start_s: float, end_s: float) -> bool:
    """Return whether a span of local time is over a night in which summer time begins or ends."""
    first = datetime.fromtimestamp(start_s, tz=timezone.utc)
    if first.date() == _TIME_OF_DAY.date() or first.year == 1900:
        return False
    days = range(int((end_s - start_s) // DAY_S) + 2)
    for day in days:
        moment = first + timedelta(days=day)
        if moment.weekday() == SUNDAY and moment.month in FOLD_MONTHS:
            night = moment.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
            if start_s < night + HOUR_S * FOLD_HOURS.stop and end_s > night + HOUR_S:
                return True
    return False


def after_folds(
    times: Floats, *, is_local: bool, any_fall: bool = False
) -> tuple[Floats, list[str]]:
    """Return times without the hour that local clocks repeat, and a line per correction.

    Local times that fall by an hour on a Sunday night are the end of summer time, and times of day
    that fall by more than half a day passed midnight. Other times that fall are left as they are.

    Args:
        times: Seconds since 1970 in the order of the file, shape (R,).
        is_local: They come from text without a zone.
        any_fall: Times are rare, so that a fall of less than an hour counts, too.
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
            and (
                abs(steps[row] + HOUR_S) <= min(10.0 * usual_s, HOUR_S / 2.0)
                or (any_fall and steps[row] >= -HOUR_S)
            )
        ):
            added[row + 1 :] += HOUR_S
            lines.append(
                f"clock set back 1 h after {row + 1} rows, at the end of summer time: 1 h added "
                "to later rows"
            )
    return times + added, lines
