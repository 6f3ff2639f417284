"""Devices that were given up: nobody can ask them until they are known to be idle.

A device that missed a deadline, or than which enough others were quicker, works on until it is
told to stop. The live coordinator counts it as busy until it says that it is idle
(`Device.is_draining`).

    idle at = given up + the way of the cancellation + the way of the context that says so
"""

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.testbed.replay.columns import Moving, Steady
from fairbed.testbed.replay.walk import Way

PAUSE_S = 0.02
"""What a live coordinator needs from the end of a round to the next selection, about, and a replay
does not: who is idle by then can be chosen (`pause_s` of a run of examples/quickstart.toml)."""


class Draining:
    """Who is still at work, or thought to be, on what nobody waits for any more.

    Args:
        steady: Links that never change.
        moving: Those that do.
        give_up_s: A cancellation is on its way for so long at most: by then a device has ended its
            work by itself, because its own deadline has passed.
    """

    def __init__(self, steady: Steady, moving: Moving, give_up_s: float) -> None:
        self._delay_s, self._links, self._give_up_s = steady.delay_s, moving.links, give_up_s
        self._idle_at: Floats = np.full(len(steady), -np.inf)
        """When the coordinator knows it of each, seconds of the run, shape (N,)."""

    def give_up(self, rows: Ints, at: Floats) -> None:
        """Call devices off, each at its own moment, seconds of the run, both of shape (K,)."""
        idle_at = at + 2.0 * self._delay_s[rows]
        for k, (row, moment) in enumerate(zip(rows.tolist(), at.tolist(), strict=True)):
            if row in self._links:
                idle_at[k] = self._heard_at(row, moment)
        self._idle_at[rows] = idle_at

    def is_idle(self, now: float) -> Bools:
        """Return who can be asked again at a selection, shape (N,)."""
        idle: Bools = self._idle_at <= now + PAUSE_S
        return idle

    def to_state(self) -> bytes:
        """Return who is idle when, packed."""
        return self._idle_at.tobytes()

    def load_state(self, state: bytes) -> None:
        """Take over what `to_state` returned."""
        self._idle_at = np.frombuffer(state).copy()

    def _heard_at(self, row: int, at: float) -> float:
        """Return when a device is known to be idle whose link may carry nothing at times."""
        way = Way(self._links[row], self._give_up_s)
        told = min(way.carry(at, 0.0, "down"), at + self._give_up_s)
        idle = told + way.delay_s(told)
        return idle + way.delay_s(idle)
