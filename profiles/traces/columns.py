r"""Read a trace from a table with other columns than our format: a log of a phone, a test, a board.

    t=Timestamp:%Y.%m.%d_%H.%M.%S,down=DL_bitrate:kbit,delay=ping_avg_ms:rtt-ms

Each part is `NUMBER=COLUMN:UNIT`. Without a unit, that of the end of the column's name counts
(`dl_kbps`, `rtt_ms`). Times may be numbers, or text in ISO 8601 or a format of `strptime`. A unit
`/1500` divides: a clock in MHz becomes a ratio. Rows without one of the values are left out, and
rows with the same time are averaged, because many logs have times in whole seconds.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.drives import ADVICE, Split, drives_of
from fairbed.profiles.traces.moments import after_folds, check_zones, is_local, moment_s
from fairbed.profiles.traces.table import BOM, check_text
from fairbed.profiles.traces.trace import MAX_BPS, ONE_WAY, RANGES, Floats, Trace

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

_RATES = {
    **{
        f"{prefix}bit": factor for prefix, factor in (("", 1.0), ("k", 1e3), ("m", 1e6), ("g", 1e9))
    },
    **{
        f"{prefix}bps": factor for prefix, factor in (("", 1.0), ("k", 1e3), ("m", 1e6), ("g", 1e9))
    },
    **{f"{prefix}byte": 8.0 * f for prefix, f in (("", 1.0), ("k", 1e3), ("m", 1e6), ("g", 1e9))},
}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_DELAYS = {**_TIMES, "rtt-s": 0.5, "rtt-ms": 5e-4}
_SHARES = {"ratio": 1.0, "%": 0.01, "percent": 0.01}
_PLAIN = {"ratio": 1.0, "cores": 1.0}

ABSENT = frozenset({"", "-", "na", "n/a", "nan", "null", "none"})
"""Values of a row without a measurement, in lower case."""


def _units(number: str) -> Mapping[str, float]:
    if number in (TIME, DURATION):
        return _TIMES
    if number in ("down", "up", "rate"):
        return _RATES
    if number in ("delay", "jitter"):
        return _DELAYS
    return _SHARES if number in ("loss", "available") else _PLAIN


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and the unit of its values."""

    name: str
    unit: str | None = None
    """None takes the unit at the end of the name."""


def parse_columns(text: str) -> dict[str, Column]:
    """Return the columns by number, `t` included.

    Raises:
        ValueError: The text is not `NUMBER=COLUMN:UNIT,...`, or has no time or no number.
    """
    columns: dict[str, Column] = {}
    known = (TIME, *NUMBERS)
    for part in text.split(","):
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
    check_text(content, where)
    header, n_before, rows = table_of(content, where)
    places = {}
    for number, column in columns.items():
        if column.name not in header:
            raise TraceError(
                f"{where}: row {n_before}: must have the column {column.name!r}, "
                f"got {', '.join(header)[:300]}; name one of them in --columns"
            )
        places[number] = header.index(column.name)
    label_at = None
    if split.column is not None:
        if split.column not in header:
            raise TraceError(
                f"{where}: row {n_before}: must have the column {split.column!r}, "
                f"got {', '.join(header)[:300]}; name one of them in --split"
            )
        label_at = header.index(split.column)
    factors = {number: factor_of(where, number, columns[number]) for number in places}
    left_out, values = 0, list[list[float]]()
    kept_rows, labels, moments = list[int](), list[str](), list[str]()
    for row, fields in enumerate(rows, n_before + 1):
        if not fields:
            continue
        if len(fields) != len(header):
            raise TraceError(
                f"{where}: row {row}: must have {len(header)} values, got {len(fields)}; "
                "correct the row"
            )
        texts = {number: fields[place].strip() for number, place in places.items()}
        if any(text.lower() in ABSENT for text in texts.values()):
            left_out += 1
            continue
        values.append(
            [
                number_in(text, number, columns[number], factors[number], f"{where}: row {row}")
                for number, text in texts.items()
            ]
        )
        kept_rows.append(row)
        moments.append(texts[TIME])
        if label_at is not None:
            labels.append(fields[label_at].strip())
    if not values:
        raise TraceError(
            f"{where}: must have rows with all chosen values, got {left_out} without; "
            "choose other columns"
        )
    table, at = np.array(values), list(places).index(TIME)
    if any(":" in text for text in moments):
        check_zones(moments, columns[TIME].unit, where)
    has_local = (factors[TIME] is None or ":" in moments[0]) and is_local(moments[0])
    found = list[tuple[str, Read]]()
    for label, members in _divided(table[:, at], labels, split, has_local):
        part = table[members].copy()
        part[:, at], lines = after_folds(part[:, at], is_local=has_local)
        rows_of = [kept_rows[row] for row in members]
        read = _trace(part, list(places), rows_of, where, 0 if found else left_out)
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
    lines = content.removeprefix(BOM).decode("utf-8").splitlines(keepends=True)
    for row, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            delimiter = max(",;\t", key=line.count)
            names, *_ = list(_rows([line], delimiter, where)) or [[]]
            return [name.strip() for name in names], row, _rows(lines[row:], delimiter, where)
    raise TraceError(f"{where}: a trace must have a header, got comments only; record it again")


def _rows(lines: list[str], delimiter: str, where: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO("".join(lines), newline=""), delimiter=delimiter)
    except csv.Error as exc:
        raise TraceError(f"{where}: must be a table, got: {exc}; correct it") from exc


def factor_of(where: str, number: str, column: Column) -> float | None:
    """Return the factor of a column's values; None for times in text.

    Args:
        where: Name of the file in errors.
        number: `t`, a key of `NUMBERS`, or `duration`.
        column: The column, whose unit may be the end of its name.

    Raises:
        TraceError: It has no unit, or one of other numbers.
    """
    units = _units(number)
    unit = column.unit
    if unit is None:
        last = re.split(r"[^a-zA-Z0-9%]", column.name)[-1].lower()
        if last in units:
            return units[last]
        if number not in ("down", "up", "rate", "delay", "jitter", DURATION):
            return 1.0
    elif number == TIME and ("%" in unit or unit == "iso"):
        return None
    elif unit.startswith("/"):
        try:
            divisor = float(unit[1:])
        except ValueError:
            divisor = math.nan
        if divisor > 0.0:
            return 1.0 / divisor
    elif unit.lower() in units:
        return units[unit.lower()]
    got = "no unit" if unit is None else f"the unit {unit!r}"
    raise TraceError(
        f"{where}: {number}={column.name}: must have a unit of {', '.join(units)}, or /NUMBER, "
        f"got {got}; write --columns {number}={column.name}:{next(iter(units))}"
    )


def number_in(text: str, number: str, column: Column, factor: float | None, where: str) -> float:
    """Return the number in a field, in the unit of a trace.

    Args:
        text: The field.
        number: `t`, a key of `NUMBERS`, or `duration`.
        column: Its column.
        factor: Factor of the column; None for times in text.
        where: File and row in errors.

    Raises:
        TraceError: It is not a number in the range of a trace.
    """
    if number == TIME and (factor is None or ":" in text):
        return moment_s(text, column.unit, where)
    try:
        value = float(text) * (factor or 1.0)
    except ValueError:
        raise TraceError(
            f"{where}: {column.name} must be a number, got {text[:40]!r}; correct or delete the row"
        ) from None
    lowest, highest = RANGES.get(NUMBERS.get(number, ""), (0.0, MAX_BPS))
    if number in (TIME, DURATION):
        lowest, highest = -math.inf, math.inf
    if not lowest <= value <= highest or math.isinf(value):
        raise TraceError(
            f"{where}: {column.name} must be from {lowest:g} to {highest:g} in the unit of a "
            f"trace, got {value:.15g}; check the unit, or delete the row"
        )
    return value


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
