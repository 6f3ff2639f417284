"""Statistics over a few seeds: intervals, tests, times, values at a budget, fronts. Pure.

Arms share their seeds, so arms are compared by the mean of paired differences, in which the effect
of the seed itself cancels. The comparisons of a grid are tested together, so that the error counts
for the grid and not for each of them.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy import special

from fairbed.coordinator.algorithms.arrays import Bools, Floats

CONFIDENCE = 0.95
WINDOW = 5
"""Evaluations in the running mean that must reach a target."""
LEAST_SEEDS_TO_JUDGE = 6
"""With fewer, a difference has no verdict but `no power`: a paired test of three seeds shows
differences from 3.3 standard deviations on, and its level rests on normal differences alone."""
LEAST_OF_AN_INTERVAL = 5
"""With fewer values, an interval alone decides nothing."""

Verdict: TypeAlias = Literal["less", "more", "unclear"]


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A mean and its confidence interval."""

    mean: float
    low: float | None
    """None for fewer than two values."""
    high: float | None
    n: int

    @property
    def verdict(self) -> Verdict:
        """Whether a difference is below or above 0; unclear if 0 is inside or n is too small.

        It is for one comparison alone; `holm` corrects for several.
        """
        if self.low is None or self.high is None or self.n < LEAST_OF_AN_INTERVAL:
            return "unclear"
        return "less" if self.high < 0.0 else "more" if self.low > 0.0 else "unclear"


def mean_interval(
    values: Floats, confidence: float = CONFIDENCE, floor: float = 0.0
) -> ConfidenceInterval:
    """Return the mean of some values and Student's interval.

        mean -+ t_{(1 + confidence) / 2, n - 1} max(s, floor) / sqrt(n)

    It is exact for normal values. Differences of two equal arms are symmetric, for which it is
    nearly exact, too; for skewed ones it is too narrow (`fairbed bench intervals`). Bootstrap
    intervals of five values are narrower, because resampling understates the variance.

    Args:
        values: One value per seed, shape (n,), n at least 1.
        confidence: Share of such intervals that cover the true mean.
        floor: Least standard deviation: the resolution of the values. A few values that agree to
            their resolution do not show that all do.

    Raises:
        ValueError: There is no value.

    Source:
        Student, The Probable Error of a Mean, Biometrika 6(1), 1908.
    """
    if values.size == 0:
        raise ValueError("mean_interval: needs at least one value, got none")
    mean = float(values.mean())
    if values.size == 1:
        return ConfidenceInterval(mean, None, None, 1)
    quantile = -float(special.stdtrit(values.size - 1, (1.0 - confidence) / 2.0))
    half = quantile * standard_error(values, floor)
    return ConfidenceInterval(mean, mean - half, mean + half, values.size)


def p_value(differences: Floats, floor: float = 0.0) -> float | None:
    """Return the two-sided p-value of Student's test that the mean of differences is 0.

    Args:
        differences: One per seed, shape (n,).
        floor: Least standard deviation, as for `mean_interval`.

    Returns:
        None for fewer than `LEAST_SEEDS_TO_JUDGE` values. 1 if all are 0; without a floor 0 if all
        are equal and not 0.
    """
    n = differences.size
    if n < LEAST_SEEDS_TO_JUDGE:
        return None
    mean, error = float(differences.mean()), standard_error(differences, floor)
    if error == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    return 2.0 * float(special.stdtr(n - 1, -abs(mean) / error))


def standard_error(values: Floats, floor: float) -> float:
    """Return max(s, floor) / sqrt(n); s is 0 for equal values, whose mean may be rounded."""
    deviation = 0.0 if values.min() == values.max() else float(values.std(ddof=1))
    return max(deviation, floor) / float(np.sqrt(values.size))


def holm(p: Floats, weights: Floats) -> Floats:
    """Return p-values corrected for all tests of a family, by Holm's method with weights.

        p~_(i) = max_{j <= i} min(1, p_(j) / w_(j) * sum_{k >= j} w_(k)),   in the order of p / w

    Rejecting the tests with p~ <= alpha rejects any true hypothesis with a probability of at most
    alpha, however the tests depend on each other. A test of weight w_i begins with the share
    w_i / sum(w) of alpha; the share of a rejected test goes to the others. With equal weights this
    is Holm's method.

    Args:
        p: p-values, shape (m,).
        weights: Positive, shape (m,).

    Source:
        S. Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of
        Statistics 6(2), 1979.
    """
    order = np.argsort(p / weights, kind="stable")
    remaining = np.cumsum(weights[order][::-1])[::-1]
    corrected: Floats = np.empty(p.shape)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] / weights[order] * remaining), 1.0)
    return corrected


def running_mean(values: Floats, window: int = WINDOW) -> Floats:
    """Return the mean of each value and the `window` - 1 before it; NaN if there are fewer.

    Args:
        values: Shape (T,).
        window: At least 1.
    """
    means: Floats = np.full(values.shape, np.nan)
    if values.size >= window:
        means[window - 1 :] = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=1)
    return means


def final_value(accuracy: Floats, window: int = WINDOW) -> float | None:
    """Return the last running mean; None for fewer values than `window`."""
    return float(accuracy[-window:].mean()) if accuracy.size >= window else None


def time_to(target: float, at_s: Floats, accuracy: Floats, window: int = WINDOW) -> float | None:
    """Return the first time at which the running mean of accuracy reaches a target; None if never.

    Args:
        target: Accuracy to reach.
        at_s: Time of each evaluation, seconds, shape (T,).
        accuracy: Device-averaged test accuracy, shape (T,).
        window: Evaluations in the running mean.
    """
    reached = np.flatnonzero(running_mean(accuracy, window) >= target)
    return float(at_s[reached[0]]) if reached.size else None


def restricted(time_s: float | None, horizon_s: float) -> float:
    """Return min(T, horizon), which is also known for a run that never reached its target.

    Its mean over runs is the restricted mean time. It needs no model of censoring if every run
    lasts at least until the horizon.

    Source:
        P. Royston, M. K. B. Parmar, *Restricted mean survival time*, BMC Medical Research
        Methodology 13:152, 2013.
    """
    return horizon_s if time_s is None else min(time_s, horizon_s)


def value_at(budget: float, at: Floats, values: Floats) -> float | None:
    """Return the last value at or before a budget; None if the first one is later.

    Args:
        budget: Rounds, seconds or device-seconds.
        at: When each value was reached, in the same unit, increasing, shape (T,).
        values: Shape (T,).
    """
    index = int(np.searchsorted(at, budget, side="right")) - 1
    return float(values[index]) if index >= 0 else None


def on_front(times_s: Floats, rates: Floats) -> Bools:
    """Return whether each point is Pareto-optimal in time (less) and rate (more), shape (K,).

    A point is dominated if another is no worse in both and better in one; equal points are not.
    """
    no_slower = times_s[:, None] >= times_s[None, :]
    no_less = rates[:, None] <= rates[None, :]
    differs = (times_s[:, None] > times_s[None, :]) | (rates[:, None] < rates[None, :])
    is_dominated: Bools = np.any(no_slower & no_less & differs, axis=1)
    return ~is_dominated


def dominators(scores: Floats, at: int) -> list[tuple[int, int, int]]:
    """Return what dominates a point in two scores, by their means over the seeds of both.

    A point dominates another if it is no worse in both scores and better in one.

    Args:
        scores: More is better, NaN where undefined, shape (2, K, seeds).
        at: The point.

    Returns:
        Of each that dominates it: its number, the seeds in which it does so alone, and the seeds
        that both have.
    """
    gaps = scores - scores[:, at : at + 1]
    both = np.isfinite(gaps).all(axis=0)
    n = both.sum(axis=1)
    sums = np.where(both, gaps, 0.0).sum(axis=2)
    means = np.divide(sums, n, out=np.zeros(sums.shape), where=n > 0)
    found = np.flatnonzero((means >= 0.0).all(axis=0) & (means > 0.0).any(axis=0))
    with np.errstate(invalid="ignore"):
        wins = (both & (gaps >= 0.0).all(axis=0) & (gaps > 0.0).any(axis=0)).sum(axis=1)
    return [(int(k), int(wins[k]), int(n[k])) for k in found]
