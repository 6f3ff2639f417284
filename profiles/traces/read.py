"""Read a trace of any format that we know."""

from pathlib import Path

from profiles.errors import TraceError
from profiles.traces.bytes import read_file
from profiles.traces.mahimahi import is_mahimahi, parse_mahimahi
from profiles.traces.table import parse_table
from profiles.traces.trace import Trace

MAX_BINS = 10_000_000
"""Rows after binning: what still fits in memory a few times."""


def read_trace(path: Path, step_s: float = 1.0) -> Trace:
    """Return the trace in a file.

    Args:
        path: Of our own format or mahimahi's, packed or not.
        step_s: Bins for mahimahi's, seconds; ours is taken as it is.

    Raises:
        TraceError: It cannot be read, or breaks a rule.
    """
    return parse_trace(read_file(path), str(path), step_s)


def parse_trace(content: bytes, where: str, step_s: float = 1.0) -> Trace:
    """Return the trace that a file holds; `where` names it in errors.

    Raises:
        TraceError: It breaks a rule.
    """
    if not is_mahimahi(content):
        return parse_table(content, where)
    last = content.rstrip().rpartition(b"\n")[2].strip()
    if last.isdigit() and len(last) < 20 and int(last) / 1e3 / step_s > MAX_BINS:
        raise TraceError(
            f"{where}: must be at most {MAX_BINS} bins, got {int(last) / 1e3:g} s in steps of "
            f"{step_s:g} s; take longer steps"
        )
    return parse_mahimahi(content, where, step_s)
