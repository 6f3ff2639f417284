"""Cleans up after a `fairbed shape` that was killed by `kill -9`.

`python -m fairbed.testbed.shape.cleanup_watchdog PARENT [MARK]` reads its stdin to the end. Unless
it read `CLEANED_UP`, the parent was killed, and the watchdog removes its namespaces and control
groups. Processes of a command without control groups have MARK in their environment.
"""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CLEANED_UP = b"cleaned up\n"

PARENT_DEATH_S = 10.0
"""Longest wait for the parent, whose pipes are closed, to end and release its locks; seconds."""

POLL_S = 0.01

MARK_VARIABLE = "FAIRBED_SHAPE"
"""Environment variable that marks the processes of a command without control groups."""


@asynccontextmanager
async def watched(*marks: str) -> AsyncIterator[int]:
    """Run a watchdog that cleans up if this process is killed; yield its process id.

    Args:
        marks: Marks of the processes to kill.

    Raises:
        BackendError: The watchdog cannot be started.
    """
    import anyio

    from fairbed.testbed.errors import BackendError

    try:
        process = await anyio.open_process(
            [
                sys.executable,
                "-m",
                "fairbed.testbed.shape.cleanup_watchdog",
                str(os.getpid()),
                *marks,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as exc:
        raise BackendError(
            f"shape: cannot start the clean-up watchdog, {exc}; end other processes"
        ) from exc
    assert process.stdin is not None
    try:
        yield process.pid
    finally:
        with anyio.CancelScope(shield=True):
            with suppress(anyio.BrokenResourceError):  # the watchdog was killed
                await process.stdin.send(CLEANED_UP)
            await process.aclose()


def _kill(mark: str) -> None:
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK_VARIABLE) == mark:
                process.kill()


async def _sweep() -> None:
    from fairbed.testbed.backends.cgroups.fleet import is_leftover
    from fairbed.testbed.backends.cgroups.places import find_places
    from fairbed.testbed.backends.cgroups.removal import sweep as sweep_groups
    from fairbed.testbed.backends.network.sweep import sweep

    sweep_groups(find_places(), is_leftover)
    await sweep()


def main() -> int:
    """Wait for the end of stdin; clean up unless it ended with `CLEANED_UP`."""
    if sys.stdin.buffer.read() == CLEANED_UP:
        return 0
    deadline = time.monotonic() + PARENT_DEATH_S
    while os.getppid() == int(sys.argv[1]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    marks = sys.argv[2:]
    for mark in marks:
        _kill(mark)
    if marks:  # paced programs have neither groups nor a network
        return 0
    import anyio

    anyio.run(_sweep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
