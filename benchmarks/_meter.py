"""Processor time and peak memory of processes."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import psutil

from fairbed.testbed.backends import cpu_time

MEGABYTE = 1e6


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and its threads, also ended ones, seconds.

    It is 0 after the end of the process.
    """
    return cpu_time.cpu_s(pid) or 0.0


def peak_rss_bytes(pid: int) -> int:
    """Return the peak of resident memory, or the present one if the kernel keeps no peak."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        rss: int = psutil.Process(pid).memory_info().rss
        return rss
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that `percent` of all values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0.0


def median(values: Sequence[float]) -> float:
    """Return the median; 0 without values."""
    return statistics.median(values) if values else 0.0


def growth(values: Sequence[float]) -> float:
    """Return the mean of the last quarter / that of the second quarter - 1; at least 8 values.

    The first quarter does not count: it has what is allocated once.
    """
    quarter = len(values) // 4
    second, last = values[quarter : 2 * quarter], values[-quarter:]
    return statistics.mean(last) / statistics.mean(second) - 1.0
