"""Replays of the recorded fleet: with the cohorts of each live run, and with their own."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from experiments.replay_fidelity.imposed import (
    imposed_world,
    live_rounds,
    paused_world,
)
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.connection import DATABASE
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.imposed import ImposedCohorts
from fairbed.testbed.replay.run import replay_setup
from fairbed.testbed.replay.setup import ReplaySetup, setup_of


def replay_forced(
    experiment: Experiment, recorded: Path, live: Path, folder: Path, log: Callable[[str], None]
) -> Path:
    """Replay a live run with its cohorts, instants and contexts.

    Args:
        experiment: Experiment with the recorded devices.
        recorded: Folder of the run in which the devices were recorded.
        live: Folder of the run to imitate.
        folder: Folder of the replay; an earlier one is replaced.
        log: Receives progress lines.
    """
    setup = _setup(experiment, recorded)
    rows = {name: row for row, name in enumerate(setup.names)}
    with RunReader(live) as reader:
        rounds = live_rounds(reader.rounds(), reader.exchanges(), rows)
    setup.decisions.selector = ImposedCohorts(
        setup.decisions.selector, {round_id: one.rows for round_id, one in rounds.items()}
    )
    setup = _with_rounds(setup, sum(one.rows.size > 0 for one in rounds.values()))
    return _replay(replace(setup, world=imposed_world(setup.world, rounds)), folder, log)


def replay_free(
    experiment: Experiment, recorded: Path, live: Path, folder: Path, log: Callable[[str], None]
) -> Path:
    """Replay the same experiment from the first instant of a live run, with its own selections.

    The pause between two rounds is that of the recorded run. The arguments are those of
    `replay_forced`.
    """
    with RunReader(live) as reader:
        start_s = min((row.dispatched_at_s for row in reader.rounds()), default=0.0)
    setup = _setup(experiment, recorded)
    world = paused_world(setup.world, start_s, pause_s(recorded))
    return _replay(replace(setup, world=world), folder, log)


def close_s(folder: Path) -> float:
    """Return the median time from the last arrival of a round to its end, seconds."""
    with RunReader(folder) as reader:
        found = [row.close_s for row in reader.rounds() if row.status != "void"]
    return float(np.median(found)) if found else 0.0


def pause_s(folder: Path) -> float:
    """Return the median time from the last arrival of a round to the next dispatch, seconds."""
    with RunReader(folder) as reader:
        rounds = [row for row in reader.rounds() if row.status != "void"]
    starts = np.array([row.dispatched_at_s for row in rounds], dtype=np.float64)
    lasted = np.array([row.tau_max_s for row in rounds], dtype=np.float64)
    gaps = starts[1:] - (starts + lasted)[:-1]
    return float(np.median(gaps)) if gaps.size else 0.0


def _setup(experiment: Experiment, recorded: Path) -> ReplaySetup:
    """Return a replay of the recorded devices with the training costs of the live run.

    It trains nothing, because only times are compared.
    """
    costs = str(recorded.resolve())
    settings = msgspec.structs.replace(experiment.replay, costs_from=costs, training=False)
    return setup_of(msgspec.structs.replace(experiment, replay=settings))


def _with_rounds(setup: ReplaySetup, rounds: int) -> ReplaySetup:
    return replace(setup, experiment=msgspec.structs.replace(setup.experiment, rounds=rounds))


def _replay(setup: ReplaySetup, folder: Path, log: Callable[[str], None]) -> Path:
    """Replay in a folder, again if an earlier version may have replayed there: it takes seconds."""
    if (folder / DATABASE).exists():
        shutil.rmtree(folder)
    log(f"{folder.name}: {setup.experiment.rounds} rounds replayed")
    replay_setup(setup, folder, folder.name, lambda replayed: None)
    return folder
