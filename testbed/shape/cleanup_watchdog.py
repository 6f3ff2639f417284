"""Gives everything back when `fairbed shape` dies without having done so: after `kill -9`.

`python -m fairbed.testbed.shape.cleanup_watchdog PARENT [MARK]` waits for the end of its stdin:
after a farewell
all is well, without one the parent is dead, and what it had is a leftover like any other. Processes
of a command that had no control groups are found by MARK, in their environment.
"""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

FAREWELL = b"all is given back\n"

PARENT_DEATH_S = 10.0
"""For a parent whose pipes are closed to be dead altogether, its locks released."""

POLL_S = 0.01


MARK_VARIABLE = "FAIRBED_SHAPE"
"""Tells the processes of a command without control groups from all others."""


@asynccontextmanager
async def watched(*marks: str) -> AsyncIterator[int]:
    """Have somebody give everything back should we be killed inside; yield its process id.

    Args:
        marks: Of processes that are found by it.

    Raises:
        BackendError: The machine refused.
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
        raise BackendError(f"shape: cannot be watched over, {exc}") from exc
    assert process.stdin is not None
    try:
        yield process.pid
    finally:
        with anyio.CancelScope(shield=True):
            with suppress(anyio.BrokenResourceError):  # it was killed
                await process.stdin.send(FAREWELL)
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
    """Wait for the end of stdin, and sweep unless there was a farewell."""
    if sys.stdin.buffer.read() == FAREWELL:
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
