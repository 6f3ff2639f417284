"""Where on this machine the control groups of devices can be made, found by looking and trying.

Each controller lives in version 1 or in version 2 of control groups, and both may be mounted at
once, so a mounted version 2 is not enough: it may own no controller at all. New groups go below
our own one, so that they stay inside every limit that binds us:

    version 1    below our own group of that controller
    version 2    below the nearest group of our ancestry that hands its controllers on: one that
                 holds processes, as our own usually does, cannot (except the root)

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
"""A device is limited in both, or it is not started."""

WHAT_TO_DO = 'run as root, or use emulation.backend = "process"'


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which groups can be made."""

    version: Version
    folder: Path


@dataclass(frozen=True, slots=True)
class CgroupPlaces:
    """Where to make groups, for each purpose; several may be the same folder."""

    cpu: Place
    memory: Place
    accounting: Path
    """Where processor time is counted: `cpuacct` in version 1."""
    unified: Path | None
    """Version 2, for pressure; None where it is not mounted."""
    tops: tuple[Path, ...]
    """Mount points of all of these."""

    @property
    def folders(self) -> list[Path]:
        """Each of the folders once."""
        unified = [] if self.unified is None else [self.unified]
        return list(dict.fromkeys([self.cpu.folder, self.memory.folder, self.accounting, *unified]))


def find_places(root: Path = Path("/")) -> CgroupPlaces:
    """Return where groups can be made; only a trial shows whether they can.

    Args:
        root: Of the file system.

    Raises:
        CgroupError: A controller is mounted nowhere, or not handed on to us.
    """
    old = {name: _ancestry(root, name, 1) for name in ("cpu", "cpuacct", "memory")}
    new = _ancestry(root, "cpu", 2)
    missing = [name for name in LIMITED if not old[name]]
    unified = _nearest_delegating(new, missing)
    if missing and unified is None:
        raise CgroupError(
            f"control groups: must hand {' and '.join(missing)} on to us, but "
            f"{f'none does from {new[-1]} up' if new else 'none are mounted'}; {WHAT_TO_DO}"
        )
    cpu, memory = (_place(old[name], unified) for name in LIMITED)
    if cpu.version == 1 and not old["cpuacct"]:
        raise CgroupError(
            f"control groups: must count processor time, but cpuacct is not mounted; {WHAT_TO_DO}"
        )
    return CgroupPlaces(
        cpu=cpu,
        memory=memory,
        accounting=cpu.folder if cpu.version == 2 else old["cpuacct"][-1],
        unified=unified,
        tops=tuple(dict.fromkeys(groups[0] for groups in (*old.values(), new) if groups)),
    )


def _ancestry(root: Path, controller: Controller, version: Version) -> list[Path]:
    """Return the groups that hold us, from the mount point down to our own."""
    return [folder for found, folder in own_groups(root, controller) if found == version]


def _place(old: list[Path], unified: Path | None) -> Place:
    if old:
        return Place(1, old[-1])
    assert unified is not None
    return Place(2, unified)


def _nearest_delegating(ancestry: list[Path], controllers: Sequence[Controller]) -> Path | None:
    """Return the nearest group, from our own up, whose children have the controllers."""
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
        return  # it holds processes, or is not ours
