"""Rates, delays and errors from instants and bytes. Pure."""

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

    The rate is measured between arrivals, so it does not depend on the position of a window in a
    packet. After each of the two arrivals another one follows within `gap_s`: while TCP waits for a
    lost packet nothing arrives, and then all later data arrive at once.

    Args:
        times: Instants of arrivals, seconds.
        totals: Bytes received until then.
        warm_s: Warm-up time after the first arrival.
        gap_s: Greatest time from one packet to the next.

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
    """Return the amount that arrived in each of `count` steps from `begin` on."""

    def until(t: float) -> float:
        index = bisect_right(times, t)
        return totals[index - 1] if index else 0.0

    edges = [until(begin + index * step_s) for index in range(count + 1)]
    return [after - before for before, after in pairwise(edges)]


def volume_error(got: Sequence[float], wanted: Sequence[float]) -> float:
    """Return the relative error of the total volume.

    Raises:
        ValueError: The target is 0.
    """
    if not sum(wanted) > 0.0:
        raise ValueError(f"need some volume, got {sum(wanted)}")
    return sum(got) / sum(wanted) - 1.0


def median_step_error(got: Sequence[float], wanted: Sequence[float]) -> float:
    """Return the median relative error of the steps with a positive target.

    Raises:
        ValueError: No step has a positive target.
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
    """Return the time from `end` to the next arrival; None if there is none."""
    index = bisect_right(times, end)
    return times[index] - end if index < len(times) else None


def drift(before: float, after: float) -> float:
    """Return the difference of two readings of one quantity, relative to their mean.

    Raises:
        ValueError: They are not positive.
    """
    if not (before > 0.0 and after > 0.0):
        raise ValueError(f"need two positive readings, got {before} and {after}")
    return 2.0 * abs(before - after) / (before + after)
