"""Helper processes of a backend: modules of ours that run as child processes and end with us."""

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
"""For a helper to answer a request, on a machine that is busy starting a fleet; seconds."""


@dataclass(frozen=True, slots=True)
class HelperEnded:
    """A process of the fleet has ended."""

    name: str
    """Of the device, or of the helper: `fork server`, `proxy-0`."""
    status: int
    """Exit status, or minus the number of the signal."""
    was_requested: bool
    """We ended it ourselves."""
    is_device: bool
    """False is a helper, without which the fleet cannot continue."""
    reason: str | None = None
    """The known cause, such as full memory."""


OnEnd = Callable[[HelperEnded], None]
"""Called on the event loop; must not wait."""


async def open_helper(module: str, *arguments: str, log: Path) -> Process:
    """Start `python -m module OUR_PID arguments...`, its stdin and stdout being ours.

    It leads its own session: a Ctrl-C on our terminal is for us alone.

    Raises:
        OSError: The machine refused.
    """
    with log.open("ab") as stderr:
        return await anyio.open_process(
            [sys.executable, "-m", module, str(os.getpid()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, **ONE_THREAD},  # a device's core is one; so is what may be forked
        )


async def end_helper(process: Process, number: int) -> None:
    """Send a signal to a helper and all it has started; return when the helper is gone."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it was quicker
                os.killpg(process.pid, number)
        await process.aclose()
