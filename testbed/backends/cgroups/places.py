"""Finds the folders in which control groups of devices can be made.

Each controller belongs to version 1 or version 2 of control groups. Both may be mounted, so a
mounted version 2 may have no controller. New groups are made below the group of this process, so
that its limits apply to them:

    version 1    below the group of this process for that controller
    version 2    below the nearest ancestor that delegates its controllers; a group with processes,
                 as that of this process usually is, cannot delegate (except the root)

Version 2 without any controller still has pressure counters.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from fairbed.device_agent.cgroup import Version, own_groups
from fairbed.testbed.backends.cgroups.files import CgroupError, read, write

Controller: TypeAlias = Literal["cpu", "cpuacct", "memory"]

LIMITED: tuple[Controller, ...] = ("cpu", "memory")
"""Controllers that limit devices; both are required."""

WHAT_TO_DO = 'run as root, or use emulation.backend = "process"'


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
    def folders(self) -> list[Path]:
        """All folders, each once."""
        unified = [] if self.unified is None else [self.unified]
        return list(dict.fromkeys([self.cpu.folder, self.memory.folder, self.accounting, *unified]))


def find_places(root: Path = Path("/")) -> CgroupPlaces:
    """Return where groups can be made, by the mounts; only a trial shows whether it works.

    Args:
        root: Root of the file system.

    Raises:
        CgroupError: A controller is not mounted, or not delegated to this process.
    """
    v1 = {name: _ancestry(root, name, 1) for name in ("cpu", "cpuacct", "memory")}
    v2 = _ancestry(root, "cpu", 2)
    missing = [name for name in LIMITED if not v1[name]]
    unified = _nearest_delegating(v2, missing)
    if missing and unified is None:
        raise CgroupError(
            f"control groups: must delegate {' and '.join(missing)} to this process, but "
            f"{f'none does from {v2[-1]} up' if v2 else 'none are mounted'}; {WHAT_TO_DO}"
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


def _nearest_delegating(ancestry: list[Path], controllers: Sequence[Controller]) -> Path | None:
    """Return the nearest group, from the own one up, that delegates the controllers."""
    needed = set(controllers)
    if ancestry and needed - _enabled(ancestry[-1]):
        _enable(ancestry[-1], controllers)
    for folder in reversed(ancestry):
        if needed <= _enabled(folder) and os.access(folder, os.W_OK):
            return folder
    return None


def _enabled(folder: Path) -> set[str]:
    try:
        return set(read(folder / "cgroup.subtree_control").split())
    except CgroupError:
        return set()


def _enable(folder: Path, controllers: Sequence[Controller]) -> None:
    try:
        write(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))
    except CgroupError:
        return  # it contains processes, or belongs to another user
