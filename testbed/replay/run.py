"""Runs a whole replay: the world of an experiment, its rounds, and its store."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairbed.coordinator.policy.config import ALERTS_OFF
from fairbed.coordinator.rounds.loop import NothingAggregatedError
from fairbed.coordinator.store import NewRun, Provenance, RunReader, Store
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.event_log import Level
from fairbed.coordinator.store.tables import EventRow
from fairbed.device_agent.installed import agent_version
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.task_file import check_same_base, write_task
from fairbed.testbed.provenance import difference, provenance
from fairbed.testbed.replay.checkpointer import CHECKPOINT_S, MAX_LISTED, Checkpointer
from fairbed.testbed.replay.engine.engine import ReplayedRound, ReplayEngine
from fairbed.testbed.replay.learning import Learning, make_learning
from fairbed.testbed.replay.setup import ReplaySetup, setup_of
from fairbed.wire.artifact import Artifact, TaskKind

if TYPE_CHECKING:
    from fairbed.testbed.replay.cohort.base import CohortHelpers


def replay_experiment(
    experiment: Experiment,
    folder: Path,
    run_id: str,
    listener: Callable[[ReplayedRound], None],
    *,
    checkpoint_s: float = CHECKPOINT_S,
    threads: int | None = None,
) -> int:
    """Replay all rounds of an experiment on the virtual clock, and store them as a run.

    A run that is in the folder already is resumed from its last checkpoint, with the same rounds
    as those of an uninterrupted replay.

    Args:
        experiment: The experiment; for a run that is resumed, the one that it began with.
        folder: Folder of the run.
        run_id: Identifier of a new run.
        listener: Called with every round.
        checkpoint_s: Interval of checkpoints, seconds of this machine.
        threads: Devices trained at the same time, None for one per core; the results do not
            depend on it.

    Returns:
        The number of rounds that were replayed.

    Raises:
        ExperimentError: Its fleet cannot be replayed.
        StoreError: The store cannot be read or written.
    """
    setup = setup_of(experiment)
    return replay_setup(setup, folder, run_id, listener, checkpoint_s=checkpoint_s, threads=threads)


def replay_setup(
    setup: ReplaySetup,
    folder: Path,
    run_id: str,
    listener: Callable[[ReplayedRound], None],
    *,
    checkpoint_s: float = CHECKPOINT_S,
    threads: int | None = None,
    helpers: "CohortHelpers | None" = None,
    origin: Path | None = None,
    origins: Mapping[str, str] | None = None,
) -> int:
    """Replay a world that is set up already; see `replay_experiment`.

    `origin` is the folder of the experiment file; None is the current folder. `origins` is what
    set each key of the experiment. `helpers` train a part of each cohort.
    """
    experiment = setup.experiment
    found = provenance(origin or Path(), setup.data, origins, setup.inputs.hashes)
    with ExitStack() as stack:
        learning = None
        if experiment.trains_in_replay:
            learning = make_learning(setup, folder, threads, helpers)
            stack.callback(learning.close)
        task: TaskKind = "classification" if setup.data is None else setup.data.dataset.kind
        if setup.artifact is not None:
            _keep_task(folder, setup.artifact)
        store = _open_store(experiment, folder, run_id, len(setup.names), found, task)
        stack.callback(store.close)
        return _replay(setup, folder, store, learning, found, listener, checkpoint_s)


def _keep_task(folder: Path, artifact: Artifact) -> None:
    """Write the task of a new replay; of a resumed one, check it.

    Raises:
        TaskError: The frozen part of its model has changed.
    """
    if (folder / DATABASE).exists():
        check_same_base(folder, artifact)
    else:
        write_task(folder, artifact)


def _replay(
    setup: ReplaySetup,
    folder: Path,
    store: Store,
    learning: Learning | None,
    found: Provenance,
    listener: Callable[[ReplayedRound], None],
    checkpoint_s: float,
) -> int:
    experiment = setup.experiment
    engine = ReplayEngine(
        setup.decisions,
        setup.world,
        cohort=learning,
        attacks=setup.attacks,
        explains=experiment.operator.reasons and len(setup.names) <= MAX_LISTED,
    )
    named = None
    if learning is not None and learning.spec.named_metrics:
        from fairbed.coordinator.records.named_metrics import NamedMetrics

        named = NamedMetrics(learning.spec.named_metrics, experiment.evaluation.worst)
    checkpointer = Checkpointer(
        store, setup.names, engine, checkpoint_s, setup.device_records, setup.powers, named
    )
    rounds, aggregated = 0, 0
    try:
        checkpointer.restore()
        if engine.at.round > 0:
            with RunReader(folder) as reader:
                aggregated = sum(row.aggregated for row in reader.rounds())
                before = msgspec.json.decode(reader.run().row.provenance, type=Provenance)
            if (text := difference(before, found)) is not None:
                store.add(_event("provenance", text, "warning"))
        store.set_status("running")
        for row in setup.rows:
            store.add(row)
            store.wait_for_disk()
        if engine.at.round == 0:
            for finding in setup.findings():
                store.add(_event(finding.kind, finding.text, finding.level))
            if not experiment.operator.alerts:
                store.add(_event("alerts", ALERTS_OFF, "warning"))
            for line in () if learning is None else learning.remarks():
                store.add(_event("micro-batch", line, "info"))
        for replayed in engine.replay(experiment.rounds):
            checkpointer.write(replayed)
            listener(replayed)
            rounds += 1
            aggregated += len(replayed.merged)
        checkpointer.finish()
        if learning is not None and aggregated == 0:
            raise NothingAggregatedError(experiment.rounds)
        store.set_status("done")
    except BaseException as exc:
        is_failure = isinstance(exc, Exception)
        if not is_failure:
            checkpointer.finish()
        store.set_status("failed" if is_failure else "stopped", str(exc) if is_failure else "")
        raise
    return rounds


def _event(kind: str, text: str, level: Level) -> EventRow:
    """Return a fact about a replay before its first round, as an event."""
    wall = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return EventRow(at_s=0.0, wall=wall, level=level, kind=kind, round=None, device=None, text=text)


def _open_store(
    experiment: Experiment,
    folder: Path,
    run_id: str,
    devices: int,
    found: Provenance,
    task: TaskKind,
) -> Store:
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
            version=agent_version(),
            provenance=found,
            clock="virtual",
            task=task,
            selection_rows="all" if devices <= MAX_LISTED else "selected",
        ),
    )
