"""Removes a run's containers when the run ends, even if it is killed.

Containers are not children of this process, so they do not end with it. A shell waits for the end
of its stdin, which only this process keeps open, and then runs podman to remove them: after a
regular end and after `kill -9`. Leftovers after a power cut are removed at the next start of
containers.
"""

import subprocess
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from fairbed.testbed.backends.containers.engine import ContainerEngine
from fairbed.testbed.backends.network.owner import is_alive
from fairbed.testbed.backends.network.plan.names import owner_of
from fairbed.testbed.errors import BackendError

REMOVE_TIMEOUT_S = 60.0
"""Longest wait for podman to remove the containers, seconds."""

_WAIT = 'cat > /dev/null; exec "$@" > /dev/null'

_REMOVE = ("rm", "--force", "--ignore", "--time=0")


@asynccontextmanager
async def removed_at_end(
    engine: ContainerEngine, names: Sequence[str], log: Path
) -> AsyncIterator[None]:
    """Remove containers at the end of the context, and also if this process is killed.

    Args:
        engine: Runs the containers.
        names: Names of the containers; some may not exist.
        log: Receives the output of podman.

    Raises:
        BackendError: A process cannot be started, or the containers cannot be removed.
    """
    with log.open("ab") as stderr:
        try:
            remover = await anyio.open_process(
                ["sh", "-c", _WAIT, "remover", *engine.command, *_REMOVE, *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # so that Ctrl-C does not reach it
            )
        except OSError as exc:
            raise BackendError(
                f"container removal: cannot start its shell, {exc}; end other processes"
            ) from exc
    assert remover.stdin is not None
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(REMOVE_TIMEOUT_S) as scope:
            await remover.stdin.aclose()
            await remover.wait()
        if scope.cancelled_caught or remover.returncode != 0:
            raise BackendError(f"podman: must remove the containers of this run; see {log}")


async def sweep(engine: ContainerEngine) -> None:
    """Remove the containers of runs whose owner is dead.

    Raises:
        BackendError: podman fails.
    """
    listed = await engine("ps", "--all", "--filter=name=^fairbed", "--format={{.Names}}")
    await remove(engine, (name for name in listed.split() if _is_leftover(name)))


async def remove(engine: ContainerEngine, names: Iterable[str]) -> None:
    """Remove containers and kill their processes; missing containers are skipped.

    Raises:
        BackendError: podman fails.
    """
    found = list(names)
    if found:
        await engine(*_REMOVE, *found)


def _is_leftover(name: str) -> bool:
    owner = owner_of(name)
    return owner is not None and not is_alive(owner)
