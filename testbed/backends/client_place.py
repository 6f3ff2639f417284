"""Where the client of an emulated device runs, and how fast (`device_agent.host.ClientPlace`).

    in a sandbox      it joins control groups and network of its device: the kernel limits it
    without           it is stopped and continued, as `fairbed shape` does with a command

One server imports the code for all devices of this machine; each is charged the time of the imports
at every cold start.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from fairbed.device_agent.clients.child.processes import (
    descendants,
    ended_children_s,
    resume_tree,
    stop_tree,
)
from fairbed.testbed.backends.cpu_time import cpu_s
from fairbed.testbed.backends.gauges import CONTENDED_S, Gauge
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.emulation.pace import CONTROL_INTERVAL_S, PaceController
from fairbed.testbed.host.thread_times import ThreadWindows, tasks

SPEED_POLL_S = 0.1
"""Interval at which a waiting device reads its speed, seconds."""


class EmulatedClients:
    """The clients of one emulated device.

    Args:
        address: Socket of the server that forks them; None: the agent starts its own.
        sandbox: Control groups and network of the device; None without any.
        speed: Returns the speed of the device, in cores of this machine; None is not slowed.
        gauge: Receives the time for which a client waited for this machine; None takes none.
        dilation: Seconds of this machine in a second of the device.
    """

    def __init__(
        self,
        address: str | None,
        sandbox: Sandbox | None,
        speed: Callable[[], float] | None,
        gauge: Gauge | None = None,
        dilation: float = 1.0,
    ) -> None:
        self.address = address
        # A server of its own is a child of the agent, and in its groups already.
        is_shared = address is not None and sandbox is not None
        self.groups = sandbox.procs if is_shared and sandbox is not None else ()
        self.network = sandbox.network if is_shared and sandbox is not None else None
        self.dilation = dilation
        self._speed, self._gauge = speed, gauge
        self._is_limited = sandbox is not None

    def imported(self, cpu_s: float) -> None:
        """Wait as long as this device needs for imports that the server has done."""
        if self._speed is None:
            time.sleep(max(0.0, cpu_s))
            return
        left_s = cpu_s  # processor seconds
        while left_s > 0.0:
            speed = min(1.0, self._speed())  # imports are the work of one thread
            wait_s = min(left_s / speed, SPEED_POLL_S)
            time.sleep(wait_s)
            left_s -= wait_s * speed

    def running(self, pid: int) -> AbstractContextManager[None]:
        """Limit a client and its descendants to the speed of this device while it works.

        At the end the work of the last interval, or period of a quota, is settled: short work would
        take no longer than on this machine.
        """
        if self._speed is None:
            return nullcontext()
        return (
            self._settled(pid, self._speed) if self._is_limited else self._paced(pid, self._speed)
        )

    @contextmanager
    def _settled(self, pid: int, speed: Callable[[], float]) -> Iterator[None]:
        begun, used_s = time.monotonic(), _used_s(pid)
        yield
        time.sleep(max(0.0, (_used_s(pid) - used_s) / speed() - (time.monotonic() - begun)))

    @contextmanager
    def _paced(self, pid: int, speed: Callable[[], float]) -> Iterator[None]:
        over = threading.Event()
        controller = PaceController(time.monotonic(), _used_s(pid))
        thread = threading.Thread(
            target=self._pace,
            args=(pid, speed, controller, over),
            name="client pace",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        time.sleep(controller.advance(time.monotonic(), _used_s(pid), speed(), 0.0))

    def _pace(
        self,
        pid: int,
        speed: Callable[[], float],
        controller: PaceController,
        over: threading.Event,
    ) -> None:
        """Stop and continue the processes of a client until the work is over."""
        threads = ThreadWindows()
        before_s = 0.0 if self._gauge is None else self._gauge[CONTENDED_S]
        before_s = 0.0 if math.isnan(before_s) else before_s
        while not over.wait(CONTROL_INTERVAL_S):
            q = speed()
            waited_s = threads.update(task for one in descendants(pid) for task in tasks(one))
            still_s = controller.advance(time.monotonic(), _used_s(pid), q, waited_s.waited_s)
            if self._gauge is not None:
                self._gauge[CONTENDED_S] = before_s + controller.contended_s
            if still_s > 0.0:
                stop_tree(pid)
                over.wait(still_s)
                resume_tree(pid)
                controller.resume(time.monotonic(), _used_s(pid), q)


def _used_s(pid: int) -> float:
    """Return the processor time of a client and its descendants, seconds."""
    return sum((cpu_s(one) or 0.0) + ended_children_s(one) for one in descendants(pid))
