"""Finds the folders in which control groups of devices can be made.

Each controller belongs to version 1 or version 2 of control groups. Both may be mounted, so a
mounted version 2 may have no controller. New groups are made below the group of this process, so
that its limits apply to them:

    version 1    below the group of this process for that controller
    version 2    below the nearest group, from that of this process up, that

                 1. is in the subtree that systemd has delegated to this service or scope, and
                    hands the controllers on, or can,
                 2. hands them on already,
                 3. can hand them on: root may then use what no service above it needs

A group with processes, as that of this process usually is, cannot hand controllers on (except the
root). Version 2 without any controller still has pressure counters.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from fairbed.device_agent.cgroup import Version, own_groups, read_text
from fairbed.testbed.backends.cgroups.files import CgroupError, read, write

Controller: TypeAlias = Literal["cpu", "cpuacct", "memory"]

LIMITED: tuple[Controller, ...] = ("cpu", "memory")
"""Controllers that limit devices; both are required."""

WHAT_TO_DO = 'run as root, or use emulation.backend = "process"'

USE_SCOPE = (
    "put `systemd-run --user --scope -p Delegate=yes` in front of the command, or use "
    'emulation.backend = "process"'
)
"""Remedy of a user: the groups of a login belong to root, those of a user's own services do not."""

_DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd marks a group that it leaves to the service inside."""

_ALL_USERS = ["0", "0", "4294967295"]
"""/proc/self/uid_map outside of user namespaces."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which groups can be made."""

    version: Version
    folder: Path


@dataclass(frozen=True, slots=True)
class CgroupPlaces:
    """Folders in which to make groups, by purpose; several may be the same folder."""

    cpu: Place
    memory: Place
    accounting: Path
    """For processor time: `cpuacct` in version 1."""
    unified: Path | None
    """For pressure counters, in version 2; None if it is not mounted."""
    tops: tuple[Path, ...]
    """Mount points of all hierarchies."""

    @property
    def unified_controllers(self) -> list[Controller]:
        """Controllers of version 2 that limit devices."""
        return [
            name
            for name, place in zip(LIMITED, (self.cpu, self.memory), strict=True)
            if place.version == 2
        ]

    @property
    def folders(self) -> list[Path]:
        """All folders, each once."""
        unified = [] if self.unified is None else [self.unified]
        return list(dict.fromkeys([self.cpu.folder, self.memory.folder, self.accounting, *unified]))


def is_delegated(folder: Path) -> bool:
    """Return whether systemd has delegated a group to the service or scope that it made it for."""
    for name in _DELEGATED:
        with suppress(OSError):  # no such attribute, or not for this user
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def find_places(
    root: Path = Path("/"), is_delegated: Callable[[Path], bool] = is_delegated
) -> CgroupPlaces:
    """Return where groups can be made, by the mounts; only a trial shows whether it works.

    Enables controllers where none of the groups above this process hands them on.

    Args:
        root: Root of the file system.
        is_delegated: Returns whether systemd has delegated a group.

    Raises:
        CgroupError: A controller is not mounted, or not delegated to this process.
    """
    v1 = {name: _ancestry(root, name, 1) for name in ("cpu", "cpuacct", "memory")}
    v2 = _ancestry(root, "cpu", 2)
    missing = [name for name in LIMITED if not v1[name]]
    unified = _nearest_delegating(v2, missing, is_delegated)
    if missing and unified is None:
        raise CgroupError(
            f"control groups: must delegate {' and '.join(missing)} to this process, but "
            f"{f'none does from {v2[-1]} up' if v2 else 'none are mounted'}; "
            f"{_what_to_do(root, v2, missing)}"
        )
    cpu, memory = (_place(v1[name], unified) for name in LIMITED)
    if cpu.version == 1 and not v1["cpuacct"]:
        raise CgroupError(
            f"control groups: must count processor time, but cpuacct is not mounted; {WHAT_TO_DO}"
        )
    return CgroupPlaces(
        cpu=cpu,
        memory=memory,
        accounting=cpu.folder if cpu.version == 2 else v1["cpuacct"][-1],
        unified=unified,
        tops=tuple(dict.fromkeys(groups[0] for groups in (*v1.values(), v2) if groups)),
    )


def _ancestry(root: Path, controller: Controller, version: Version) -> list[Path]:
    """Return the groups that contain this process, from the mount point to its own group."""
    return [folder for found, folder in own_groups(root, controller) if found == version]


def _place(v1: list[Path], unified: Path | None) -> Place:
    if v1:
        return Place(1, v1[-1])
    assert unified is not None
    return Place(2, unified)


def _nearest_delegating(
    ancestry: list[Path], controllers: Sequence[Controller], is_delegated: Callable[[Path], bool]
) -> Path | None:
    """Return the group below which to make those of devices: see the head of this module."""
    nearest_first, needed = ancestry[::-1], set(controllers)

    def is_usable(folder: Path) -> bool:
        return needed <= _enabled(folder) and os.access(folder, os.W_OK)

    boundary = next((at for at, folder in enumerate(nearest_first) if is_delegated(folder)), 0)
    for folder in nearest_first[: boundary + 1]:
        if is_usable(folder) or _enable(folder, controllers):
            return folder
    for folder in nearest_first:
        if is_usable(folder):
            return folder
    for folder in nearest_first:
        if _enable(folder, controllers):
            return folder
    return None


def _enabled(folder: Path) -> set[str]:
    try:
        return set(read(folder / "cgroup.subtree_control").split())
    except CgroupError:
        return set()


def _enable(folder: Path, controllers: Sequence[Controller]) -> bool:
    """Enable controllers for the groups below one; return whether the kernel accepted it.

    It refuses in a group with processes, in one that lacks a controller, and in that of another
    user.
    """
    try:
        enable(folder, controllers)
    except CgroupError:
        return False
    return True


def enable(folder: Path, controllers: Sequence[Controller]) -> None:
    """Enable controllers of version 2 for the groups below one.

    Raises:
        CgroupError: The kernel refused.
    """
    write(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))


def _what_to_do(root: Path, v2: list[Path], missing: Sequence[Controller]) -> str:
    """Return how this process can get control groups."""
    if not _is_root(root):
        return USE_SCOPE
    own = v2[-1] if v2 else None
    # A group with a type is not the root of the machine: this process is in a container.
    if own is not None and own == v2[0] and (own / "cgroup.type").exists():
        available = set((read_text(own / "cgroup.controllers") or "").split())
        if available >= set(missing):
            return (
                f"move the processes of this container into a group of their own: mkdir {own}/init;"
                f" for p in $(cat {own}/cgroup.procs); do echo $p > {own}/init/cgroup.procs; done"
            )
    return WHAT_TO_DO


def _is_root(root: Path) -> bool:
    """Return whether this process is root, and not only in a user namespace."""
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        name, _, user_ids = line.partition(":")
        if name == "Uid" and user_ids.split()[1] != "0":  # the effective one
            return False
    mapped = (read_text(root / "proc/self/uid_map") or "").split()
    return not mapped or mapped == _ALL_USERS
