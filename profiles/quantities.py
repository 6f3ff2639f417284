"""A number of a profile: its value, where it comes from, and how it moves in time if it does.

A distribution known by some of its quantiles: linear in between, nothing beyond the ends.
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
    """`points[i] = (p, x)`: a share `p` of the values is at most `x`.

    Below the first and above the last point the value is that of the point.

    Raises:
        ValueError: There is no point, or shares do not increase from within [0, 1], or values
            decrease or are not finite; the message names the place.
    """

    points: tuple[tuple[float, float], ...]

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
        """Return the values below which these shares of all lie, same shape."""
        p, x = np.array(self.points, dtype=np.float64).T
        values: Floats = np.interp(shares, p, x)
        return values


def normal_shares(scores: Floats) -> Floats:
    """Return the shares of a standard normal distribution below these scores, same shape.

    Phi(z) = (1 + erf(z / sqrt 2)) / 2
    """
    return (1.0 + np.asarray(_erf(scores / math.sqrt(2.0)), dtype=np.float64)) / 2.0


T = TypeVar("T")
E = TypeVar("E")

Tag: TypeAlias = Literal["measured", "datasheet", "literature"]
"""How well a number is known: measured by somebody whose data we read, promised by the vendor,
or recalled from publications (a range rather than a target)."""

Words: TypeAlias = Annotated[str, Meta(min_length=3, max_length=600)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e9)]
Moment: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e9)]
Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Correlation: TypeAlias = Annotated[float, Meta(ge=0.0, lt=1.0)]

DATA = "data:"
"""Begins the name of a trace that lies under `FAIRBED_DATA`."""

TraceName: TypeAlias = Annotated[
    str, Meta(pattern=r"^(data:[^/\s]+/\S+|(?!data:)[^\n]+)$", max_length=4096)
]
"""A file beside the profile, or `data:SET/TRACE` for one under `FAIRBED_DATA`."""


class Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything in a profile: immutable, no unknown keys."""


class Quantity(Strict, Generic[T], frozen=True, kw_only=True):
    """A number and where it comes from."""

    value: T
    tag: Tag
    source: Words
    """The public project, run or data sheet, and how the number follows from it."""


class Steps(Strict, Generic[E], frozen=True, kw_only=True):
    """`values[i]` holds from `t_s[i]`; after `period_s` all begins again."""

    t_s: tuple[Moment, ...]
    values: tuple[E, ...]
    period_s: Seconds

    def __post_init__(self) -> None:
        self.series()

    def series(self) -> Series:
        """Return the same as a series.

        Raises:
            ValueError: It breaks a rule of series.
        """
        return Series(self.t_s, self.values, self.period_s)  # type: ignore[arg-type]  # E is float


class Spread(Strict, Generic[E], frozen=True, kw_only=True):
    """How a number is distributed over time, where its course itself may not be published.

    Every device gets a course of its own from this, drawn with the seed of the experiment: a
    synthetic one, true to the quantiles and to how long values last.
    """

    quantiles: tuple[tuple[Share, E], ...]
    """`[share, value]`: this share of the time the number is at most `value`."""
    step_s: Seconds
    """A value holds for so long."""
    correlation: Correlation
    """Between the normal scores of one value and the next."""

    def __post_init__(self) -> None:
        self.distribution()

    def distribution(self) -> Quantiles:
        """Return the distribution of the values.

        Raises:
            ValueError: It breaks a rule of quantiles.
        """
        return Quantiles(self.quantiles)  # type: ignore[arg-type]  # E is always a float


class Varying(Quantity[T], Generic[T, E], frozen=True, kw_only=True):
    """A number that may move in time, by at most one of `series`, `trace` and `spread`.

    `value` is then its typical one: what a table shows, and what holds where time is not followed.
    """

    series: Steps[E] | None = None
    """Its course, repeated."""
    trace: TraceName | None = None
    """Its course is the column of this trace that is named as the number is."""
    spread: Spread[E] | None = None
    """Its course is drawn."""

    def __post_init__(self) -> None:
        courses = [
            name for name in ("series", "trace", "spread") if getattr(self, name) is not None
        ]
        if len(courses) > 1:
            raise ValueError(f"must have one course at most, got {' and '.join(courses)}")
        course = self._course()
        if course is None:
            return
        if not course.lowest <= self.value <= course.highest:  # type: ignore[operator]  # a number
            raise ValueError(
                f"value must be within its {courses[0]}, {course.lowest:g} to "
                f"{course.highest:g}, got {self.value}"
            )

    @property
    def is_constant(self) -> bool:
        """It does not move."""
        return self.series is None and self.trace is None and self.spread is None

    @property
    def highest(self) -> float:
        """The largest value it takes, as far as the profile itself tells; a trace is not read."""
        course = self._course()
        return float(self.value) if course is None else course.highest  # type: ignore[arg-type]

    def _course(self) -> Series | Quantiles | None:
        if self.series is not None:
            return self.series.series()
        return None if self.spread is None else self.spread.distribution()
