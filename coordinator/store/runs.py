"""Finds runs: all below a root folder, or the one that a reference names."""

import os
from dataclasses import dataclass
from pathlib import Path

from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.errors import OldStoreError, RunNotFoundError, StoreError
from fairbed.coordinator.store.reader import RunInfo, RunReader

LATEST = "latest"
SHOWN = 8
"""Runs listed in the message about an unknown one."""


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A folder whose store cannot be read."""

    folder: Path
    status: str
    """older format, or unreadable."""
    problem: str
    """One line."""


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs below a root folder."""

    readable: tuple[RunInfo, ...]
    """Newest first."""
    unreadable: tuple[UnreadableRun, ...]
    """Sorted by folder name."""


def find_runs(root: Path) -> Runs:
    """Read every run below `root`; a missing folder holds none."""
    readable: list[RunInfo] = []
    unreadable: list[UnreadableRun] = []
    for path in sorted(root.glob(f"*/{DATABASE}")):
        try:
            with RunReader(path.parent) as reader:
                readable.append(reader.run())
        except StoreError as exc:
            status = "older format" if isinstance(exc, OldStoreError) else "unreadable"
            unreadable.append(UnreadableRun(path.parent, status, str(exc)))
    readable.sort(key=lambda info: (info.row.created, info.run_id), reverse=True)
    return Runs(tuple(readable), tuple(unreadable))


def list_runs(root: Path) -> list[RunInfo]:
    """Return the readable runs below `root`, newest first."""
    return list(find_runs(root).readable)


def resolve_run(root: Path, ref: str) -> Path:
    """Return the folder of the run that `ref` names.

    Args:
        root: Folder of all runs.
        ref: `latest`, a run id, a prefix of one run id only, or a path.

    Raises:
        RunNotFoundError: No run matches, or more than one; the message lists them.
    """
    folders = root / ref, Path(ref)
    for folder in folders:
        if os.path.isfile(folder / DATABASE):
            return folder
    infos = list_runs(root)
    if ref == LATEST and infos:
        return infos[0].folder
    matches = [info for info in infos if info.run_id.startswith(ref) and ref]
    if len(matches) == 1:
        return matches[0].folder
    for folder in folders:
        if ref and not matches and os.path.isdir(folder):
            raise RunNotFoundError(
                f"{folder}: must be the folder of a run, got one without {DATABASE}; `fairbed "
                "runs` lists the runs"
            )
    rule = "must name one run" if matches else "must name a run"
    found = matches or infos
    names = ", ".join(info.run_id for info in found[:SHOWN]) or "none yet"
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise RunNotFoundError(f"{root}: {rule}, got {ref!r}; there are: {names}{more}")
