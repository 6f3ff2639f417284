"""How a device slows down under load that lasts, from its clock and its temperature.

    T(t) = T_0 + b (1 - exp(-t / time_constant))          least squares over the time constant

The clock counts relative to the one that the load began with. It has dropped when it stays 3 %
below that; `onset_s` is when, `sustained_clock_ratio` its mean from there on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.recording.findings import Finding, NotMeasured

DROPPED = 0.97
"""Below this share of its first value a clock has dropped; governors step by 5 % or more."""

IN_A_ROW = 3
"""As many samples below it are a drop, not a flicker."""

MIN_SAMPLES = 10

MIN_RISE_CELSIUS = 3.0
"""A smaller rise of temperature has no time constant worth the name."""

TIME_CONSTANTS_S = np.geomspace(3.0, 600.0, 120)
"""What boards and phones have, with room on both sides."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The device in the middle of full load on all cores."""

    t_s: float
    """Since the load began, from idle."""
    pace: float
    """Clock / nominal clock, or speed of training where the clock cannot be read."""
    celsius: float | None


@dataclass(frozen=True, slots=True)
class Heat:
    """The numbers of `[thermal]`."""

    sustained: Finding
    onset: Finding
    time_constant: Finding | None
    """None where the temperature cannot tell."""
    idle_celsius: Finding | None
    limit_celsius: Finding | None


def heat(samples: Sequence[LoadSample], what: str) -> Heat | None:
    """Return how the device slowed down; None if its clock held.

    Args:
        samples: In order of time.
        what: Was measured: the clock, or the speed of training.

    Raises:
        NotMeasured: There are too few samples.
    """
    if len(samples) < MIN_SAMPLES:
        raise NotMeasured(f"needs {MIN_SAMPLES} samples under load, got {len(samples)}; --load 60s")
    pace = np.array([sample.pace for sample in samples])
    first = float(np.median(pace[: max(IN_A_ROW, len(pace) // 10)]))
    relative = pace / first
    start = _first_drop(relative < DROPPED)
    if start is None:
        return None
    length_s = samples[-1].t_s
    onset = samples[start]
    how = f"under load on all cores for {length_s:.0f} s"
    return Heat(
        sustained=Finding(
            float(np.mean(relative[start:])), f"mean of {what} from its first drop on, {how}"
        ),
        onset=Finding(
            onset.t_s, f"first of {IN_A_ROW} readings below {DROPPED:g} of {what}, {how}"
        ),
        time_constant=_time_constant(samples, how),
        idle_celsius=_celsius(samples[0], "before the load"),
        limit_celsius=_celsius(onset, f"when {what} first dropped"),
    )


def _first_drop(is_below: NDArray[np.bool_]) -> int | None:
    for index in range(len(is_below) - IN_A_ROW + 1):
        if is_below[index : index + IN_A_ROW].all():
            return index
    return None


def _celsius(sample: LoadSample, when: str) -> Finding | None:
    return None if sample.celsius is None else Finding(sample.celsius, f"hottest zone {when}")


def _time_constant(samples: Sequence[LoadSample], how: str) -> Finding | None:
    known = [(s.t_s, s.celsius) for s in samples if s.celsius is not None]
    if len(known) < MIN_SAMPLES:
        return None
    t_s, celsius = np.array(known).T
    rise = celsius - celsius[0]
    if rise.max() < MIN_RISE_CELSIUS:
        return None
    shapes = 1.0 - np.exp(-t_s[None, :] / TIME_CONSTANTS_S[:, None])
    heights = shapes @ rise / np.sum(shapes**2, axis=1)
    errors = np.sum((heights[:, None] * shapes - rise) ** 2, axis=1)
    best = float(TIME_CONSTANTS_S[int(np.argmin(errors))])
    return Finding(best, f"first-order lag through {len(known)} temperatures {how}")
