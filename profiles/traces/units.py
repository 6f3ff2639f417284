"""Units of the columns of tables: read from a name, or given after a colon in `--columns`.

    unit    = amount per time | time | share | frequency
    amount  = [prefix] (bit | byte)         Mbit, kB, KiByte, "kilo bits"
    per     = "ps" | "/" time | "per" time | time "^-1"
    name    = ... "(" unit ")" | ... "[" unit "]" | ... separator unit | ... Unit

A text with more than one meaning (`MBPS`, `mb/s`) has no unit here. A unit of which a number stands
before (`100 bit/s`) is a part of another unit.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fairbed.profiles.errors import TraceError
from fairbed.profiles.series import Series
from fairbed.profiles.traces.trace import Trace

Dimension: TypeAlias = Literal["rate", "amount", "time", "share", "frequency", "cores"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its values times `factor` are bit/s, bit, seconds, shares of 1, Hz or cores."""

    text: str
    dimension: Dimension
    factor: float


class AmbiguousUnit(ValueError):
    """A text may be two units, or a name has two."""


_TIMES = {
    1e-9: "ns nsec nsecs nanos nanosecond nanoseconds",
    1e-6: "us μs usec usecs μsec micros microsecond microseconds mikrosekunden",
    1e-3: "ms msec msecs millis millisec millisecs millisecond milliseconds millisekunden",
    1.0: "s sec secs second seconds sek sekunde sekunden",
    60.0: "min mins minute minutes minuten",
    3600.0: "h hr hrs hour hours stunden",
    86400.0: "d day days tage",
}
TIMES_S = {word: factor for factor, words in _TIMES.items() for word in words.split()}
"""Seconds by the names of times, in lower case."""

_SHARES = {
    1.0: "ratio fraction frac share probability prob",
    0.01: "% percent percentage pct perc prozent",
    1e-3: "‰ permille",
    1e-6: "ppm",
}
SHARES = {word: factor for factor, words in _SHARES.items() for word in words.split()}
"""Shares of 1 by their names, in lower case."""

_FREQUENCIES_HZ = {"hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}

_PREFIXES = {
    "": 1.0,
    **{text: 1e3 for text in ("k", "kilo")},
    **{text: 1e6 for text in ("m", "mega")},
    **{text: 1e9 for text in ("g", "giga")},
    **{text: 1e12 for text in ("t", "tera")},
    **{text: 2.0**10 for text in ("ki", "kibi")},
    **{text: 2.0**20 for text in ("mi", "mebi")},
    **{text: 2.0**30 for text in ("gi", "gibi")},
    **{text: 2.0**40 for text in ("ti", "tebi")},
}

_PER = r"\s*(?:/|\bper\b|p(?=s(?:ec(?:ond)?s?)?$)|[ ·*.])\s*"
_AMOUNT = re.compile(
    r"(?P<prefix>kilo|mega|giga|tera|kibi|mebi|gibi|tebi|[kmgt]i?)?[ -]?"
    r"(?P<what>bits?|bytes?|octets?|b)"
    rf"(?:(?P<per>{_PER})(?P<time>[a-zμ]+)(?P<power>\s*(?:\^\s*)?\(?-1\)?)?)?",
    re.IGNORECASE,
)


def unit_of(text: str) -> Unit | None:
    """Return the unit that a whole text is; None if it is none.

    Raises:
        AmbiguousUnit: It may be bits or bytes.
    """
    norm = unicodedata.normalize("NFKC", text).replace("µ", "μ").replace("−", "-")
    norm = " ".join(norm.replace("_", " ").split())
    lower = norm.lower()
    for dimension, units in (
        ("time", TIMES_S),
        ("share", SHARES),
        ("frequency", _FREQUENCIES_HZ),
        ("cores", {"cores": 1.0, "core": 1.0}),
    ):
        if lower in units:
            return Unit(text, dimension, units[lower])  # type: ignore[arg-type]  # a literal
    if lower in ("per cent", "out of 1"):
        return Unit(text, "share", 0.01 if lower == "per cent" else 1.0)
    match = _AMOUNT.fullmatch(norm)
    if match is None:
        return None
    per, time, power = match["per"], match["time"], match["power"]
    if per is not None:
        is_name = per == " " and "_" in text and not power  # mbit_s
        if time.lower() not in TIMES_S or (_needs_power(per) != bool(power) and not is_name):
            return None
    factor = _PREFIXES[(match["prefix"] or "").lower()] * _bits(match, text)
    if per is None:
        return Unit(text, "amount", factor)
    return Unit(text, "rate", factor / TIMES_S[time.lower()])


def _needs_power(per: str) -> bool:
    return per.strip() in ("", "·", "*", ".")


def _bits(match: re.Match[str], text: str) -> float:
    """Return the bits of a bit or a byte."""
    what, prefix = match["what"], match["prefix"] or ""
    if len(what) > 1:
        return 1.0 if what.lower().startswith("bit") else 8.0
    is_ps = (match["per"] or "").strip().lower() == "p"
    rest = (match["per"] or "") + (match["time"] or "")
    is_upper = what == "B"
    is_lower = is_ps or not prefix or not prefix.islower()  # mb/s may be a careless megabyte
    is_clear = rest.lower() == rest if is_upper else is_lower  # MBPS is not
    if not is_clear:
        raise AmbiguousUnit(f"{text!r} may be of bits or of bytes")
    return 8.0 if is_upper else 1.0


_BRACKETS = re.compile(r"\(([^()]*)\)|\[([^\[\]]*)\]|\{([^{}]*)\}|<([^<>]*)>")
_TOKENS = re.compile(r"[^\s_\-.,:;/|=]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MULTIPLE = re.compile(
    r"(?:^|[^a-z])(?:\d+[\d.,]*|\d*\^\d+|[x×*]|hundreds?|thousands?|millions?|billions?|mio|mrd|tsd)"
    r"(?: of)?[.]?$",
    re.IGNORECASE,
)
"""Text before a unit that makes it another: `100 bit/s`, `million bit/s`."""

_SHORT = ("s", "sec", "b", "bps", "bit", "byte", "hz")
"""Units whose prefix may stand before them: `ratekBps`."""


def unit_in(name: str) -> Unit | None:
    """Return the unit in the name of a column; None if it has none that is known.

    Raises:
        AmbiguousUnit: It may be two, or the name has two.
    """
    inside = [next(filter(None, groups), "") for groups in _BRACKETS.findall(name)]
    found = [unit_of(re.sub(r"^\s*in\s+", "", text).strip()) for text in inside]
    outside = _BRACKETS.sub(" ", name).strip()
    if outside.endswith(("%", "‰")):
        found.append(unit_of(outside[-1]))
    else:
        found.append(_suffix(outside, is_whole=not inside))
    units = [unit for unit in found if unit is not None]
    if len({(unit.dimension, unit.factor) for unit in units}) > 1:
        texts = " and ".join(repr(unit.text) for unit in units)
        raise AmbiguousUnit(f"{name!r} has the units {texts}")
    return units[0] if units else None


def _suffix(name: str, *, is_whole: bool) -> Unit | None:
    """Return the unit at the end of a name: the longest text after a separator that is one."""
    for start, end in _starts(name):
        if start == 0 and (not is_whole or len(name) == 1):  # a column `b` may be anything
            continue
        text = name[start:]
        unit = unit_of(text)
        if unit is None:
            continue
        before = name[:end]
        if _MULTIPLE.search(before):
            return None
        if name[:start].rstrip(" ").endswith("/") and unit.dimension == "time":
            of = _TOKENS.findall(before)
            return unit if of and of[-1].lower() in _QUANTITIES else None  # frames/s is no time
        if unit.dimension == "time" and re.search(r"(?i)(?:^|[\s_])per$", before):
            return None
        return unit
    return None


_QUANTITIES = frozenset(
    {"t", "time", "zeit", "timestamp", "start", "duration", "dauer", "elapsed", "delay", "latency"}
    | {"rtt", "ping", "jitter"}
)
"""Words before a slash that is a separator, as in `Time/ms`, and not a division."""


def _starts(name: str) -> Iterator[tuple[int, int]]:
    """Yield where a unit may begin, and where the text before it ends, longest unit first."""
    tokens = [(match.start(), match.end()) for match in _TOKENS.finditer(name)]
    places: list[tuple[int, int]] = []
    for index, (start, end) in enumerate(tokens):
        places.append((start, tokens[index - 1][1] if index else 0))
        for camel in _CAMEL.finditer(name, start, end):
            at = camel.start()
            rest = name[at:end].lower()
            before = name[start:at].lower()
            is_prefix = before[-1:] in "kmgtunμ" and rest in _SHORT
            is_word = before.endswith(
                ("milli", "micro", "nano", "kilo", "mega", "giga", "tera", "kibi", "mebi", "gibi")
            )
            if not is_prefix and not is_word:
                places.append((at, at))
    yield from sorted(places)


LOWEST_BPS, HIGHEST_BPS = 1e3, 1e11
"""Limits of the 95th percentile of the rates above 0, bit/s: slower than a modem, or faster than
the links of data centres, is a wrong unit."""

LONGEST_STEP_S = 3600.0
"""Limit of the median time between two rows, seconds."""

LARGEST_LOSS = 0.5
"""Limit of the mean loss; no transfer works with more."""

LONGEST_DELAY_S = 10.0
"""Limit of the median one-way delay and of the median jitter, seconds."""

MEDIANS = {"clock_ratio": (0.01, 10.0), "background_load": (0.0, 32.0)}
"""Limits of medians: per cent are larger, and so are loads of more cores than edge devices have."""


def magnitude_faults(column: str, series: Series, *, has_rows: bool = True) -> list[str]:
    """Return the signs that a number is of another unit, a line each.

    Rates of 0 and long times without rows are outages, and no sign.

    Args:
        column: Name of the column of a trace.
        series: Its values.
        has_rows: The times are those of the rows of a file.
    """
    faults = []
    values = np.array(series.values)
    if column.endswith("bps") and (values > 0.0).any():
        p95 = float(np.quantile(values[values > 0.0], 0.95)) if len(values) > 1 else values[0]
        if not LOWEST_BPS <= p95 <= HIGHEST_BPS:
            faults.append(
                f"the 95th percentile of {column} must be from 1 kbit/s to 100 Gbit/s, "
                f"got {p95:.6g} bit/s"
            )
    if column in MEDIANS:
        lowest, highest = MEDIANS[column]
        median = float(np.median(values))
        if not lowest <= median <= highest:
            faults.append(
                f"the median of {column} must be from {lowest:g} to {highest:g}, got {median:.6g}"
            )
    if column == "available" and series.highest == 0.0:
        faults.append("available must be above 0 at some time, got only zeros")
    if column in ("delay_s", "jitter_s") and float(np.median(values)) > LONGEST_DELAY_S:
        faults.append(
            f"the median of {column} must be at most {LONGEST_DELAY_S:g} s, "
            f"got {np.median(values):.6g} s"
        )
    if column == "loss_ratio" and series.mean > LARGEST_LOSS:
        faults.append(f"the mean loss must be at most 50 %, got {series.mean:.3g}")
    steps_s = np.diff(np.array(series.t_s))
    if has_rows and len(steps_s) and float(np.median(steps_s)) > LONGEST_STEP_S:
        faults.append(
            f"the usual time between rows must be at most an hour, got {np.median(steps_s):.6g} s"
        )
    return faults


def check_magnitudes(trace: Trace, where: str) -> None:
    """Check that the numbers of an imported trace are not those of another unit.

    Raises:
        TraceError: They are likely to be.
    """
    faults = [
        fault
        for column in trace.columns
        for fault in magnitude_faults(column, trace.series(column))
    ]
    if faults:
        raise TraceError(
            f"{where}: {faults[0]}; correct the unit of the column, or add --as-is if it is right"
        )
