"""The folder of a grid: it remembers which cells it holds, and belongs to one process at a time."""

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
RUNS, ARMS = "runs", "arms"


class GridManifest(Struct, frozen=True, kw_only=True):
    """What makes the cells of a folder those of one grid."""

    grid: str
    """Hash of all below: equal grids have equal hashes."""
    fleet: Fleet
    baseline: str
    target: TargetConfig
    cells: dict[str, dict[str, str]]
    """Hash of the experiment, by arm and seed."""


def manifest_of(grid: Grid) -> GridManifest:
    """Return what a folder has to remember of a grid."""
    cells: dict[str, dict[str, str]] = {}
    for cell in grid.cells():
        cells.setdefault(cell.arm.name, {})[str(cell.seed)] = cell.experiment.hash()
    content = (grid.fleet, grid.baseline, grid.target, cells)
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
    return GridManifest(
        grid=digest, fleet=grid.fleet, baseline=grid.baseline, target=grid.target, cells=cells
    )


@contextmanager
def grid_folder(out: Path, grid: Grid) -> Iterator[GridManifest]:
    """Own the folder of a grid; one that holds cells may get more, but none may change.

    Raises:
        ExperimentError: It holds something else, another grid, or another process works on it.
        OSError: It cannot be written.
    """
    new = manifest_of(grid)
    is_new = not (out / MANIFEST).exists()
    if is_new and out.exists() and any(path.name != LOCK_FILE for path in out.iterdir()):
        found = min(path.name for path in out.iterdir())
        raise ExperimentError(
            f"--out {out}: must be a new or empty folder, or that of this grid, got one with "
            f"{found}; name another"
        )
    if not is_new:
        _check(out, _read(out / MANIFEST), new)
    out.mkdir(parents=True, exist_ok=True)
    try:
        lock = RunLock(out)
    except RunInUseError as exc:
        raise ExperimentError(
            f"--out {out}: another process works on this grid; wait for it, or name another folder"
        ) from exc
    try:
        _write(out / MANIFEST, msgspec.json.format(msgspec.json.encode(new)))
        for arm in grid.arms:
            _write(out / ARMS / f"{arm.name}.toml", arm.experiment.resolved_toml().encode())
        yield new
    finally:
        lock.release()


def _check(out: Path, old: GridManifest, new: GridManifest) -> None:
    """See that nothing of what a folder holds has changed or gone.

    Raises:
        ExperimentError: The first thing that did.
    """
    for key in ("fleet", "baseline", "target"):
        before, after = getattr(old, key), getattr(new, key)
        if before != after:
            raise ExperimentError(
                f"--out {out}: {key} must be as it was when the grid began, got "
                f"{_short(after)} after {_short(before)}; undo the change, or name another folder"
            )
    for arm, seeds in old.cells.items():
        for seed, digest in seeds.items():
            now = new.cells.get(arm, {}).get(seed)
            if now != digest:
                what = "is not in it" if now is None else "has another experiment"
                raise ExperimentError(
                    f"--out {out}: a grid that has begun may only get more cells, got one where "
                    f"arm {arm!r}, seed {seed} {what}; undo the change, or name another folder"
                )


def _read(path: Path) -> GridManifest:
    try:
        return msgspec.json.decode(path.read_bytes(), type=GridManifest)
    except msgspec.MsgspecError as exc:
        raise ExperimentError(
            f"{path}: must be what a grid wrote, got {exc}; name another folder"
        ) from exc


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(content)
    draft.replace(path)


def _short(value: object) -> str:
    return str(msgspec.to_builtins(value))
