"""Kills the processes in control groups and removes the groups, also those of dead runs."""

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from fairbed.testbed.backends.cgroups.files import CgroupError, read
from fairbed.testbed.backends.cgroups.places import CgroupPlaces

END_S = 2.0
"""Longest wait for killed processes to end, seconds."""

POLL_S = 1e-3


def remove_folders(folders: list[Path], within_s: float = END_S) -> None:
    """Kill all processes in groups and remove the groups with those below; skip missing groups.

    Raises:
        CgroupError: A process in a group does not end.
    """
    deadline = time.monotonic() + within_s
    left = [Path(each) for folder in folders for each, _, _ in os.walk(folder, topdown=False)]
    while left:
        for folder in left:
            _kill(folder)
            with suppress(OSError):  # killed processes are still in the group
                folder.rmdir()
        left = [folder for folder in left if folder.exists()]
        if left and time.monotonic() >= deadline:
            raise CgroupError(
                f"{left[0]}: must be empty {within_s:g} s after its processes were killed, got "
                f"processes {list(members(left[0]))}; see what they wait for: "
                "ps -o pid,stat,wchan,cmd"
            )
        if left:
            time.sleep(POLL_S)


def members(folder: Path) -> Iterator[int]:
    """Yield the processes of a group that this process can see."""
    with suppress(CgroupError):
        for line in read(folder / "cgroup.procs").splitlines():
            if int(line) > 0:  # 0 is a process of another PID namespace
                yield int(line)


def _kill(folder: Path) -> None:
    for pid in members(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lock_group(folder: Path) -> int:
    """Lock a group against removal by other processes; return the descriptor of the lock.

    Closing the descriptor frees the lock. The group itself is locked, because another process may
    have another /run, without the lock file of the owner, but it has the same tree of groups.

    Raises:
        CgroupError: The group does not exist.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise CgroupError(f"{folder}: must exist to be locked, got: {exc.strerror}") from exc
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for `is_locked` of a process, microseconds
    return descriptor


def is_locked(folder: Path) -> bool:
    """Return whether the process that made a group is alive."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def sweep(places: CgroupPlaces, is_leftover: Callable[[str], bool]) -> list[str]:
    """Remove the leftovers of dead runs in all hierarchies; return the names of the groups.

    Locked groups are skipped, and those with processes of another PID namespace, which cannot be
    killed.

    Args:
        places: The hierarchies.
        is_leftover: Returns whether a group of this name belongs to Fairbed and has no owner.
    """
    found: dict[str, list[Path]] = {}
    for top in places.tops:
        for parent, names, _ in os.walk(top):
            for name in names:
                if is_leftover(name):
                    found.setdefault(name, []).append(Path(parent, name))
    removed = []
    for name, folders in sorted(found.items()):
        if any(map(is_locked, folders)):
            continue
        with suppress(CgroupError):
            remove_folders(folders)
            removed.append(name)
    return removed
