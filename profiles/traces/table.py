r"""The format of our traces: comma-separated numbers under a header, checked row by row.

    # period_s = 4.0
    t_s,down_bps,up_bps
    0,4300000,1300000
    1,5100000,900000
    3,0,0

A row holds from its `t_s` to the next one's. The last holds until `period_s`, or as long as the
one before it where no comment gives that; then all begins again. Times count from the first row.
Columns are those of `COLUMNS`; a rate may also be given as `down_mbps`, `up_mbps` or `mbps`, and
`bps` or `mbps` alone is a rate that serves either direction. All rates are payload of TCP.
"""

import io
import math
import re
from collections.abc import Mapping

import numpy as np

from profiles.errors import TraceError
from profiles.traces.trace import COLUMNS, ONE_WAY, RATIOS, Floats, Trace

TIME = "t_s"

MEGA = {"down_mbps": "down_bps", "up_mbps": "up_bps", "mbps": ONE_WAY}
"""Columns in Mbit/s, and what they become."""

KNOWN = (*COLUMNS, ONE_WAY, *MEGA)

SINGLE_ROW_S = 1.0
"""How long the only row of a trace holds, if nothing says so."""

MAX_VALUE = 1e12

_COMMENT = re.compile(r"#\s*(\w+)\s*=\s*(.*)")


def parse_table(content: bytes, where: str) -> Trace:
    """Return the trace that a file in this format holds.

    Args:
        content: The file.
        where: Names it in errors.

    Raises:
        TraceError: It breaks a rule; the message names the row, a line of the file from 1.
    """
    text = decoded(content, where)
    lines = io.StringIO(text)
    n_before, header, notes = _header(lines, where)
    names = _columns(header, where, n_before)
    numbers = _numbers(lines, len(names), where, n_before)
    times, columns = numbers[:, 0], numbers[:, 1:].T
    _check(where, n_before, names, times, columns)
    t_s = times - times[0]
    found = {
        MEGA.get(name, name): values * (1e6 if name in MEGA else 1.0)
        for name, values in zip(names[1:], columns, strict=True)
    }
    return Trace(t_s, found, _period(notes, t_s, where))


def format_table(trace: Trace, notes: Mapping[str, str]) -> str:
    """Return a trace in this format, with comments above it; `period_s` is one of them."""
    lines = [f"# {key} = {' '.join(text.split())}" for key, text in notes.items()]
    lines.append(f"# period_s = {trace.period_s:.9g}")
    lines.append(",".join([TIME, *trace.columns]))
    columns = [trace.t_s, *trace.columns.values()]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    lines.extend(",".join(f"{number:.9g}" for number in row) for row in rows)
    return "\n".join(lines) + "\n"


def decoded(content: bytes, where: str) -> str:
    """Return a trace as text.

    Raises:
        TraceError: It is empty or no text.
    """
    if not content.strip():
        raise TraceError(f"{where}: a trace must have rows, got an empty file; record it again")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        row = content.count(b"\n", 0, exc.start) + 1
        raise TraceError(
            f"{where}: row {row}: must be UTF-8 text, got byte 0x{content[exc.start]:02x}; "
            "save it as plain text"
        ) from exc
    if "\0" in text:
        row = text.count("\n", 0, text.index("\0")) + 1
        raise TraceError(f"{where}: row {row}: must be text, got a zero byte; save it as UTF-8")
    return text


def _header(lines: io.StringIO, where: str) -> tuple[int, str, dict[str, str]]:
    """Return how many lines come before the first row, the header, and what comments say."""
    notes = {}
    for number, line in enumerate(lines, 1):
        comment = _COMMENT.match(line.strip())
        if comment:
            notes[comment.group(1)] = comment.group(2)
        elif line.strip() and not line.startswith("#"):
            return number, line, notes
    raise TraceError(f"{where}: a trace must have a header, got comments only; record it again")


def _columns(header: str, where: str, row: int) -> list[str]:
    names = [name.strip() for name in header.split(",")]
    advice = f"begin the file with {TIME} and any of {', '.join(KNOWN)}"
    if names[0] != TIME:
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


def _numbers(lines: io.StringIO, width: int, where: str, n_before: int) -> Floats:
    """Return the rows, shape (R, C)."""
    start = lines.tell()
    rows = lines.read()
    if not rows.strip():
        raise TraceError(f"{where}: a trace must have rows, got only a header; record it again")
    try:
        numbers = np.loadtxt(io.StringIO(rows), delimiter=",", comments=None, ndmin=2)
    except ValueError:
        numbers = np.empty((0, 0))
    if numbers.shape != (len(rows.rstrip().splitlines()), width):
        lines.seek(start)
        raise _first_fault(rows, width, where, n_before)
    return numbers


def _first_fault(rows: str, width: int, where: str, n_before: int) -> TraceError:
    """Return what is wrong with the first row that cannot be read."""
    for row, line in enumerate(rows.rstrip().splitlines(), n_before + 1):
        fields = line.split(",")
        if len(fields) != width:
            got = f"{len(fields)}" if line.strip() else "none"
            return TraceError(
                f"{where}: row {row}: must have {width} values, got {got}; add what is missing"
            )
        for text in fields:
            try:
                float(text)
            except ValueError:
                got = repr(text.strip()[:40]) if text.strip() else "nothing"
                return TraceError(
                    f"{where}: row {row}: must be numbers, got {got}; correct or delete the row"
                )
    return TraceError(f"{where}: must be rows of {width} plain numbers; correct it")


def _check(where: str, n_before: int, names: list[str], times: Floats, columns: Floats) -> None:
    """See that times increase and values are possible.

    Raises:
        TraceError: Of the first row that breaks a rule.
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
        highest = RATIOS.get(name, MAX_VALUE)
        is_wrong = ~((values >= 0.0) & (values <= highest))  # true for NaN too
        faults += [
            (int(row), f"{name} must be from 0 to {highest:g}, got {values[row]:.15g}")
            for row in np.flatnonzero(is_wrong)[:1]
        ]
    if faults:
        row, rule = min(faults)
        raise TraceError(f"{where}: row {n_before + 1 + row}: {rule}; correct or delete the row")


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
