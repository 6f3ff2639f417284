"""Lag of the coordinator's event loop, whose clock measures every exchange."""

import asyncio
import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

import anyio

PERIOD_S = 0.01
"""Time between samples; 100 wake-ups a second cost about 0.3 % of a core."""

KEEP_S = 120.0
"""Length of the samples that are kept: the last two minutes."""

NEAR_S = 2 * PERIOD_S
"""The lag at an instant is the largest of the samples this near to it."""


class LagMeter:
    """Samples how long a ready callback waits until the event loop runs it.

    A thread schedules callbacks on the loop, as an arriving packet would, and each callback
    measures its delay. (A timer of the loop is no substitute: it is rounded up to a millisecond.)
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._samples: deque[tuple[float, float]] = deque(maxlen=int(KEEP_S / PERIOD_S))
        """When a callback ran, and its lag."""
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
        ordered = sorted(lag_s for ran, lag_s in self._samples if ran >= self._started)
        return ordered[max(math.ceil(0.99 * len(ordered)) - 1, 0)] if ordered else 0.0

    def at_s(self, instants: Sequence[float]) -> float:
        """Return the sum of the lags at some instants, seconds; 0 where there is no sample.

        A sample counts once, if the loop handled the messages of several instants together.
        """
        largest: dict[float, float] = {}
        for instant in instants:
            first = bisect_left(self._samples, (instant - NEAR_S, 0.0))
            last = bisect_left(self._samples, (instant + NEAR_S, 0.0))
            near = [(self._samples[at][1], self._samples[at][0]) for at in range(first, last)]
            if near:
                lag_s, ran = max(near)
                largest[ran] = lag_s
        return sum(largest.values())

    def _sample(self, loop: asyncio.AbstractEventLoop, is_over: threading.Event) -> None:
        while not is_over.wait(PERIOD_S):
            try:
                loop.call_soon_threadsafe(self._record, self._now())
            except RuntimeError:  # the loop is closed
                return

    def _record(self, scheduled: float) -> None:
        now = self._now()
        self._samples.append((now, now - scheduled))
