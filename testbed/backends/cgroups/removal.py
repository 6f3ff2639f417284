"""Ends what is in control groups, and removes them: our own, and those that dead runs have left."""

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
"""For killed processes to be gone."""

POLL_S = 1e-3


def remove_folders(folders: list[Path], within_s: float = END_S) -> None:
    """Kill everything in groups and remove them; those that are gone already are fine.

    Raises:
        CgroupError: A process in one cannot be killed.
    """
    deadline = time.monotonic() + within_s
    left = [folder for folder in folders if folder.exists()]
    while left:
        for folder in left:
            _kill(folder)
            with suppress(OSError):  # the dead have not left yet
                folder.rmdir()
        left = [folder for folder in left if folder.exists()]
        if left and time.monotonic() >= deadline:
            raise CgroupError(
                f"{left[0]}: must be empty {within_s:g} s after all in it were killed, got "
                f"processes {list(members(left[0]))}; see what they wait for"
            )
        if left:
            time.sleep(POLL_S)


def members(folder: Path) -> Iterator[int]:
    """Yield the processes of a group that this process can see."""
    with suppress(CgroupError):
        for line in read(folder / "cgroup.procs").splitlines():
            if int(line) > 0:  # 0 is one of another process namespace
                yield int(line)


def _kill(folder: Path) -> None:
    for pid in members(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lock_group(folder: Path) -> int:
    """Keep others from sweeping a group; return the descriptor that does, until it is closed.

    Who sweeps may have another /run than we, and see no owner of ours there. The tree of groups is
    the same for all, so it is the group itself that is locked.

    Raises:
        CgroupError: The group is gone.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise CgroupError(f"{folder}: must stay until we remove it, got: {exc.strerror}") from exc
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for one who just looks, microseconds
    return descriptor


def is_locked(folder: Path) -> bool:
    """Return whether the process that made a group lives."""
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
    """Remove groups that were left behind, wherever they were made; return their names.

    What cannot be removed is left alone: its processes are in another process namespace. So is what
    somebody holds.

    Args:
        places: Where groups are made.
        is_leftover: Tells of the name of a group whether it is one of ours without an owner.
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
