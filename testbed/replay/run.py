"""A whole replay: a world from an experiment, its rounds, and the store that keeps them."""

from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from fairbed.coordinator.store import NewRun, Store
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.tables import EventRow
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.checkpointer import CHECKPOINT_S, LISTED, Checkpointer
from fairbed.testbed.replay.engine.engine import ReplayedRound, ReplayEngine
from fairbed.testbed.replay.learning import make_learning
from fairbed.testbed.replay.setup import ReplaySetup, setup_of
from fairbed.testbed.run.preflight import infeasible_rate


def replay_experiment(
    experiment: Experiment,
    folder: Path,
    run_id: str,
    listener: Callable[[ReplayedRound], None],
    *,
    checkpoint_s: float = CHECKPOINT_S,
    threads: int | None = None,
) -> int:
    """Play all rounds of an experiment on the virtual clock, and keep them as a run.

    A folder that holds the run already is gone on with, from its last checkpoint: the same rounds
    come of it as if nothing had happened.

    Args:
        experiment: What to replay; the one that the run was begun with.
        folder: Of the run.
        run_id: For a new one.
        listener: Told of every round.
        checkpoint_s: Between two checkpoints, seconds of this machine.
        threads: Devices trained at the same time; None for as many as there are cores. It
            changes no bit.

    Returns:
        How many rounds were played.

    Raises:
        ExperimentError: Its fleet cannot be replayed.
        StoreError: The store cannot be read or written.
    """
    stage = setup_of(experiment)
    return replay_stage(stage, folder, run_id, listener, checkpoint_s=checkpoint_s, threads=threads)


def replay_stage(
    stage: ReplaySetup,
    folder: Path,
    run_id: str,
    listener: Callable[[ReplayedRound], None],
    *,
    checkpoint_s: float = CHECKPOINT_S,
    threads: int | None = None,
) -> int:
    """Play a world that is set up already; see `replay_experiment`."""
    experiment = stage.experiment
    learning = make_learning(stage, folder, threads) if experiment.trains_in_replay else None
    store = _open_store(experiment, folder, run_id, len(stage.names))
    engine = ReplayEngine(stage.decisions, stage.world, cohort=learning)
    checkpointer = Checkpointer(store, stage.names, engine, checkpoint_s, stage.told)
    rounds = 0
    try:
        checkpointer.restore()
        store.set_status("running")
        for row in stage.rows:
            store.add(row)
            store.wait_for_disk()
        promise = infeasible_rate(experiment)
        if promise is not None and engine.at.round == 0:
            store.add(_warning("infeasible", promise))
        for played in engine.play(experiment.rounds):
            checkpointer.keep(played)
            listener(played)
            rounds += 1
        checkpointer.finish()
        store.set_status("done")
    except BaseException as exc:
        is_ours = isinstance(exc, Exception)
        if not is_ours:
            checkpointer.finish()
        store.set_status("failed" if is_ours else "stopped", str(exc) if is_ours else "")
        raise
    finally:
        if learning is not None:
            learning.close()
        store.close()
    return rounds


def _warning(kind: str, text: str) -> EventRow:
    """Return something that a person should know of a replay before its first round."""
    wall = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return EventRow(
        at_s=0.0, wall=wall, level="warning", kind=kind, round=None, device=None, text=text
    )


def _open_store(experiment: Experiment, folder: Path, run_id: str, devices: int) -> Store:
    if (folder / DATABASE).exists():
        return Store.reopen(folder)
    return Store.create(
        folder,
        NewRun(
            run_id=run_id,
            name=experiment.name,
            experiment_toml=experiment.resolved_toml(),
            seed=experiment.seed,
            config_hash=experiment.hash(),
            version=version("fairbed"),
            clock="virtual",
            selection_rows="all" if devices <= LISTED else "selected",
        ),
    )
