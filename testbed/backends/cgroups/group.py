"""The control groups of one device: make, limit, measure and remove them.

    version 1    PLACE/NAME              limits and processes
    version 2    PLACE/NAME              limits
                 PLACE/NAME/processes    processes

Version 2 needs two levels: the kernel removes no controller from PLACE while NAME hands it on to a
group below. Otherwise systemd would remove the controller, and with it the limits, when it ends the
last service for which it has enabled the controller.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from fairbed.device_agent.cgroup import Version
from fairbed.testbed.backends.cgroups.contention import (
    GroupCounters,
    MeanShare,
    QuotaContention,
    new_counters,
)
from fairbed.testbed.backends.cgroups.files import CgroupError, read, read_fields, write_checked
from fairbed.testbed.backends.cgroups.places import WHAT_TO_DO, CgroupPlaces, enable
from fairbed.testbed.backends.cgroups.quota import Quota
from fairbed.testbed.backends.cgroups.removal import lock_group, remove_folders
from fairbed.testbed.backends.sandbox import Sandbox
from fairbed.testbed.host.thread_times import HAS_WAITS, ThreadWindows

INNER = "processes"
"""Name of the group with the processes, in version 2."""

_THROTTLED: dict[Version, str] = {1: "throttled_time", 2: "throttled_usec"}
"""Field of `cpu.stat` that exists only where the processor is limited; ns and us."""


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """Usage of the processes of a group since it was made."""

    cpu_s: float
    throttled_s: float
    """Time for which the quota stopped the processes, mean of the processors that they used."""
    contended_s: float | None
    """Time for which they were ready and allowed to run, but this machine was busy; None is
    unknown. Frequent readings are more exact: `QuotaContention`."""
    memory_kills: int
    """Processes killed because the group's memory was full."""


class Group:
    """The group of one device in every hierarchy.

    Args:
        places: Folders in which groups can be made.
        name: Name of the group in each of them; unique on this machine.
    """

    def __init__(self, places: CgroupPlaces, name: str) -> None:
        self._folders = [folder / name for folder in places.folders]
        self._cpu, self._cpu_version = places.cpu.folder / name, places.cpu.version
        self._memory, self._memory_version = places.memory.folder / name, places.memory.version
        self._accounting = places.accounting / name
        self._unified = None if places.unified is None else places.unified / name
        self._handed_on = places.unified_controllers
        self._inner: Path | None = None
        """Has the processes if version 2 limits them."""
        if self._unified is not None and self._handed_on:
            self._inner = self._unified / INNER
        self._quota = Quota(self._cpu, self._cpu_version)
        self._threads = ThreadWindows()
        now = time.monotonic()
        self._share = MeanShare(now)
        self._contention = QuotaContention(new_counters(now), len(os.sched_getaffinity(0)))
        self._lock: int | None = None
        """Descriptor of the lock that keeps other processes from removing the group."""

    def sandbox(self) -> Sandbox:
        """Return the sandbox by which a process enters the group."""
        return Sandbox(
            procs=tuple(str(self._with_processes(each) / "cgroup.procs") for each in self._folders),
            quota_folder=str(self._cpu),
            quota_version=self._cpu_version,
        )

    def make(self) -> None:
        """Make the group, without limits; this process owns it as long as it is alive.

        Raises:
            CgroupError: The group cannot be made; its parts are removed.
        """
        made: list[Path] = []
        for folder in self._folders:
            try:
                folder.mkdir()
            except OSError as exc:
                self._end(made)
                raise CgroupError(
                    f"{folder}: cannot be made, {exc.strerror}; {WHAT_TO_DO}"
                ) from exc
            made.append(folder)
            if self._lock is None:  # one lock covers the groups of all hierarchies
                self._lock = lock_group(folder)
        if self._unified is not None and self._inner is not None:
            try:
                enable(self._unified, self._handed_on)
                self._inner.mkdir()
            except (CgroupError, OSError) as exc:
                self._end(made)
                raise CgroupError(f"{self._inner}: cannot be made, {exc}; {WHAT_TO_DO}") from exc

    def limit_cpu(self, share: float | None) -> None:
        """Limit the group to a share, in cores; None is not limited.

        Raises:
            ValueError: The share is below the kernel's minimum.
            CgroupError: The kernel rejected the limit.
        """
        quota = self._quota.set(share)
        self._share.set(time.monotonic(), quota)

    def limit_memory(self, n_bytes: int) -> None:
        """Limit the memory of the group, without swap; a process that needs more is killed.

        Raises:
            CgroupError: The kernel rejected the limit.
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
        """Return the usage of the processes.

        Raises:
            CgroupError: The group does not exist, or its limit has been removed.
        """
        now = self._counters()
        self._contention.add(now, *self._share.take(now.now))
        events = "memory.events" if self._memory_version == 2 else "memory.oom_control"
        return GroupUsage(
            cpu_s=now.cpu_s,
            throttled_s=self._contention.throttled_s,
            contended_s=self._contention.contended_s,
            memory_kills=read_fields(self._memory / events).get("oom_kill", 0),
        )

    def check_limit(self) -> None:
        """Check that the processor is still limited.

        Raises:
            CgroupError: The group does not exist, or its limit has been removed.
        """
        self._cpu_stat()

    def _cpu_stat(self) -> dict[str, int]:
        stat = read_fields(self._cpu / "cpu.stat")
        if _THROTTLED[self._cpu_version] not in stat:
            raise CgroupError(
                f"{self._cpu}: must limit the processor, but the limit is gone; another program "
                "has changed the control groups, so find it, then start again"
            )
        return stat

    def _counters(self) -> GroupCounters:
        stat, unit_s = self._cpu_stat(), 1e-6 if self._cpu_version == 2 else 1e-9
        cpu_s = (
            stat["usage_usec"] * 1e-6
            if self._cpu_version == 2
            else int(read(self._accounting / "cpuacct.usage")) * 1e-9
        )
        listing = "cgroup.threads" if self._cpu_version == 2 else "tasks"
        tasks = read(self._with_processes(self._cpu) / listing).split()
        return GroupCounters(
            now=time.monotonic(),
            cpu_s=cpu_s,
            throttled_s=stat[_THROTTLED[self._cpu_version]] * unit_s,
            periods=stat["nr_periods"],
            pressure_s=self._pressure_s(),
            threads=self._threads.update(f"/proc/{task}" for task in tasks) if HAS_WAITS else None,
        )

    def remove(self) -> None:
        """Kill the processes inside, and remove the group.

        Raises:
            CgroupError: A process in it cannot be killed.
        """
        self._quota.close()
        self._end(self._folders)

    def _with_processes(self, folder: Path) -> Path:
        """Return the group that has the processes of one of `_folders`."""
        return folder if self._inner is None or folder != self._unified else self._inner

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
            lines = read(self._unified / "cpu.pressure").splitlines()
        except CgroupError:  # the kernel was started without pressure counters
            return None
        # `full`, the last line, has no waits for threads of the group itself; before Linux 5.13
        # there is only `some`
        return int(lines[-1].rpartition("total=")[2]) * 1e-6
