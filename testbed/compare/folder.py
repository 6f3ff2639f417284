"""The folder of a grid: a manifest of its cells, and a lock for one process at a time."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from fairbed.coordinator.store.connection import LOCK_FILE, RunLock
from fairbed.coordinator.store.errors import RunInUseError
from fairbed.testbed.compare.grid import Fleet, Grid, TargetConfig
from fairbed.testbed.experiment.file import ExperimentError

MANIFEST = "grid.json"
ARMS = "arms"


class GridManifest(Struct, frozen=True, kw_only=True):
    """Identifies the grid that the cells of a folder belong to."""

    grid: str
    """Hash of the other fields: equal grids have equal hashes."""
    fleet: Fleet
    baseline: str
    target: TargetConfig
    primary: str | None = None
    """None in a folder of a version without a primary metric."""
    budget_metric: str | None = None
    cells: dict[str, dict[str, str]]
    """Hash of the experiment, by arm and seed."""


def manifest_of(grid: Grid) -> GridManifest:
    """Return the manifest of a grid."""
    cells: dict[str, dict[str, str]] = {}
    for cell in grid.cells():
        cells.setdefault(cell.arm.name, {})[str(cell.seed)] = cell.experiment.hash()
    metrics = (grid.primary, grid.budget_metric)
    cohorts = [arm.cohorts_of for arm in grid.arms]
    content = (grid.fleet, grid.baseline, grid.target, metrics, cohorts, cells)
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
    return GridManifest(
        grid=digest,
        fleet=grid.fleet,
        baseline=grid.baseline,
        target=grid.target,
        primary=grid.primary,
        budget_metric=grid.budget_metric,
        cells=cells,
    )


@contextmanager
def grid_folder(out: Path, grid: Grid) -> Iterator[GridManifest]:
    """Lock the folder of a grid while the context lasts; cells may be added, but none may change.

    Raises:
        ExperimentError: The folder has other files or another grid, or another process uses it.
        OSError: The folder cannot be written.
    """
    new = manifest_of(grid)
    is_new = not (out / MANIFEST).exists()
    if is_new and out.exists() and any(path.name != LOCK_FILE for path in out.iterdir()):
        found = min(path.name for path in out.iterdir())
        raise ExperimentError(
            f"--out {out}: must be a new or empty folder, or that of this grid, got one with "
            f"{found}; choose another"
        )
    if not is_new:
        _check(out, _read(out / MANIFEST), new)
    out.mkdir(parents=True, exist_ok=True)
    try:
        lock = RunLock(out)
    except RunInUseError as exc:
        raise ExperimentError(
            f"--out {out}: another process uses this grid; wait for it, or choose another folder"
        ) from exc
    try:
        _write(out / MANIFEST, msgspec.json.format(msgspec.json.encode(new)))
        for arm in grid.arms:
            _write(out / ARMS / f"{arm.name}.toml", arm.experiment.resolved_toml().encode())
        yield new
    finally:
        lock.release()


def _check(out: Path, old: GridManifest, new: GridManifest) -> None:
    """Check that no cell of a folder has changed or is missing in the new grid.

    Raises:
        ExperimentError: Names the first difference.
    """
    for key in ("fleet", "baseline", "target", "primary", "budget_metric"):
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
