r"""Our trace format: comma-separated numbers under a header, checked row by row.

    # period_s = 4.0
    t_s,down_bps,up_bps
    0,4300000,1300000
    1,5100000,900000
    3,0,0

A row holds from its `t_s` to that of the next. The last row holds until `period_s` or, without that
comment, as long as the row before it; then the trace repeats. Times count from the first row.
Columns are those of `COLUMNS`; a rate may also be given as `down_mbps`, `up_mbps` or `mbps`, and
`bps` or `mbps` is a rate for both directions. All rates are TCP payload.
"""

import io
import math
import re
from collections.abc import Mapping

import numpy as np

from fairbed.profiles.errors import TraceError
from fairbed.profiles.text import HEAD_BYTES, DecimalMarks, TextError, dialect_of, plain_text
from fairbed.profiles.traces.drives import ADVICE
from fairbed.profiles.traces.trace import COLUMNS, MAX_BPS, ONE_WAY, RANGES, Floats, Trace

TIME = "t_s"

MEGA = {"down_mbps": "down_bps", "up_mbps": "up_bps", "mbps": ONE_WAY}
"""Columns in Mbit/s, and the columns in bit/s that they are converted to."""

KNOWN = (*COLUMNS, ONE_WAY, *MEGA)

SINGLE_ROW_S = 1.0
"""Duration of the only row of a trace without `period_s`, seconds."""

ROWS_AT_ONCE = 10_000
"""Rows formatted at once, to limit memory."""

_COMMENT = re.compile(r"#\s*(\w+)\s*=\s*(.*)")


def parse_table(content: bytes, where: str) -> Trace:
    """Return the trace of a file in this format.

    Args:
        content: Content of the file.
        where: Name of the file in errors.

    Raises:
        TraceError: The file violates a rule; the message names the row, counted from 1.
    """
    content = _comma_separated(check_text(content, where), where)
    header, n_before, offset, notes = _header(content, where)
    names = _columns(header, where, n_before)
    rows = content[offset:].rstrip()
    numbers = _numbers(rows, len(names), where, n_before)
    times, columns = numbers[:, 0], numbers[:, 1:].T
    _check(where, n_before, names, times, columns)
    t_s = times - times[0]
    found = {
        MEGA.get(name, name): values * (1e6 if name in MEGA else 1.0)
        for name, values in zip(names[1:], columns, strict=True)
    }
    return Trace(t_s, found, _period(notes, t_s, where))


def format_table(trace: Trace, notes: Mapping[str, str]) -> str:
    """Return a trace in this format, with `notes` and `period_s` as comments above it."""
    lines = [f"# {key} = {' '.join(text.split())}" for key, text in notes.items()]
    lines.append(f"# period_s = {trace.period_s:.9g}")
    lines.append(",".join([TIME, *trace.columns]))
    columns = [trace.t_s, *trace.columns.values()]
    for start in range(0, len(trace.t_s), ROWS_AT_ONCE):
        parts = (column[start : start + ROWS_AT_ONCE].tolist() for column in columns)
        rows = zip(*parts, strict=True)
        lines.append("\n".join(",".join(f"{number:.9g}" for number in row) for row in rows))
    return "\n".join(lines) + "\n"


MAX_BYTES = 100_000_000
"""Maximum size of a trace, also when unpacked; a day at 1 Hz takes 3 MB."""


def check_text(content: bytes, where: str) -> bytes:
    """Return the text of a trace in UTF-8 with LF, after checking that it is text and not empty.

    Raises:
        TraceError: It is not.
    """
    try:
        text = plain_text(content, where, MAX_BYTES)
    except TextError as exc:
        raise TraceError(f"{where}: {exc}") from exc
    if not text.strip():
        raise TraceError(f"{where}: a trace must have rows, got an empty file; record it again")
    return text


def _comma_separated(content: bytes, where: str) -> bytes:
    """Return a table in our format with commas between numbers with decimal points."""
    dialect = dialect_of(content[:HEAD_BYTES].decode("utf-8", "ignore"), comments=True)
    if dialect is None or dialect.delimiter == ",":
        return content
    lines = content.split(b"\n")
    head, rows = lines[: dialect.row - 1], lines[dialect.row :]
    body, marks = b"\n".join(rows), DecimalMarks()
    delimiter = dialect.delimiter.encode()
    if b"," in body:
        for line in rows:
            for field in line.split(delimiter):
                marks.with_point(field.strip().decode("utf-8"))
        try:
            marks.check()
        except TextError as exc:
            raise TraceError(f"{where}: {exc}") from exc
    body = body.replace(b",", b".").replace(delimiter, b",")
    return b"\n".join([*head, ",".join(dialect.header).encode(), body])


def _header(content: bytes, where: str) -> tuple[str, int, int, dict[str, str]]:
    """Return the header, its row, the offset of the row after it, and the comments by key."""
    notes, start, row = {}, 0, 0
    while start < len(content):
        row += 1
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        line = content[start:end].decode("utf-8").strip()
        start = end + 1
        if comment := _COMMENT.match(line):
            notes[comment.group(1)] = comment.group(2)
        elif line and not line.startswith("#"):
            return line, row, start, notes
    raise TraceError(f"{where}: a trace must have a header, got comments only; record it again")


def _columns(header: str, where: str, row: int) -> list[str]:
    names = [name.strip() for name in header.split(",")]
    advice = (
        f"begin the file with {TIME} and any of {', '.join(KNOWN)}, "
        "or import it with --columns t=NAME:s,down=NAME:kbit"
    )
    if names[0] != TIME:
        if TIME in names:
            advice = f"split the file by it: --split {names[0]}, or {advice}"
        raise TraceError(
            f"{where}: row {row}: the first column must be {TIME}, got {names[0][:40]!r}; {advice}"
        )
    for name in names[1:]:
        if name not in KNOWN:
            raise TraceError(f"{where}: row {row}: unknown column {name[:40]!r}; {advice}")
    targets = [MEGA.get(name, name) for name in names]
    if len(set(targets)) != len(targets):
        raise TraceError(
            f"{where}: row {row}: columns must differ, got {', '.join(names)}; drop one"
        )
    if len(names) == 1:
        raise TraceError(f"{where}: row {row}: must have a column beside {TIME}; {advice}")
    return names


def _numbers(rows: bytes, width: int, where: str, n_before: int) -> Floats:
    """Return the rows, shape (R, C)."""
    if not rows:
        raise TraceError(f"{where}: a trace must have rows, got only a header; record it again")
    numbers = load_numbers(rows, ",")
    if numbers.shape != (rows.count(b"\n") + 1, width):
        raise _first_fault(rows, width, where, n_before)
    return numbers


def load_numbers(rows: bytes, delimiter: str | None) -> Floats:
    """Return rows of numbers, shape (R, C), or shape (0, 0) if a row is not numeric."""
    try:
        return np.loadtxt(
            io.BytesIO(rows), delimiter=delimiter, comments=None, ndmin=2, encoding="utf-8"
        )
    except ValueError:
        return np.empty((0, 0))


def _first_fault(rows: bytes, width: int, where: str, n_before: int) -> TraceError:
    """Return the error of the first row that cannot be read."""
    for row, line in enumerate(io.BytesIO(rows), n_before + 1):
        text = line.decode("utf-8").strip()
        fields = text.split(",")
        if len(fields) != width:
            got = f"{len(fields)}" if text else "none"
            return TraceError(
                f"{where}: row {row}: must have {width} values, got {got}; correct the row"
            )
        for field in fields:
            try:
                float(field)
            except ValueError:
                got = repr(field.strip()[:40]) if field.strip() else "nothing"
                return TraceError(
                    f"{where}: row {row}: must be numbers, got {got}; correct or delete the row"
                )
    return TraceError(f"{where}: must be rows of {width} plain numbers; correct it")


def _check(where: str, n_before: int, names: list[str], times: Floats, columns: Floats) -> None:
    """Check that times increase and values are in their ranges.

    Raises:
        TraceError: The message names the first row that violates a rule.
    """
    faults = [
        (int(row), f"{TIME} must be finite, got {times[row]}")
        for row in np.flatnonzero(~np.isfinite(times))[:1]
    ]
    faults += [
        (int(row) + 1, f"{TIME} must increase, got {times[row + 1]:.15g} after {times[row]:.15g}")
        for row in np.flatnonzero(np.diff(times) <= 0.0)[:1]
    ]
    for name, values in zip(names[1:], columns, strict=True):
        lowest, highest = RANGES.get(name, (0.0, MAX_BPS))
        is_wrong = ~((values >= lowest) & (values <= highest))  # true for NaN too
        faults += [
            (int(row), f"{name} must be from {lowest:g} to {highest:g}, got {values[row]:.15g}")
            for row in np.flatnonzero(is_wrong)[:1]
        ]
    if faults:
        row, rule = min(faults)
        falls = rule.startswith(f"{TIME} must increase") and times[row] < times[row - 1]
        advice = "correct or delete the row" + (f"; {ADVICE}" if falls else "")
        raise TraceError(f"{where}: row {n_before + 1 + row}: {rule}; {advice}")


def _period(notes: Mapping[str, str], t_s: Floats, where: str) -> float:
    last = float(t_s[-1])
    if "period_s" not in notes:
        return last + (float(t_s[-1] - t_s[-2]) if len(t_s) > 1 else SINGLE_ROW_S)
    try:
        period = float(notes["period_s"])
    except ValueError:
        period = math.nan
    if not last < period < math.inf:
        raise TraceError(
            f"{where}: period_s must be a number greater than the last t_s, {last:g} after the "
            f"first, got {notes['period_s'][:40]!r}; correct the comment"
        )
    return period
