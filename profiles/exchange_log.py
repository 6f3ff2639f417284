r"""Logs of exchanges: what each device took in each round (`[[fleet]] exchange_times`).

    # title = Ten boards in an office
    device,round,download_s,train_s,upload_s,total_s
    pi-1,1,2.1,31.0,3.0,37.4

A row is one exchange. `total_s` is its whole duration and may stand alone; phases that are not
given share the rest of it. Without `round` the rows of a device are independent of those of others.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbed.profiles.errors import TraceError
from fairbed.profiles.text import DecimalMarks
from fairbed.profiles.traces.columns import (
    ABSENT,
    DURATION,
    Column,
    check_marks,
    factor_of,
    number_in,
    place_of,
    table_of,
)
from fairbed.profiles.traces.moments import after_folds, agreed, may_change_clock
from fairbed.profiles.traces.trace import Floats

DEVICE, ROUND, START, END, TOTAL = "device", "round", "start", "end", "total"

WIDE = "wide"
"""Columns of devices in a table with one row per round, with totals."""

PHASES = (
    "download",
    "decode",
    "load",
    "evaluate",
    "train",
    "personal",
    "encode",
    "upload",
)
"""Phases of an exchange, as in the store (`download_s`)."""

MAX_S = 1e7
"""Longest duration of a phase or an exchange, seconds: four months."""

USUAL_S = (1e-3, 86400.0)
"""Limits of the median of totals, or of sums of phases, seconds; others are of a wrong unit."""

ROUNDING_S = 1e-3
"""Phases may be longer than the total by this, seconds, because logs are rounded."""

OWN = {DEVICE: Column(DEVICE), ROUND: Column(ROUND)} | {
    name: Column(f"{name}_s") for name in (*PHASES, TOTAL)
}
"""The columns of our own format."""

OWN_TOTALS = {key: OWN[key] for key in (DEVICE, ROUND, TOTAL)}

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ExchangeLog:
    """Exchanges of a log; every column has shape (R,), rows in the order of the file."""

    devices: tuple[str, ...]
    """Names, in the order of their first row."""
    device: Ints
    """Index in `devices`."""
    round: Ints | None
    """Index of the round, 0 .. `n_rounds` - 1, in the order of the file; None if it is unknown."""
    n_rounds: int
    durations_s: Mapping[str, Floats]
    """By a name of `PHASES` or `total`, seconds."""
    left_out: int = 0
    """Rows of the file without one of the values."""
    lines: tuple[str, ...] = ()
    """What was corrected in the times, or may be wrong in them."""

    def __str__(self) -> str:
        rounds = "no rounds" if self.round is None else f"{self.n_rounds} rounds"
        counts = (
            f"{len(self.device)} exchanges of {len(self.devices)} devices, {rounds}; "
            f"{self.left_out} rows without a value left out"
        )
        return "; ".join([counts, *self.lines])


def parse_log_columns(text: str) -> dict[str, Column]:
    """Return the columns of a log by their meaning, from `device=client,total=duration:ms`.

    Raises:
        ValueError: The text is not of this form, or lacks the device or all durations.
    """
    known = (DEVICE, ROUND, START, END, TOTAL, *PHASES, WIDE)
    columns: dict[str, Column] = {}
    for part in text.split(","):
        key, _, rest = (piece.strip() for piece in part.partition("="))
        name, _, unit = rest.partition(":")
        if not name or key not in known:
            raise ValueError(f"must be NAME=COLUMN:UNIT with {', '.join(known)}, got {part!r}")
        if key in columns:
            raise ValueError(f"must name each column once, got {key} twice")
        columns[key] = Column(name, unit or None)
    _check_columns(columns)
    return columns


def _check_columns(columns: Mapping[str, Column]) -> None:
    if WIDE in columns:
        if len(columns) > 1:
            raise ValueError(f"must have wide alone, got {', '.join(columns)}")
        return
    if DEVICE not in columns:
        raise ValueError(f"must name the device, got {', '.join(columns)}")
    if (START in columns) != (END in columns) and TOTAL not in columns:
        raise ValueError("must have start and end, or total, got one of start and end")
    if not columns.keys() & {TOTAL, END, *PHASES}:
        raise ValueError(
            f"must have total, start and end, or a phase of {', '.join(PHASES)}, "
            f"got {', '.join(columns)}"
        )


def read_exchange_log(
    content: bytes, where: str, columns: Mapping[str, Column] | None = None
) -> ExchangeLog:
    """Return the exchanges of a table with a header.

    Args:
        content: Content of the file.
        where: Name of the file in errors.
        columns: Columns by meaning; None is our own format.

    Raises:
        TraceError: A column is missing, or a row violates a rule; the message names it.
    """
    if columns is not None and WIDE in columns:
        content, columns = _melted(content, where, columns[WIDE]), OWN_TOTALS
    header, n_before, rows = table_of(content, where)
    if columns is None:
        columns = {key: column for key, column in OWN.items() if column.name in header}
        try:
            _check_columns(columns)
        except ValueError as exc:
            raise TraceError(
                f"{where}: row {n_before}: {exc}; name the columns: --columns"
            ) from exc
    head = f"{where}: row {n_before}"
    places = {key: place_of(header, column, head) for key, column in columns.items()}
    kinds = {key: "t" if key in (START, END) else DURATION for key in places}
    timed = {key: kind for key, kind in kinds.items() if key not in (DEVICE, ROUND)}
    factors = {key: factor_of(where, kind, columns[key], key) for key, kind in timed.items()}
    marks = DecimalMarks()
    names, rounds = dict[str, int](), dict[str, int]()
    kept: list[tuple[int, int]] = []
    values: list[list[float]] = []
    seen: set[tuple[int, int]] = set()
    left_out = 0
    zones: dict[str, list[str]] = {key: [] for key in (START, END) if key in timed}
    kept_rows = list[int]()
    for row, fields in enumerate(rows, n_before + 1):
        if not fields:
            continue
        at = f"{where}: row {row}"
        if len(fields) != len(header):
            raise TraceError(f"{at}: must have {len(header)} values, got {len(fields)}; correct it")
        texts = {key: fields[place].strip() for key, place in places.items()}
        if any(text.lower() in ABSENT for text in texts.values()):
            left_out += 1
            continue
        device = names.setdefault(texts[DEVICE], len(names))
        a_round = rounds.setdefault(texts.get(ROUND, ""), len(rounds))
        if ROUND in texts and (device, a_round) in seen:
            raise TraceError(
                f"{at}: device {texts[DEVICE]!r} must have one row per round, got round "
                f"{texts[ROUND]!r} twice; delete one, or leave out round"
            )
        seen.add((device, a_round))
        kept.append((device, a_round))
        kept_rows.append(row)
        values.append(
            [
                number_in(
                    marks.with_point(texts[key]),
                    kind,
                    columns[key],
                    factors[key],
                    at,
                    zones.get(key),
                )
                for key, kind in timed.items()
            ]
        )
    check_marks(marks, where)
    if not kept:
        raise TraceError(f"{where}: must have exchanges, got {left_out} rows without a value")
    table = dict(zip(timed, np.array(values).T, strict=True))
    lines = list[str]()
    if END in table and START in table:
        times = np.stack([table[START], table[END]])
        common = agreed([*zones[START], *zones[END]], [*kept_rows, *kept_rows], where)
        for each, of in zip(times, zones.values(), strict=True):
            each += [common.added_s.get(zone, 0.0) for zone in of]
        if common.is_local:
            times = _after_folds(times, lines)
        table.setdefault(TOTAL, times[1] - times[0])
    durations_s = {key: table[key] for key in (*PHASES, TOTAL) if key in table}
    _check_durations(durations_s, where)
    pairs = np.array(kept, dtype=np.int64)
    has_rounds = ROUND in columns
    return ExchangeLog(
        devices=tuple(names),
        device=pairs[:, 0],
        round=pairs[:, 1] if has_rounds else None,
        n_rounds=len(rounds) if has_rounds else 0,
        durations_s=durations_s,
        left_out=left_out,
        lines=tuple(lines),
    )


def _after_folds(times: Floats, lines: list[str]) -> Floats:
    """Return starts and ends of a local clock with the changes of the clock that are certain.

    An exchange that ends before its start on the night of a Sunday met the end of summer time, and
    one that ends more than half a day before its start, without dates, passed midnight. Another
    one over such a night may be an hour off.

    Args:
        times: Seconds since 1970 of starts and ends, shape (2, R).
        lines: Receives what was corrected, and what may be wrong.
    """
    start, end = times.copy()
    folds = nights = midnights = 0
    for row in np.flatnonzero(end < start):
        corrected, found = after_folds(times[:, row], is_local=True, any_fall=True)
        start[row], end[row] = corrected
        midnights += any("midnight" in line for line in found)
        folds += bool(found) and "midnight" not in found[0]
    for row in np.flatnonzero(times[1] >= times[0]):
        nights += may_change_clock(float(start[row]), float(end[row]))
    if folds:
        lines.append(
            f"clock set back 1 h in {folds} exchanges, at the end of summer time: 1 h added"
        )
    if midnights:
        lines.append(f"midnight in {midnights} exchanges without dates: 1 day added")
    if nights:
        lines.append(
            f"{nights} exchanges are over a Sunday night in which clocks may be set, and may be an "
            "hour off: write the times with an offset such as +01:00"
        )
    return np.stack([start, end])


def _melted(content: bytes, where: str, wide: Column) -> bytes:
    """Return a table with one column per device as one with a row per exchange, in seconds."""
    header, n_before, rows = table_of(content, where)
    names = [name.strip() for name in wide.name.split("|")]
    for name in names:
        if names.count(name) > 1:
            raise TraceError(f"{where}: must name each device once, got {name!r} twice; remove one")
    places = [place_of(header, Column(name), f"{where}: row {n_before}") for name in names]
    columns = {name: Column(name, wide.unit) for name in names}
    factors = {name: factor_of(where, DURATION, columns[name], WIDE) for name in names}
    marks = DecimalMarks()
    lines = [f"{DEVICE}\t{ROUND}\t{TOTAL}_s"]
    for row, fields in enumerate(rows, n_before + 1):
        if not fields:
            continue
        if len(fields) != len(header):
            raise TraceError(
                f"{where}: row {row}: must have {len(header)} values, got {len(fields)}; correct it"
            )
        for name, place in zip(names, places, strict=True):
            text = fields[place].strip()
            if text.lower() not in ABSENT:
                at = f"{where}: row {row}"
                text = marks.with_point(text)
                value = number_in(text, DURATION, columns[name], factors[name], at)
                text = f"{value!r}"
            lines.append(f"{name}\t{row}\t{text}")
    check_marks(marks, where)
    return "\n".join(lines).encode()


def _check_durations(durations_s: Mapping[str, Floats], where: str) -> None:
    for key, values in durations_s.items():
        is_wrong = ~((values >= 0.0) & (values <= MAX_S))
        if is_wrong.any():
            place = int(is_wrong.argmax())
            raise TraceError(
                f"{where}: exchange {place + 1}: {key} must be from 0 to {MAX_S:g} s, "
                f"got {values[place]:g} s; correct the row or the unit"
            )
    if TOTAL not in durations_s:
        return
    total_s = durations_s[TOTAL]
    phases_s = sum((v for k, v in durations_s.items() if k != TOTAL), np.zeros_like(total_s))
    for is_wrong, rule in (
        (total_s <= 0.0, "the total must be more than 0 s"),
        (phases_s > total_s + ROUNDING_S, "the phases must not be longer than the total"),
    ):
        if is_wrong.any():
            place = int(is_wrong.argmax())
            raise TraceError(
                f"{where}: exchange {place + 1}: {rule}, got a total of {total_s[place]:g} s and "
                f"phases of {phases_s[place]:g} s; correct the row or the unit"
            )


def check_usual(log: ExchangeLog, where: str) -> None:
    """Check that durations are not those of another unit.

    Raises:
        TraceError: They are likely to be.
    """
    values = log.durations_s.get(TOTAL)
    usual_s = float(np.median(sum(log.durations_s.values()) if values is None else values))
    if not USUAL_S[0] <= usual_s <= USUAL_S[1]:
        raise TraceError(
            f"{where}: the median exchange must take from 1 ms to a day, got {usual_s:.6g} s; "
            "correct the unit of the column, or add --as-is if it is right"
        )


def format_exchange_log(log: ExchangeLog, notes: Mapping[str, str]) -> str:
    """Return a log in our own format, with `notes` as comments above it."""
    lines = [f"# {key} = {' '.join(text.split())}" for key, text in notes.items()]
    has_rounds = log.round is not None
    head = [DEVICE, *([ROUND] if has_rounds else []), *(f"{key}_s" for key in log.durations_s)]
    lines.append(",".join(head))
    rounds = log.round if log.round is not None else np.zeros_like(log.device)
    for row, (device, a_round) in enumerate(zip(log.device.tolist(), rounds.tolist(), strict=True)):
        name = log.devices[device]
        cells = [f'"{name}"' if "," in name else name, *([str(a_round + 1)] if has_rounds else [])]
        cells += [f"{values[row]:.9g}" for values in log.durations_s.values()]
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"
