"""How late the coordinator's own event loop is: it is the stopwatch of every exchange."""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable

import anyio

PERIOD_S = 0.01
"""Time between samples; 100 wake-ups a second cost about 0.3 % of a core."""

KEEP_S = 120.0
"""Only the last two minutes of a round are kept."""


class LagMeter:
    """Samples how long something that is ready waits until the loop deals with it.

    A thread of its own rings the loop, as an arriving packet would, and the loop notes how long
    it took to hear it. (A timer of the loop would not do: it is rounded up to a millisecond.)
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._samples: deque[float] = deque(maxlen=int(KEEP_S / PERIOD_S))

    async def run(self) -> None:
        """Sample until cancelled."""
        is_over = threading.Event()
        loop = asyncio.get_running_loop()
        ringer = threading.Thread(
            target=self._ring,
            args=(loop, is_over),
            name="coordinator.loop_lag",
            daemon=True,
        )
        ringer.start()
        try:
            await anyio.sleep_forever()
        finally:
            is_over.set()

    def start(self) -> None:
        """Begin a round: forget what was before."""
        self._samples.clear()

    def p99_s(self) -> float:
        """Return the 99th percentile of the lag since `start`, seconds; 0 without samples."""
        if not self._samples:
            return 0.0
        ordered = sorted(self._samples)
        return ordered[max(math.ceil(0.99 * len(ordered)) - 1, 0)]

    def _ring(self, loop: asyncio.AbstractEventLoop, is_over: threading.Event) -> None:
        while not is_over.wait(PERIOD_S):
            try:
                loop.call_soon_threadsafe(self._note, self._now())
            except RuntimeError:  # the loop is closed
                return

    def _note(self, rung: float) -> None:
        self._samples.append(self._now() - rung)
