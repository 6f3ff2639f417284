"""Plan a replay, start it from a program, and wait for its end."""

import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbed.coordinator.report.summary import changes_of
from fairbed.coordinator.report.summary_table import change_line
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.testbed.api import RUNS
from fairbed.testbed.api.errors import in_python
from fairbed.testbed.api.hosts import training
from fairbed.testbed.api.planning import (
    GivenExperiment,
    check_new,
    check_resumable,
    holds_run,
    named_experiment,
    new_id,
    selector_of,
)
from fairbed.testbed.api.progress import Progress, count_rounds, shown
from fairbed.testbed.api.run import Run
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import Settings
from fairbed.testbed.progress import Bar
from fairbed.testbed.replay.cohort.base import CohortHelpers
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_setup
from fairbed.testbed.replay.setup import ReplaySetup, setup_of
from fairbed.testbed.run.watchers import Watcher, watchers_of, watching
from fairbed.testbed.run_folder import is_untouched

MAX_THREADS = 1_000
"""Maximum number of threads, as of `fairbed replay --threads`."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A replay that is set up, and the folder of its run."""

    setup: ReplaySetup
    folder: Path
    run_id: str
    origin: Path
    """Folder of the experiment file."""
    origins: Mapping[str, str]
    """What set each key of the experiment that is not a default."""
    watchers: Sequence[Watcher]
    """What follows the run for a person."""
    warnings: tuple[str, ...]
    """What a person should know before the first round."""


def plan_replay(
    given: GivenExperiment,
    *,
    settings: Settings = (),
    seed: int | None = None,
    out: Path | None = None,
) -> ReplayPlan:
    """Return the plan of a replay, or of one to resume; the arguments are those of `plan_run`.

    Raises:
        UsageError: The experiment, or the folder, cannot be used.
        StoreError: The run cannot be read.
        Exception: As `setup_of`.
    """
    named = named_experiment(given, settings, seed, out, "replay")
    folder = named.folder or out or RUNS / new_id(named.experiment.name)
    is_new = not holds_run(folder)
    if is_new and out is not None:
        check_new(folder)
    selector_of(named.experiment)
    setup = setup_of(named.experiment)
    if not is_new:
        check_resumable(folder, setup.experiment, "replay", is_named=named.folder is not None)
    changes = [f"not in this replay: {change}" for change in changed_live(named.origin)]
    return ReplayPlan(
        setup=setup,
        folder=folder,
        run_id=folder.resolve().name,
        origin=named.origin,
        origins=named.origins,
        watchers=watchers_of(named.experiment),
        warnings=(*changes, *(f.text for f in setup.findings() if f.level != "info")),
    )


def changed_live(folder: Path) -> list[str]:
    """Return what operators changed in the run of a folder, which its experiment file lacks.

    Empty if the folder has no run that can be read.
    """
    try:
        with RunReader(folder) as reader:
            changes = changes_of(reader.commands())
    except StoreError:
        return []
    return [change_line(change) for change in changes]


def replay(
    experiment: GivenExperiment,
    *,
    set: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    cluster: str | None = None,
    progress: Progress = None,
) -> Run:
    """Replay an experiment on a virtual clock, or resume a replay; return the finished run.

    Args:
        experiment: An experiment file, the same as a dict, an `Experiment`, or the folder of a
            replay to resume.
        set: Other values of its keys, such as `{"selection.policy": "uniform"}`.
        out: Folder of the run; None is a new one below `runs`.
        seed: Seed of the experiment; None is its own.
        threads: Devices trained at the same time, None for one per core; no result depends on it.
        cluster: HOST:PORT of the head of a Ray cluster whose hosts train a part of the devices, or
            `local` for one on this machine; no result depends on it.
        progress: What shows progress.

    Raises:
        UsageError: The experiment, a file that it names, or the folder cannot be used.
        RunError: The replay failed.
        KeyboardInterrupt: It was interrupted. The run is closed, and its status `stopped`.
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads: must be from 1 to {MAX_THREADS:,}, got {threads}")
    with in_python():
        folder = None if out is None else Path(out)
        plan = plan_replay(experiment, settings=set or {}, seed=seed, out=folder)
        for warning in plan.warnings:
            warnings.warn(warning, stacklevel=2)
        planned = plan.setup.experiment
        with (
            training(cluster, [planned], lambda line: warnings.warn(line, stacklevel=2)) as hosts,
            shown(progress, planned.rounds, "rounds", "replay") as bar,
        ):
            run_replay(plan, bar, threads, hosts)
    return Run(plan.run_id, plan.folder)


def run_replay(
    plan: ReplayPlan, bar: Bar, threads: int | None = None, helpers: CohortHelpers | None = None
) -> int:
    """Replay all rounds of a plan; return the number of rounds that were replayed.

    An interrupt closes the run; one before its first row leaves no file behind.

    Args:
        plan: The replay.
        bar: Counts the rounds; those before a resumed one have no rate.
        threads: Devices trained at the same time; None is one per core.
        helpers: Hosts that train a part of the devices.

    Raises:
        Exception: A one-line error of a package: data, profile, store, ...
    """

    def on_round(replayed: ReplayedRound) -> None:
        count_rounds(bar, replayed.choice.round - replayed.after.rounds_empty)

    is_new = is_untouched(plan.folder)
    try:
        with watching(plan.watchers, plan.folder):
            return replay_setup(
                plan.setup,
                plan.folder,
                plan.run_id,
                on_round,
                threads=threads,
                helpers=helpers,
                origin=plan.origin,
                origins=plan.origins,
            )
    finally:
        if is_new and not _has_begun(plan.folder):
            shutil.rmtree(plan.folder, ignore_errors=True)


def _has_begun(folder: Path) -> bool:
    """Return whether a folder has a run that can be read."""
    try:
        with RunReader(folder) as reader:
            reader.run()
    except StoreError:
        return False
    return True
