"""A number that changes in steps over time: a rate, a clock ratio, availability."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Series:
    """A periodic step function: `values[i]` holds from `t_s[i]` until `t_s[i + 1]`.

    Args:
        t_s: Start of each value, seconds, the first 0, strictly increasing.
        values: One number per start, finite and not negative.
        period_s: Length of a period, seconds, greater than the last start.

    Raises:
        ValueError: One of these rules is violated; the message names the row.
    """

    t_s: tuple[float, ...]
    values: tuple[float, ...]
    period_s: float

    def __post_init__(self) -> None:
        if not self.t_s or len(self.t_s) != len(self.values):
            raise ValueError(
                "series: must have as many times as values, at least one, "
                f"got {len(self.t_s)} and {len(self.values)}"
            )
        if self.t_s[0] != 0.0:
            raise ValueError(f"series: must begin at 0 s, got {self.t_s[0]}")
        for row, (before, after) in enumerate(pairwise((*self.t_s, self.period_s)), 1):
            if not before < after < math.inf:  # false for NaN too
                raise ValueError(
                    f"series: times must increase, got {after} after {before} at row {row}"
                )
        for row, value in enumerate(self.values):
            if not 0.0 <= value < math.inf:
                raise ValueError(
                    f"series: values must be finite and not negative, got {value} at row {row}"
                )

    @classmethod
    def constant(cls, value: float) -> "Series":
        """Return a series that never changes."""
        return cls((0.0,), (value,), 1.0)

    @classmethod
    def sampled(cls, values: Sequence[float], step_s: float) -> "Series":
        """Return a series whose values hold for `step_s` seconds each."""
        times = tuple(index * step_s for index in range(len(values)))
        return cls(times, tuple(values), len(values) * step_s)

    def at_most(self, limit: float) -> "Series":
        """Return the series with the smaller of each value and a limit."""
        if self.highest <= limit:
            return self
        return Series(self.t_s, tuple(min(value, limit) for value in self.values), self.period_s)

    @property
    def is_constant(self) -> bool:
        """It never changes."""
        return all(value == self.values[0] for value in self.values)

    @property
    def lowest(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def highest(self) -> float:
        """The largest value."""
        return max(self.values)

    @property
    def mean(self) -> float:
        """The average over time."""
        return self.integral(0.0, self.period_s) / self.period_s

    def at(self, t: float) -> float:
        """Return the value at `t` seconds, which may be beyond the first period."""
        if len(self.values) == 1:
            return self.values[0]
        return self.values[bisect_right(self.t_s, t % self.period_s) - 1]

    def next_change(self, t: float) -> float | None:
        """Return the first time after `t` with another value; None if the series is constant."""
        until = self.held(t)[1]
        return None if until == math.inf else until

    def held(self, t: float) -> tuple[float, float]:
        """Return the value at `t` seconds and the time until which it holds; `inf` if constant."""
        value, until, _ = self.followed(t, 0)
        return value, until

    def followed(self, t: float, step: int) -> tuple[float, float, int]:
        """Return the value at `t` seconds, the time until which it holds, and its step.

        Args:
            t: Time, seconds.
            step: Step returned by the last call. Any number gives the same result; a close one
                saves the search in a long series.
        """
        t_s, values = self.t_s, self.values
        laps, into = divmod(t, self.period_s)
        start = laps * self.period_s
        step = self._step_at(into, step)
        value, index = values[step], step + 1
        for _ in t_s:
            if index == len(t_s):
                index, start = 0, start + self.period_s
            if values[index] != value:
                return value, start + t_s[index], step
            index += 1
        return value, math.inf, step

    def _step_at(self, into: float, near: int) -> int:
        """Return the step at a time within a period; `near` and the next one are tried first."""
        t_s = self.t_s
        last = len(t_s) - 1
        for step in (near, near + 1):
            if 0 <= step < last and t_s[step] <= into < t_s[step + 1]:
                return step
        return bisect_right(t_s, into) - 1

    def starting_at(self, t: float) -> "Series":
        """Return the series shifted so that it starts at `t` seconds."""
        into = t % self.period_s
        if into == 0.0:
            return self
        first = bisect_right(self.t_s, into) - 1
        times = [0.0, *(start - into for start in self.t_s[first + 1 :])]
        values = [*self.values[first:]]
        rest = self.period_s - into
        for start, value in zip(self.t_s, self.values, strict=True):
            if start < into and times[-1] < rest + start < self.period_s:
                times.append(rest + start)
                values.append(value)
        return Series(tuple(times), tuple(values), self.period_s)

    def scaled(self, factor: float) -> "Series":
        """Return the series with its values multiplied by `factor`."""
        return Series(self.t_s, tuple(factor * value for value in self.values), self.period_s)

    def integral(self, start: float, end: float) -> float:
        """Return the integral between two times, in value times seconds."""
        return self._until(end) - self._until(start)

    def _until(self, t: float) -> float:
        laps, into = divmod(t, self.period_s)
        ends = (*self.t_s[1:], self.period_s)
        whole = part = 0.0
        for begin, end, value in zip(self.t_s, ends, self.values, strict=True):
            whole += value * (end - begin)
            part += value * max(0.0, min(end, into) - begin)
        return laps * whole + part
