"""Slows a command without root by SIGSTOP and SIGCONT, in a closed control loop.

    credit = speed * elapsed - used       in processor seconds
    stop for -credit / speed              while the credit is negative

The excess work of one interval is compensated in the next, so the mean speed is exact, but steps
shorter than an interval are not. An open loop, which stops for a fixed share of each interval
without measuring the work, had an error of 4 to 71 % where this loop has 1 %.

A program must not be faster after a pause, and must catch up after this machine kept it waiting:

    it was idle        credit up to `IDLE_CREDIT_S * speed`
    it waited          credit up to `MAX_CREDIT_S * speed`; what is beyond is contended time
    it was stopped     all credit: the stop was longer than it should have been

Source: measured beside quotas and cooperative pacing; 1.000, 1.005, 1.012 of the set speed at
5, 25, 50 % with intervals of 20 ms on a quiet machine.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from fairbed.testbed.backends.cgroups.group import GroupUsage
from fairbed.testbed.emulation.contention import ContentionEstimate
from fairbed.testbed.emulation.quota import MIN_PERIOD_US
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.thread_times import HAS_WAITS, ThreadWindows
from fairbed.testbed.shape.process_tree import ProcessTree
from fairbed.testbed.shape.signals import stop_this_process

CONTROL_INTERVAL_S = 0.02
"""Time between two readings, seconds; shorter intervals cost more than 1.2 % of a core."""

IDLE_CREDIT_S = MIN_PERIOD_US * 1e-6
"""Limit of the credit for idle time at full speed, seconds: that of a quota. The processor time of
processes that have ended is counted in units of 10 ms, so less would slow a shell script."""

MAX_CREDIT_S = 0.1
"""Limit of the credit for waiting time at full speed, seconds."""

DEATH_S = 2.0
"""Longest wait for killed processes to end, seconds."""

STOP_S = 0.5
"""Longest wait for stopped processes after Ctrl-Z; one that waits for a disk stops later."""

POLL_S = 5e-3


@dataclass(slots=True)
class PaceController:
    """Computes for how long to stop a program; both clocks are seconds from any origin."""

    now: float
    cpu_s: float
    """Processor time of all processes of the program."""
    credit_s: float = 0.0
    lost_s: float = 0.0
    """Time beyond `MAX_CREDIT_S` for which the program waited; it cannot catch up."""
    _speed: float = 1.0
    _estimate: ContentionEstimate = field(default_factory=ContentionEstimate)

    @property
    def contended_s(self) -> float:
        """Time by which the program took longer than it would on the device."""
        return self.lost_s + max(0.0, self.credit_s / self._speed - IDLE_CREDIT_S)

    def advance(self, now: float, cpu_s: float, speed: float, waited_s: float) -> float:
        """Account for a time in which the program was allowed to run; return the time to stop now.

        Args:
            now: Seconds.
            cpu_s: Processor time of all processes of the program.
            speed: Configured speed since the last reading, in cores.
            waited_s: Time since then in which a thread was ready and did not run.
        """
        before_s = self.credit_s
        self._account(now, cpu_s, speed)
        kept_s = min(self.credit_s, max(before_s, IDLE_CREDIT_S * speed))
        unused_s = (self.credit_s - kept_s) / speed
        self.credit_s = kept_s + speed * self._estimate.add([unused_s], [waited_s])
        self._limit_credit(speed)
        return max(0.0, -self.credit_s / speed)

    def resume(self, now: float, cpu_s: float, speed: float) -> None:
        """Account for a stop, which ends now."""
        self._account(now, cpu_s, speed)
        self._limit_credit(speed)

    def skip(self, now: float, cpu_s: float) -> None:
        """Leave out the time since the last reading."""
        self.now, self.cpu_s = now, cpu_s

    def _account(self, now: float, cpu_s: float, speed: float) -> None:
        self.credit_s += speed * (now - self.now) - (cpu_s - self.cpu_s)
        self.now, self.cpu_s, self._speed = now, cpu_s, speed

    def _limit_credit(self, speed: float) -> None:
        excess_s = self.credit_s / speed - MAX_CREDIT_S
        if excess_s > 0.0:
            self.lost_s += excess_s
            self.credit_s = MAX_CREDIT_S * speed


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
