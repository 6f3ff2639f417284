"""Statistics over a few seeds: intervals of means, times to a target, fronts. Pure.

Every interval is of a mean over seeds. Arms share their seeds, so arms are compared by the mean of
the differences seed by seed: what the seed alone decides drops out.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy import special

from fairbed.coordinator.algorithms.arrays import Bools, Floats

CONFIDENCE = 0.95
RESAMPLES = 20_000
"""An end of an interval of 10 values then moves by under 2 % of its length with the dice."""
WINDOW = 5
"""Evaluations in the running mean that has to reach a target."""
LEAST_SEEDS_TO_JUDGE = 5
"""With fewer, no interval inside the range of the values holds 95 %: at best 1 - 2 / 2^n."""

_BLOCK = 2_000_000
"""Numbers that are drawn at once, so that many seeds do not cost much memory."""

Verdict: TypeAlias = Literal["less", "more", "unclear"]


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A mean, and where the true one is."""

    mean: float
    low: float | None
    """None for fewer than two values."""
    high: float | None
    n: int

    @property
    def verdict(self) -> Verdict:
        """Whether a difference is below 0 or above it; unclear when 0 is inside or n too small."""
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
    interval (a = 2.5 %) is too narrow by sqrt((n - 1) / n) and ignores that the spread is
    estimated, too: of 5 normal values it holds the mean in 83 %, BCa in no more. Its levels are
    therefore those at which a normal G would give the interval of Student's t.

    Args:
        values: One a seed, shape (n,), n at least 1.
        rng: Of the resampling.
        confidence: Share of such intervals that hold the true mean.
        resamples: How often values are drawn anew.

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
    """Return the mean of each value and the `window` - 1 before it, NaN where there are fewer.

    Args:
        values: Shape (T,).
        window: At least 1.
    """
    means: Floats = np.full(values.shape, np.nan)
    if values.size >= window:
        means[window - 1 :] = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=1)
    return means


def final_value(accuracy: Floats, window: int = WINDOW) -> float | None:
    """Return the last running mean; None before there is one."""
    return float(accuracy[-window:].mean()) if accuracy.size >= window else None


def time_to(target: float, at_s: Floats, accuracy: Floats, window: int = WINDOW) -> float | None:
    """Return when the running mean of an accuracy first reaches a target; None if it never does.

    Args:
        target: Ratio.
        at_s: When each evaluation was, seconds, shape (T,).
        accuracy: Device-averaged test accuracy, shape (T,).
        window: Evaluations in the running mean.
    """
    reached = np.flatnonzero(running_mean(accuracy, window) >= target)
    return float(at_s[reached[0]]) if reached.size else None


def restricted(time_s: float | None, horizon_s: float) -> float:
    """Return min(T, horizon): a time that is known also of a run that never reached its target.

    The mean of it over runs is the restricted mean time. It needs no model of censoring as long as
    every run lasted at least until the horizon.

    Source:
        P. Royston, M. K. B. Parmar, *Restricted mean survival time*, BMC Medical Research
        Methodology 13:152, 2013.
    """
    return horizon_s if time_s is None else min(time_s, horizon_s)


def on_front(times_s: Floats, rates: Floats) -> Bools:
    """Return which points no other beats in both: less time and a higher rate, shape (K,).

    A point that equals another in one and loses in the other is beaten; equal points are not.
    """
    no_slower = times_s[:, None] >= times_s[None, :]
    no_less = rates[:, None] <= rates[None, :]
    differs = (times_s[:, None] > times_s[None, :]) | (rates[:, None] < rates[None, :])
    is_beaten: Bools = np.any(no_slower & no_less & differs, axis=1)
    return ~is_beaten
