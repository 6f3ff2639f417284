"""When the devices of a crowd are there: one stay in each cycle, from a moment of its own on."""

from dataclasses import dataclass

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats


@dataclass(frozen=True, slots=True)
class Stays:
    """Who is there when, without a course in memory for each device.

        there at t  <=>  (t / cycle + phase) mod 1 < share

    It is what `profiles.tracks.draw_sessions` draws where a population tells of one stay a day.
    Where it tells the mean length of stays, all stays of a crowd have that length.
    """

    share: Floats
    """Of the time that each device is there, shape (N,)."""
    cycle_s: Floats
    """One stay and one absence, seconds, shape (N,)."""
    phase: Floats
    """In [0, 1), shape (N,)."""

    @property
    def moves(self) -> bool:
        """Somebody comes and goes, or is never there."""
        return bool((self.share < 1.0).any())

    def at(self, t: Floats | float) -> Floats:
        """Return 1 for who is there and 0 for who is not, shape (N,).

        Args:
            t: When, seconds since the run began, shape (N,) or one for all.
        """
        cycles = t / self.cycle_s + self.phase
        there: Floats = (cycles - np.floor(cycles) < self.share).astype(np.float64)
        return there
