r"""Read a trace from a table with other columns than our format: a log of a phone, a test, a board.

    t=Timestamp:%Y.%m.%d_%H.%M.%S,down=DL_bitrate:kbit,delay=ping_avg_ms:rtt-ms

Each part is `NUMBER=COLUMN:UNIT`. Without a unit, that in the column's name counts (`dl_kbps`,
`Time (ms)`); a number without a known unit is refused. Times may be numbers, or text in ISO 8601 or
a format of `strptime`. A unit `/1500` divides: a clock in MHz becomes a ratio. Rows without one of
the values are left out, and rows with the same time are averaged, because many logs have times in
whole seconds.
"""

import csv
import io
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairbed.profiles.errors import TraceError
from fairbed.profiles.text import HEAD_BYTES, DecimalMarks, TextError, dialect_of
from fairbed.profiles.traces.drives import ADVICE, Split, drives_of
from fairbed.profiles.traces.moments import NUMBER, after_folds, agreed, moment_of
from fairbed.profiles.traces.table import check_text
from fairbed.profiles.traces.trace import MAX_BPS, ONE_WAY, RANGES, Floats, Trace
from fairbed.profiles.traces.units import AmbiguousUnit, Unit, unit_in, unit_of

TIME, DURATION = "t", "duration"

NUMBERS: Mapping[str, str] = {
    "down": "down_bps",
    "up": "up_bps",
    "rate": ONE_WAY,
    "delay": "delay_s",
    "jitter": "jitter_s",
    "loss": "loss_ratio",
    "clock": "clock_ratio",
    "load": "background_load",
    "available": "available",
}
"""Numbers by their names in `--columns`, and the columns of a trace."""

_FITTING: Mapping[str, tuple[str, str]] = {
    "time": ("time", "s, ms, us, ns, min, h"),
    "rate": ("rate", "bit, kbit, mbit, gbit, kbyte, mbyte, or as Mbit/s"),
    "delay": ("time", "s, ms, us, or rtt-ms for half of a round trip"),
    "share": ("share", "ratio, % or /NUMBER"),
    "clock": ("share", "ratio, % or /NUMBER with the value at full speed"),
    "load": ("cores", "cores, or /NUMBER with the value of one busy core"),
}
"""Dimension of kinds of numbers, and the units that fit them."""

_ROUND_TRIP = re.compile(r"rtt|ping|round.?trip|echo|turn.?around|response", re.IGNORECASE)

_ONE_WAY = re.compile(r"one.?way|owd", re.IGNORECASE)

_CHANGED = re.compile(
    r"(?<![a-z])(?:log(?:2|10)?|ln|sqrt|inv|inverse|reciprocal|std|stdev|stddev|sd|var|variance|"
    r"deviation|error|err|diff|delta|norm|normali[sz]ed|scaled|z.?score|rank|deci|centi)(?![a-z])",
    re.IGNORECASE,
)
"""Words in the names of numbers that are not the value itself."""

_OPPOSITES: Mapping[str, re.Pattern[str]] = {
    number: re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.IGNORECASE)
    for number, words in {
        "loss": r"1\s?-\s?[a-z]\w*|success\w*|deliver\w*|receiv\w*|recept\w*|pdr|prr|good|ok",
        "clock": "throttl\\w*|idle|slow\\w*",
        "load": "idle|free|spare|available|unused",
        "available": "off\\w*|un\\w+|not|no|down|busy|lost|disconnected|away|missing|absent|outage",
    }.items()
}
"""Words in the names of the opposites of numbers."""

LATEST_S = 4.2e9
"""Latest time, seconds since 1970: the year 2103. Epochs in smaller units are larger."""

_EPOCHS = {10: "s", 13: "ms", 16: "us", 19: "ns"}
"""Units of the times since 1970 of this century, by their digits."""

_OF_DRIVES = re.compile(
    r"(?<![a-z])(?:traces?|bus|buses|drives?|runs?|trips?|rides?|routes?|tests?|sessions?|devices?|"
    r"vehicles?|cars?|trains?|nodes?|ue|imei|imsi|users?|phones?|clients?|modems?|operators?|"
    r"files?|carriers?|sims?|name|id|serial|mac|dish|terminal|day|date)(?![a-z])",
    re.IGNORECASE,
)
"""Words in the names of columns that may name the drives of a file."""

ABSENT = frozenset({"", "-", "na", "n/a", "nan", "null", "none"})
"""Values of a row without a measurement, in lower case."""


def _kind(number: str) -> str:
    if number in (TIME, DURATION):
        return "time"
    if number in ("down", "up", "rate"):
        return "rate"
    if number in ("delay", "jitter"):
        return "delay"
    return number if number in ("clock", "load") else "share"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and the unit of its values."""

    name: str
    unit: str | None = None
    """None takes the unit in the name."""


def parse_columns(text: str) -> dict[str, Column]:
    """Return the columns by number, `t` included.

    Raises:
        ValueError: The text is not `NUMBER=COLUMN:UNIT,...`, or has no time or no number.
    """
    columns: dict[str, Column] = {}
    known = (TIME, *NUMBERS)
    for part in re.split(r",(?=\s*\w+\s*=)", text):
        number, is_pair, rest = part.partition("=")
        name, _, unit = rest.partition(":")
        number, name = number.strip(), name.strip()
        if not is_pair or not name or number not in known:
            raise ValueError(
                f"must be NUMBER=COLUMN:UNIT with a NUMBER of {', '.join(known)}, got {part!r}"
            )
        if number in columns:
            raise ValueError(f"must name each number once, got {number} twice")
        columns[number] = Column(name, unit.strip() or None)
    if TIME not in columns or len(columns) == 1:
        raise ValueError(f"must name t and at least one number, got {text!r}")
    if "rate" in columns and columns.keys() & {"down", "up"}:
        raise ValueError("must name rate alone, or down and up, got both")
    return columns


OWN = {
    TIME: (Column("t_s", "s"),),
    "down": (Column("down_bps", "bit"), Column("down_mbps", "mbit")),
    "up": (Column("up_bps", "bit"), Column("up_mbps", "mbit")),
    "rate": (Column("bps", "bit"), Column("mbps", "mbit")),
    "delay": (Column("delay_s", "s"),),
    "jitter": (Column("jitter_s", "s"),),
    "loss": (Column("loss_ratio", "ratio"),),
    "clock": (Column("clock_ratio", "ratio"),),
    "load": (Column("background_load", "cores"),),
    "available": (Column("available", "ratio"),),
}
"""Columns of our own format by number."""


def own_columns(content: bytes, where: str) -> dict[str, Column]:
    """Return the columns of a table whose header has the names of our own format, and others.

    Raises:
        TraceError: It has no time or no number by these names.
    """
    check_text(content, where)
    header, row, _ = table_of(content, where)
    found = {n: c for n, choices in OWN.items() for c in choices if c.name in header}
    if TIME not in found or len(found) == 1:
        raise TraceError(
            f"{where}: row {row}: must have t_s and a number of a trace, got "
            f"{', '.join(header)[:300]}; name the columns: --columns t=NAME,down=NAME:kbit"
        )
    return found


@dataclass(frozen=True, slots=True)
class Read:
    """A trace of a table, and the rows that it does not have."""

    trace: Trace
    left_out: int
    """Rows without one of the values."""
    averaged: int
    """Rows that have the time of the row before."""
    repeated: int = 0
    """Of these, rows that repeat another in every value."""
    lines: tuple[str, ...] = ()
    """What was corrected in the times."""

    def __str__(self) -> str:
        repeated = f" ({self.repeated} of them repeat a row)" if self.repeated else ""
        return "; ".join(
            [
                f"{len(self.trace.t_s)} rows, {self.left_out} without a value left out, "
                f"{self.averaged} with the time of the row before averaged{repeated}",
                *self.lines,
            ]
        )


def read_columns(content: bytes, where: str, columns: Mapping[str, Column]) -> Read:
    """Return the trace of a table with a header; commas, semicolons or tabs separate values.

    The last row holds for the median time between rows.

    Args:
        content: Content of the file.
        where: Name of the file in errors.
        columns: Columns by number, `t` included.

    Raises:
        TraceError: A column is missing, or a row violates a rule; the message names it.
    """
    return read_drives(content, where, columns, Split())[0][1]


def read_drives(
    content: bytes, where: str, columns: Mapping[str, Column], split: Split
) -> list[tuple[str, Read]]:
    """Return the traces of a table of several drives, each with its value of the split column.

    The last row holds for the median time between rows.

    Args:
        content: Content of the file.
        where: Name of the file in errors.
        columns: Columns by number, `t` included.
        split: How to split; the rows without a value are counted with the first drive.

    Raises:
        TraceError: A column is missing, or a row violates a rule; the message names it.
    """
    header, n_before, rows = table_of(content, where)
    columns = {number: _named(header, column) for number, column in columns.items()}
    places = {
        number: place_of(header, column, f"{where}: row {n_before}")
        for number, column in columns.items()
    }
    label_at = None
    if split.column is not None:
        if split.column not in header:
            raise TraceError(
                f"{where}: row {n_before}: must have the column {split.column!r}, "
                f"got {', '.join(header)[:300]}; name one of them in --split"
            )
        label_at = header.index(split.column)
    factors = {number: factor_of(where, number, columns[number]) for number in places}
    marks = DecimalMarks()
    left_out, without_label, values = 0, 0, list[list[float]]()
    others: dict[int, set[str]] = {
        at: set()
        for at, name in enumerate(header)
        if split.column is None and at not in places.values() and _OF_DRIVES.search(name)
    }
    kept_rows, labels, zones = list[int](), list[str](), list[str]()
    for row, fields in enumerate(rows, n_before + 1):
        if not fields:
            continue
        if len(fields) != len(header):
            raise TraceError(
                f"{where}: row {row}: must have {len(header)} values, got {len(fields)}; "
                "correct the row"
            )
        texts = {number: marks.with_point(fields[at].strip()) for number, at in places.items()}
        label = "" if label_at is None else fields[label_at].strip()
        if any(text.lower() in ABSENT for text in texts.values()):
            left_out += 1
            continue
        if label_at is not None and label.lower() in ABSENT:
            without_label += 1
            continue
        for at, seen in others.items():
            if len(seen) <= 1:
                seen.add(fields[at].strip())
        values.append(
            [
                number_in(
                    text, number, columns[number], factors[number], f"{where}: row {row}", zones
                )
                for number, text in texts.items()
            ]
        )
        kept_rows.append(row)
        if label_at is not None:
            labels.append(label)
    check_marks(marks, where)
    if not values:
        raise TraceError(
            f"{where}: must have rows with all chosen values, got {left_out + without_label} "
            "without; choose other columns"
        )
    table, at = np.array(values), list(places).index(TIME)
    common = agreed(zones, kept_rows, where)
    if any(common.added_s.values()):
        table[:, at] += [common.added_s.get(zone, 0.0) for zone in zones]
    has_local = common.is_local
    found = list[tuple[str, Read]]()
    for label, members in _divided(table[:, at], labels, split, has_local):
        part = table[members].copy()
        part[:, at], lines = after_folds(part[:, at], is_local=has_local)
        delay = columns.get("delay")
        if delay and delay.unit is None and not _ONE_WAY.search(delay.name):
            lines.append(
                f"{delay.name!r} is taken as one way; if it is of a round trip, give the unit "
                "rtt-ms after a colon"
            )
        rows_of = [kept_rows[row] for row in members]
        read = _trace(part, list(places), rows_of, where, 0 if found else left_out)
        if not found and without_label:
            lines.append(f"{without_label} rows without a value of {split.column} left out")
        if not found:
            lines += [
                f"the column {header[place]!r} has several values; if each is a drive, split the "
                f"file by it: --split {shlex.quote(header[place])}"
                for place, seen in others.items()
                if len(seen) > 1
            ]
        found.append((label, replace(read, lines=tuple(lines))))
    return found


def _divided(
    times: Floats, labels: list[str], split: Split, has_local: bool
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the drives, cut where the time falls, but not at the end of summer time."""
    for label, members in drives_of(times, labels, Split(split.column)):
        corrected, _ = after_folds(times[members], is_local=has_local)
        for _, part in drives_of(corrected, [], Split(None, split.at_falls)):
            yield label, members[part]


def table_of(content: bytes, where: str) -> tuple[list[str], int, Iterable[list[str]]]:
    """Return the names of the columns, the row of the header, and the rows after it.

    Raises:
        TraceError: There is no header.
    """
    text = check_text(content, where).decode("utf-8")
    dialect = dialect_of(text[:HEAD_BYTES], comments=True)
    if dialect is None:
        raise TraceError(f"{where}: a trace must have a header, got comments only; record it again")
    rows = io.StringIO(text, newline="")
    for _ in range(dialect.row):
        rows.readline()
    return list(dialect.header), dialect.row, _rows(rows, dialect.delimiter, where)


def _rows(lines: Iterable[str], delimiter: str, where: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    except csv.Error as exc:
        raise TraceError(f"{where}: must be a table, got: {exc}; correct it") from exc


def check_marks(marks: DecimalMarks, where: str) -> None:
    """Check the commas of the numbers of a table.

    Raises:
        TraceError: They may separate thousands.
    """
    try:
        marks.check()
    except TextError as exc:
        raise TraceError(f"{where}: {exc}") from exc


def _named(header: Sequence[str], column: Column) -> Column:
    """Return a column whose name may have a colon, which separates the unit in `--columns`."""
    if column.name not in header:
        for name in header:
            if re.sub(r"\s*:\s*", ":", name) == f"{column.name}:{column.unit}":
                return Column(name)
    return column


def place_of(header: Sequence[str], column: Column, where: str) -> int:
    """Return the place of a column.

    Raises:
        TraceError: There is none of this name, or more than one.
    """
    if header.count(column.name) == 1:
        return header.index(column.name)
    names = ", ".join(map(repr, header))[:300]
    if column.name in header:
        raise TraceError(
            f"{where}: columns must have different names, got {column.name!r} twice; rename one"
        )
    raise TraceError(
        f"{where}: must have the column {column.name!r}, got {names}; name one of them in --columns"
    )


def factor_of(where: str, number: str, column: Column, key: str = "") -> float | None:
    """Return the factor of a column's values; None for times in text, or perhaps in text.

    Args:
        where: Name of the file in errors.
        number: `t`, a key of `NUMBERS`, or `duration`.
        column: The column, whose unit may be in its name.
        key: Name before `=` in `--columns`, if it is not `number`.

    Raises:
        TraceError: It has no unit, one of other numbers, or two.
    """
    kind = _kind(number)
    dimension, fitting = _FITTING[kind]
    written = f"{key or number}={column.name}"

    def error(got: str, advice: str = "") -> TraceError:
        advice = advice or f"write it after a colon: --columns '{written}:UNIT'"
        return TraceError(f"{where}: {written}: must have a unit of {fitting}, got {got}; {advice}")

    opposite = _OPPOSITES.get(number)
    if opposite is not None and (word := opposite.search(column.name)):
        raise TraceError(
            f"{where}: {written}: must be {number}, got a name with {word.group()!r}, its "
            "opposite; compute a column with it, and name that"
        )
    word = None if column.unit or number == "jitter" else _CHANGED.search(column.name)
    if word is not None:
        raise error(f"a name with {word.group()!r}, which may be another number")
    try:
        named = unit_in(column.name)
        given = None if column.unit is None else unit_of(column.unit.removeprefix("rtt-"))
    except AmbiguousUnit as exc:
        if column.unit is None or str(exc).startswith(repr(column.unit)):
            raise error(str(exc)) from exc
        named, given = None, unit_of(column.unit.removeprefix("rtt-"))
    if column.unit is None:
        if column.name in NUMBERS.values():  # a column of our own format
            return 1.0
        return _factor_of_name(number, column.name, named, error)
    if number == TIME and ("%" in column.unit or column.unit == "iso"):
        return None
    if column.unit.startswith("/"):
        try:
            divisor = float(column.unit[1:])
        except ValueError:
            divisor = math.nan
        if 0.0 < divisor < math.inf:
            return 1.0 / divisor
        raise error(f"the unit {column.unit!r}")
    is_per_s = kind == "rate" and given is not None and given.dimension == "amount"
    is_rtt = column.unit.startswith("rtt-")
    is_share = kind == "load" and column.unit == "ratio"
    if given is None or not (given.dimension == dimension or is_per_s or is_share):
        raise error(f"the unit {column.unit!r}")
    if is_rtt and kind != "delay":
        raise error(f"the unit {column.unit!r}")
    comparable = {given.dimension, *(("rate", "amount") if is_per_s else ())}
    if named is not None and named.dimension in comparable and named.factor != given.factor:
        raise error(
            f"{named.text!r} in the name and {column.unit!r} after the colon",
            "remove the colon and the unit after it, or rename the column",
        )
    return given.factor * (0.5 if is_rtt else 1.0)


def _factor_of_name(
    number: str, name: str, named: Unit | None, error: Callable[..., TraceError]
) -> float | None:
    """Return the factor of the unit in the name of a column."""
    kind = _kind(number)
    if named is None:
        if number == "available":
            return 1.0  # states have no unit; per cent is out of range
        if number == TIME:
            return None
        raise error("no unit")
    if kind == "delay" and named.dimension == "time" and _ROUND_TRIP.search(name):
        unit = named.text
        raise error(
            "the name of a round trip",
            f"write '{number}={name}:rtt-{unit}' for half of it, or ':{unit}' for all",
        )
    if named.text.lower() == "min" and number != TIME and not name.endswith((")", "]")):
        raise error("'min', which may be minutes or a minimum")
    if named.dimension != _FITTING[kind][0]:
        what = {
            "amount": ", an amount and not a rate",
            "frequency": ", a frequency",
            "share": ", a share",
        }.get(named.dimension, "")
        raise error(f"the unit {named.text!r}{what}")
    return named.factor


def number_in(
    text: str,
    number: str,
    column: Column,
    factor: float | None,
    where: str,
    zones: list[str] | None = None,
) -> float:
    """Return the number in a field, in the unit of a trace.

    Args:
        text: The field.
        number: `t`, a key of `NUMBERS`, or `duration`.
        column: Its column.
        factor: Factor of the column; None for times in text.
        where: File and row in errors.
        zones: Receives the zone of a time (`moments.moment_of`), or `NUMBER`.

    Raises:
        TraceError: It is not a number in the range of a trace.
    """
    if number == TIME and (factor is None or ":" in text):
        if column.unit is None and _is_number(text):
            digits = len(text.partition(".")[0].lstrip("-"))
            unit = _EPOCHS.get(digits)
            seems = f"a time since 1970 in {unit} by its digits" if unit else "no unit"
            raise TraceError(
                f"{where}: {column.name} must be a time in text, or have a unit of "
                f"{_FITTING['time'][1]}, got {text[:40]}, {seems}; write it after a colon: "
                f"{column.name}:{unit or 'UNIT'}"
            )
        form = column.unit if column.unit is not None and "%" in column.unit else None
        seconds, zone = moment_of(text, form, where)
        if zones is not None:
            zones.append(zone)
        return seconds
    if number == TIME and zones is not None:
        zones.append(NUMBER)
    try:
        value = float("" if "_" in text else text) * (factor or 1.0)  # 1_5 is no number
    except ValueError:
        raise TraceError(
            f"{where}: {column.name} must be a number, got {text[:40]!r}; correct or delete the row"
        ) from None
    if number == TIME and LATEST_S < value < math.inf:
        raise TraceError(
            f"{where}: {column.name} must be before the year 2103, got {text[:40]}, {value:.15g} s "
            "since 1970; correct its unit"
        )
    lowest, highest = RANGES.get(NUMBERS.get(number, ""), (0.0, MAX_BPS))
    if number in (TIME, DURATION):
        lowest, highest = -math.inf, math.inf
    if not lowest <= value <= highest or math.isinf(value):
        raise TraceError(
            f"{where}: {column.name} must be from {lowest:g} to {highest:g} in the unit of a "
            f"trace, got {value:.15g}; check the unit, or delete the row"
        )
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _trace(values: Floats, numbers: list[str], rows: list[int], where: str, left_out: int) -> Read:
    at = numbers.index(TIME)
    times = values[:, at]
    backwards = np.flatnonzero(np.diff(times) < 0.0)
    if backwards.size:
        row = int(backwards[0]) + 1
        raise TraceError(
            f"{where}: row {rows[row]}: times must not decrease, got {times[row]:.15g} s after "
            f"{times[row - 1]:.15g} s; {ADVICE}"
        )
    t_s, place, counts = np.unique(times, return_inverse=True, return_counts=True)
    columns = {
        NUMBERS[number]: np.bincount(place, weights=values[:, index]) / counts
        for index, number in enumerate(numbers)
        if index != at
    }
    t_s = t_s - t_s[0]
    usual_s = float(np.median(np.diff(t_s))) if len(t_s) > 1 else 1.0
    trace = Trace(t_s, columns, float(t_s[-1]) + usual_s)
    repeated = len(values) - len(np.unique(values, axis=0))
    return Read(trace, left_out, len(times) - len(t_s), repeated)
