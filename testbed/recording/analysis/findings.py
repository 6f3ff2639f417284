"""What was found out about a device, number by number, and what was not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairbed.profiles.series import Series

MOVING_RATIO = 0.15
"""A number whose middle 80 % spread by more than this share of the median gets a series."""


class NotMeasured(Exception):
    """There is too little to tell a number from; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One number of a profile."""

    value: float
    """In the unit of its key."""
    how: str
    """Half a sentence: from how much of what it follows."""
    series: Series | None = None
    """How it moves in time; None is not at all."""


@dataclass(slots=True)
class Findings:
    """All that a recording tells, by the key paths of a profile."""

    found: dict[str, Finding] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a number could not be told."""
    settled: set[str] = field(default_factory=set)
    """Keys that were looked at: where nothing was found there is nothing, whatever others say."""
    remarks: list[str] = field(default_factory=list)
    """What a reader of the profile should know, one line each."""

    def take(self, key: str, tell: Callable[[], Finding]) -> None:
        """Keep what `tell` finds, or why it finds nothing."""
        try:
            self.found[key] = tell()
        except NotMeasured as exc:
            self.missing[key] = str(exc)

    def add(self, key: str, value: float, how: str) -> None:
        """Keep a number that was simply read."""
        self.found[key] = Finding(value, how)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A number that was read now and then: `values[i]` at `t_s[i]`."""

    t_s: Sequence[float]
    """Seconds from the beginning of the recording, increasing."""
    values: Sequence[float]

    def __len__(self) -> int:
        return len(self.t_s)

    @property
    def median(self) -> float:
        """The middle value."""
        return float(np.median(self.values))

    def spread(self) -> float:
        """Return what lies between a tenth and nine tenths of the values."""
        low, high = np.quantile(self.values, (0.1, 0.9))
        return float(high - low)

    def series(self, step_s: float, length_s: float) -> Series:
        """Return the means over steps; an empty step has the value of the one before.

        The last step may be shorter. Before the first value holds the first one.
        """
        steps = max(1, int(np.ceil(length_s / step_s - 1e-9)))
        rows = np.minimum((np.asarray(self.t_s) / step_s).astype(int), steps - 1)
        count = np.bincount(rows, minlength=steps)
        total = np.bincount(rows, weights=np.asarray(self.values, float), minlength=steps)
        means: list[float] = []
        last = float(self.values[0])
        for n, area in zip(count.tolist(), total.tolist(), strict=True):
            last = area / n if n else last
            means.append(last)
        starts = [index * step_s for index in range(steps)]
        return merged(starts, means, max(length_s, starts[-1] + 1e-3))


def merged(starts: Sequence[float], values: Sequence[float], period_s: float) -> Series:
    """Return steps as a series; neighbours with one value become one step."""
    kept = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    return Series(tuple(starts[i] for i in kept), tuple(values[i] for i in kept), period_s)
