"""Schedules of a device: each of its varying numbers as a series over time.

Pure: the caller provides the reader of traces and the random generator. Schedules that are known
by their distribution only are drawn: `draw_spread` and `draw_sessions`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fairbed.profiles.quantities import Spread, Varying, normal_shares
from fairbed.profiles.schema import DROP_TAIL, Availability, Link, LinkQueue, Profile, Thermal
from fairbed.profiles.series import Series

DRAWN_S = 3600.0
"""Length of a drawn schedule, which then repeats."""

MIN_STEPS, MAX_STEPS = 600, 7200
"""Bounds on the steps of a drawn schedule."""

DAY_S = 86_400.0

MIN_SESSIONS, MAX_SESSIONS = 30, 2000
"""Bounds on the sessions of a drawn availability schedule, which lasts a day otherwise."""


def draw_spread(spread: Spread[Any], rng: np.random.Generator) -> Series:
    """Return a synthetic schedule with given quantiles and correlation.

        z_0 = e_0,   z_{i+1} = rho z_i + sqrt(1 - rho^2) e_{i+1},   e_i ~ N(0, 1)
        x_i = F^-1(Phi(z_i))

    Args:
        spread: Quantiles `F^-1`, length of a step, and correlation `rho` of successive scores.
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
    """None is no throttling, also of a device that stays below its limit under full load."""


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
            down_bps=follow(link.down, "down_bps", 0.0),
            up_bps=follow(link.up, "up_bps", 0.0),
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
