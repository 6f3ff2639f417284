"""From moments and bytes to rates, delays and errors. Pure."""

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

BITS = 8.0


def goodput_bps(
    times: Sequence[float], totals: Sequence[int], warm_s: float, gap_s: float = math.inf
) -> float:
    """Return the rate from the first arrival after the warm-up to the last one, bit/s.

    Between arrivals, so that it does not matter where in a packet a window begins. Each of the two
    is one that another followed within `gap_s`: while TCP waits for a packet that was lost nothing
    arrives, and then all at once that had come behind it.

    Args:
        times: Of arrivals, seconds.
        totals: Bytes that had come by then.
        warm_s: After the first arrival.
        gap_s: From one packet to the next, at most.

    Raises:
        ValueError: Fewer than two such arrivals are left.
    """
    flowing = [
        index
        for index in range(len(times) - 1)
        if times[index] > times[0] + warm_s and times[index + 1] - times[index] <= gap_s
    ]
    if len(flowing) < 2:
        raise ValueError(f"need two arrivals after {warm_s:g} s, got {len(flowing)}")
    first, last = flowing[0], flowing[-1]
    return BITS * (totals[last] - totals[first]) / (times[last] - times[first])


def volumes(
    times: Sequence[float], totals: Sequence[float], begin: float, step_s: float, count: int
) -> list[float]:
    """Return how much came in each of `count` steps from `begin` on."""

    def until(t: float) -> float:
        index = bisect_right(times, t)
        return totals[index - 1] if index else 0.0

    edges = [until(begin + index * step_s) for index in range(count + 1)]
    return [after - before for before, after in pairwise(edges)]


def volume_error(got: Sequence[float], wanted: Sequence[float]) -> float:
    """Return the relative error of the whole volume.

    Raises:
        ValueError: Nothing was wanted.
    """
    if not sum(wanted) > 0.0:
        raise ValueError(f"need some volume, got {sum(wanted)}")
    return sum(got) / sum(wanted) - 1.0


def median_step_error(got: Sequence[float], wanted: Sequence[float]) -> float:
    """Return the median of the relative errors of the steps in which something was wanted.

    Raises:
        ValueError: Nothing was wanted.
    """
    errors = [abs(g / w - 1.0) for g, w in zip(got, wanted, strict=True) if w > 0.0]
    if not errors:
        raise ValueError("need some volume, got 0")
    return statistics.median(errors)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of all do not exceed.

    Raises:
        ValueError: There is none.
    """
    if not values:
        raise ValueError("need some values, got none")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def resumed_s(times: Sequence[float], end: float) -> float | None:
    """Return how long after `end` something arrived again; None is never."""
    index = bisect_right(times, end)
    return times[index] - end if index < len(times) else None


def drift(before: float, after: float) -> float:
    """Return how far two readings of the same thing differ, relative to their mean.

    Raises:
        ValueError: They are not positive.
    """
    if not (before > 0.0 and after > 0.0):
        raise ValueError(f"need two positive readings, got {before} and {after}")
    return 2.0 * abs(before - after) / (before + after)
