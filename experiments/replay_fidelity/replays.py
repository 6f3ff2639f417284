"""Replays of the recorded fleet: one does what a live run did, the others choose themselves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from experiments.replay_fidelity.imposed import (
    ImposedCohorts,
    ImposedMoments,
    Later,
    imposed_rounds,
)
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.connection import DATABASE
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.run import replay_setup
from fairbed.testbed.replay.setup import ReplaySetup, setup_of


def replay_forced(
    experiment: Experiment, recorded: Path, live: Path, folder: Path, tell: Callable[[str], None]
) -> Path:
    """Replay what a live run did: its cohorts, at its instants, with its contexts.

    Args:
        experiment: Of the recorded devices.
        recorded: Folder of the run that they were recorded in.
        live: Folder of the run to imitate.
        folder: Of the replay; one that is there is kept.
        tell: Given a line for people.
    """
    stage = _stage(experiment, recorded)
    rows = {name: row for row, name in enumerate(stage.names)}
    with RunReader(live) as reader:
        rounds = imposed_rounds(reader.rounds(), reader.exchanges(), rows)
    stage.decisions.selector = ImposedCohorts(stage.decisions.selector, rounds)
    stage = _of_rounds(stage, max(rounds, default=0))
    return _play(replace(stage, world=ImposedMoments(stage.world, rounds)), folder, tell)


def replay_free(
    experiment: Experiment, recorded: Path, live: Path, folder: Path, tell: Callable[[str], None]
) -> Path:
    """Replay the same experiment; of the live run only its first instant is known.

    What the coordinator needs between two rounds is that of the recorded run. The arguments are
    those of `replay_forced`.
    """
    with RunReader(live) as reader:
        start_s = min((row.dispatched_at_s for row in reader.rounds()), default=0.0)
    stage = _stage(experiment, recorded)
    world = Later(stage.world, start_s, pause_s(recorded))
    return _play(replace(stage, world=world), folder, tell)


def close_s(folder: Path) -> float:
    """Return from the last arrival of a round to its end, the median of a live run, seconds."""
    with RunReader(folder) as reader:
        found = [row.close_s for row in reader.rounds() if row.status != "void"]
    return float(np.median(found)) if found else 0.0


def pause_s(folder: Path) -> float:
    """Return from the last arrival of a round to the next dispatch, the median, seconds."""
    with RunReader(folder) as reader:
        rounds = [row for row in reader.rounds() if row.status != "void"]
    starts = np.array([row.dispatched_at_s for row in rounds], dtype=np.float64)
    lasted = np.array([row.tau_max_s for row in rounds], dtype=np.float64)
    gaps = starts[1:] - (starts + lasted)[:-1]
    return float(np.median(gaps)) if gaps.size else 0.0


def _stage(experiment: Experiment, recorded: Path) -> ReplaySetup:
    """Return the world of the recorded devices, charged for training as they were live.

    Only times are compared, so nothing is trained.
    """
    costs = str(recorded.resolve())
    settings = msgspec.structs.replace(experiment.replay, costs_from=costs, training=False)
    return setup_of(msgspec.structs.replace(experiment, replay=settings))


def _of_rounds(stage: ReplaySetup, rounds: int) -> ReplaySetup:
    return replace(stage, experiment=msgspec.structs.replace(stage.experiment, rounds=rounds))


def _play(stage: ReplaySetup, folder: Path, tell: Callable[[str], None]) -> Path:
    if (folder / DATABASE).exists():
        tell(f"{folder.name}: is done already")
        return folder
    tell(f"{folder.name}: {stage.experiment.rounds} rounds replayed")
    replay_setup(stage, folder, folder.name, lambda played: None)
    return folder
