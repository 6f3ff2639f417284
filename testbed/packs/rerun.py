"""Runs the replays of an unpacked pack again, and compares every number with that of its store."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from fairbed.coordinator.store import StoreError
from fairbed.coordinator.store.connection import CONFIG
from fairbed.coordinator.store.same import differences
from fairbed.testbed.experiment.data import GROUP as DATA_GROUP
from fairbed.testbed.experiment.datasets.loading import FOLDER_VARIABLE
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.inputs import named_parts
from fairbed.testbed.packs.manifest import DATA, WORK, Manifest, PackedRun, PackError
from fairbed.wire.plugins import is_path

AGAIN = "again"
"""Folder of the new runs, in that of the pack."""

MOVED = frozenset({"config_hash", "text"})
"""Columns that differ because an experiment names the places of the pack, as do its events."""

MAX_SHOWN = 3

REPLAY = """
import sys
sys.path[:] = [path for path in sys.path if path]
from fairbed.testbed.cli.main import console
sys.exit(console())
"""
"""Runs `fairbed` without modules of the working directory, where a pack may have a `numpy.py`."""


class Rerun(Struct, frozen=True, kw_only=True):
    """A run that was run again, or why it was not."""

    folder: str
    """Its place in the pack."""
    outcome: str
    """equal, different, failed or skipped."""
    lines: list[str]
    """What differs, or why."""


def code_of(experiment: Experiment) -> list[str]:
    """Return the keys of an experiment that name code, each with its value."""
    found = [
        f"{part.key} = {part.name}"
        for part in named_parts(experiment)
        if part.group != DATA_GROUP or experiment.data.is_function
    ]
    of_model = (("model.loss", experiment.model.loss),)
    of_metrics = (("evaluation.metrics", name) for name in experiment.evaluation.metrics)
    found += [f"{key} = {name}" for key, name in (*of_model, *of_metrics) if is_path(name)]
    if experiment.training.client is not None:
        found.append(f"training.client = {experiment.training.client}")
    return found


def rerun(
    folder: Path,
    manifest: Manifest,
    *,
    allow_code: bool,
    jobs: int,
    advance: Callable[[], object],
) -> list[Rerun]:
    """Run the replays of an unpacked pack again.

    Args:
        folder: Of the pack.
        manifest: Its manifest.
        allow_code: Whether the user lets its code run.
        jobs: Replays in parallel.
        advance: Called after each run.

    Raises:
        PackError: It has code that the user does not allow, or no replay.
        ExperimentError: An experiment cannot be read.
    """
    if not any(_reason(run) is None for run in manifest.runs):
        raise PackError(
            f"{folder}: must have a replay to run again, got "
            + ("none that is done" if manifest.runs else "no run")
            + "; a live run has the times of its machine: run its experiment in the folder "
            + f"{WORK} instead"
        )
    todo = [run for run in manifest.runs if _reason(run) is None]
    experiments = {run.folder: load_experiment(folder / run.experiment) for run in todo}
    named = dict.fromkeys(name for one in experiments.values() for name in code_of(one))
    if named and not allow_code:
        raise PackError(
            f"{folder}: has code of its author ({'; '.join(list(named)[:3])}), "
            "which can do all that you can; read it, then add --allow-code"
        )
    paths = manifest.paths if allow_code else []
    environment = _environment(folder, manifest, paths)
    (folder / WORK).mkdir(exist_ok=True)

    def done(run: PackedRun) -> Rerun:
        reason = _reason(run)
        found = (
            _again(folder, run, experiments[run.folder], environment)
            if reason is None
            else Rerun(folder=run.folder, outcome="skipped", lines=[reason])
        )
        advance()
        return found

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        return list(pool.map(done, manifest.runs))


def _reason(run: PackedRun) -> str | None:
    """Return why a run cannot be run again with the same numbers; None if it can."""
    if run.clock != "virtual":
        return "a live run, whose times are those of its machine"
    return None if run.status == "done" else f"its status is {run.status}, not done"


def _environment(folder: Path, manifest: Manifest, paths: Sequence[str]) -> dict[str, str]:
    found = dict(os.environ)
    has_data = any(file.place.startswith(f"{DATA}/") for file in manifest.files)
    if has_data or (folder / DATA).is_dir() or FOLDER_VARIABLE not in found:
        found[FOLDER_VARIABLE] = str((folder / DATA).resolve())
    own = [str((folder / path).resolve()) for path in paths]
    root = str(folder.resolve())
    before = map(os.path.realpath, filter(None, found.get("PYTHONPATH", "").split(os.pathsep)))
    others = [path for path in before if os.path.commonpath([path, root]) != root]
    found["PYTHONPATH"] = os.pathsep.join([*own, *others])
    return found


def _again(
    folder: Path, run: PackedRun, experiment: Experiment, environment: dict[str, str]
) -> Rerun:
    target = folder.resolve() / AGAIN / run.folder
    target.parent.mkdir(parents=True, exist_ok=True)
    own = target.with_suffix(".toml")
    own.write_text(experiment.without_rooms.resolved_toml(), encoding="utf-8")
    command = [sys.executable, "-c", REPLAY, "replay", str(own)]
    done = subprocess.run(
        guarded([*command, "--out", str(target), "--threads", "1", "--json"]),
        cwd=folder / WORK,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines() or ["no message"]
        return Rerun(folder=run.folder, outcome="failed", lines=lines[-1:])
    is_moved = run.experiment != f"{run.folder}/{CONFIG}"
    try:
        found = list(differences(folder / run.folder, target, MOVED if is_moved else frozenset()))
    except StoreError as exc:
        return Rerun(folder=run.folder, outcome="failed", lines=[str(exc)])
    outcome = "different" if found else "equal"
    return Rerun(folder=run.folder, outcome=outcome, lines=found[:MAX_SHOWN])
