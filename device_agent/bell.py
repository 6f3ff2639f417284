"""A bell that one task waits for: a ring while nobody waits is kept, many rings are one."""

import anyio


class Bell:
    """Wakes its waiter; unlike a queue it holds nothing, so it cannot overflow."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        self._rung.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a ring, at most `timeout_s`; tell whether it came."""
        with anyio.move_on_after(timeout_s):
            await self._rung.wait()
        if not self._rung.is_set():
            return False
        self._rung = anyio.Event()
        return True
