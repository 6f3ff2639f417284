"""Lag of the coordinator's event loop, whose clock measures every exchange."""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable

import anyio

PERIOD_S = 0.01
"""Time between samples; 100 wake-ups a second cost about 0.3 % of a core."""

KEEP_S = 120.0
"""Length of the samples that are kept: the last two minutes of a round."""


class LagMeter:
    """Samples how long a ready callback waits until the event loop runs it.

    A thread schedules callbacks on the loop, as an arriving packet would, and each callback
    measures its delay. (A timer of the loop is no substitute: it is rounded up to a millisecond.)
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._samples: deque[float] = deque(maxlen=int(KEEP_S / PERIOD_S))

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
        """Drop the samples of the previous round."""
        self._samples.clear()

    def p99_s(self) -> float:
        """Return the 99th percentile of the lag since `start`, seconds; 0 without samples."""
        if not self._samples:
            return 0.0
        ordered = sorted(self._samples)
        return ordered[max(math.ceil(0.99 * len(ordered)) - 1, 0)]

    def _sample(self, loop: asyncio.AbstractEventLoop, is_over: threading.Event) -> None:
        while not is_over.wait(PERIOD_S):
            try:
                loop.call_soon_threadsafe(self._record, self._now())
            except RuntimeError:  # the loop is closed
                return

    def _record(self, scheduled: float) -> None:
        self._samples.append(self._now() - scheduled)
