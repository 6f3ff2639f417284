"""Give back what a run has used; by name, so that it works after any death of its owner.

In this order: processes inside, because a namespace lives as long as one of them; our link on the
host, which takes its address and its route with it; namespaces, with all links between them; the
claim.
"""

import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from fairbed.testbed.backends.network.enter import identity
from fairbed.testbed.backends.network.owner import is_alive, machine_lock, owners, remove_claim
from fairbed.testbed.backends.network.plan.names import NetworkNames, owner_of
from fairbed.testbed.errors import BackendError

NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps them."""

DEATH_TIMEOUT_S = 10.0
"""For killed processes to be gone."""

POLL_S = 0.01

IP_TIMEOUT_S = 60.0


async def sweep() -> list[str]:
    """Remove what is left of runs whose owner is dead; return their stems.

    Runs that live are left alone, also those of other users of this machine.

    Raises:
        BackendError: Something cannot be removed.
    """
    async with machine_lock():
        return await sweep_alone()


async def sweep_alone() -> list[str]:
    """Do what `sweep` does, for a caller that holds the lock."""
    namespaces = (owner_of(path.name) for path in _namespaces())
    known = owners() | {names for names in namespaces if names is not None}
    dead = sorted((names for names in known if not is_alive(names)), key=lambda names: names.stem)
    for names in dead:
        await remove(names)
    return [names.stem for names in dead]


async def remove(names: NetworkNames) -> None:
    """Remove all that a run has used; what is not there is no error.

    Raises:
        BackendError: Something cannot be removed.
    """
    mine = [path for path in _namespaces() if owner_of(path.name) == names]
    with anyio.CancelScope(shield=True):  # bounded: DEATH_TIMEOUT_S, IP_TIMEOUT_S
        await _kill_inside(mine)
        lines = [f"link del {names.host_link}", *(f"netns del {path.name}" for path in mine)]
        left = await run_sync(_run_ip, lines)
    if left:
        raise BackendError(f"{names.stem}: all of it must go, got: {'; '.join(left)}")
    remove_claim(names)


def processes_inside(namespaces: Iterable[Path]) -> list[int]:
    """Return the ids of processes that live in any of these namespaces."""
    inside = set()
    for path in namespaces:
        with suppress(FileNotFoundError):
            inside.add(identity(path))
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or is not ours to look at
                if identity(Path(entry.path) / "ns" / "net") in inside:
                    found.append(int(entry.name))
    return found


async def _kill_inside(namespaces: list[Path]) -> None:
    """Kill until no process is left: a killed one may just have started another."""
    with anyio.move_on_after(DEATH_TIMEOUT_S) as scope:
        while pids := processes_inside(namespaces):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await anyio.sleep(POLL_S)
    if scope.cancelled_caught:
        raise BackendError(
            f"{namespaces[0].name}: processes inside must die within {DEATH_TIMEOUT_S:.0f} s of "
            f"SIGKILL, got {pids} alive; see what they wait for: ps -o pid,stat,wchan,cmd"
        )


def _namespaces() -> list[Path]:
    try:
        return sorted(NAMESPACES.iterdir())
    except FileNotFoundError:
        return []


def _run_ip(lines: list[str]) -> list[str]:
    """Run lines in our own namespace; return complaints, but for what was not there."""
    done = subprocess.run(
        ["ip", "-force", "-batch", "-"],
        input="\n".join([*lines, ""]),
        capture_output=True,
        text=True,
        timeout=IP_TIMEOUT_S,
        check=False,
    )
    return [
        line
        for line in done.stderr.splitlines()
        if not line.startswith("Command failed")
        and "Cannot find device" not in line
        and "No such file" not in line
    ]
