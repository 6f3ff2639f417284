"""Slows a command without root by SIGSTOP and SIGCONT, in a closed control loop.

`emulation.pace` has the account; this module reads the counters and stops the processes.
"""

import time
from collections.abc import Callable

import anyio

from fairbed.testbed.backends.cgroups.group import GroupUsage
from fairbed.testbed.emulation.pace import CONTROL_INTERVAL_S, PaceController
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.thread_times import HAS_WAITS, ThreadWindows
from fairbed.testbed.shape.process_tree import ProcessTree
from fairbed.testbed.shape.signals import stop_this_process

DEATH_S = 2.0
"""Longest wait for killed processes to end, seconds."""

STOP_S = 0.5
"""Longest wait for stopped processes after Ctrl-Z; one that waits for a disk stops later."""

POLL_S = 5e-3


class Pacer:
    """Slows the process tree of one command.

    Args:
        tree: The processes of the command.
        speed: Returns the configured speed, in cores; None is not slowed.
    """

    def __init__(self, tree: ProcessTree, speed: Callable[[], float | None]) -> None:
        self._tree, self._speed = tree, speed
        self._controller = PaceController(time.monotonic(), tree.cpu_s())
        self._threads = ThreadWindows()
        self._stopped_s = 0.0

    def begin(self, pid: int) -> None:
        """Start pacing; `pid` is the first process of the command."""
        self._tree.adopt(pid)
        self._threads.update(self._tree.threads())
        self._controller = PaceController(time.monotonic(), self._tree.cpu_s())

    async def run(self) -> None:
        """Pace until cancelled.

        Raises:
            BackendError: A process cannot be stopped.
        """
        while True:
            await anyio.sleep(CONTROL_INTERVAL_S)
            self._tree.reap()
            speed = self._speed()
            waited_s = self._threads.update(self._tree.threads()).waited_s
            now, cpu_s = time.monotonic(), self._tree.cpu_s()
            if speed is None:
                self._controller.skip(now, cpu_s)
                continue
            still_s = self._controller.advance(now, cpu_s, speed, waited_s)
            if still_s > 0.0:
                await self._stop_for(still_s, speed)

    async def _stop_for(self, still_s: float, speed: float) -> None:
        begun = time.monotonic()
        try:
            self._tree.stop()
            await anyio.sleep(still_s)
        finally:
            self._tree.resume()
            now = time.monotonic()
            self._stopped_s += now - begun
            self._controller.resume(now, self._tree.cpu_s(), speed)

    def suspend(self) -> None:
        """Stop the command and this process until SIGCONT, as Ctrl-Z does.

        The kernel ignores Ctrl-Z for a command that the pacer has stopped already.
        """
        self._tree.stop()
        self._tree.await_stop(STOP_S)
        stop_this_process()
        self._controller.skip(time.monotonic(), self._tree.cpu_s())
        self._tree.resume()

    def usage(self) -> GroupUsage:
        """Return the usage of the command's processes."""
        return GroupUsage(
            cpu_s=self._tree.cpu_s(),
            throttled_s=self._stopped_s,
            contended_s=self._controller.contended_s if HAS_WAITS else None,
            memory_kills=0,
        )

    async def end(self) -> None:
        """Kill the remaining processes.

        Raises:
            BackendError: A killed process did not end.
        """
        deadline = time.monotonic() + DEATH_S
        with anyio.CancelScope(shield=True):
            while self._tree.kill():
                if time.monotonic() >= deadline:
                    raise BackendError(
                        f"--backend process: killed processes must end within {DEATH_S:g} s, "
                        f"got {self._tree.members()} alive; see what they wait for: "
                        "ps -o pid,stat,wchan,cmd"
                    )
                await anyio.sleep(POLL_S)
