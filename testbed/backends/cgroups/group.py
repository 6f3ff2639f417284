"""The control groups of one device: made, limited, looked at, emptied and removed."""

import os
from dataclasses import dataclass
from pathlib import Path

from fairbed.testbed.backends.cgroups.files import CgroupError, read, read_fields, write_checked
from fairbed.testbed.backends.cgroups.places import WHAT_TO_DO, CgroupPlaces
from fairbed.testbed.backends.cgroups.quota import Quota
from fairbed.testbed.backends.cgroups.removal import lock_group, remove_folders
from fairbed.testbed.backends.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """What the processes of a group have had since it was made."""

    cpu_s: float
    throttled_s: float
    """At least one of them was held back by the quota."""
    waiting_s: float | None
    """At least one of them was ready to run and did not, whatever the reason; None is unknown."""
    memory_kills: int
    """Processes killed because the group's memory was full."""

    @property
    def contended_s(self) -> float | None:
        """Ready to run and allowed to, but this machine was busy; None is unknown.

        Pressure counts what the quota holds back too: 1559 ms against 1548 ms throttled on a
        nearly idle machine.
        """
        return None if self.waiting_s is None else max(0.0, self.waiting_s - self.throttled_s)


class Group:
    """One device's group in every hierarchy.

    Args:
        places: Where groups can be made.
        name: Of the group in each of them; unlike any other on this machine.
    """

    def __init__(self, places: CgroupPlaces, name: str) -> None:
        self._folders = [folder / name for folder in places.folders]
        self._cpu, self._cpu_version = places.cpu.folder / name, places.cpu.version
        self._memory, self._memory_version = places.memory.folder / name, places.memory.version
        self._accounting = places.accounting / name
        self._unified = None if places.unified is None else places.unified / name
        self._quota = Quota(self._cpu, self._cpu_version)
        self._lock: int | None = None
        """Descriptor that keeps others from sweeping the group."""

    def sandbox(self) -> Sandbox:
        """Return what a process needs to go in."""
        return Sandbox(
            procs=tuple(str(folder / "cgroup.procs") for folder in self._folders),
            quota_folder=str(self._cpu),
            quota_version=self._cpu_version,
        )

    def make(self) -> None:
        """Make the group; it limits nothing yet, and is ours as long as this process lives.

        Raises:
            CgroupError: It cannot be made; nothing is left of it.
        """
        made: list[Path] = []
        for folder in self._folders:
            try:
                folder.mkdir()
            except OSError as exc:
                self._end(made)
                raise CgroupError(
                    f"{folder}: must be possible to make, got: {exc.strerror}; {WHAT_TO_DO}"
                ) from exc
            made.append(folder)
            if self._lock is None:  # one holds all that have its name
                self._lock = lock_group(folder)

    def limit_cpu(self, share: float | None) -> None:
        """Give the group so many cores from now on; None is all there are.

        Raises:
            ValueError: The share is less than the kernel can give.
            CgroupError: The kernel refused.
        """
        self._quota.set(share)

    def limit_memory(self, n_bytes: int) -> None:
        """Limit the memory of the group, without swap; a process that needs more is killed.

        Raises:
            CgroupError: The kernel refused.
        """
        pages = n_bytes // os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PAGE_SIZE")
        if self._memory_version == 2:
            write_checked(self._memory / "memory.max", str(pages))
            if (self._memory / "memory.swap.max").exists():  # swap may be compiled out
                write_checked(self._memory / "memory.swap.max", "0")
            return
        write_checked(self._memory / "memory.limit_in_bytes", str(pages))
        if (self._memory / "memory.memsw.limit_in_bytes").exists():
            write_checked(self._memory / "memory.memsw.limit_in_bytes", str(pages))

    def usage(self) -> GroupUsage:
        """Return what the processes have had.

        Raises:
            CgroupError: The group is gone.
        """
        stat = read_fields(self._cpu / "cpu.stat")
        if self._cpu_version == 2:
            cpu_s, throttled_s = stat["usage_usec"] * 1e-6, stat["throttled_usec"] * 1e-6
        else:
            cpu_s = int(read(self._accounting / "cpuacct.usage")) * 1e-9
            throttled_s = stat["throttled_time"] * 1e-9
        events = "memory.events" if self._memory_version == 2 else "memory.oom_control"
        return GroupUsage(
            cpu_s=cpu_s,
            throttled_s=throttled_s,
            waiting_s=self._pressure_s(),
            memory_kills=read_fields(self._memory / events).get("oom_kill", 0),
        )

    def remove(self) -> None:
        """Kill what is left inside, and remove the group.

        Raises:
            CgroupError: A process in it cannot be killed.
        """
        self._quota.close()
        self._end(self._folders)

    def _end(self, folders: list[Path]) -> None:
        try:
            remove_folders(folders)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _pressure_s(self) -> float | None:
        if self._unified is None:
            return None
        try:
            some = read(self._unified / "cpu.pressure").splitlines()[0]
        except CgroupError:  # the kernel was started without
            return None
        return int(some.rpartition("total=")[2]) * 1e-6
