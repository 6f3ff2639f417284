"""Starts the relay of a run when a viewer on another machine asks for rows, and ends it.

The relay is the part `relay` of a room: a module that runs as a process.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from fairbed.testbed import rooms

RESTART_S = 5.0
"""Shortest time between the end of a relay and the start of the next one."""

END_S = 8.0
"""Longest time for the last rows of a run; then the relay is killed."""


@asynccontextmanager
async def relay_on_demand(
    folder: Path, note: Callable[[str, str], None]
) -> AsyncIterator[Callable[[], None]]:
    """Yield a function that starts the relay of the run in `folder`, unless it runs already.

    At the end of the context the relay sends the last rows to viewers that ask, in `END_S`.

    Args:
        folder: Folder of the run.
        note: Records kind and text of an event.
    """
    wanted = anyio.Event()

    def want() -> None:
        wanted.set()

    async def start_when_wanted() -> None:
        nonlocal wanted
        while True:
            await wanted.wait()
            relay = next(rooms.named("relay"), None)
            if relay is None:
                note("viewer", rooms.lacking("a viewer", rooms.absent("seams", "relay")))
                return
            process = await anyio.open_process(
                [sys.executable, "-m", relay, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C ends the run, and the run ends the relay
                stderr=None,
            )
            try:
                await process.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    if process.stdin is not None:
                        await process.stdin.aclose()  # the run is over, as the relay sees by this
                    with anyio.move_on_after(END_S):
                        await process.wait()
                    if process.returncode is None:
                        process.kill()
                    await process.aclose()
            await anyio.sleep(RESTART_S)
            wanted = anyio.Event()

    async with anyio.create_task_group() as group:
        group.start_soon(start_when_wanted, name="run.relay")
        try:
            yield want
        finally:
            group.cancel_scope.cancel()
