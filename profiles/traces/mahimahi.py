"""Traces of mahimahi: each line is the millisecond of one opportunity to deliver 1500 bytes.

    rate in a bin = n * 8 * 1448 / duration     bit/s of TCP payload

Times do not decrease; the last one is the length of the trace, after which it repeats.

Source: mm-link(1) of mahimahi (Netravali et al., USENIX ATC 2015). The packets are IP; of 1500
bytes 1448 are payload of TCP with time stamps (20 IP, 20 TCP, 12 options).
"""

import io

import numpy as np

from fairbed.profiles.errors import TraceError
from fairbed.profiles.traces.table import check_text, load_numbers
from fairbed.profiles.traces.trace import ONE_WAY, Trace, bin_edges

MTU_BYTES = 1500
"""Size of the IP packet that each line delivers."""

PAYLOAD_BYTES = 1448
"""TCP payload of a packet of `MTU_BYTES`."""

MAX_MS = 1e12


def is_mahimahi(content: bytes) -> bool:
    """Return whether a file looks like a mahimahi trace: its first line is one whole number."""
    return content.lstrip().split(b"\n", 1)[0].strip().isdigit()


def parse_mahimahi(content: bytes, where: str, step_s: float = 1.0) -> Trace:
    """Return the binned rate of a mahimahi trace, without a direction.

    Args:
        content: Content of the file.
        where: Name of the file in errors.
        step_s: Length of a bin, seconds.

    Raises:
        TraceError: The file violates a rule; the message names the row, counted from 1.
    """
    rows = check_text(content, where).rstrip()
    stamps = load_numbers(rows, None)
    if stamps.shape != (rows.count(b"\n") + 1, 1):
        raise _first_fault(rows, where)
    ms = stamps[:, 0]
    is_wrong = ~((ms >= 0.0) & (ms <= MAX_MS) & (ms == np.floor(ms)))
    is_wrong[1:] |= ~(np.diff(ms) >= 0.0)
    if is_wrong.any():
        row = int(is_wrong.argmax())
        after = f" after {ms[row - 1]:.15g}" if row else ""
        raise TraceError(
            f"{where}: row {row + 1}: must be whole milliseconds that do not decrease, "
            f"got {ms[row]:.15g}{after}; correct or delete the row"
        )
    period_s = float(ms[-1]) / 1e3
    if period_s == 0.0:
        raise TraceError(f"{where}: row {len(ms)}: must end after 0 ms, got 0; record for longer")
    try:
        edges = bin_edges(period_s, step_s)
    except ValueError as exc:
        raise TraceError(f"{where}: {exc}") from None
    places = np.minimum((ms / 1e3 / step_s + 1e-9).astype(np.int64), len(edges) - 2)
    counts = np.bincount(places, minlength=len(edges) - 1)
    rates = counts * (8.0 * PAYLOAD_BYTES) / np.diff(edges)
    return Trace(edges[:-1], {ONE_WAY: rates}, period_s)


def _first_fault(rows: bytes, where: str) -> TraceError:
    for row, line in enumerate(io.BytesIO(rows), 1):
        text = line.decode("utf-8").strip()
        if not text.isdigit():
            got = repr(text[:40]) if text else "nothing"
            return TraceError(
                f"{where}: row {row}: must be one whole number of milliseconds, got {got}; "
                "correct or delete the row"
            )
    return TraceError(f"{where}: must be one whole number per line; correct it")
