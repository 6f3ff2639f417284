"""Schedules of a device: each of its varying numbers as a series over time.

Pure: the caller provides the reader of traces and the random generator. Schedules that are known
by their distribution only are drawn: `draw_spread` and `draw_sessions`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.profiles.quantities import Floats, Quantiles, Spread, Varying, normal_shares
from fairbed.profiles.schema import DROP_TAIL, Availability, Link, LinkQueue, Profile, Thermal
from fairbed.profiles.series import Series

Bools: TypeAlias = NDArray[np.bool_]

DRAWN_S = 3600.0
"""Length of a drawn schedule, which then repeats."""

MIN_STEPS, MAX_STEPS = 600, 7200
"""Bounds on the steps of a drawn schedule."""

DAY_S = 86_400.0

MIN_SESSIONS, MAX_SESSIONS = 30, 2000
"""Bounds on the sessions of a drawn availability schedule, which lasts a day otherwise."""


def draw_spread(spread: Spread[Any], rng: np.random.Generator) -> Series:
    """Return a synthetic schedule with given quantiles and correlations over time.

        z_i = sqrt(v_d) u + sqrt(v_s) s_i + sqrt(1 - v_d - v_s) f_i
        x_i = e^(level w) F^-1(Phi(z_i)),   w ~ N(0, 1)
        s_0, f_0, u and all shocks ~ N(0, 1) times sqrt(1 - rho^2) of their part
        s_{i+1} = rho_s s_i + shock,   f_{i+1} = rho f_i + shock,   rho_s = exp(-step / slow_s)

    Args:
        spread: Quantiles `F^-1`, length of a step, correlation `rho` of successive fast scores,
            the shares `v_d` of the device and `v_s` of the slow part, and the `level`.
        rng: Draws the fast shocks first, then the slow ones, then `u` and `w`.
    """
    scores = _scores(spread, rng)
    return Series.sampled(_values(spread, scores, rng).tolist(), spread.step_s)


def _steps(step_s: float) -> int:
    """Return the number of steps of a drawn schedule."""
    return int(min(max(math.ceil(DRAWN_S / step_s), MIN_STEPS), MAX_STEPS))


def _values(spread: Spread[Any], scores: Floats, rng: np.random.Generator) -> Floats:
    """Return the values of a schedule, shape (steps,), given its scores."""
    values = spread.distribution().at(normal_shares(scores))
    if spread.level > 0.0:
        values = values * math.exp(spread.level * rng.standard_normal())
    return values


def _scores(spread: Spread[Any], rng: np.random.Generator) -> Floats:
    """Return the normal scores of a schedule, shape (steps,)."""
    steps = _steps(spread.step_s)
    fast = 1.0 - spread.drive - spread.slow
    scores = math.sqrt(max(fast, 0.0)) * _persistent(steps, spread.correlation, rng)
    if spread.slow > 0.0:
        rho = math.exp(-spread.step_s / spread.slow_s)
        scores += math.sqrt(spread.slow) * _persistent(steps, rho, rng)
    if spread.drive > 0.0:
        scores += math.sqrt(spread.drive) * rng.standard_normal()
    return scores


def _persistent(steps: int, rho: float, rng: np.random.Generator) -> Floats:
    """Return a stationary series of standard normal numbers, shape (steps,)."""
    noise = rng.standard_normal(steps)
    noise[1:] *= math.sqrt(1.0 - rho * rho)
    scores = np.empty(steps)
    last = 0.0
    for index, shock in enumerate(noise.tolist()):
        scores[index] = last = rho * last + shock
    return scores


def draw_rates(link: Link, rng: np.random.Generator) -> tuple[Series, Series]:
    """Return the rates of a link in both directions, bit/s, drawn together.

    The scores of the two rates are correlated by the `coupling` c of the link if both are drawn in
    steps of the same length:

        z_up = c z_down + sqrt(1 - c^2) z_own

    The states apply to both rates: 0 in an outage, the `rate_ratio` while degraded.

    Args:
        link: The rates have a spread, or are constant.
        rng: Draws downlink, uplink and states from a stream each.
    """
    of_down, of_up, of_states = rng.spawn(3)
    down, up = link.down, link.up
    coupling = 0.0 if link.coupling is None else link.coupling.value
    down_scores = None if down.spread is None else _scores(down.spread, of_down)
    up_scores = None if up.spread is None else _scores(up.spread, of_up)
    if down_scores is not None and up_scores is not None and len(down_scores) == len(up_scores):
        up_scores = coupling * down_scores + math.sqrt(1.0 - coupling * coupling) * up_scores
    rates = []
    states = _draw_states(link, of_states)
    for number, scores, stream in ((down, down_scores, of_down), (up, up_scores, of_up)):
        if number.spread is None or scores is None:
            values, step_s = np.full(_steps(STATE_STEP_S), number.value), STATE_STEP_S
        else:
            values = _values(number.spread, scores, stream)
            step_s = number.spread.step_s
        for starts_s, ends_s, ratio in states:
            values[_within(starts_s, ends_s, step_s, len(values))] *= ratio
        rates.append(Series.sampled(values.tolist(), step_s))
    return rates[0], rates[1]


STATE_STEP_S = 1.0
"""Step of a constant rate that has states, seconds."""

WARM_UP = 3
"""States are drawn from so many schedule lengths before the start on, so that a device may start
within one."""


def _draw_states(link: Link, rng: np.random.Generator) -> list[tuple[Floats, Floats, float]]:
    """Return starts, ends (seconds, each of shape (K,)) and the rate ratio of each kind of state.

    A device has one deviation for both kinds: where coverage is bad, a link is degraded more often,
    too.
    """
    deviation = float(rng.standard_normal())
    found = []
    for episodes, stream in zip((link.degraded, link.outages), rng.spawn(2), strict=True):
        if episodes is None:
            continue
        mean_s = episodes.value * math.exp(episodes.drive * deviation)
        starts_s, ends_s = _draw_episodes(episodes.lengths(), mean_s, stream)
        found.append((starts_s, ends_s, episodes.rate_ratio))
    return found


def _draw_episodes(
    lengths: Quantiles, mean_s: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return starts and ends of the episodes of one schedule, seconds, each of shape (K,).

    Times between episodes are exponential, of mean `mean_s`.
    """
    t, last_s = -WARM_UP * DRAWN_S, MAX_STEPS * STATE_STEP_S
    starts, ends = list[float](), list[float]()
    mean_s = max(mean_s, LEAST_GAP_S)
    while t < last_s:
        gaps = rng.exponential(mean_s, 64).tolist()
        for gap, length in zip(gaps, lengths.at(rng.random(64)).tolist(), strict=True):
            t += gap
            if t >= last_s:
                break
            if t + length > 0.0:
                starts.append(t)
                ends.append(t + length)
            t += length
    return np.array(starts), np.array(ends)


LEAST_GAP_S = 1.0
"""Least mean time between two episodes, seconds: bounds their number."""


def _within(starts_s: Floats, ends_s: Floats, step_s: float, steps: int) -> Bools:
    """Return which steps are within an episode, by their middle, shape (steps,)."""
    middle = (np.arange(steps) + 0.5) * step_s
    if not len(starts_s):
        return np.zeros(steps, dtype=np.bool_)
    before = np.searchsorted(starts_s, middle, side="right") - 1
    inside: Bools = (before >= 0) & (middle < ends_s[before])
    return inside


def draw_sessions(share: float, session_s: float | None, rng: np.random.Generator) -> Series:
    """Return an availability schedule of 1 and 0 whose mean is exactly `share`.

    With `session_s`, sessions and absences alternate, each with exponentially distributed lengths;
    the mean absence follows from `share`. Without, there is one session per day.

    Args:
        share: Share of the time in which the device is available.
        session_s: Mean length of a session, seconds; None is one session per day.
        rng: Draws lengths, and the start of the device within the schedule.
    """
    if share >= 1.0 or share <= 0.0:
        return Series.constant(min(max(share, 0.0), 1.0))
    if session_s is None:
        sessions, period_s = np.ones(1), DAY_S
    else:
        cycle_s = session_s / share
        count = int(min(max(math.ceil(DAY_S / cycle_s), MIN_SESSIONS), MAX_SESSIONS))
        sessions, period_s = rng.exponential(size=count), count * cycle_s
    gaps = rng.exponential(size=sessions.size)
    lengths = np.column_stack(
        [
            sessions / sessions.sum() * share * period_s,
            gaps / gaps.sum() * (1.0 - share) * period_s,
        ]
    ).ravel()
    lengths = np.maximum(lengths, 1e-3)
    starts = np.concatenate([[0.0], np.cumsum(lengths)])
    values = np.tile([1.0, 0.0], sessions.size)
    series = Series(tuple(starts[:-1].tolist()), tuple(values.tolist()), float(starts[-1]))
    return series.starting_at(float(rng.random()) * series.period_s)


ReadTrace: TypeAlias = Callable[[str, str], Series]
"""Returns the series of a column, given the name of a trace and of the column; raises
TraceError."""

AnyVarying: TypeAlias = Varying[Any, Any]


@dataclass(frozen=True, slots=True)
class LinkTracks:
    """Schedules of a link."""

    down_bps: Series
    up_bps: Series
    delay_s: Series
    jitter_s: Series
    loss_ratio: Series
    queue: LinkQueue = DROP_TAIL
    """Constant: a queue keeps its size when the rates change."""


@dataclass(frozen=True, slots=True)
class DeviceTracks:
    """Schedules of a device, from its first start."""

    link: LinkTracks | None
    """None is the link of this machine."""
    clock_ratio: Series
    """Clock relative to that of `core_speed`."""
    background_load: Series
    """Cores busy with other work."""
    available: Series
    """1 while the device is available, otherwise 0."""
    thermal: Thermal | None
    """None: the device does not throttle, or stays below its limit under full load."""


def device_tracks(
    profile: Profile | None,
    link: Link | None,
    read_trace: ReadTrace,
    rng: np.random.Generator,
    start: float = 0.0,
) -> DeviceTracks:
    """Return the schedules of one device.

    Args:
        profile: None is this machine: always available, at its own clock.
        link: None is the link of this machine.
        read_trace: Called for numbers that follow a trace.
        rng: Draws the schedules that are known by their distribution only. Each number has its
            own stream, so drawing one does not change another.
        start: Start of this device within its traces, as a share of their length.

    Raises:
        TraceError: A trace cannot be found or read.
        ValueError: `start` is not from 0 to 1.
    """
    if not 0.0 <= start <= 1.0:
        raise ValueError(f"start must be from 0 to 1, got {start}")
    streams = rng.spawn(8)
    drawn = None
    if link is not None and link.is_drawn_together:
        drawn = draw_rates(link, rng.spawn(1)[0])

    def follow(number: AnyVarying | None, column: str, default: float) -> Series:
        stream = streams.pop()
        if number is None:
            return Series.constant(default)
        return _schedule(number, column, read_trace, stream, start)

    thermal = profile.thermal if profile else None
    return DeviceTracks(
        clock_ratio=follow(profile.clock if profile else None, "clock_ratio", 1.0),
        background_load=follow(profile.busy if profile else None, "background_load", 0.0),
        available=_availability(
            profile.availability if profile else None, read_trace, streams.pop()
        ),
        thermal=thermal if thermal is not None and thermal.throttles else None,
        link=None
        if link is None
        else LinkTracks(
            down_bps=drawn[0] if drawn else follow(link.down, "down_bps", 0.0),
            up_bps=drawn[1] if drawn else follow(link.up, "up_bps", 0.0),
            delay_s=follow(link.delay, "delay_s", 0.0),
            jitter_s=follow(link.jitter, "jitter_s", 0.0),
            loss_ratio=follow(link.loss, "loss_ratio", 0.0),
            queue=link.queue,
        ),
    )


def _schedule(
    number: AnyVarying, column: str, read_trace: ReadTrace, rng: np.random.Generator, start: float
) -> Series:
    if number.series is not None:
        series: Series = number.series.series()
        return series
    if number.trace is not None:
        recorded = read_trace(number.trace, column)
        return recorded.starting_at(start * recorded.period_s)
    if number.spread is not None:
        return draw_spread(number.spread, rng)
    return Series.constant(float(number.value))


def _availability(
    availability: Availability | None, read_trace: ReadTrace, rng: np.random.Generator
) -> Series:
    """Return the availability of a device; a series or trace is not shifted, as nights coincide."""
    if availability is None:
        return Series.constant(1.0)
    share = availability.share
    if share.series is not None or share.trace is not None:
        return _schedule(share, "available", read_trace, rng, 0.0)
    mean = share.value
    if share.spread is not None:
        mean = float(share.spread.distribution().at(rng.random()))
    session_s = None if availability.session is None else availability.session.value
    return draw_sessions(mean, session_s, rng)
