"""Keeps a command at its speed by stopping it and letting it go, for those who are not root."""

import time
from collections.abc import Callable

import anyio

from fairbed.testbed.backends.cgroups.group import GroupUsage
from fairbed.testbed.emulation.stopgo import TURN_S, StopAndGo
from fairbed.testbed.errors import BackendError
from fairbed.testbed.shape.process_tree import Tree
from fairbed.testbed.shape.signals import stop_ourselves

DEATH_S = 2.0
"""For killed processes to be gone."""

POLL_S = 5e-3


class Pacer:
    """Paces all that one command starts.

    Args:
        tree: Its processes.
        speed: Returns what it is meant to have, in cores; None is not slowed.
    """

    def __init__(self, tree: Tree, speed: Callable[[], float | None]) -> None:
        self._tree, self._speed = tree, speed
        self._account = StopAndGo(time.monotonic(), tree.cpu_s())
        self._stopped_s = 0.0
        self._run_delay_s = 0.0

    def begin(self, pid: int) -> None:
        """Pace from here on; this is the process that the command began as."""
        self._tree.adopt(pid)
        self._account = StopAndGo(time.monotonic(), self._tree.cpu_s())

    async def run(self) -> None:
        """Pace for ever.

        Raises:
            BackendError: A process cannot be stopped.
        """
        while True:
            await anyio.sleep(TURN_S)
            self._tree.reap()
            speed = self._speed()
            now, cpu_s = time.monotonic(), self._tree.cpu_s()
            self._run_delay_s = max(self._run_delay_s, self._tree.waited_s())
            still_s = 0.0 if speed is None else self._account.advance(now, cpu_s, speed)
            if still_s > 0.0:
                await self._stand_still(still_s)

    async def _stand_still(self, still_s: float) -> None:
        begun = time.monotonic()
        try:
            self._tree.stop()
            await anyio.sleep(still_s)
        finally:
            self._tree.go()
            self._stopped_s += time.monotonic() - begun

    def suspend(self) -> None:
        """Stand still together with the command, as Ctrl-Z would have us, until we are let go.

        Of a command that stands still already, the kernel forgets a Ctrl-Z when it goes on.
        """
        self._tree.stop()
        stop_ourselves()
        self._tree.go()

    def usage(self) -> GroupUsage:
        """Return what the command has had."""
        contended_s = min(self._account.unused_s, self._run_delay_s)
        return GroupUsage(
            cpu_s=self._tree.cpu_s(),
            throttled_s=self._stopped_s,
            waiting_s=self._stopped_s + contended_s,
            memory_kills=0,
        )

    async def end(self) -> None:
        """Kill what is left."""
        deadline = time.monotonic() + DEATH_S
        with anyio.CancelScope(shield=True):
            while self._tree.kill():
                if time.monotonic() >= deadline:
                    raise BackendError(
                        f"--backend process: what is killed must die within {DEATH_S:g} s, "
                        f"got {self._tree.members()} alive; see what they wait for"
                    )
                await anyio.sleep(POLL_S)
