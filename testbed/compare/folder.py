"""The folder of a grid: a manifest of its cells, and a lock for one process at a time.

A cell is keyed by its experiment, which may not change, and by its other inputs, which may: a cell
whose inputs have changed is done again.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from fairbed.coordinator.store import Provenance, RunReader, StoreError
from fairbed.coordinator.store.connection import DATABASE, LOCK_FILE, RunLock
from fairbed.coordinator.store.errors import RunInUseError
from fairbed.testbed.compare.grid import RUNS, Fleet, Grid, TargetConfig
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.inputs import FAIRBED, differing, in_words

MANIFEST = "grid.json"
ARMS = "arms"
TUNING = "tuning"
"""Folder of the tuning runs, a grid of their own, which begins first."""
REPLACED = "replaced"
"""Folder of the last runs of cells that were done again."""


class GridManifest(Struct, frozen=True, kw_only=True):
    """Identifies the grid that the cells of a folder belong to."""

    grid: str
    """Hash of the other fields but the inputs: equal grids have equal hashes."""
    fleet: Fleet
    baseline: str
    target: TargetConfig
    primary: str | None = None
    """None in a folder of a version without a primary metric."""
    budget_metric: str | None = None
    contrasts: list[str] = msgspec.field(default_factory=list)
    """What each contrast declares."""
    cells: dict[str, dict[str, str]]
    """Hash of the experiment, by arm and seed."""
    inputs: dict[str, dict[str, str]]
    """Hash of each other input of the cells (`testbed.inputs`), by arm."""


InputsByArm: TypeAlias = Mapping[str, Mapping[str, str]]
"""Hash of each input, by arm."""


@dataclass(frozen=True, slots=True)
class GridFolder:
    """The folder of a grid, locked."""

    manifest: GridManifest
    redone: str
    """A line about cells that are done again; empty if none is."""


def manifest_of(grid: Grid, inputs: InputsByArm | None = None) -> GridManifest:
    """Return the manifest of a grid; without `inputs`, that of runs which exist."""
    cells: dict[str, dict[str, str]] = {}
    for cell in grid.cells():
        cells.setdefault(cell.arm.name, {})[str(cell.seed)] = cell.experiment.hash()
    metrics = (grid.primary, grid.budget_metric)
    cohorts = [arm.cohorts_of for arm in grid.arms]
    contrasts = [contrast.declared for contrast in grid.contrasts]
    content = (grid.fleet, grid.baseline, grid.target, metrics, cohorts, cells, contrasts)
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
    return GridManifest(
        grid=digest,
        fleet=grid.fleet,
        baseline=grid.baseline,
        target=grid.target,
        primary=grid.primary,
        budget_metric=grid.budget_metric,
        contrasts=contrasts,
        cells=cells,
        inputs=_with_those_of_leaders(grid, inputs or {}),
    )


def _with_those_of_leaders(grid: Grid, inputs: InputsByArm) -> dict[str, dict[str, str]]:
    """Return the inputs of each arm with those of the arm whose cohorts it has."""
    found = {name: dict(own) for name, own in inputs.items()}
    for arm in grid.arms:
        if arm.cohorts_of is not None and arm.name in inputs:
            found[arm.name] = {**inputs[arm.cohorts_of], **inputs[arm.name]}
    return found


@contextmanager
def grid_folder(out: Path, grid: Grid, inputs: InputsByArm | None = None) -> Iterator[GridFolder]:
    """Lock the folder of a grid while the context lasts; cells may be added, but none may change.

    Runs whose inputs have changed are put aside, so that their cells are done again.

    Args:
        out: The folder.
        grid: The grid.
        inputs: What its cells depend on besides their experiments; None for runs that exist.

    Raises:
        ExperimentError: The folder has other files or another grid, or another process uses it.
        OSError: The folder cannot be written.
    """
    new = manifest_of(grid, inputs)
    check_folder(out)
    old = _read(out / MANIFEST) if (out / MANIFEST).exists() else new
    _check(out, old, new)
    out.mkdir(parents=True, exist_ok=True)
    try:
        lock = RunLock(out)
    except RunInUseError as exc:
        raise ExperimentError(
            f"--out {out}: another process uses this grid; wait for it, or choose another folder"
        ) from exc
    try:
        redone = _put_aside(out, grid, old.inputs, new.inputs)
        _write(out / MANIFEST, msgspec.json.format(msgspec.json.encode(new)))
        for arm in grid.arms:
            _write(out / ARMS / f"{arm.name}.toml", arm.experiment.resolved_toml().encode())
        yield GridFolder(new, redone)
    finally:
        lock.release()


def check_folder(out: Path) -> None:
    """Check that a folder is new, or that of a grid.

    Raises:
        ExperimentError: It has other files.
    """
    if (out / MANIFEST).exists() or not out.exists():
        return
    if found := sorted({path.name for path in out.iterdir()} - {LOCK_FILE, TUNING}):
        raise ExperimentError(
            f"--out {out}: must be a new or empty folder, or that of this grid, got one with "
            f"{found[0]}; choose another"
        )


def _check(out: Path, old: GridManifest, new: GridManifest) -> None:
    """Check that no cell of a folder has changed or is missing in the new grid.

    Raises:
        ExperimentError: Names the first difference.
    """
    for key in ("fleet", "baseline", "target", "primary", "budget_metric", "contrasts"):
        before, after = getattr(old, key), getattr(new, key)
        if before is not None and before != after:
            raise ExperimentError(
                f"--out {out}: {key} must be unchanged since the grid began, got {_short(after)} "
                f"after {_short(before)}; undo the change, or choose another folder"
            )
    for arm, seeds in old.cells.items():
        for seed, digest in seeds.items():
            now = new.cells.get(arm, {}).get(seed)
            if now != digest:
                change = "removed" if now is None else "with another experiment"
                raise ExperimentError(
                    f"--out {out}: cells must be unchanged since the grid began, got arm {arm!r}, "
                    f"seed {seed} {change}; undo the change, or choose another folder"
                )


def _put_aside(out: Path, grid: Grid, old: InputsByArm, new: InputsByArm) -> str:
    """Put the runs aside whose inputs have changed; return a line about them, or nothing.

    What counts is what the folder had when it was last used, and what each run recorded itself:
    a run that was interrupted may have begun between two edits.
    """
    cells, names, count = grid.cells(), dict[str, str](), 0
    for cell in cells:
        folder, now = cell.folder(out), new.get(cell.arm.name, {})
        if not folder.exists():
            continue
        before = old.get(cell.arm.name, now)
        own = recorded_inputs(folder)
        changed = dict.fromkeys(differing(before, now)) | dict.fromkeys(
            name
            for name, found in own.items()
            if name != FAIRBED and now.get(name, found) != found  # a host may have no checkout
        )
        if changed and not _is_in_use(folder):
            aside = out / REPLACED / folder.relative_to(out / RUNS)
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(parents=True, exist_ok=True)
            folder.replace(aside)
            count += 1
            names |= {name: own.get(name, before.get(name, "")) for name in changed}
    if not count:
        return ""
    words = [f"Fairbed, then {names[name]}," if name == FAIRBED else name for name in sorted(names)]
    return (
        f"{count} of {len(cells)} cells are done again, because {in_words(words)} changed since "
        f"they ran; their last runs are in {out / REPLACED}"
    )


def inputs_of_siblings(folder: Path) -> dict[str, dict[str, str]]:
    """Return what the runs of the grid that a run belongs to have recorded, by arm and seed.

    Empty for a run of no grid.
    """
    out = folder.resolve().parent.parent.parent
    if folder.resolve().parent.parent.name != RUNS or not (out / MANIFEST).exists():
        return {}
    cells = [(arm, seed) for arm, seeds in _read(out / MANIFEST).cells.items() for seed in seeds]
    return {
        f"{arm} with seed {seed}": recorded_inputs(out / RUNS / arm / seed) for arm, seed in cells
    }


def recorded_inputs(folder: Path) -> dict[str, str]:
    """Return the inputs that a run has recorded; none if it cannot be read."""
    if (folder / DATABASE).exists():
        with suppress(StoreError, msgspec.MsgspecError), RunReader(folder) as reader:
            return msgspec.json.decode(reader.run().row.provenance, type=Provenance).inputs
    return {}


def _is_in_use(folder: Path) -> bool:
    """Return whether another process writes a run."""
    if (folder / DATABASE).exists():
        with suppress(StoreError), RunReader(folder) as reader:
            return reader.run().is_alive
    return False


def _read(path: Path) -> GridManifest:
    try:
        return msgspec.json.decode(path.read_bytes(), type=GridManifest)
    except msgspec.MsgspecError as exc:
        raise ExperimentError(
            f"{path}: must be the manifest of a grid, got {exc}; choose another folder"
        ) from exc


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(content)
    draft.replace(path)


def _short(value: object) -> str:
    return str(msgspec.to_builtins(value))
