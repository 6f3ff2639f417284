"""The processes of a client: a tree that is listed, measured, stopped and killed. Linux only.

This file imports the standard library alone, so that a program of another interpreter can load it.
"""

import os
import resource
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress

MAX_SEARCHES = 100
"""Searches for new processes in a tree that is stopped; each stops all that it finds."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_TIMES = slice(11, 15)
"""Fields of /proc/PID/stat behind the name: user and system time, of it and its ended children."""

_ENDED_TIMES = slice(13, 15)
"""Those of its ended children alone."""


def children(pid: int) -> list[int]:
    """Return the children of a process; empty if it has ended."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and all below it, parents first."""
    found = [pid]
    for each in found:  # the list grows in the loop
        yield each
        found += children(each)


def stop_tree(pid: int) -> None:
    """Stop a process and all below it, also while they start more."""
    stopped: set[int] = set()
    for _ in range(MAX_SEARCHES):
        fresh = [each for each in descendants(pid) if each not in stopped]
        if not fresh:
            return
        _send(fresh, signal.SIGSTOP)
        stopped.update(fresh)


def resume_tree(pid: int) -> None:
    """Continue a process and all below it, children before parents that wait for them."""
    _send(reversed(list(descendants(pid))), signal.SIGCONT)


def kill_tree(pid: int) -> None:
    """Kill a process and all below it, the process itself last: it collects what it orphans."""
    stop_tree(pid)
    _send(reversed(list(descendants(pid))), signal.SIGKILL)


def tree_cpu_s(pid: int) -> float:
    """Return the processor time of a process and all below it, seconds.

    That of ended processes counts if their parents have waited for them.
    """
    total = 0.0
    for each in descendants(pid):
        if each == os.getpid():
            total += sum(
                used.ru_utime + used.ru_stime
                for used in map(
                    resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
                )
            )
            continue
        fields = _stat(each)
        total += sum(map(int, fields[_TIMES])) / _TICKS_PER_S
    return total


def ended_children_s(pid: int) -> float:
    """Return the processor time of the ended children of a process, seconds."""
    return sum(map(int, _stat(pid)[_ENDED_TIMES])) / _TICKS_PER_S


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal."""
    return _stat(pid)[:1] == ["T"]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name; none if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(OSError):  # it has ended, or belongs to another user
            os.kill(pid, number)
