"""Gaps of a trace: times between two rows that are much longer than the others.

a gap        t_{i+1} - t_i > longest       by default 10 times the median time between rows
hold         row i holds until row i + 1: the rate of a gap is invented
cut          row i holds for the median time, and later rows move forward
zero         row i holds for the median time, then the rates are 0 until row i + 1
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fairbed.profiles.traces.trace import Trace

GapRule: TypeAlias = Literal["cut", "hold", "zero"]

LONGEST_IN_MEDIANS = 10.0
"""Default of the longest time between two rows that is not a gap, in medians of these times: a log
of one row a second may miss nine rows."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps of a trace, and what was done with them."""

    count: int
    total_s: float
    """Time in gaps beyond the median time between rows, seconds."""
    longest_s: float
    """Longer times between two rows are gaps, seconds; infinite if there are fewer than 3 rows."""
    rule: GapRule

    def __str__(self) -> str:
        done = {"cut": "cut", "hold": "held the last values", "zero": "set to a rate of 0"}
        return (
            f"{self.count} gap{'s' * (self.count > 1)} of more than {self.longest_s:.6g} s, "
            f"{self.total_s:.6g} s in all: {done[self.rule]}"
        )


def bridge_gaps(trace: Trace, rule: GapRule, longest_s: float | None = None) -> tuple[Trace, Gaps]:
    """Return a trace whose gaps follow a rule, and the gaps that it had.

    The time from the last row to the end of the period belongs to a gap before it if it is as long:
    a file without a period has the last row as long as the row before.

    Args:
        trace: A trace in rows, as recorded.
        rule: What to do with gaps.
        longest_s: Longest time between two rows that is not a gap, seconds; None is
            `LONGEST_IN_MEDIANS` times the median.

    Raises:
        ValueError: `longest_s` is not positive, or gaps of a trace without a rate are to be 0.
    """
    if longest_s is not None and not longest_s > 0.0:
        raise ValueError(f"gaps must be longer than 0 s, got {longest_s:g} s; 10s is usual")
    if rule == "zero" and not any(name.endswith("bps") for name in trace.columns):
        raise ValueError(
            f"--gaps zero must be given for a trace with a rate, got {', '.join(trace.columns)}; "
            "take cut or hold"
        )
    steps_s = trace.durations_s
    if len(steps_s) < 3 and longest_s is None:  # one time between rows, and its copy at the end
        return trace, Gaps(0, 0.0, np.inf, rule)
    usual_s = float(np.median(steps_s[:-1])) if len(steps_s) > 1 else trace.period_s
    longest_s = LONGEST_IN_MEDIANS * usual_s if longest_s is None else longest_s
    kept_s = min(usual_s, longest_s)
    is_gap = steps_s > longest_s
    is_gap[-1] &= len(steps_s) > 1 and bool(np.isclose(steps_s[-1], steps_s[-2]))
    beyond_s = np.where(is_gap, steps_s - kept_s, 0.0)
    gaps = Gaps(int(is_gap[:-1].sum()), float(beyond_s.sum()), longest_s, rule)
    if not is_gap.any() or rule == "hold":
        return trace, gaps
    if rule == "cut":
        moved_s = np.concatenate([[0.0], np.cumsum(beyond_s)[:-1]])
        return Trace(trace.t_s - moved_s, trace.columns, trace.period_s - gaps.total_s), gaps
    before = np.flatnonzero(is_gap)
    columns = {
        name: np.insert(values, before + 1, 0.0 if name.endswith("bps") else values[before])
        for name, values in trace.columns.items()
    }
    times = np.insert(trace.t_s, before + 1, trace.t_s[before] + kept_s)
    return Trace(times, columns, trace.period_s), gaps
