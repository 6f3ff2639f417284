"""Read a trace of any format that we know."""

from pathlib import Path

from profiles.traces.bytes import read_file
from profiles.traces.mahimahi import is_mahimahi, parse_mahimahi
from profiles.traces.table import parse_table
from profiles.traces.trace import Trace


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
    if is_mahimahi(content):
        return parse_mahimahi(content, where, step_s)
    return parse_table(content, where)
