"""Runs that exist, as the cells of a grid: runs with equal experiments but the seed are one arm.

The experiments are those that the runs have stored. An arm has the name of its experiment if no
other arm has it, and else the keys that differ between the arms: `policy-uniform_per_round-2`. Of
many keys these are the first few in which all arms differ.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from fairbed.coordinator.report.html import flat
from fairbed.coordinator.store import Provenance, RunReader
from fairbed.coordinator.store.connection import CONFIG
from fairbed.testbed.compare.cell import CellOutcome, CellResult
from fairbed.testbed.compare.comparison import ADD_SEEDS, Comparison, compare
from fairbed.testbed.compare.folder import manifest_of
from fairbed.testbed.compare.grid import FRONT_AXIS, Arm, Grid, TargetConfig, arm_name, short_keys
from fairbed.testbed.compare.measures import (
    FINAL_ACCURACY,
    FINAL_ERROR,
    TOTAL_TIME,
    UPDATES,
    inputs_in,
    measure,
)
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment

MAX_ARM_NAME = 80
"""Longest name of an arm from the keys that differ."""


CLOCKS = {"real": "live", "virtual": "replay"}
"""Word for the clock of a run."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that exists."""

    folder: Path
    run_id: str
    experiment: Experiment
    clock: str
    """real, or virtual for a replay."""
    status: str
    rounds: int
    """Closed rounds."""
    rounds_empty: int
    """Those of them in which no device was available, on top of the planned ones."""

    @property
    def arm(self) -> str:
        """Hash of what makes its arm: the experiment without seed and name, and the clock.

        Cohorts of another run differ with the seed, too.
        """
        replay = self.experiment.replay
        if replay.cohorts_from is not None:
            replay = msgspec.structs.replace(replay, cohorts_from="fixed")
        shared = msgspec.structs.replace(self.experiment, seed=0, name="arm", replay=replay)
        return hashlib.sha256(f"{shared.hash()} {self.clock}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FinishedRuns:
    """Runs that exist, as a grid with its results."""

    runs: tuple[FinishedRun, ...]
    arms: tuple[str, ...]
    """Name of the arm of each run."""
    grid: Grid
    results: tuple[CellResult, ...]
    """One per run, in the order of the runs."""
    warnings: tuple[str, ...]

    def compare(self) -> Comparison:
        """Return the comparison of the arms with that of the first run."""
        found = compare(
            self.grid, manifest_of(self.grid).grid, version("fairbed"), list(self.results)
        )
        more = (line.replace(ADD_SEEDS, "add runs with other seeds") for line in found.warnings)
        return msgspec.structs.replace(found, warnings=[*self.warnings, *more])


def read_runs(folders: Sequence[Path]) -> list[FinishedRun]:
    """Return the runs in some folders.

    Raises:
        ExperimentError: The experiment of a run cannot be read by this version.
        StoreError: A store cannot be read.
    """
    found = []
    for folder in folders:
        with RunReader(folder) as reader:
            info = reader.run()
        found.append(
            FinishedRun(
                folder=folder,
                run_id=info.run_id,
                experiment=load_experiment(folder / CONFIG),
                clock=info.row.clock,
                status=info.status,
                rounds=info.rounds_completed,
                rounds_empty=info.rounds_empty,
            )
        )
    return found


def recorded(folders: Sequence[Path]) -> dict[str, dict[str, str]]:
    """Return the inputs that some runs have recorded, by the name of the run.

    Raises:
        StoreError: A store cannot be read.
    """
    found = {}
    for folder in folders:
        with RunReader(folder) as reader:
            info = reader.run()
        provenance = msgspec.json.decode(info.row.provenance, type=Provenance)
        found[f"{info.run_id} ({folder})"] = inputs_in(provenance)
    return found


def as_grid(runs: Sequence[FinishedRun], name: str | None = None) -> FinishedRuns:
    """Return runs as a grid, measured.

    Args:
        runs: At least one.
        name: Of the grid; None: of the experiments, if they have one name.

    Raises:
        ExperimentError: Two runs have equal experiments and seeds, so that no pairing is defined.
        StoreError: A store cannot be read.
    """
    arms = name_arms(runs)
    cells: dict[tuple[str, int], FinishedRun] = {}
    for run, arm in zip(runs, arms, strict=True):
        other = cells.setdefault((arm, run.experiment.seed), run)
        if other is not run:
            raise ExperimentError(
                f"{run.folder}: runs of one experiment must have distinct seeds to be compared, "
                f"got seed {run.experiment.seed} in {other.folder}, too; leave one of them out"
            )
    results = tuple(_result(run, arm) for run, arm in zip(runs, arms, strict=True))
    measured = [x.outcome.measured for x in results if x.outcome.measured is not None]

    def is_known(key: str) -> bool:
        return bool(measured) and all(found.values.get(key) is not None for found in measured)

    primary = next((key for key in (FINAL_ACCURACY, FINAL_ERROR) if is_known(key)), TOTAL_TIME)
    names = list(dict.fromkeys(run.experiment.name for run in runs))
    grid = Grid(
        name=name or (names[0] if len(names) == 1 else "runs"),
        fleet="run" if all(run.clock == "real" for run in runs) else "replay",
        seeds=tuple(sorted({run.experiment.seed for run in runs})),
        arms=tuple(
            _arm(arm, [run for run, own in zip(runs, arms, strict=True) if own == arm], runs)
            for arm in dict.fromkeys(arms)
        ),
        baseline=arms[0],
        primary=primary,
        budget_metric=FINAL_ACCURACY if primary == FINAL_ACCURACY else UPDATES,
        target=TargetConfig(),
    )
    return FinishedRuns(tuple(runs), tuple(arms), grid, results, tuple(_warnings(runs)))


def name_arms(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the name of the arm of each run: equal for equal arms, distinct for others."""
    hashes = [run.arm for run in runs]
    first = {key: run for key, run in reversed(list(zip(hashes, runs, strict=True)))}
    names = {
        key: {run.experiment.name for run, own in zip(runs, hashes, strict=True) if own == key}
        for key in first
    }
    one = {key: next(iter(found)) for key, found in names.items() if len(found) == 1}
    if len(one) == len(first) == len({name.casefold() for name in one.values()}):
        return [one[key] for key in hashes]
    values = {key: _flat(run) for key, run in first.items()}
    differ = _differing(list(first.values()))
    words = short_keys(dict.fromkeys(differ))

    def texts(paths: Sequence[str]) -> dict[str, str]:
        return {
            key: arm_name("", words, [(path, found.get(path)) for path in paths])
            for key, found in values.items()
        }

    counts = [len(differ), *range(1, len(differ))]  # all keys, else the first few that suffice
    for named in (texts(differ[:count]) for count in counts):
        distinct = {name.casefold() for name in named.values()}
        if len(distinct) == len(first) and max(map(len, named.values())) <= MAX_ARM_NAME:
            return [named[key] for key in hashes]
    order = list(dict.fromkeys(hashes))
    return [f"{first[key].experiment.name}-{order.index(key) + 1}" for key in hashes]


def _flat(run: FinishedRun) -> dict[str, Any]:
    """Return the keys of an experiment that make its arm, and the kind of the run."""
    found = dict(flat(msgspec.to_builtins(run.experiment.without_rooms)))
    return {"kind": CLOCKS[run.clock], **found}


def _differing(runs: Sequence[FinishedRun]) -> list[str]:
    """Return the keys in which some of the runs differ."""
    values = [_flat(run) for run in runs]
    keys = [
        key
        for key in dict.fromkeys(key for found in values for key in found)
        if key not in ("seed", "name")
    ]
    return [key for key in keys if len({repr(found.get(key)) for found in values}) > 1]


def _arm(name: str, own: Sequence[FinishedRun], runs: Sequence[FinishedRun]) -> Arm:
    experiment = own[0].experiment
    differ = _differing(runs)
    axes: tuple[tuple[str, Any], ...] = ()
    curve = name
    if FRONT_AXIS in differ:
        axes = ((FRONT_AXIS, experiment.selection.V),)
        curve = re.sub(r"(^|_)V-[^_]*", "", name).strip("_") or "V"
    return Arm(name=name, curve=curve, axes=axes, experiment=experiment)


def _result(run: FinishedRun, arm: str) -> CellResult:
    outcome = (
        CellOutcome(measured=measure(run.folder), was_done_before=True)
        if run.rounds
        else CellOutcome(problem=f"{run.run_id} has no closed round")
    )
    return CellResult(arm=arm, seed=run.experiment.seed, folder=str(run.folder), outcome=outcome)


def _warnings(runs: Sequence[FinishedRun]) -> list[str]:
    found = [
        f"{run.run_id} is not done but {run.status}: its numbers are those after "
        f"{run.rounds} of {run.experiment.rounds + run.rounds_empty} rounds"
        for run in runs
        if run.status != "done"
    ]
    rounds = {run.rounds for run in runs}
    if len(rounds) > 1:
        found.append(
            f"the runs have {min(rounds)} to {max(rounds)} rounds: total times and final values "
            "are of different lengths; those at equal budgets are not"
        )
    return found
