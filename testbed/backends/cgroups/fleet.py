"""The control groups of a fleet: one set for every device, made together and removed together."""

import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from fairbed.testbed.backends.base import DeviceSpec
from fairbed.testbed.backends.cgroups.files import CgroupError
from fairbed.testbed.backends.cgroups.group import Group
from fairbed.testbed.backends.cgroups.places import find_places
from fairbed.testbed.backends.cgroups.removal import sweep
from fairbed.testbed.backends.network.owner import is_alive
from fairbed.testbed.backends.network.plan.names import owner_of
from fairbed.testbed.emulation.quota import checked_share
from fairbed.testbed.errors import BackendError

AGENT_MEMORY_BYTES = 96 << 20
"""A device has at least this: an agent takes 76 MiB at its peak (`fairbed bench agent-memory`)."""

_TEMPORARY = re.compile(r"fairbed-(\d+)-[0-9a-f]+")


@asynccontextmanager
async def open_groups(
    fleet: Mapping[str, DeviceSpec], names: Mapping[str, str]
) -> AsyncIterator[dict[str, Group]]:
    """Make the groups of a fleet; leaving kills what is inside and removes them.

    Groups that dead runs have left behind go first.

    Args:
        fleet: The devices by name.
        names: What the group of each is called.

    Raises:
        BackendError: A group cannot be made, or limited as the device wants.
    """
    places = await anyio.to_thread.run_sync(find_places)
    await anyio.to_thread.run_sync(sweep, places, is_leftover)
    groups = {name: Group(places, names[name]) for name in fleet}
    try:
        await anyio.to_thread.run_sync(_make, groups, fleet)
        yield groups
    finally:
        with anyio.CancelScope(shield=True):  # bounded: END_S for each that resists
            await anyio.to_thread.run_sync(_remove, groups)


def temporary_name() -> str:
    """Return a new name for a group that this process makes and removes again by itself."""
    return f"fairbed-{os.getpid()}-{secrets.token_hex(4)}"


def is_leftover(name: str) -> bool:
    """Return whether a group is of a run, or of a process, of ours that is dead."""
    owner, maker = owner_of(name), _TEMPORARY.fullmatch(name)
    if owner is not None:
        return not is_alive(owner)
    return maker is not None and not Path("/proc", maker[1]).exists()


def limit(group: Group, name: str, spec: DeviceSpec, speed: float | None) -> None:
    """Give a device its speed and its memory.

    Raises:
        BackendError: The kernel cannot do that.
    """
    limit_speed(group, name, speed)
    if spec.device is not None:
        group.limit_memory(max(spec.device.memory_bytes, AGENT_MEMORY_BYTES))


def limit_speed(group: Group, name: str, speed: float | None) -> None:
    """Give a device its speed.

    Raises:
        BackendError: The kernel cannot do that.
    """
    check_share(name, speed)
    group.limit_cpu(speed)


def check_share(name: str, speed: float | None) -> None:
    """See whether a device can have a speed.

    Raises:
        BackendError: It is less than the kernel can give.
    """
    try:
        checked_share(1.0 if speed is None else speed)
    except ValueError as exc:
        raise BackendError(f"{name}: {exc}") from exc


def try_groups() -> None:
    """Make a group, limit it, and remove it again.

    Raises:
        CgroupError: That is impossible here.
    """
    group = Group(find_places(), temporary_name())
    group.make()
    try:
        group.limit_cpu(0.5)
        group.limit_memory(AGENT_MEMORY_BYTES)
        group.usage()
    finally:
        group.remove()


def _make(groups: Mapping[str, Group], fleet: Mapping[str, DeviceSpec]) -> None:
    for name, group in groups.items():
        device = fleet[name].device
        group.make()
        limit(group, name, fleet[name], None if device is None else device.speed_ratio)


def _remove(groups: Mapping[str, Group]) -> None:
    problem: CgroupError | None = None
    for group in groups.values():
        try:
            group.remove()
        except CgroupError as exc:  # the others go all the same
            problem = problem or exc
    if problem is not None:
        raise problem
