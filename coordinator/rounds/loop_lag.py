"""Lag of the coordinator's event loop, whose clock measures every exchange."""

import asyncio
import math
import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence

import anyio
import numpy as np

PERIOD_S = 0.01
"""Time between samples; 100 wake-ups a second cost about 0.3 % of a core."""

KEPT = 12_000
"""Samples that are kept at least: those of the last two minutes."""

NEAR_S = 2 * PERIOD_S
"""The lag at an instant is the largest of the samples this near to it."""


class LagMeter:
    """Samples how long a ready callback waits until the event loop runs it.

    A thread schedules callbacks on the loop, as an arriving packet would, and each callback
    measures its delay. (A timer of the loop is no substitute: it is rounded up to a millisecond.)
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ran, self._lags_s = (array("d", bytes(8 * 2 * KEPT)) for _ in range(2))
        """When each callback ran, and its lag, in order of time; the newest samples move to the
        front when they are full."""
        self._end = 0
        self._started = -math.inf

    async def run(self) -> None:
        """Sample until cancelled."""
        is_over = threading.Event()
        loop = asyncio.get_running_loop()
        sampler = threading.Thread(
            target=self._sample,
            args=(loop, is_over),
            name="coordinator.loop_lag",
            daemon=True,
        )
        sampler.start()
        try:
            await anyio.sleep_forever()
        finally:
            is_over.set()

    def start(self) -> None:
        """Begin a round, whose percentile does not count the samples of the previous one."""
        self._started = self._now()

    def p99_s(self) -> float:
        """Return the 99th percentile of the lag since `start`, seconds; 0 without samples."""
        first = bisect_left(self._ran, self._started, 0, self._end)
        ordered = np.sort(np.frombuffer(self._lags_s)[first : self._end])
        return float(ordered[max(math.ceil(0.99 * len(ordered)) - 1, 0)]) if len(ordered) else 0.0

    def at_s(self, instants: Sequence[float]) -> float:
        """Return the sum of the lags at some instants, seconds; 0 where there is no sample.

        A sample counts once, if the loop handled the messages of several instants together.
        """
        largest = set[int]()
        for instant in instants:
            first = bisect_left(self._ran, instant - NEAR_S, 0, self._end)
            last = bisect_left(self._ran, instant + NEAR_S, first, self._end)
            if first < last:
                largest.add(max(range(first, last), key=self._lags_s.__getitem__))
        return math.fsum(self._lags_s[at] for at in largest)

    def _sample(self, loop: asyncio.AbstractEventLoop, is_over: threading.Event) -> None:
        while not is_over.wait(PERIOD_S):
            try:
                loop.call_soon_threadsafe(self._record, self._now())
            except RuntimeError:  # the loop is closed
                return

    def _record(self, scheduled: float) -> None:
        if self._end == 2 * KEPT:
            self._ran[:KEPT], self._lags_s[:KEPT] = self._ran[KEPT:], self._lags_s[KEPT:]
            self._end = KEPT
        now = self._now()
        self._ran[self._end], self._lags_s[self._end] = now, now - scheduled
        self._end += 1
