"""CPU quota and memory limit of this process by its control groups, versions 1 and 2.

psutil reports the CPU affinity but no quota, and in a container the memory of the host (measured).
A parent group may have a lower limit, so every ancestor is read. A missing or malformed file
counts as no limit.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Version: TypeAlias = Literal[1, 2]

_NO_MEMORY_LIMIT = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63."""

MAX_BYTES = 1 << 20
"""Of a small file; the longest here, /proc/self/mounts, has tens of kilobytes on a busy host."""

PART_BYTES = 1 << 16
"""Read at once. Python allocates as much before each reading, and a sensor is read for ever."""


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """CPU quota of one control group."""

    cores: float
    folder: Path
    version: Version

    def used_s(self) -> float | None:
        """Return the CPU seconds used by all processes of the group; None if unknown."""
        if self.version == 2:
            for line in (read_text(self.folder / "cpu.stat") or "").splitlines():
                if line.startswith("usage_usec "):
                    return _number(line.split()[1], 1e-6)
            return None
        text = read_text(self.folder / "cpuacct.usage")
        return None if text is None else _number(text, 1e-9)


def cpu_quotas(root: Path) -> list[CpuQuota]:
    """Return all CPU quotas of this process."""
    found = []
    for version, folder in own_groups(root, "cpu"):
        cores = _quota_v2(folder) if version == 2 else _quota_v1(folder)
        if cores is not None:
            found.append(CpuQuota(cores=cores, folder=folder, version=version))
    return found


def memory_limit_bytes(root: Path) -> int | None:
    """Return the lowest memory limit of this process; None if there is none."""
    limits = []
    for version, folder in own_groups(root, "memory"):
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        limit = _number(read_text(folder / name) or "max", 1.0)
        if limit is not None and 0 < limit < _NO_MEMORY_LIMIT:
            limits.append(int(limit))
    return min(limits, default=None)


def read_text(path: Path) -> str | None:
    """Return the stripped text of a small file, or None if it cannot be read.

    A sensor that is switched off reports EAGAIN, as thermal zones of Jetson boards do. Python's
    buffered files raise a TypeError for that, `os.read` an OSError.
    """
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    found = b""
    try:
        while part := os.read(file, min(PART_BYTES, MAX_BYTES - len(found))):
            found += part
    except OSError:
        return None
    finally:
        os.close(file)
    return found.decode("utf-8", "replace").strip("\0 \n\t")


def own_groups(root: Path, controller: str) -> Iterator[tuple[Version, Path]]:
    """Yield the version and folder of this process's group and its ancestors, per hierarchy."""
    paths: dict[Version, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if parts[0] == "0" and not parts[1]:
            paths[2] = parts[2]
        elif controller in parts[1].split(","):
            paths[1] = parts[2]
    for version, mount in _mounts(root, controller):
        path = paths.get(version)
        if path is None:
            continue
        # In a container the path may be that of the host, while the mount begins at our own group:
        # the mount point is always read, and folders that do not exist are skipped.
        folder = mount
        yield version, folder
        for part in path.strip("/").split("/"):
            folder = folder / part
            if part and part != ".." and folder.is_dir():
                yield version, folder


def _mounts(root: Path, controller: str) -> Iterator[tuple[Version, Path]]:
    for line in (read_text(root / "proc/self/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        folder = root / fields[1].lstrip("/")
        if fields[2] == "cgroup2":
            yield 2, folder
        elif fields[2] == "cgroup" and controller in fields[3].split(","):
            yield 1, folder


def _quota_v2(folder: Path) -> float | None:
    fields = (read_text(folder / "cpu.max") or "").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return _ratio(fields[0], fields[1])


def _quota_v1(folder: Path) -> float | None:
    quota = read_text(folder / "cpu.cfs_quota_us")
    period = read_text(folder / "cpu.cfs_period_us")
    return None if quota is None or period is None else _ratio(quota, period)


def _ratio(above: str, below: str) -> float | None:
    quota, period = _number(above, 1.0), _number(below, 1.0)
    if quota is None or period is None or quota <= 0.0 or period <= 0.0:
        return None
    return quota / period


def _number(text: str, unit: float) -> float | None:
    try:
        return float(text) * unit
    except ValueError:
        return None
