"""How fast a processor trains, what else keeps it busy, and how its clock goes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.testbed.recording.analysis.findings import MOVING_RATIO, Finding, NotMeasured, Sampled

MIN_LAPS = 3
"""Fewer pieces of training are chance."""

MIN_LAP_S = 2e-3
"""A shorter one tells of the clock's resolution and of switches between threads."""

MIN_SAMPLES = 3

CLOCK_STEP_S = 1.0
LOAD_STEP_S = 10.0
"""Steps of the series, seconds."""

MOVING_CORES = 0.2
"""Background load that moves by more than this, in cores, gets a series."""

LEAST_FREE_CORES = 0.05
"""A profile leaves training some of the processor."""


@dataclass(frozen=True, slots=True)
class Lap:
    """A piece of training whose cost is known."""

    reference_s: float
    """What it costs on one core of the reference machine, seconds."""
    took_s: float
    """Of wall time."""
    mu_cores: float
    """Cores that it had meanwhile, in nominal clocks."""


def core_speed(laps: Sequence[Lap], what: str) -> Finding:
    """Return the speed of one core at its nominal clock, in cores of the reference machine.

        core_speed = median of reference_s / (took_s mu_cores)

    Raises:
        NotMeasured: There are too few, or too short ones.
    """
    useful = [lap for lap in laps if lap.took_s >= MIN_LAP_S and lap.reference_s > 0.0]
    if len(useful) < MIN_LAPS:
        raise NotMeasured(
            f"needs {MIN_LAPS} {what} of {1e3 * MIN_LAP_S:g} ms or more, got {len(useful)} of "
            f"{len(laps)}; train more, or for longer"
        )
    speeds = np.array([lap.reference_s / (lap.took_s * lap.mu_cores) for lap in useful])
    low, middle, high = np.quantile(speeds, (0.1, 0.5, 0.9)).tolist()
    return Finding(
        middle,
        f"median of {len(useful)} {what}, the middle 80 % from {low:.3g} to {high:.3g}",
    )


def background_load(free: Sampled, cores: int, length_s: float) -> Finding:
    """Return the cores that other work takes: those of the device less the free ones.

    Raises:
        NotMeasured: There are too few samples.
    """
    if len(free) < MIN_SAMPLES:
        raise NotMeasured(f"needs {MIN_SAMPLES} samples of free cores, got {len(free)}")
    most = cores - LEAST_FREE_CORES
    busy = Sampled(free.t_s, [min(max(cores - value, 0.0), most) for value in free.values])
    if busy.spread() <= MOVING_CORES:
        return Finding(busy.median, f"median of {len(busy)} samples: {cores} cores less free ones")
    series = busy.series(LOAD_STEP_S, length_s)
    how = f"mean of {len(busy)} samples over {length_s:.0f} s: {cores} cores less free ones"
    return Finding(series.mean, how, series)


def clock_ratio(clock: Sampled, length_s: float) -> Finding:
    """Return the clock relative to the nominal one.

    Raises:
        NotMeasured: It cannot be read, or was too seldom.
    """
    if not len(clock):
        raise NotMeasured("the clock cannot be read on this device")
    if len(clock) < MIN_SAMPLES:
        raise NotMeasured(f"needs {MIN_SAMPLES} readings of the clock, got {len(clock)}")
    if clock.spread() <= MOVING_RATIO / 3.0 * clock.median:
        return Finding(clock.median, f"median of {len(clock)} readings in {length_s:.0f} s")
    series = clock.series(CLOCK_STEP_S, length_s)
    return Finding(series.mean, f"mean of {len(clock)} readings in {length_s:.0f} s", series)
