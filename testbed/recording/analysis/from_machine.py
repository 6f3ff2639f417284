"""Findings from readings of a machine, and from training on it. Pure.

The slow-down under sustained load follows from the clock and the temperature:

    T(t) = T_0 + b (1 - exp(-t / time_constant))          least squares over the time constant

The clock counts relative to the one that the load began with. It has dropped when it stays 3 %
below that; `onset_s` is when, `sustained_clock_ratio` its mean from there on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.recording.analysis.availability import Heard, available
from fairbed.testbed.recording.analysis.findings import Finding, Findings, NotMeasured, Sampled
from fairbed.testbed.recording.analysis.processor import Lap, background_load, core_speed
from fairbed.testbed.recording.analysis.rates import Transfer, link_rate, one_way_delay
from fairbed.testbed.recording.analysis.readings import Reading, others_load, pieces

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
class ThermalFit:
    """The numbers of `[thermal]`."""

    sustained: Finding
    onset: Finding
    time_constant: Finding | None
    """None where the temperature cannot tell."""
    idle_celsius: Finding | None
    limit_celsius: Finding | None


def heat(samples: Sequence[LoadSample], what: str) -> ThermalFit | None:
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
    return ThermalFit(
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


@dataclass(frozen=True, slots=True)
class TrainingPace:
    """Training of the reference step for a moment."""

    t_s: float
    """When it ended, since the recording began."""
    reference_s: float
    """What these steps take on one core of the reference machine."""
    cpu_s: float
    """What they took here, of processor time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What an active probe of the link saw."""

    peer: str
    """Whom it asked."""
    round_trips_s: Sequence[float]
    down: Sequence[Transfer | None]
    up: Sequence[Transfer | None]


@dataclass(slots=True, kw_only=True)
class Watched:
    """All that was seen of a machine."""

    cores: int
    memory_bytes: int
    idle: Sequence[Reading]
    """While we did nothing."""
    alone: Sequence[TrainingPace] | NotMeasured
    """Training with one thread, at first."""
    load: Sequence[Reading] = ()
    """While all cores trained."""
    loaded: Sequence[TrainingPace] = ()
    """One of them."""
    storage: Finding | NotMeasured = field(default_factory=lambda: NotMeasured("not asked for"))
    probed: Probed | None = None


def findings_of_machine(seen: Watched) -> Findings:
    """Return what was found out about the machine."""
    found = Findings()
    length_s = seen.idle[-1].t_s - seen.idle[0].t_s if seen.idle else 0.0
    found.add("cores", seen.cores, "affinity and quota of the recorder")
    found.add("engine_threads", 1, "what core_speed was measured with, and the agent's default")
    found.add("memory_bytes", seen.memory_bytes, "of the system, or of the control group")
    found.take("core_speed", lambda: _speed(seen.alone))
    found.take("storage_read_bytes_per_s", lambda: _given(seen.storage))
    others = others_load(seen.idle)
    free = Sampled(others.t_s, [seen.cores - value for value in others.values])
    found.take("background_load", lambda: background_load(free, seen.cores, length_s))
    _link(found, seen, length_s)
    _heat(found, seen)
    _presence(found, seen.idle, length_s)
    _remarks(found, seen)
    return found


def _given(found: Finding | NotMeasured) -> Finding:
    if isinstance(found, NotMeasured):
        raise found
    return found


def _speed(alone: Sequence[TrainingPace] | NotMeasured) -> Finding:
    if isinstance(alone, NotMeasured):
        raise alone
    laps = [Lap(pace.reference_s, pace.cpu_s, 1.0) for pace in alone]
    return core_speed(laps, "moments of training with one thread, by processor time")


def _link(found: Findings, seen: Watched, length_s: float) -> None:
    for way, key in (("down", "link.down_bps"), ("up", "link.up_bps")):
        moved: Sequence[Transfer | None]
        if seen.probed is None:
            moved, what = pieces(seen.idle, way), f"seconds of {way}loads over the interface"
        else:
            moved = seen.probed.down if way == "down" else seen.probed.up
            what = f"{way}loads of a probe of {seen.probed.peer}"
        found.take(key, partial(link_rate, moved, length_s, what))
    trips = [] if seen.probed is None else seen.probed.round_trips_s
    found.take("link.delay_s", lambda: one_way_delay(trips, "round trips of a --probe"))


def _heat(found: Findings, seen: Watched) -> None:
    samples, what = load_samples(seen)
    if not samples:
        return
    try:
        told = heat(samples, what)
    except NotMeasured as exc:
        found.missing["thermal"] = str(exc)
        return
    if told is None:
        found.remarks.append(
            f"{what.capitalize()} held for {samples[-1].t_s:.0f} s of load on all cores."
        )
        return
    if told.time_constant is None:
        found.missing["thermal"] = (
            f"{what} dropped to {told.sustained.value:.2f} after {told.onset.value:.0f} s, but the "
            "temperature does not tell its time constant"
        )
        return
    found.found |= {
        "thermal.sustained_clock_ratio": told.sustained,
        "thermal.onset_s": told.onset,
        "thermal.time_constant_s": told.time_constant,
    }
    for name, finding in (("idle", told.idle_celsius), ("limit", told.limit_celsius)):
        if finding is not None:
            found.found[f"thermal.{name}_celsius"] = finding


def load_samples(seen: Watched) -> tuple[list[LoadSample], str]:
    """Return the samples under load, and what they are of: the clock, or else the training."""
    if not seen.load or not seen.loaded:
        return [], ""
    began_s = seen.loaded[0].t_s
    under = [reading for reading in seen.load if began_s <= reading.t_s <= seen.loaded[-1].t_s]
    clocked = [
        LoadSample(reading.t_s - began_s, reading.clock_ratio, reading.celsius)
        for reading in under
        if reading.clock_ratio is not None
    ]
    if clocked:
        return clocked, "the clock"
    return [
        LoadSample(
            pace.t_s - began_s, pace.reference_s / pace.cpu_s, _celsius_at(seen.load, pace.t_s)
        )
        for pace in seen.loaded
        if pace.cpu_s > 0.0
    ], "the speed of training"


def _celsius_at(readings: Sequence[Reading], t_s: float) -> float | None:
    before = [reading for reading in readings if reading.t_s <= t_s]
    return before[-1].celsius if before else None


def _presence(found: Findings, readings: Sequence[Reading], length_s: float) -> None:
    if not readings or readings[0].is_linked is None:
        return
    start_s = readings[0].t_s
    heard = [Heard(reading.t_s - start_s, bool(reading.is_linked)) for reading in readings]
    try:
        there = available(heard, [], length_s)
    except NotMeasured:
        return
    if there.series is None and there.value == 1.0:
        found.remarks.append(f"The interface had its link all the time: {there.how}.")
    else:
        found.found["availability.available"] = there


def _remarks(found: Findings, seen: Watched) -> None:
    readings = [*seen.idle, *seen.load]
    told = [reading.throttled for reading in readings if reading.throttled is not None]
    if told:
        words = sorted({word for reasons in told for word in reasons})
        shares = [
            f"{word} in {100 * sum(word in reasons for reasons in told) / len(told):.0f} %"
            for word in words
        ]
        what = ", ".join(shares) if shares else "never"
        found.remarks.append(f"The processor was held back: {what} of {len(told)} readings.")
    celsius = [reading.celsius for reading in readings if reading.celsius is not None]
    if celsius:
        found.remarks.append(f"Temperature: {min(celsius):.1f} to {max(celsius):.1f} C.")
    free = [reading.free_bytes for reading in readings if reading.free_bytes is not None]
    if free:
        found.remarks.append(
            f"Memory that programs could have: {min(free) / 2**20:.0f} MB at least."
        )
