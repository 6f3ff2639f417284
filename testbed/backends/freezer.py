"""Has devices stand still on purpose: SIGSTOP, always undone by SIGCONT.

What a stopped process waits for goes on, so a device that is let go is told for how long it stood
still, and does not count that as having been late.
"""

import signal
import time
from collections.abc import Iterable

from testbed.backends.gauges import FROZEN_S, Gauges
from testbed.backends.hands import Hands


class Freezer:
    """Knows which devices stand still."""

    def __init__(self, agents: Hands, gauges: Gauges) -> None:
        self._agents, self._gauges = agents, gauges
        self._frozen_at: dict[str, float] = {}

    async def freeze(self, names: Iterable[str]) -> None:
        """Stop devices; those that are not alive or stand still already are passed over.

        Raises:
            BackendError: The nursery is gone.
        """
        alive = self._agents.pids
        freezing = [name for name in names if name in alive and name not in self._frozen_at]
        self._frozen_at.update(dict.fromkeys(freezing, time.monotonic()))
        await self._agents.signal(freezing, signal.SIGSTOP)

    async def thaw(self, names: Iterable[str]) -> None:
        """Let devices go on; those that do not stand still are passed over.

        Raises:
            BackendError: The nursery is gone.
        """
        now = time.monotonic()
        thawing = [name for name in names if name in self._frozen_at]
        for name in thawing:  # before they look at the clock
            self._gauges[name][FROZEN_S] += now - self._frozen_at.pop(name)
        await self._agents.signal(thawing, signal.SIGCONT)

    async def thaw_all(self) -> None:
        """Let all devices go on.

        Raises:
            BackendError: The nursery is gone.
        """
        await self.thaw(list(self._frozen_at))
