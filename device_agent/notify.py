"""A notification for one waiting task: kept until it waits, several count as one."""

import asyncio


class Notify:
    """Wakes its waiter; unlike a queue it holds nothing, so it cannot overflow.

    Uses a future and a timer of the loop: a scope and an event of anyio cost four times as much,
    and a round of 0.1 s waits a dozen times.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        self._is_set = True
        self._wake()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a notification, at most `timeout_s`; tell whether it came."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if timeout_s is None else loop.call_later(timeout_s, self._wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        is_set, self._is_set = self._is_set, False
        return is_set

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
