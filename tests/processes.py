"""The processes that tests start, and how to say which is still there."""

import subprocess

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
    """Return every process that descends from this one, but not those that end with pytest."""
    family = psutil.Process().children(recursive=True)
    return [process for process in family if not is_long_lived(process)]


def is_long_lived(process: psutil.Process) -> bool:
    """Tell whether a process serves a library until pytest ends."""
    return any(name in describe(process) for name in LONG_LIVED)


def describe(process: psutil.Process) -> str:
    """Return its number and its command."""
    try:
        return f"{process.pid} {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return f"{process.pid} (gone)"


def is_gone(process: psutil.Process) -> bool:
    """Tell whether the process ends within 20 s; a zombie that nobody reaps has ended."""
    for _ in range(400):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            process.wait(0.05)
        except psutil.TimeoutExpired:
            continue
        except psutil.NoSuchProcess:
            return True
        return True
    return False
