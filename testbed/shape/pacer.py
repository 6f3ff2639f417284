"""Slows a command without root, by SIGSTOP and SIGCONT."""

import time
from collections.abc import Callable

import anyio

from fairbed.testbed.backends.cgroups.group import GroupUsage
from fairbed.testbed.emulation.stopgo import TURN_S, StopAndGo
from fairbed.testbed.errors import BackendError
from fairbed.testbed.shape.process_tree import Tree
from fairbed.testbed.shape.signals import stop_ourselves

DEATH_S = 2.0
"""For killed processes to end, seconds."""

POLL_S = 5e-3


class Pacer:
    """Slows the process tree of one command.

    Args:
        tree: Its processes.
        speed: Returns the configured speed, in cores; None is not slowed.
    """

    def __init__(self, tree: Tree, speed: Callable[[], float | None]) -> None:
        self._tree, self._speed = tree, speed
        self._account = StopAndGo(time.monotonic(), tree.cpu_s())
        self._stopped_s = 0.0
        self._run_delay_s = 0.0

    def begin(self, pid: int) -> None:
        """Start pacing; `pid` is the first process of the command."""
        self._tree.adopt(pid)
        self._account = StopAndGo(time.monotonic(), self._tree.cpu_s())

    async def run(self) -> None:
        """Pace until cancelled.

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
                await self._stop_for(still_s)

    async def _stop_for(self, still_s: float) -> None:
        begun = time.monotonic()
        try:
            self._tree.stop()
            await anyio.sleep(still_s)
        finally:
            self._tree.go()
            self._stopped_s += time.monotonic() - begun

    def suspend(self) -> None:
        """Stop the command and this process, as Ctrl-Z does, until SIGCONT.

        The kernel drops a Ctrl-Z of a command that is stopped already.
        """
        self._tree.stop()
        stop_ourselves()
        self._tree.go()

    def usage(self) -> GroupUsage:
        """Return the usage of the command."""
        contended_s = min(self._account.unused_s, self._run_delay_s)
        return GroupUsage(
            cpu_s=self._tree.cpu_s(),
            throttled_s=self._stopped_s,
            waiting_s=self._stopped_s + contended_s,
            memory_kills=0,
        )

    async def end(self) -> None:
        """Kill the remaining processes."""
        deadline = time.monotonic() + DEATH_S
        with anyio.CancelScope(shield=True):
            while self._tree.kill():
                if time.monotonic() >= deadline:
                    raise BackendError(
                        f"--backend process: killed processes must end within {DEATH_S:g} s, "
                        f"got {self._tree.members()} alive; check what they wait for"
                    )
                await anyio.sleep(POLL_S)
