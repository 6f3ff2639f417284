"""Statistics over a few seeds: intervals of means, times to a target, Pareto fronts. Pure.

Every interval is that of a mean over seeds. Arms share their seeds, so arms are compared by the
mean of paired differences, in which the effect of the seed itself cancels.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy import special

from fairbed.coordinator.algorithms.arrays import Bools, Floats

CONFIDENCE = 0.95
RESAMPLES = 20_000
"""Between two resamplings, an end of an interval of 10 values moves by under 2 % of its length."""
WINDOW = 5
"""Evaluations in the running mean that must reach a target."""
LEAST_SEEDS_TO_JUDGE = 5
"""With fewer, no interval inside the range of the values covers 95 %: at best 1 - 2 / 2^n."""

_BLOCK = 2_000_000
"""Numbers that are drawn at once: limits the memory for many seeds."""

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
        """Whether a difference is below or above 0; unclear if 0 is inside or n is too small."""
        if self.low is None or self.high is None or self.n < LEAST_SEEDS_TO_JUDGE:
            return "unclear"
        return "less" if self.high < 0.0 else "more" if self.low > 0.0 else "unclear"


def mean_interval(
    values: Floats,
    rng: np.random.Generator,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> ConfidenceInterval:
    """Return the mean of some values and its expanded percentile bootstrap interval.

        [G^-1(a), G^-1(1 - a)],   a = Phi(sqrt(n / (n - 1)) t_{(1 - confidence) / 2, n - 1})

    G is the distribution of the mean of n values drawn with replacement. The plain percentile
    interval (a = 2.5 %) is too narrow by sqrt((n - 1) / n), and ignores that the variance is
    estimated, too: for 5 normal values it covers the mean in 83 %, and BCa in no more. So the
    levels here are those at which a normal G would give the interval of Student's t.

    Args:
        values: One value per seed, shape (n,), n at least 1.
        rng: Draws the resamples.
        confidence: Share of such intervals that cover the true mean.
        resamples: Number of resamples.

    Raises:
        ValueError: There is no value.

    Source:
        T. C. Hesterberg, *What Teachers Should Know about the Bootstrap*, The American
        Statistician 69(4), 2015, section 4.3 (expanded percentile interval).
    """
    n = values.size
    if n == 0:
        raise ValueError("mean_interval: needs at least one value, got none")
    mean = float(values.mean())
    if n == 1:
        return ConfidenceInterval(mean, None, None, 1)
    means = _resampled_means(values, rng, resamples)
    level = expanded_level(n, confidence)
    low, high = np.quantile(means, (level, 1.0 - level)).tolist()
    return ConfidenceInterval(mean, low, high, n)


def _resampled_means(values: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    rows = max(1, _BLOCK // values.size)
    n = values.size
    means: Floats = np.concatenate(
        [
            values[rng.integers(n, size=(min(rows, resamples - done), n))].mean(axis=1)
            for done in range(0, resamples, rows)
        ]
    )
    return means


def expanded_level(n: int, confidence: float = CONFIDENCE) -> float:
    """Return the lower level of the expanded percentile interval of n values, n at least 2."""
    t = float(special.stdtrit(n - 1, (1.0 - confidence) / 2.0))
    return float(special.ndtr(np.sqrt(n / (n - 1)) * t))


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


def on_front(times_s: Floats, rates: Floats) -> Bools:
    """Return whether each point is Pareto-optimal in time (less) and rate (more), shape (K,).

    A point is dominated if another is no worse in both and better in one; equal points are not.
    """
    no_slower = times_s[:, None] >= times_s[None, :]
    no_less = rates[:, None] <= rates[None, :]
    differs = (times_s[:, None] > times_s[None, :]) | (rates[:, None] < rates[None, :])
    is_dominated: Bools = np.any(no_slower & no_less & differs, axis=1)
    return ~is_dominated
