"""Courses in time that are drawn from what is known of them: synthetic, true to their source."""

import math
from typing import Any

import numpy as np

from profiles.quantiles import normal_shares
from profiles.quantities import Spread
from profiles.series import Series

DRAWN_S = 3600.0
"""Length of a drawn course, at least `MIN_STEPS` of it; then it repeats."""

MIN_STEPS, MAX_STEPS = 600, 7200

DAY_S = 86_400.0

MIN_STAYS, MAX_STAYS = 30, 2000
"""Of a drawn course of stays: at least a day, and at least or at most so many."""


def draw_spread(spread: Spread[Any], rng: np.random.Generator) -> Series:
    """Return a course with the quantiles and the correlation that are known.

        z_0 = e_0,   z_{i+1} = rho z_i + sqrt(1 - rho^2) e_{i+1},   e_i ~ N(0, 1)
        x_i = F^-1(Phi(z_i))

    Args:
        spread: Quantiles `F^-1`, length of a step, and `rho` of normal scores one step apart.
        rng: Draws the `e_i`.
    """
    steps = int(min(max(math.ceil(DRAWN_S / spread.step_s), MIN_STEPS), MAX_STEPS))
    rho = spread.correlation
    noise = rng.standard_normal(steps)
    noise[1:] *= math.sqrt(1.0 - rho * rho)
    scores = np.empty(steps)
    last = 0.0
    for index, shock in enumerate(noise.tolist()):
        scores[index] = last = rho * last + shock
    values = spread.distribution().at(normal_shares(scores))
    return Series.sampled(values.tolist(), spread.step_s)


def draw_sessions(share: float, session_s: float | None, rng: np.random.Generator) -> Series:
    """Return when a device is there, 1 or 0, for a share of the time that is met exactly.

    With `session_s`, stays and absences by turns, each exponentially distributed, the mean of
    stays as given and that of absences as the share asks. Without, one stay a day.

    Args:
        share: Of the time that the device is there.
        session_s: Mean length of a stay, seconds; None is one stay a day.
        rng: Draws lengths, and where in all this the device begins.
    """
    if share >= 1.0 or share <= 0.0:
        return Series.constant(min(max(share, 0.0), 1.0))
    if session_s is None:
        stays, period_s = np.ones(1), DAY_S
    else:
        cycle_s = session_s / share
        count = int(min(max(math.ceil(DAY_S / cycle_s), MIN_STAYS), MAX_STAYS))
        stays, period_s = rng.exponential(size=count), count * cycle_s
    gaps = rng.exponential(size=stays.size)
    lengths = np.column_stack(
        [
            stays / stays.sum() * share * period_s,
            gaps / gaps.sum() * (1.0 - share) * period_s,
        ]
    ).ravel()
    lengths = np.maximum(lengths, 1e-3)
    starts = np.concatenate([[0.0], np.cumsum(lengths)])
    values = np.tile([1.0, 0.0], stays.size)
    series = Series(tuple(starts[:-1].tolist()), tuple(values.tolist()), float(starts[-1]))
    return series.starting_at(float(rng.random()) * series.period_s)
