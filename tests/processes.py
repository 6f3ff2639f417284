"""The processes that tests start, and which of them have not ended."""

import subprocess
import time
from collections.abc import Iterable

import psutil

LONG_LIVED = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
)
"""Processes of the standard library that end with pytest itself."""


def end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]", limit_s: float = 30.0) -> None:
    """End a process of a test that may have failed: one that is left would fail the next test.

    It gets SIGTERM, and after `limit_s` SIGKILL; its pipes are closed.
    """
    process.terminate()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def own_children() -> list[psutil.Process]:
    """Return every process that descends from this one, but not those that end with pytest.

    Those that have ended do not count: a test that makes this process the reaper of orphans leaves
    them as zombies.
    """
    family = psutil.Process().children(recursive=True)
    return [process for process in family if _is_running(process) and not is_long_lived(process)]


def is_long_lived(process: psutil.Process) -> bool:
    """Return whether a process serves a library until pytest ends."""
    return any(name in describe(process) for name in LONG_LIVED)


def describe(process: psutil.Process) -> str:
    """Return its number and its command."""
    try:
        return f"{process.pid} {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return f"{process.pid} (gone)"


def is_gone(process: psutil.Process, limit_s: float = 20.0) -> bool:
    """Return whether a process ends within a time; a zombie, which is not reaped, has ended."""
    return not still_running([process], limit_s)


def still_running(processes: Iterable[psutil.Process], limit_s: float) -> list[psutil.Process]:
    """Wait for the end of processes; return those that have not ended, which zombies have.

    Their state is polled: psutil 7.2 raises OSError where `pidfd_open` gives EINVAL, as Linux 6.1
    does for a process that was reaped before the others of the session that it led.
    """
    deadline = time.monotonic() + limit_s
    left = list(processes)
    while (left := [each for each in left if _is_running(each)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
