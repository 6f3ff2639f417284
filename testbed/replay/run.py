"""A whole replay: a world from an experiment, its rounds, and the store that keeps them."""

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from fairbed.coordinator.store import Store
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.tables import EventRow
from fairbed.testbed.cli.preflight import broken_promise
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.keep import CHECKPOINT_S, LISTED, Keeper, Parts
from fairbed.testbed.replay.lasting import play_lasting
from fairbed.testbed.replay.learning import make_learning
from fairbed.testbed.replay.play import Played, Position, play
from fairbed.testbed.replay.stage import Stage, stage_of
from fairbed.testbed.replay.under_way import Lasting, UnderWay


def replay_experiment(
    experiment: Experiment,
    folder: Path,
    run_id: str,
    listener: Callable[[Played], None],
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
    stage = stage_of(experiment)
    return replay_stage(stage, folder, run_id, listener, checkpoint_s=checkpoint_s, threads=threads)


def replay_stage(
    stage: Stage,
    folder: Path,
    run_id: str,
    listener: Callable[[Played], None],
    *,
    checkpoint_s: float = CHECKPOINT_S,
    threads: int | None = None,
) -> int:
    """Play a world that is set up already; see `replay_experiment`."""
    experiment, decisions = stage.experiment, stage.decisions
    learning = make_learning(stage, folder, threads) if experiment.trains_in_replay else None
    store = _open_store(experiment, folder, run_id, len(stage.names))
    under_way = make_under_way(stage) if experiment.round.goes_on else None
    parts = Parts(decisions, stage.world, learning, under_way)
    keeper = Keeper(store, stage.names, parts, checkpoint_s, stage.told)
    rounds = 0
    try:
        at = keeper.restore()
        store.set_status("running")
        for row in stage.rows:
            store.add(row)
            store.keep_up()
        promise = broken_promise(experiment)
        if promise is not None and at.round == 0:
            store.add(_warning("infeasible", promise))
        for played in _rounds(stage, parts, at):
            keeper.keep(played)
            listener(played)
            rounds += 1
        keeper.finish()
        store.set_status("done")
    except BaseException as exc:
        is_ours = isinstance(exc, Exception)
        if not is_ours:
            keeper.finish()
        store.set_status("failed" if is_ours else "stopped", str(exc) if is_ours else "")
        raise
    finally:
        if learning is not None:
            learning.close()
        store.close()
    return rounds


def make_under_way(stage: Stage) -> UnderWay:
    """Return the exchanges of a stage whose rounds do not end them: none yet."""
    assert isinstance(stage.world, Lasting), "only a world that imitates a live run is none"
    return UnderWay(stage.experiment.coordinator(), stage.world)


def _rounds(stage: Stage, parts: Parts, start: Position) -> Iterator[Played]:
    """Play the rounds of an experiment, from `start` on."""
    experiment, under_way, cohort = stage.experiment, parts.under_way, parts.cohort
    decisions, last = parts.decisions, experiment.rounds
    if under_way is None:
        yield from play(decisions, parts.world, experiment.round, last, cohort=cohort, start=start)
    else:
        yield from play_lasting(decisions, under_way, last, cohort=cohort, start=start)


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
        run_id=run_id,
        name=experiment.name,
        experiment_toml=experiment.resolved_toml(),
        seed=experiment.seed,
        config_hash=experiment.hash(),
        version=version("fairbed"),
        git_revision=None,
        clock="virtual",
        selections="all" if devices <= LISTED else "chosen",
    )
