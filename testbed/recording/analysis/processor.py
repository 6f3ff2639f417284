"""Training speed, background load and clock of a processor."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.testbed.recording.analysis.findings import VARYING_RATIO, Finding, NotMeasured, Sampled

MIN_TRAININGS = 3
"""Fewer trainings are not representative."""

MIN_TRAINING_S = 2e-3
"""Shorter times show the resolution of the clock and thread switches."""

MIN_SAMPLES = 3

CLOCK_STEP_S = 1.0
LOAD_STEP_S = 10.0
"""Steps of the series, seconds."""

VARYING_CORES = 0.2
"""Background load that varies by more than this, in cores, gets a series."""

LEAST_FREE_CORES = 0.05
"""Cores that a profile leaves for training at least."""


@dataclass(frozen=True, slots=True)
class TimedTraining:
    """Training steps with a known cost, and their duration."""

    reference_s: float
    """Cost on one core of the reference machine, seconds."""
    took_s: float
    """Duration, wall time."""
    mu_cores: float
    """Cores during the training, at the nominal clock."""


def core_speed(trainings: Sequence[TimedTraining], what: str) -> Finding:
    """Return the speed of one core at its nominal clock, in cores of the reference machine.

        core_speed = median of reference_s / (took_s mu_cores)

    Raises:
        NotMeasured: There are too few trainings, or they are too short.
    """
    useful = [one for one in trainings if one.took_s >= MIN_TRAINING_S and one.reference_s > 0.0]
    if len(useful) < MIN_TRAININGS:
        raise NotMeasured(
            f"needs {MIN_TRAININGS} {what} of {1e3 * MIN_TRAINING_S:g} ms or more, "
            f"got {len(useful)} of {len(trainings)}; train more, or for longer"
        )
    speeds = np.array([one.reference_s / (one.took_s * one.mu_cores) for one in useful])
    low, middle, high = np.quantile(speeds, (0.1, 0.5, 0.9)).tolist()
    return Finding(
        middle,
        f"median of {len(useful)} {what}, the middle 80 % from {low:.3g} to {high:.3g}",
    )


def background_load(free: Sampled, cores: int, length_s: float) -> Finding:
    """Return the cores that other work uses: all cores minus free cores.

    Raises:
        NotMeasured: There are too few samples.
    """
    if len(free) < MIN_SAMPLES:
        raise NotMeasured(f"needs {MIN_SAMPLES} samples of free cores, got {len(free)}")
    most = cores - LEAST_FREE_CORES
    busy = Sampled(free.t_s, [min(max(cores - value, 0.0), most) for value in free.values])
    if busy.spread() <= VARYING_CORES:
        return Finding(
            busy.median, f"median of {len(busy)} samples: {cores} cores minus free cores"
        )
    series = busy.series(LOAD_STEP_S, length_s)
    how = f"mean of {len(busy)} samples over {length_s:.0f} s: {cores} cores minus free cores"
    return Finding(series.mean, how, series)


def clock_ratio(clock: Sampled, length_s: float) -> Finding:
    """Return the clock relative to the nominal one.

    Raises:
        NotMeasured: The clock cannot be read, or there are too few readings.
    """
    if not len(clock):
        raise NotMeasured("the clock cannot be read on this device")
    if len(clock) < MIN_SAMPLES:
        raise NotMeasured(f"needs {MIN_SAMPLES} readings of the clock, got {len(clock)}")
    if clock.spread() <= VARYING_RATIO / 3.0 * clock.median:
        return Finding(clock.median, f"median of {len(clock)} readings in {length_s:.0f} s")
    series = clock.series(CLOCK_STEP_S, length_s)
    return Finding(series.mean, f"mean of {len(clock)} readings in {length_s:.0f} s", series)
