"""Findings from readings of a machine, and from training on it. Pure.

The slow-down under sustained load follows from the clock and the temperature:

    T(t) = T_0 + b (1 - exp(-t / time_constant))          least squares over the time constant

The clock is relative to its value at the beginning of the load. It has dropped if it stays 3 %
below that value; `onset_s` is that instant, `sustained_clock_ratio` the mean from there on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fairbed.testbed.recording.analysis.availability import PresenceSample, measure_availability
from fairbed.testbed.recording.analysis.findings import (
    Finding,
    Findings,
    NotMeasured,
    Sampled,
    throttling_remark,
)
from fairbed.testbed.recording.analysis.processor import TimedTraining, background_load, core_speed
from fairbed.testbed.recording.analysis.rates import Transfer, link_rate, one_way_delay
from fairbed.testbed.recording.analysis.readings import Reading, busy_transfers, others_load

DROPPED = 0.97
"""A clock below this share of its first value has dropped; governors step by 5 % or more."""

IN_A_ROW = 3
"""Consecutive samples below `DROPPED` that count as a drop."""

MIN_SAMPLES = 10

MIN_RISE_CELSIUS = 3.0
"""Least rise of the temperature for a time constant."""

TIME_CONSTANTS_S = np.geomspace(3.0, 600.0, 120)
"""Candidate time constants: a range around those of boards and phones."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """A sample of the device under full load on all cores."""

    t_s: float
    """Since the load began, from idle."""
    speed: float
    """Clock / nominal clock, or speed of training if the clock cannot be read."""
    celsius: float | None


@dataclass(frozen=True, slots=True)
class ThermalFit:
    """Numbers of the section `[thermal]`."""

    sustained: Finding
    onset: Finding
    time_constant: Finding | None
    """None if the temperature does not show it."""
    idle_celsius: Finding | None
    limit_celsius: Finding | None


def heat(samples: Sequence[LoadSample], what: str) -> ThermalFit | None:
    """Return how heat slowed the device down; None if it did not.

    Args:
        samples: Samples in order of time.
        what: The measured quantity: the clock, or the speed of training.

    Raises:
        NotMeasured: There are too few samples.
    """
    if len(samples) < MIN_SAMPLES:
        raise NotMeasured(f"needs {MIN_SAMPLES} samples under load, got {len(samples)}; --load 60s")
    speed = np.array([sample.speed for sample in samples])
    first = float(np.median(speed[: max(IN_A_ROW, len(speed) // 10)]))
    relative = speed / first
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
class TrainingSpeed:
    """Speed of the reference step in a short window."""

    t_s: float
    """End of the window, since the recording began."""
    reference_s: float
    """Time of these steps on one core of the reference machine."""
    cpu_s: float
    """Processor time of these steps on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Results of an active probe of the link."""

    peer: str
    """Name of the peer."""
    round_trips_s: Sequence[float]
    down: Sequence[Transfer | None]
    up: Sequence[Transfer | None]


@dataclass(slots=True, kw_only=True)
class MachineRecording:
    """Readings, training speeds and probes of a machine."""

    cores: int
    memory_bytes: int
    idle: Sequence[Reading]
    """Readings of the idle machine."""
    single_core: Sequence[TrainingSpeed] | NotMeasured
    """Training with one thread, before the load."""
    load: Sequence[Reading] = ()
    """Readings during training on all cores."""
    all_cores: Sequence[TrainingSpeed] = ()
    """Training on one of these cores."""
    storage: Finding | NotMeasured = field(default_factory=lambda: NotMeasured("not requested"))
    rates: tuple[Finding, Finding] | NotMeasured | None = None
    """Matrix products and memory traffic of all cores together, per second; None: not requested."""
    probe: ProbeResult | None = None


def findings_of_machine(recording: MachineRecording) -> Findings:
    """Return the findings about a machine."""
    found = Findings()
    length_s = recording.idle[-1].t_s - recording.idle[0].t_s if recording.idle else 0.0
    found.add("cores", recording.cores, "affinity and quota of the recorder")
    found.add("engine_threads", 1, "what core_speed was measured with, and the agent's default")
    found.add("memory_bytes", recording.memory_bytes, "of the system, or of the control group")
    found.take("core_speed", lambda: _speed(recording.single_core))
    found.take("storage_read_bytes_per_s", lambda: _or_raise(recording.storage))
    if recording.rates is not None:
        for index, key in enumerate(("matrix_flops", "memory_bytes_per_s")):
            found.take(key, partial(_rate, recording.rates, index))
    others = others_load(recording.idle)
    free = Sampled(others.t_s, [recording.cores - value for value in others.values])
    found.take("background_load", lambda: background_load(free, recording.cores, length_s))
    _link(found, recording, length_s)
    _heat(found, recording)
    _availability(found, recording.idle, length_s)
    _remarks(found, recording)
    return found


def _or_raise(found: Finding | NotMeasured) -> Finding:
    if isinstance(found, NotMeasured):
        raise found
    return found


def _rate(rates: tuple[Finding, Finding] | NotMeasured, index: int) -> Finding:
    if isinstance(rates, NotMeasured):
        raise rates
    return rates[index]


def _speed(single_core: Sequence[TrainingSpeed] | NotMeasured) -> Finding:
    if isinstance(single_core, NotMeasured):
        raise single_core
    trainings = [TimedTraining(window.reference_s, window.cpu_s, 1.0) for window in single_core]
    return core_speed(trainings, "windows of training with one thread, by processor time")


def _link(found: Findings, recording: MachineRecording, length_s: float) -> None:
    for direction, key in (("down", "link.down_bps"), ("up", "link.up_bps")):
        transfers: Sequence[Transfer | None]
        if recording.probe is None:
            transfers = busy_transfers(recording.idle, direction)
            what = f"seconds of {direction}loads over the interface"
        else:
            transfers = recording.probe.down if direction == "down" else recording.probe.up
            what = f"{direction}loads of a probe of {recording.probe.peer}"
        found.take(key, partial(link_rate, transfers, length_s, what))
    trips = [] if recording.probe is None else recording.probe.round_trips_s
    found.take("link.delay_s", lambda: one_way_delay(trips, "round trips of a --probe"))


def _heat(found: Findings, recording: MachineRecording) -> None:
    samples, what = load_samples(recording)
    if not samples:
        return
    try:
        fit = heat(samples, what)
    except NotMeasured as exc:
        found.missing["thermal"] = str(exc)
        return
    if fit is None:
        found.remarks.append(
            f"{what.capitalize()} held for {samples[-1].t_s:.0f} s of load on all cores."
        )
        return
    if fit.time_constant is None:
        found.missing["thermal"] = (
            f"{what} dropped to {fit.sustained.value:.2f} after {fit.onset.value:.0f} s, but the "
            "temperature does not show its time constant"
        )
        return
    found.found |= {
        "thermal.sustained_clock_ratio": fit.sustained,
        "thermal.onset_s": fit.onset,
        "thermal.time_constant_s": fit.time_constant,
    }
    for name, finding in (("idle", fit.idle_celsius), ("limit", fit.limit_celsius)):
        if finding is not None:
            found.found[f"thermal.{name}_celsius"] = finding


def load_samples(recording: MachineRecording) -> tuple[list[LoadSample], str]:
    """Return the samples under load, and their quantity: the clock, or the speed of training."""
    if not recording.load or not recording.all_cores:
        return [], ""
    began_s, ended_s = recording.all_cores[0].t_s, recording.all_cores[-1].t_s
    under_load = [reading for reading in recording.load if began_s <= reading.t_s <= ended_s]
    clocked = [
        LoadSample(reading.t_s - began_s, reading.clock_ratio, reading.celsius)
        for reading in under_load
        if reading.clock_ratio is not None
    ]
    if clocked:
        return clocked, "the clock"
    return [
        LoadSample(
            window.t_s - began_s,
            window.reference_s / window.cpu_s,
            _celsius_at(recording.load, window.t_s),
        )
        for window in recording.all_cores
        if window.cpu_s > 0.0
    ], "the speed of training"


def _celsius_at(readings: Sequence[Reading], t_s: float) -> float | None:
    before = [reading for reading in readings if reading.t_s <= t_s]
    return before[-1].celsius if before else None


def _availability(found: Findings, readings: Sequence[Reading], length_s: float) -> None:
    if not readings or readings[0].is_linked is None:
        return
    start_s = readings[0].t_s
    samples = [
        PresenceSample(reading.t_s - start_s, bool(reading.is_linked)) for reading in readings
    ]
    try:
        finding = measure_availability(samples, [], length_s)
    except NotMeasured:
        return
    if finding.series is None and finding.value == 1.0:
        found.remarks.append(f"The interface had a link all the time: {finding.how}.")
    else:
        found.found["availability.available"] = finding


def _remarks(found: Findings, recording: MachineRecording) -> None:
    readings = [*recording.idle, *recording.load]
    reasons = [reading.throttled for reading in readings if reading.throttled is not None]
    if reasons:
        found.remarks.append(throttling_remark(reasons, "readings"))
    celsius = [reading.celsius for reading in readings if reading.celsius is not None]
    if celsius:
        found.remarks.append(f"Temperature: {min(celsius):.1f} to {max(celsius):.1f} C.")
    free = [reading.free_bytes for reading in readings if reading.free_bytes is not None]
    if free:
        found.remarks.append(f"Memory available to programs: {min(free) / 2**20:.0f} MB at least.")
