"""A number of a profile: its value, where it comes from, and how it moves in time if it does."""

from typing import Annotated, Generic, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct

from profiles.quantiles import Quantiles
from profiles.series import Series

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
