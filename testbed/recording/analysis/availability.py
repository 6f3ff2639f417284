"""When a device was there, from the moments that it was heard at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairbed.testbed.recording.analysis.findings import Finding, NotMeasured, merged

MIN_SILENCE_S = 5.0
"""A shorter silence is a context or two that got lost."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A sign of life."""

    at_s: float
    is_willing: bool = True
    """Its owner lets it take part."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A stretch of time."""

    start_s: float
    end_s: float


def available(heard: Sequence[Heard], busy: Sequence[TimeSpan], length_s: float) -> Finding:
    """Return when a device could be had; the value is the share of the time.

    Away is who is silent for long or unwilling. A device at work is there, whatever its silence:
    its contexts wait behind its own transfers.

    Args:
        heard: Signs of life, in order of time.
        busy: When it was at work.
        length_s: Of the recording, seconds.

    Raises:
        NotMeasured: It was never heard.
    """
    if not heard or not length_s > 0.0:
        raise NotMeasured("the device was never heard")
    away = [
        gap
        for gap in _silences([sign.at_s for sign in heard], length_s)
        if not any(work.start_s < gap.end_s and gap.start_s < work.end_s for work in busy)
    ]
    ends = [sign.at_s for sign in heard[1:]] + [length_s]
    away += [
        TimeSpan(sign.at_s, end)
        for sign, end in zip(heard, ends, strict=True)
        if not sign.is_willing and end > sign.at_s
    ]
    edges = sorted({0.0, *(edge for gap in away for edge in (gap.start_s, gap.end_s))})
    edges = [edge for edge in edges if edge < length_s]
    there = [0.0 if any(gap.start_s <= edge < gap.end_s for gap in away) else 1.0 for edge in edges]
    series = merged(edges, there, length_s)
    how = f"{len(heard)} signs of life in {length_s:.0f} s"
    if series.is_constant:
        return Finding(there[0], how)
    stays = sum(value == 1.0 for value in series.values)
    return Finding(series.mean, f"{how}, {stays} stays", series)


def _silences(moments: Sequence[float], length_s: float) -> list[TimeSpan]:
    """Return the long gaps between moments; it left a typical gap after it was last heard."""
    edges = np.array([0.0, *moments, length_s])
    gaps = np.diff(edges)
    usual = float(np.median(np.diff(moments))) if len(moments) > 1 else 1.0
    return [
        TimeSpan(float(start) + (usual if index else 0.0), float(start + gap))
        for index, (start, gap) in enumerate(zip(edges, gaps, strict=False))
        if gap > max(MIN_SILENCE_S, 3.0 * usual)
    ]
