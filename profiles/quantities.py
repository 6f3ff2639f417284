"""A number of a profile: its value, its source, and its schedule if it changes over time.

`Quantiles` is a distribution given by some of its quantiles.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fairbed.profiles.series import Series

Floats: TypeAlias = NDArray[np.float64]

_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution by its quantiles: a share `p` of the values is at most `x`.

    It is linear between points, and constant below the first and above the last.

    Raises:
        ValueError: There is no point, shares are outside [0, 1] or do not increase, or values
            decrease or are not finite; the message names the point.
    """

    points: tuple[tuple[float, float], ...]
    """Pairs (p, x)."""

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("quantiles: must have at least one point, got none")
        for row, (share, value) in enumerate(self.points):
            if not 0.0 <= share <= 1.0:
                raise ValueError(
                    f"quantiles: shares must be from 0 to 1, got {share} at point {row}"
                )
            if not math.isfinite(value):
                raise ValueError(f"quantiles: values must be finite, got {value} at point {row}")
        for row, ((p, x), (p_next, x_next)) in enumerate(pairwise(self.points), 1):
            if not p < p_next:
                raise ValueError(
                    f"quantiles: shares must increase, got {p_next} after {p} at point {row}"
                )
            if not x <= x_next:
                raise ValueError(
                    f"quantiles: values must not decrease, got {x_next} after {x} at point {row}"
                )

    @property
    def lowest(self) -> float:
        """The smallest value."""
        return self.points[0][1]

    @property
    def highest(self) -> float:
        """The largest value."""
        return self.points[-1][1]

    def at(self, shares: Floats | float) -> Floats:
        """Return the quantiles at these shares, same shape."""
        p, x = np.array(self.points, dtype=np.float64).T
        values: Floats = np.interp(shares, p, x)
        return values


def normal_shares(scores: Floats) -> Floats:
    """Return the standard normal distribution function at these scores, same shape.

    Phi(z) = (1 + erf(z / sqrt 2)) / 2
    """
    return (1.0 + np.asarray(_erf(scores / math.sqrt(2.0)), dtype=np.float64)) / 2.0


T = TypeVar("T")
E = TypeVar("E")

Tag: TypeAlias = Literal["measured", "datasheet", "literature", "estimated", "unknown"]
"""Quality of a number: measured (the data were read), stated by the vendor, from publications (a
range rather than a target), estimated by a rule from other boards (its source names the rule and
the error), or unknown: the file lacks the number, and the value is the default that the emulation
takes. A file has no unknown number; it leaves out the key."""

Text: TypeAlias = Annotated[str, Meta(min_length=3, max_length=600)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e9)]
Moment: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e9)]
Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Correlation: TypeAlias = Annotated[float, Meta(ge=0.0, lt=1.0)]

DATA = "data:"
"""Prefix of the name of a trace in `FAIRBED_DATA`."""

TraceName: TypeAlias = Annotated[
    str, Meta(pattern=r"^(data:[^/\s]+/\S+|(?!data:)[^\n]+)$", max_length=4096)
]
"""A file beside the profile, or `data:SET/TRACE` for a trace in `FAIRBED_DATA`."""


class Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all structs of a profile: immutable, without unknown keys."""


class Quantity(Strict, Generic[T], frozen=True, kw_only=True):
    """A number and its source."""

    value: T
    tag: Tag
    source: Text
    """The public project, run or data sheet, and the derivation of the number from it."""


class Steps(Strict, Generic[E], frozen=True, kw_only=True):
    """Values over time: `values[i]` holds from `t_s[i]`; repeats after `period_s`."""

    t_s: tuple[Moment, ...]
    values: tuple[E, ...]
    period_s: Seconds

    def __post_init__(self) -> None:
        self.series()

    def series(self) -> Series:
        """Return the steps as a `Series`.

        Raises:
            ValueError: They violate a rule of series.
        """
        return Series(self.t_s, self.values, self.period_s)  # type: ignore[arg-type]  # E is float


class Spread(Strict, Generic[E], frozen=True, kw_only=True):
    """Distribution of a number over time, for a trace that may not be published.

    Each device gets its own synthetic schedule, drawn with the seed of the experiment, with these
    quantiles and these correlations over time (`profiles.tracks.draw_spread`).
    """

    quantiles: tuple[tuple[Share, E], ...]
    """`[share, value]`: for this share of the time of all devices the number is at most `value`."""
    step_s: Seconds
    """Duration of each value, seconds."""
    correlation: Correlation
    """Correlation of the fast part of the normal scores of successive values."""
    drive: Share = 0.0
    """Share of the variance of the scores that a device keeps: devices then have different means.
    Each drive that was recorded is a device."""
    level: Annotated[float, Meta(ge=0.0, le=3.0)] = 0.0
    """Standard deviation of the logarithm of a factor on all values of a device: how little is
    known about the next device from the few that were recorded."""
    slow: Share = 0.0
    """Share of the variance of the scores that changes with the time constant `slow_s`."""
    slow_s: Seconds = 60.0
    """Time constant of the slow part, seconds."""

    def __post_init__(self) -> None:
        self.distribution()
        if self.drive + self.slow > 1.0 + 1e-9:
            raise ValueError(
                "drive and slow are shares of one variance and must be at most 1 together, got "
                f"{self.drive:g} and {self.slow:g}"
            )

    def distribution(self) -> Quantiles:
        """Return the distribution of the values.

        Raises:
            ValueError: It violates a rule of quantiles.
        """
        return Quantiles(self.quantiles)  # type: ignore[arg-type]  # E is always a float


class Episodes(Quantity[Seconds], frozen=True, kw_only=True):
    """A state that a link enters now and then, in both directions; `value` is how often.

    `value` is the mean time between the end of one episode and the start of the next one, seconds,
    on the typical device: half of all devices have a longer one.
    """

    length_s: tuple[tuple[Share, Seconds], ...]
    """`[share, seconds]`: this share of the episodes lasts at most so long."""
    drive: Annotated[float, Meta(ge=0.0, le=5.0)] = 0.0
    """Standard deviation between devices of the logarithm of the time between episodes."""
    rate_ratio: Correlation = 0.0
    """Rates of the link during an episode, relative to those without it; 0 is no coverage."""

    def __post_init__(self) -> None:
        self.lengths()

    def lengths(self) -> Quantiles:
        """Return the distribution of the lengths, seconds.

        Raises:
            ValueError: It violates a rule of quantiles.
        """
        return Quantiles(self.length_s)


class Varying(Quantity[T], Generic[T, E], frozen=True, kw_only=True):
    """A number that may have a schedule: at most one of `series`, `trace` and `spread`.

    `value` is then its typical value, for tables and wherever the schedule is not used.
    """

    series: Steps[E] | None = None
    """The schedule, repeated."""
    trace: TraceName | None = None
    """The schedule is the column of this trace with the name of the number."""
    spread: Spread[E] | None = None
    """The schedule is drawn from this distribution."""

    def __post_init__(self) -> None:
        schedules = [
            name for name in ("series", "trace", "spread") if getattr(self, name) is not None
        ]
        if len(schedules) > 1:
            raise ValueError(f"must have at most one schedule, got {' and '.join(schedules)}")
        values = self._values()
        if values is None:
            return
        if not values.lowest <= self.value <= values.highest:  # type: ignore[operator]  # a number
            raise ValueError(
                f"value must be within its {schedules[0]}, {values.lowest:g} to "
                f"{values.highest:g}, got {self.value}"
            )

    @property
    def is_constant(self) -> bool:
        """It has no schedule."""
        return self.series is None and self.trace is None and self.spread is None

    @property
    def highest(self) -> float:
        """The largest value of its series or spread, otherwise `value`; a trace is not read."""
        values = self._values()
        return float(self.value) if values is None else values.highest  # type: ignore[arg-type]

    def _values(self) -> Series | Quantiles | None:
        if self.series is not None:
            return self.series.series()
        return None if self.spread is None else self.spread.distribution()
