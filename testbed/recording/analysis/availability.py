"""Availability of a device, from the instants at which it was seen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.testbed.recording.analysis.findings import Finding, NotMeasured, merged

MIN_SILENCE_S = 5.0
"""A shorter silence is one or two lost contexts."""


@dataclass(frozen=True, slots=True)
class PresenceSample:
    """A sample that shows the presence of the device."""

    at_s: float
    is_willing: bool = True
    """The device may take part."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A time interval, seconds from the beginning of the recording."""

    start_s: float
    end_s: float


def measure_availability(
    samples: Sequence[PresenceSample], busy: Sequence[TimeSpan], length_s: float
) -> Finding:
    """Return the availability of a device over time; the value is its share of the time.

    A device is away while it is silent for long, or unwilling. A device at work is available even
    if it is silent, because its contexts wait behind its own transfers.

    Args:
        samples: Samples in order of time.
        busy: Intervals in which the device was at work.
        length_s: Length of the recording, seconds.

    Raises:
        NotMeasured: There is no sample.
    """
    if not samples or not length_s > 0.0:
        raise NotMeasured("there is no sample of the device")
    away = [
        gap
        for gap in _silences([sample.at_s for sample in samples], length_s)
        if not any(work.start_s < gap.end_s and gap.start_s < work.end_s for work in busy)
    ]
    ends = [sample.at_s for sample in samples[1:]] + [length_s]
    away += [
        TimeSpan(sample.at_s, end)
        for sample, end in zip(samples, ends, strict=True)
        if not sample.is_willing and end > sample.at_s
    ]
    edges = sorted({0.0, *(edge for gap in away for edge in (gap.start_s, gap.end_s))})
    edges = [edge for edge in edges if edge < length_s]
    available = [
        0.0 if any(gap.start_s <= edge < gap.end_s for gap in away) else 1.0 for edge in edges
    ]
    series = merged(edges, available, length_s)
    how = f"{len(samples)} samples in {length_s:.0f} s"
    if series.is_constant:
        return Finding(available[0], how)
    sessions = sum(value == 1.0 for value in series.values)
    return Finding(series.mean, f"{how}, {sessions} sessions", series)


def _silences(instants: Sequence[float], length_s: float) -> list[TimeSpan]:
    """Return long gaps between instants; a gap begins a typical interval after the last sample."""
    edges = np.array([0.0, *instants, length_s])
    gaps = np.diff(edges)
    typical_s = float(np.median(np.diff(instants))) if len(instants) > 1 else 1.0
    return [
        TimeSpan(float(start) + (typical_s if index else 0.0), float(start + gap))
        for index, (start, gap) in enumerate(zip(edges, gaps, strict=False))
        if gap > max(MIN_SILENCE_S, 3.0 * typical_s)
    ]
