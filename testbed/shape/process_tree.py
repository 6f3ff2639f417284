"""The process tree of a command: list, measure, stop, continue and kill its processes. Linux only.

A process whose parent ends becomes a child of this process (`PR_SET_CHILD_SUBREAPER`).
"""

import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fairbed.testbed.backends.cpu_time import cpu_s
from fairbed.testbed.errors import BackendError
from fairbed.testbed.host.thread_times import tasks

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""

PROC = Path("/proc")

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_CUTIME = 13
"""Field of /proc/PID/stat behind the name: user time of ended children; system time follows."""

HELD_STATES = "TtZX"
"""States in /proc of a thread that is stopped, traced or has ended."""

POLL_S = 1e-3

MAX_SEARCHES = 100
"""Searches for new processes; each search stops all processes that it finds."""


class ProcessTree:
    """All descendants of this process, except helpers.

    Args:
        helpers: Children of this process that do not belong to the command.

    Raises:
        BackendError: This kernel does not list the children of a process.
    """

    def __init__(self, helpers: Iterable[int]) -> None:
        if not (PROC / f"self/task/{os.getpid()}/children").exists():
            raise BackendError(
                "--backend process: needs a kernel with CONFIG_PROC_CHILDREN, "
                "got one without; be root, and leave --backend out"
            )
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._helpers = set(helpers)
        self._process: int | None = None
        self._ended_before_s = _ended_s()

    def adopt(self, pid: int) -> None:
        """Set the first process of the command, which `ShapedProcess` waits for."""
        self._process = pid

    def members(self) -> list[int]:
        """Return all processes, parents first."""
        found = [pid for pid in _children(os.getpid()) if pid not in self._helpers]
        for pid in found:  # the list grows in the loop
            found += _children(pid)
        return found

    def cpu_s(self) -> float:
        """Return the processor time of all processes, including ended ones."""
        members = self.members()
        alive_s = sum((cpu_s(pid) or 0.0) + _ended_children_s(pid) for pid in members)
        return alive_s + _ended_s() - self._ended_before_s

    def threads(self) -> list[str]:
        """Return the folders of all threads in /proc."""
        return [task for pid in self.members() for task in tasks(pid)]

    def reap(self) -> None:
        """Reap orphaned processes that have ended."""
        for pid in _children(os.getpid()):
            if pid != self._process and pid not in self._helpers:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def stop(self) -> None:
        """Stop all processes.

        Raises:
            BackendError: A process belongs to another user, or new ones start faster than they are
                stopped.
        """
        stopped: set[int] = set()
        for _ in range(MAX_SEARCHES):
            fresh = [pid for pid in self.members() if pid not in stopped]
            if not fresh:
                return
            self._send(fresh, signal.SIGSTOP)
            stopped.update(fresh)
        raise BackendError(
            "--backend process: the command starts processes faster than they can be stopped; "
            "be root, and leave --backend out"
        )

    def await_stop(self, limit_s: float) -> None:
        """Wait until no process runs after `stop`, or until a limit.

        A process that another processor runs, or that waits in the kernel, stops only later. It
        may still read a key that is meant for the shell.
        """
        deadline = time.monotonic() + limit_s
        while any(map(_may_run, self.threads())) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def resume(self) -> None:
        """Continue all processes, children before parents that wait for them."""
        self._send(reversed(self.members()), signal.SIGCONT)

    def kill(self) -> list[int]:
        """Kill all processes; return those that were alive."""
        self.reap()
        members = self.members()
        with suppress(BackendError):  # a process of another user must end by itself
            self._send(members, signal.SIGKILL)
        return members

    def _send(self, pids: Iterable[int], number: int) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            except PermissionError as exc:
                raise BackendError(
                    f"--backend process: can slow processes of the current user only, got process "
                    f"{pid} of another user; be root, and leave --backend out"
                ) from exc


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # the process has ended
        for task in (PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text(encoding="utf-8").split())
    return found


def _may_run(task: str) -> bool:
    try:
        state = Path(task, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in HELD_STATES


def _ended_children_s(pid: int) -> float:
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[_CUTIME]) + int(fields[_CUTIME + 1])) / _TICKS_PER_S


def _ended_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
