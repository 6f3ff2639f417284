"""Findings about a device, number by number, and the numbers that are missing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairbed.profiles.series import Series

VARYING_RATIO = 0.15
"""A number whose middle 80 % spread by more than this share of the median gets a series."""


class NotMeasured(Exception):
    """There is too little data for a number; the message is one line with the reason."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One number of a profile."""

    value: float
    """In the unit of its key."""
    how: str
    """A phrase: the kind and amount of data that it follows from."""
    series: Series | None = None
    """The number over time; None for a constant one."""


@dataclass(slots=True)
class Findings:
    """Findings of a recording, by the key paths of a profile."""

    found: dict[str, Finding] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Reasons for missing numbers, by key path."""
    examined: set[str] = field(default_factory=set)
    """Keys that were examined: without a finding, the device does not have them."""
    remarks: list[str] = field(default_factory=list)
    """Remarks for readers of the profile, one line each."""

    def take(self, key: str, measure: Callable[[], Finding]) -> None:
        """Add the finding of `measure`, or the reason why it is missing."""
        try:
            self.found[key] = measure()
        except NotMeasured as exc:
            self.missing[key] = str(exc)

    def add(self, key: str, value: float, how: str) -> None:
        """Add a number that was read directly."""
        self.found[key] = Finding(value, how)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Samples of a number: `values[i]` at `t_s[i]`."""

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
        """Return the distance between the 10th and the 90th percentile."""
        low, high = np.quantile(self.values, (0.1, 0.9))
        return float(high - low)

    def series(self, step_s: float, length_s: float) -> Series:
        """Return the means over steps; an empty step has the value of the step before.

        The last step may be shorter. Steps before the first sample have its value.
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
    """Return steps as a series; adjacent steps with equal values become one step."""
    kept = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    return Series(tuple(starts[i] for i in kept), tuple(values[i] for i in kept), period_s)


def throttling_remark(reasons: Sequence[Sequence[str]], what: str) -> str:
    """Return a remark on why and how often a processor was throttled.

    Args:
        reasons: Reasons in each sample; an empty one is not throttled.
        what: Plural noun for the samples, such as `contexts`.
    """
    shares = [
        f"{reason} in {100 * sum(reason in sample for sample in reasons) / len(reasons):.0f} %"
        for reason in sorted({reason for sample in reasons for reason in sample if reason})
    ]
    return f"The processor was throttled: {', '.join(shares) or 'never'} of {len(reasons)} {what}."
