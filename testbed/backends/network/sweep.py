"""Removes the network of a run by its names, which works however its owner ended.

The order is: processes inside, because they keep their namespace alive; the link of the host, with
its address and its route; the namespaces, with all links between them; the claim.
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
"""Folder in which `ip netns` keeps namespaces."""

DEATH_TIMEOUT_S = 10.0
"""Longest wait for killed processes to end, seconds."""

POLL_S = 0.01

IP_TIMEOUT_S = 60.0


async def sweep() -> list[str]:
    """Remove the leftovers of runs whose owner is dead; return the stems of these runs.

    Runs with a living owner are not touched, whatever user they belong to.

    Raises:
        BackendError: A leftover cannot be removed.
    """
    async with machine_lock():
        return await sweep_alone()


async def sweep_alone() -> list[str]:
    """Do the same as `sweep`, for a caller that has the machine lock."""
    namespaces = (owner_of(path.name) for path in _namespaces())
    known = owners() | {names for names in namespaces if names is not None}
    dead = sorted((names for names in known if not is_alive(names)), key=lambda names: names.stem)
    for names in dead:
        await remove(names)
    return [names.stem for names in dead]


async def remove(names: NetworkNames) -> None:
    """Remove everything that a run has made; parts that do not exist are skipped.

    Raises:
        BackendError: A part cannot be removed.
    """
    mine = [path for path in _namespaces() if owner_of(path.name) == names]
    with anyio.CancelScope(shield=True):  # bounded: DEATH_TIMEOUT_S, IP_TIMEOUT_S
        await _kill_inside(mine)
        lines = [f"link del {names.host_link}", *(f"netns del {path.name}" for path in mine)]
        left = await run_sync(_run_ip, lines)
    if left:
        raise BackendError(
            f"{names.stem}: must be removed completely, got: {'; '.join(left)}; "
            "remove the rest with ip link del and ip netns del"
        )
    remove_claim(names)


def processes_inside(namespaces: Iterable[Path]) -> list[int]:
    """Return the ids of the processes in any of these namespaces."""
    inside = set()
    for path in namespaces:
        with suppress(FileNotFoundError):
            inside.add(identity(path))
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or this user may not read it
                if identity(Path(entry.path) / "ns" / "net") in inside:
                    found.append(int(entry.name))
    return found


async def _kill_inside(namespaces: list[Path]) -> None:
    """Kill repeatedly until no process is left: one may start another before it is killed."""
    with anyio.move_on_after(DEATH_TIMEOUT_S) as scope:
        while pids := processes_inside(namespaces):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await anyio.sleep(POLL_S)
    if scope.cancelled_caught:
        raise BackendError(
            f"{namespaces[0].name}: processes inside must end within {DEATH_TIMEOUT_S:.0f} s of "
            f"SIGKILL, got {pids} alive; see what they wait for: ps -o pid,stat,wchan,cmd"
        )


def _namespaces() -> list[Path]:
    try:
        return sorted(NAMESPACES.iterdir())
    except FileNotFoundError:
        return []


def _run_ip(lines: list[str]) -> list[str]:
    """Run lines in the current namespace; return all errors except about missing objects."""
    done = subprocess.run(
        ["ip", "-force", "-batch", "-"],
        input="\n".join([*lines, ""]),
        capture_output=True,
        text=True,
        timeout=IP_TIMEOUT_S,
        check=False,
        encoding="utf-8",
        errors="replace",
    )
    return [
        line
        for line in done.stderr.splitlines()
        if not line.startswith("Command failed")
        and "Cannot find device" not in line
        and "No such file" not in line
    ]
