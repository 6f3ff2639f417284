"""What the numbers of a device are at every moment: each as a series.

Pure: whoever calls brings a reader of traces and the randomness.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from profiles.draw import draw_sessions, draw_spread
from profiles.quantities import Varying
from profiles.schema import Availability, Link, Profile, Thermal
from profiles.series import Series

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
