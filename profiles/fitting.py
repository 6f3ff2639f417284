"""Fit a link to recorded drives: its states, and its rates while it is connected.

    none        the rate is 0                            `outage_every_s`
    degraded    2 steps or longer below a fifth of the   `degraded_every_s`
                median rate of the minute around it
    connected   all other time                           `spread` of the rate

A drive differs from another one of the same place and operator by more than seconds differ within
it. So all three have a part that a drive keeps. Shares and lengths of states are counted, the
quantiles are those of all connected seconds, and the three parts of the variance of the scores
(drive, slow, fast) follow from the correlations of scores at lags of 1 step to some minutes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fairbed.profiles.quantities import Episodes, Floats, Quantiles, Spread, Tag

Bools = NDArray[np.bool_]

DEGRADED_RATIO = 0.2
"""A link is degraded below this share of the median rate around it."""

DEGRADED_STEPS = 2
"""Least length of a degraded state."""

AROUND_S = 60.0
"""Length of the window of that median, seconds."""

RATE_SHARES = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
"""Quantiles of the rate while connected."""

LENGTH_SHARES = (
    (50, (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)),
    (10, (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)),
)
"""Quantiles of the lengths of states, by the least number of them."""

CUT_FACTOR = 1.25
"""A state that begins before a drive or ends after it is taken as so much longer than recorded:
how much is not known, and 1 is too short."""

LEAST_EPISODES = 3
"""Fewer states of a kind in all drives together are left out."""

LAGS = (1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 90, 120, 180, 240)
"""Lags at which correlations are fitted, steps."""

FAST_STEPS = tuple(np.geomspace(0.3, 20.0, 16).tolist())
SLOW_STEPS = tuple(np.geomspace(15.0, 120.0, 10).tolist())
"""Time constants that are tried, steps."""

SHARE_STEP = 0.02
"""Precision of the shares of the variance."""

LARGEST_DRIVE = 0.95
"""Bound on the share of the variance between drives: few drives do not show more."""

LEAST_DEVIATION, LARGEST_DEVIATION = 0.5, 3.0
"""Bounds on the deviation of the logarithm of the time between states, likewise."""

LARGEST_LEVEL = 0.8
"""Bound on `Spread.level`."""

RATE_WEIGHT = 0.75
"""Weight of the autocorrelation of rates in the fit; the rest is that of ranks."""

HERMITE = 10
"""Terms of the expansion of a quantile function in Hermite polynomials."""

DIGITS = 3
"""Significant digits of fitted numbers."""


class NotFitted(ValueError):
    """The drives cannot be fitted; the message is one line."""


@dataclass(frozen=True, slots=True)
class Direction:
    """Fitted numbers of one direction of a link."""

    spread: Spread[float]
    median_bps: float
    """Of all connected time."""
    outages: Episodes | None
    degraded: Episodes | None
    seconds: float
    drives: int
    zero_share: float
    """Share of the time without coverage."""


@dataclass(frozen=True, slots=True)
class States:
    """The state of each step of a drive; each of shape (S,)."""

    is_none: Bools
    is_degraded: Bools

    @property
    def is_connected(self) -> Bools:
        """Neither of both."""
        connected: Bools = ~(self.is_none | self.is_degraded)
        return connected


def states_of(rates_bps: Floats, step_s: float) -> States:
    """Return the state of each step of a drive, given its rates, bit/s, shape (S,)."""
    is_none = rates_bps <= 0.0
    half = max(1, round(AROUND_S / step_s / 2.0))
    padded = np.pad(np.where(is_none, np.nan, rates_bps), half, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    has_any = np.isfinite(windows).any(axis=1)
    usual = np.zeros(len(rates_bps))
    usual[has_any] = np.nanmedian(windows[has_any], axis=1)
    is_low: Bools = ~is_none & (rates_bps < DEGRADED_RATIO * usual)
    starts, ends = runs(is_low)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end - start < DEGRADED_STEPS:
            is_low[start:end] = False
    return States(is_none, is_low)


def runs(mask: Bools) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first step of each run of True, and the step after it."""
    edges = np.diff(np.concatenate([[0], mask.astype(np.int8), [0]]))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)


def fit_direction(
    drives: Sequence[Floats], step_s: float, tag: Tag, source: str, *, has_states: bool = True
) -> Direction:
    """Return the numbers of one direction of a link.

    Args:
        drives: Rates of each drive, bit/s, in steps of `step_s`, shape (S,) each.
        step_s: Length of a step, seconds.
        tag: Tag of the numbers.
        source: Their source.
        has_states: Find states; otherwise seconds at 0 are in the quantiles.

    Raises:
        NotFitted: There is too little time with coverage.
    """
    states = [states_of(drive, step_s) for drive in drives]
    if not has_states:
        nothing = [np.zeros(len(drive), dtype=np.bool_) for drive in drives]
        states = [States(each, each) for each in nothing]
    connected = [each.is_connected for each in states]
    pooled = np.concatenate([x[on] for x, on in zip(drives, connected, strict=True)])
    if len(pooled) < 10 * DEGRADED_STEPS:
        raise NotFitted(f"needs at least 20 steps with coverage, got {len(pooled)}; add drives")
    shares = _scores(pooled)
    places = np.split(shares, np.cumsum([int(on.sum()) for on in connected])[:-1])
    scores = [np.full(len(on), np.nan) for on in connected]
    for whole, on, own in zip(scores, connected, places, strict=True):
        whole[on] = own
    rates = [np.where(on, drive, np.nan) for drive, on in zip(drives, connected, strict=True)]
    drive, slow, slow_steps, fast_steps = _variances(scores, rates)
    level = _level([x[on] for x, on in zip(drives, connected, strict=True)])
    narrowed = _narrowed(pooled, level)
    spread: Spread[float] = Spread(
        quantiles=tuple((p, rounded(float(np.quantile(narrowed, p)))) for p in RATE_SHARES),
        step_s=step_s,
        correlation=round(math.exp(-1.0 / fast_steps), 3),
        drive=drive,
        level=level,
        slow=slow,
        slow_s=rounded(slow_steps * step_s),
    )
    covered = [~each.is_none for each in states]
    everything = [np.ones(len(drive), dtype=np.bool_) for drive in drives]
    return Direction(
        spread=spread,
        median_bps=rounded(float(np.quantile(pooled, 0.5))),
        outages=_episodes([s.is_none for s in states], everything, step_s, 0.0, tag, source),
        degraded=_episodes(
            [s.is_degraded for s in states],
            covered,
            step_s,
            _ratio(drives, states, step_s),
            tag,
            source,
        ),
        seconds=step_s * sum(map(len, drives)),
        drives=len(drives),
        zero_share=float(np.mean(np.concatenate([drive <= 0.0 for drive in drives]))),
    )


def coupling_of(pairs: Sequence[tuple[Floats, Floats]]) -> float | None:
    """Return the correlation of the scores of both rates while both have coverage.

    Args:
        pairs: Downlink and uplink of each drive in the same steps, shape (S,) each.

    Returns:
        Within [0, 0.95]; None for less than a minute.
    """
    on = [(down > 0.0) & (up > 0.0) for down, up in pairs]
    down = np.concatenate([np.zeros(0), *(x[m] for (x, _), m in zip(pairs, on, strict=True))])
    up = np.concatenate([np.zeros(0), *(y[m] for (_, y), m in zip(pairs, on, strict=True))])
    if len(down) < 60:
        return None
    return round(min(max(float(np.corrcoef(_scores(down), _scores(up))[0, 1]), 0.0), 0.95), 2)


def rounded(value: float) -> float:
    """Return a number with `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _level(drives: Sequence[Floats]) -> float:
    """Return the level: the deviation of ln(median rate) between n drives times sqrt(1.5 / n)."""
    medians = np.array([float(np.median(drive)) for drive in drives if len(drive)])
    if len(medians) < 2:
        return 0.0
    deviation = float(np.std(np.log(np.maximum(medians, 1.0)), ddof=1))
    return round(min(deviation * math.sqrt(1.5 / len(medians)), LARGEST_LEVEL), 2)


def _narrowed(rates: Floats, level: float) -> Floats:
    """Return rates so much closer to their median that they are as far apart with the level.

    ln x' = m + sqrt(1 - level^2 / var ln x) (ln x - m),   at least half as far
    """
    logs = np.log(np.maximum(rates, 1.0))
    middle, variance = float(np.median(logs)), float(np.var(logs))
    factor = math.sqrt(max(1.0 - level * level / max(variance, 1e-12), 0.25))
    narrowed: Floats = np.where(rates > 0.0, np.exp(middle + factor * (logs - middle)), 0.0)
    return narrowed


def _scores(values: Floats) -> Floats:
    """Return normal scores by rank, shape (S,)."""
    order = values.argsort(kind="stable").argsort(kind="stable")
    inverse = NormalDist().inv_cdf
    return np.array([inverse(share) for share in ((order + 0.5) / max(len(order), 1)).tolist()])


def _variances(
    scores: Sequence[Floats], rates: Sequence[Floats]
) -> tuple[float, float, float, float]:
    """Return the shares of drive and slow part, and time constants of slow and fast part, steps.

        rho(l) = v_d + v_s exp(-l / T_s) + (1 - v_d - v_s) exp(-l / T_f)

    by least squares, weighted by the square root of the number of pairs, where rho is the
    correlation of scores with which the drawn rates have the autocorrelation of the recorded ones.
    With n drives the first share is multiplied by n / (n - 1), because they differ from their own
    mean by less than from that of all drives.

    Args:
        scores: Normal scores of each drive, NaN while it is not connected, shape (S,) each.
        rates: Its rates, bit/s, likewise.
    """
    lags, found, weights = [], [], []
    whole = np.concatenate(rates)
    whole = whole[np.isfinite(whole)]
    mean, variance = float(whole.mean()), float(whole.var())
    to_scores = _inverse_correlation(np.sort(whole))
    for lag in LAGS:
        pairs = []
        for own in (scores, [(each - mean) / math.sqrt(variance or 1.0) for each in rates]):
            before = np.concatenate([np.zeros(0), *(x[:-lag] for x in own if len(x) > lag)])
            after = np.concatenate([np.zeros(0), *(x[lag:] for x in own if len(x) > lag)])
            known = np.isfinite(before) & np.isfinite(after)
            pairs.append((before[known], after[known]))
        count = len(pairs[0][0])
        if count >= 30:
            by_rank, by_rate = (float(np.mean(a * b)) for a, b in pairs)
            share = RATE_WEIGHT
            lags.append(lag)
            found.append((1.0 - share) * by_rank + share * to_scores(by_rate))
            weights.append(math.sqrt(count / lag))
    if len(lags) < 3:
        return 0.0, 0.0, 60.0, 1.0
    at, rho, weight = np.array(lags), np.array(found), np.array(weights)
    steps = np.arange(0.0, 1.0 + SHARE_STEP / 2.0, SHARE_STEP)
    drive, slow = (grid.ravel() for grid in np.meshgrid(steps, steps))
    kept = drive + slow <= 1.0
    drive, slow = drive[kept], slow[kept]
    best = (math.inf, 0.0, 0.0, 60.0, 1.0)
    for fast_steps in FAST_STEPS:
        for slow_steps in SLOW_STEPS:
            fast_rho, slow_rho = np.exp(-at / fast_steps), np.exp(-at / slow_steps)
            model = drive[:, None] + slow[:, None] * slow_rho
            model += (1.0 - drive - slow)[:, None] * fast_rho
            errors = ((model - rho) ** 2) @ weight
            place = int(errors.argmin())
            if errors[place] < best[0]:
                best = float(errors[place]), drive[place], slow[place], slow_steps, fast_steps
    n = len(scores)
    of_drive = min(best[1] * n / (n - 1.0), LARGEST_DRIVE) if n > 1 else best[1]
    rest = (1.0 - of_drive) / max(1.0 - best[1], 1e-9)
    return round(float(of_drive), 2), round(float(best[2] * rest), 2), best[3], best[4]


def _inverse_correlation(ordered: Floats) -> Callable[[float], float]:
    """Return the correlation of scores as a function of that of the values F^-1(Phi(z)).

        corr(x, x') = sum_k c_k^2 rho^k / sum_k c_k^2,   c_k = E[F^-1(Phi(z)) He_k(z)] / sqrt(k!)

    Args:
        ordered: Values in their order, shape (S,).
    """
    at = (np.arange(4000) + 0.5) / 4000
    z = np.array([NormalDist().inv_cdf(share) for share in at.tolist()])
    x = np.quantile(ordered, at)
    before, he = np.ones_like(z), z
    squares = []
    for k in range(1, HERMITE + 1):
        squares.append(float(np.mean(x * he)) ** 2 / math.factorial(k))
        before, he = he, z * he - k * before
    rho = np.linspace(0.0, 1.0, 201)
    total = sum(squares) or 1.0
    of_rho = sum(square * rho**k for k, square in enumerate(squares, 1)) / total
    return lambda value: float(np.interp(value, of_rho, rho))


def _ratio(drives: Sequence[Floats], states: Sequence[States], step_s: float) -> float:
    """Return the median rate while degraded, relative to that around it."""
    found = list[float]()
    half = max(1, round(AROUND_S / step_s / 2.0))
    for rates, state in zip(drives, states, strict=True):
        for at in np.flatnonzero(state.is_degraded).tolist():
            around = slice(max(at - half, 0), at + half + 1)
            found.append(rates[at] / float(np.median(rates[around][~state.is_none[around]])))
    return rounded(float(np.median(found))) if found else DEGRADED_RATIO


def _episodes(
    masks: Sequence[Bools],
    among: Sequence[Bools],
    step_s: float,
    ratio: float,
    tag: Tag,
    source: str,
) -> Episodes | None:
    """Return how often and how long a state is, with its share of all time.

    Args:
        masks: Steps of each drive in the state, shape (S,).
        among: Steps that could be.
        step_s: Length of a step, seconds.
        ratio: `rate_ratio`.
        tag: Tag of the numbers.
        source: Their source.
    """
    lengths = [_lengths_s(mask, step_s) for mask in masks]
    pooled = np.concatenate(lengths)
    if len(pooled) < LEAST_EPISODES:
        return None
    shares = next((s for least, s in LENGTH_SHARES if len(pooled) >= least), (0.0, 0.5, 1.0))
    points = tuple((p, rounded(float(np.quantile(pooled, p)))) for p in shares)
    counts = np.array([len(each) for each in lengths])
    free_s = np.array(
        [step_s * (a & ~m).sum() for a, m in zip(among, masks, strict=True)], dtype=np.float64
    )
    deviation = _deviation(counts, free_s)
    share = sum(int(m.sum()) for m in masks) / max(sum(int(a.sum()) for a in among), 1)
    mean_s = float(np.mean(Quantiles(points).at(np.linspace(0.0, 1.0, 20_001))))
    return Episodes(
        value=rounded(_every_s(share, mean_s, deviation)),
        tag=tag,
        source=source,
        length_s=points,
        drive=deviation,
        rate_ratio=ratio,
    )


def _lengths_s(mask: Bools, step_s: float) -> Floats:
    """Return the lengths of the runs of a state, seconds; one that a drive cuts is longer."""
    starts, ends = runs(mask)
    is_cut = (starts == 0) | (ends == len(mask))
    factors: Floats = np.where(is_cut, CUT_FACTOR, 1.0).astype(np.float64)
    lengths: Floats = step_s * factors * (ends - starts)
    return lengths


def _deviation(counts: NDArray[np.int64], free_s: Floats) -> float:
    """Return the deviation between drives of the logarithm of the time between states.

    By moments: the variance of ln((k + 1/2) / free time) minus that of counting, 1 / (k + 1/2),
    times 1 + 4 / (n - 1), about the square of the quantile of Student's t over that of a normal
    distribution: n drives do not show how different they can be.
    """
    n = len(counts)
    if n < 2:
        return 0.0
    rates = np.log((counts + 0.5) / np.maximum(free_s, 1.0))
    variance = float(np.var(rates, ddof=1)) - float(np.mean(1.0 / (counts + 0.5)))
    deviation = math.sqrt(max(variance, 0.0) * (1.0 + 4.0 / (n - 1.0)))
    return round(min(max(deviation, LEAST_DEVIATION), LARGEST_DEVIATION), 2)


def _every_s(share: float, mean_s: float, deviation: float) -> float:
    """Return the time between states of the typical device, seconds, from the share of all time.

    share = E[mean / (mean + every e^(sigma w))],   w ~ N(0, 1)
    """
    at = (np.arange(400) + 0.5) / 400
    factors = np.exp(deviation * np.array([NormalDist().inv_cdf(p) for p in at.tolist()]))
    low, high = 1e-3, 1e9
    for _ in range(100):
        middle = math.sqrt(low * high)
        if float(np.mean(mean_s / (mean_s + middle * factors))) > share:
            low = middle
        else:
            high = middle
    return max(middle, 1.0)
