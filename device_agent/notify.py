"""A notification for one waiting task."""

import asyncio


class Notify:
    """Wakes one waiter; notifications before the wait are kept and count as one.

    It uses a future and a timer of the event loop: a scope and an event of anyio cost four times
    as much, and a round of 0.1 s has a dozen waits.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Wake the waiter, or make its next wait return at once."""
        self._is_set = True
        self._wake()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a notification, at most `timeout_s`; return whether there was one."""
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
