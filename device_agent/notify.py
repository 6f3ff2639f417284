"""A bell that one task waits for: a ring while nobody waits is kept, many rings are one."""

import asyncio


class Notify:
    """Wakes its waiter; unlike a queue it holds nothing, so it cannot overflow.

    A future and a timer of the loop: a scope and an event of anyio cost four times as much, and
    a round of 0.1 s waits a dozen times.
    """

    def __init__(self) -> None:
        self._is_rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        self._is_rung = True
        self._wake()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a ring, at most `timeout_s`; tell whether it came."""
        if not self._is_rung:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if timeout_s is None else loop.call_later(timeout_s, self._wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        is_rung, self._is_rung = self._is_rung, False
        return is_rung

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
