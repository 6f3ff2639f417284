"""What the numbers of a device are at every moment: each as a series.

Pure: whoever calls brings a reader of traces and the randomness.

Courses in time that are drawn from what is known of them: synthetic, true to their source.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fairbed.profiles.quantities import Spread, Varying, normal_shares
from fairbed.profiles.schema import Availability, Link, Profile, Thermal
from fairbed.profiles.series import Series

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


ReadTrace: TypeAlias = Callable[[str, str], Series]
"""Given the name of a trace and a column, returns the series; raises TraceError."""

AnyVarying: TypeAlias = Varying[Any, Any]


@dataclass(frozen=True, slots=True)
class LinkTracks:
    """A link over time."""

    down_bps: Series
    up_bps: Series
    delay_s: Series
    jitter_s: Series
    loss_ratio: Series


@dataclass(frozen=True, slots=True)
class DeviceTracks:
    """A device over time, from the moment it is first started."""

    link: LinkTracks | None
    """None is this machine's own."""
    clock_ratio: Series
    """Relative to the clock that its speed holds for."""
    background_load: Series
    """Cores."""
    available: Series
    """1 while it is there, 0 while it is away."""
    thermal: Thermal | None
    """None: no load makes it slower."""


def device_tracks(
    profile: Profile | None,
    link: Link | None,
    read_trace: ReadTrace,
    rng: np.random.Generator,
    start: float = 0.0,
) -> DeviceTracks:
    """Return how one device goes over time.

    Args:
        profile: None is this machine: always there, at its own clock.
        link: None is this machine's own.
        read_trace: Called for numbers that follow a trace.
        rng: Draws the courses that are known by their distribution only. Each number has a
            stream of its own: whether one is drawn changes no other.
        start: Where in its traces this device begins, as a share of their length.

    Raises:
        TraceError: A trace cannot be had.
        ValueError: `start` is not from 0 to 1.
    """
    if not 0.0 <= start <= 1.0:
        raise ValueError(f"start must be from 0 to 1, got {start}")
    streams = rng.spawn(8)

    def follow(number: AnyVarying | None, column: str, otherwise: float) -> Series:
        stream = streams.pop()
        if number is None:
            return Series.constant(otherwise)
        return _course(number, column, read_trace, stream, start)

    return DeviceTracks(
        clock_ratio=follow(profile.clock if profile else None, "clock_ratio", 1.0),
        background_load=follow(profile.busy if profile else None, "background_load", 0.0),
        available=_availability(
            profile.availability if profile else None, read_trace, streams.pop()
        ),
        thermal=profile.thermal if profile else None,
        link=None
        if link is None
        else LinkTracks(
            down_bps=follow(link.down, "down_bps", 0.0),
            up_bps=follow(link.up, "up_bps", 0.0),
            delay_s=follow(link.delay, "delay_s", 0.0),
            jitter_s=follow(link.jitter, "jitter_s", 0.0),
            loss_ratio=follow(link.loss, "loss_ratio", 0.0),
        ),
    )


def _course(
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
    """Return when a device is there; its own hours are never moved: nights are alike for all."""
    if availability is None:
        return Series.constant(1.0)
    share = availability.share
    if share.series is not None or share.trace is not None:
        return _course(share, "available", read_trace, rng, 0.0)
    mean = share.value
    if share.spread is not None:
        mean = float(share.spread.distribution().at(rng.random()))
    session_s = None if availability.session is None else availability.session.value
    return draw_sessions(mean, session_s, rng)
