"""Helper processes of a backend: modules that run as child processes and end with this process."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process

from fairbed.testbed.host.threads import ONE_THREAD

ANSWER_TIMEOUT_S = 60.0
"""Longest wait for the reply of a helper, on a machine that is busy with the start of a fleet;
seconds."""


@dataclass(frozen=True, slots=True)
class HelperEnded:
    """A process of the fleet has ended."""

    name: str
    """Name of the device or of the helper: `fork server`, `proxy-0`, `control groups`."""
    status: int
    """Exit status, or minus the number of the signal."""
    was_requested: bool
    """Whether the backend ended it."""
    is_device: bool
    """False is a helper, without which the fleet cannot continue; or its control groups."""
    reason: str | None = None
    """The cause if it is known, such as full memory."""


OnEnd = Callable[[HelperEnded], None]
"""Called on the event loop; must not wait."""


async def open_helper(module: str, *arguments: str, log: Path) -> Process:
    """Start `python -m module PARENT_PID arguments...` with pipes as its stdin and stdout.

    It leads a session of its own, so that Ctrl-C on the terminal does not reach it.

    Raises:
        OSError: The kernel refused.
    """
    with log.open("ab") as stderr:
        return await anyio.open_process(
            [sys.executable, "-m", module, str(os.getpid()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, **ONE_THREAD},  # a process with several threads must not be forked
        )


async def end_helper(process: Process, number: int) -> None:
    """Send a signal to a helper and its children; return when the helper has ended."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.killpg(process.pid, number)
        await process.aclose()
