"""Removes a run's containers when the run is over, however it ends.

Containers are no children of ours, so no signal reaches them when we are killed. A shell waits for
the end of its standard input, which only we hold open, and then has podman remove them: the same
way after an orderly end and after `kill -9`. Containers that even that has left, after a power
cut, go when the next containers are started.
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

_WAIT = 'cat > /dev/null; exec "$@" > /dev/null'

_REMOVE = ("rm", "--force", "--ignore", "--time=0")


@asynccontextmanager
async def removed_at_end(
    engine: ContainerEngine, names: Sequence[str], log: Path
) -> AsyncIterator[None]:
    """Have containers of these names removed at the end.

    Args:
        engine: Runs them.
        names: Of containers that may or may not exist by then.
        log: Receives the output of podman.

    Raises:
        BackendError: The machine refused a process, or they cannot be removed.
    """
    with log.open("ab") as stderr:
        try:
            keeper = await anyio.open_process(
                ["sh", "-c", _WAIT, "keeper", *engine.command, *_REMOVE, *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # a Ctrl-C is for us alone
            )
        except OSError as exc:
            raise BackendError(f"keeper: cannot be started, {exc}; end other processes") from exc
    assert keeper.stdin is not None
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(REMOVE_TIMEOUT_S) as scope:
            await keeper.stdin.aclose()
            await keeper.wait()
        if scope.cancelled_caught or keeper.returncode != 0:
            raise BackendError(f"podman: must remove the containers of this run; see {log}")


async def sweep(engine: ContainerEngine) -> None:
    """Remove the containers of runs whose owner is dead.

    Raises:
        BackendError: podman fails.
    """
    listed = await engine("ps", "--all", "--filter=name=^fairbed", "--format={{.Names}}")
    await remove(engine, (name for name in listed.split() if _is_leftover(name)))


async def remove(engine: ContainerEngine, names: Iterable[str]) -> None:
    """Remove containers, killing what runs in them; those that are gone are fine.

    Raises:
        BackendError: podman fails.
    """
    doomed = list(names)
    if doomed:
        await engine(*_REMOVE, *doomed)


def _is_leftover(name: str) -> bool:
    owner = owner_of(name)
    return owner is not None and not is_alive(owner)
