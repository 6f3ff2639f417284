"""Numbers of a whole fleet that move, looked up for all devices in one go."""

from collections.abc import Mapping

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.profiles.series import Series
from fairbed.testbed.emulation.schedule import ROUNDING_S, OutageWindow


class Courses:
    """One number of each device over time; most devices' never moves.

    Args:
        constant: What it is where nothing else is said, shape (N,).
        series: Of those rows where it moves.
    """

    def __init__(self, constant: Floats, series: Mapping[int, Series]) -> None:
        self._constant: Floats = constant
        self._rows = np.array(sorted(series), dtype=np.int64)
        chosen = [series[row] for row in self._rows.tolist()]
        self._period_s = np.array([one.period_s for one in chosen])
        # Laid end to end, so that one search finds the place in all of them.
        self._begin = np.concatenate([[0.0], np.cumsum(self._period_s)])[:-1]
        self._starts = np.concatenate(
            [np.zeros(0), *(np.array(s.t_s) + b for s, b in zip(chosen, self._begin, strict=True))]
        )
        self._values = np.concatenate([np.zeros(0), *(np.array(one.values) for one in chosen)])

    @property
    def moves(self) -> bool:
        """Some device's number changes."""
        return self._rows.size > 0

    def at(self, t: Floats | float) -> Floats:
        """Return the number of each device, shape (N,), not to be changed.

        Args:
            t: When, seconds since the run began, shape (N,) or one for all.
        """
        if not self.moves:
            return self._constant
        when = t if isinstance(t, float) else t[self._rows]
        into = (when + ROUNDING_S) % self._period_s + self._begin
        column: Floats = self._constant.copy()
        column[self._rows] = self._values[np.searchsorted(self._starts, into, side="right") - 1]
        return column


class Outages:
    """Outages by the clock of the run, of all devices."""

    def __init__(self, windows: Mapping[int, tuple[OutageWindow, ...]], n: int) -> None:
        listed = [(row, o) for row in sorted(windows) for o in windows[row]]
        self._n = n
        self._rows = np.array([row for row, _ in listed], dtype=np.int64)
        self._start_s = np.array([o.start_s for _, o in listed])
        self._end_s = np.array([o.end_s for _, o in listed])
        self._is_unplugged = np.array([o.kind == "unplugged" for _, o in listed], dtype=np.bool_)

    def __len__(self) -> int:
        """Return how many there are in all."""
        return len(self._rows)

    def at(self, t: Floats, *, unplugged_only: bool = False) -> Bools:
        """Return who cannot be reached at its own moment `t`, both of shape (N,)."""
        is_out = np.zeros(self._n, dtype=np.bool_)
        when = t[self._rows] + ROUNDING_S
        now = (self._start_s <= when) & (when < self._end_s)
        is_out[self._rows[now & (self._is_unplugged | (not unplugged_only))]] = True
        return is_out
