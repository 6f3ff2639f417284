"""The control groups of a fleet: one set per device, made and removed together."""

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
from fairbed.testbed.host.slow_steps import named_if_slow

AGENT_MEMORY_BYTES = 96 << 20
"""Smallest memory limit of a device: an agent needs up to 76 MiB (`fairbed bench agent-memory`)."""

CHECK_S = 1.0
"""Time between two checks of the limits of a fleet, seconds: a check takes 10 us per device."""

_TEMPORARY = re.compile(r"fairbed-(\d+)-[0-9a-f]+")


@asynccontextmanager
async def open_groups(
    fleet: Mapping[str, DeviceSpec], names: Mapping[str, str]
) -> AsyncIterator[dict[str, Group]]:
    """Make the groups of a fleet; leaving kills all processes inside and removes the groups.

    Leftovers of dead runs are removed first.

    Args:
        fleet: The devices by name.
        names: Name of the group of each device.

    Raises:
        BackendError: A group cannot be made or limited.
    """
    places = await anyio.to_thread.run_sync(find_places)
    with named_if_slow("the removal of control groups that killed runs left"):
        await anyio.to_thread.run_sync(sweep, places, is_leftover)
    groups = {name: Group(places, names[name]) for name in fleet}
    try:
        await anyio.to_thread.run_sync(_make, groups, fleet)
        yield groups
    finally:
        with anyio.CancelScope(shield=True):  # bounded: END_S per group
            await anyio.to_thread.run_sync(_remove, groups)


async def watch_limits(groups: Mapping[str, Group]) -> None:
    """Check the limits of a fleet again and again, until cancelled.

    Raises:
        CgroupError: A limit has been removed: the device would be as fast as this machine.
    """
    while True:
        await anyio.sleep(CHECK_S)
        for group in groups.values():
            group.check_limit()


def temporary_name() -> str:
    """Return a new name for a group that this process makes and removes again."""
    return f"fairbed-{os.getpid()}-{secrets.token_hex(4)}"


def is_leftover(name: str) -> bool:
    """Return whether a group belongs to a run or a process of Fairbed that has ended."""
    owner, maker = owner_of(name), _TEMPORARY.fullmatch(name)
    if owner is not None:
        return not is_alive(owner)
    return maker is not None and not Path("/proc", maker[1]).exists()


def limit(group: Group, name: str, spec: DeviceSpec, speed: float | None) -> None:
    """Limit the speed and the memory of a device.

    Raises:
        BackendError: The kernel rejected a limit.
    """
    limit_speed(group, name, speed)
    if spec.device is not None:
        own_bytes = spec.device.memory_bytes - spec.shared_bytes
        group.limit_memory(max(own_bytes, AGENT_MEMORY_BYTES))


def limit_speed(group: Group, name: str, speed: float | None) -> None:
    """Limit the speed of a device.

    Raises:
        BackendError: The speed is below the kernel's minimum, or the kernel rejected it.
    """
    check_share(name, speed)
    group.limit_cpu(speed)


def check_share(name: str, speed: float | None) -> None:
    """Check that a device can have a speed.

    Raises:
        BackendError: The speed is below the kernel's minimum.
    """
    try:
        checked_share(1.0 if speed is None else speed)
    except ValueError as exc:
        raise BackendError(f"{name}: {exc}") from exc


def try_groups() -> None:
    """Make a group, limit it, and remove it again.

    Raises:
        CgroupError: Control groups do not work on this machine.
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
        except CgroupError as exc:  # continue with the others
            problem = problem or exc
    if problem is not None:
        raise problem
