"""The model of a replay: its cohorts really train, its rule merges, its fleet judges."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.algorithms.aggregation.base import Report
from coordinator.algorithms.arrays import Floats, Ints, Vector
from coordinator.config import CoordinatorConfig
from coordinator.decisions import Choice, Decisions
from coordinator.ports import Evaluator, Score
from coordinator.task.catalogue import initial_vector, load_task
from coordinator.update_store import UpdateStore
from testbed.evaluation import FleetEvaluator
from testbed.replay.codings import Codings
from testbed.replay.cohort.base import Job, Trainer
from testbed.replay.cohort.choose import make_trainer
from testbed.replay.cohort.ordered import free_cores
from testbed.replay.play import Learned
from testbed.replay.stage import Stage
from wire.errors import EncodeError


class Learning:
    """What a replay's devices learn; a `testbed.replay.play.Cohort`.

    Row n of the fleet holds shard n. Nothing here depends on the number of threads.

    Args:
        decisions: Merge, and say in which order a device takes its mini-batches.
        trainer: Does what the devices would.
        evaluator: Judges the model.
        vector: The model before round 1, shape (n_values,).
        folder: Where the models of a round lie for a rule that needs all of them at once.
    """

    def __init__(
        self,
        decisions: Decisions,
        trainer: Trainer,
        evaluator: Evaluator,
        vector: Vector,
        folder: Path,
    ) -> None:
        self._decisions = decisions
        self._config: CoordinatorConfig = decisions.config
        self._trainer = trainer
        self._evaluator = evaluator
        self._codings = Codings(self._config.exchange, trainer.spec.layout)
        self._vector = self._codings.version(vector, None, decisions.encoding_stream(0))
        self._folder = folder
        self.evaluate_s = 0.0
        """What the last evaluation took on this machine."""

    @property
    def vector(self) -> Vector:
        """The model of now, shape (n_values,)."""
        return self._vector

    def train(self, choice: Choice, trained: Ints, merged: Ints) -> Learned:
        """Train a cohort from the model of now, and merge a part of it into the next one.

        A device whose training diverges has no update and reports no loss.

        Args:
            choice: Of the round.
            trained: Rows that completed local training, ascending.
            merged: Rows of these whose updates enter the model; may be empty.

        Returns:
            What `trained` report, in their order.
        """
        layout, round_id = self._trainer.spec.layout, choice.round
        needs_loss = self._decisions.aggregator.needs_loss
        rows = trained.tolist()
        before = self.losses(rows) if needs_loss else None
        learned = Learned.nothing(len(rows))
        seeds = self._decisions.training_seeds(round_id, trained).tolist()
        jobs = [Job(row, seed) for row, seed in zip(rows, seeds, strict=True)]
        accumulator = self._decisions.begin_merge(
            round_id,
            self._vector,
            layout.n_params,
            lambda: UpdateStore(self._folder, layout.n_values),
        )
        is_merged, has_merged = np.isin(trained, merged), False
        hyperparameters = self._config.training.hyperparameters(round_id)
        for answer in self._trainer.train(self._vector, jobs, hyperparameters):
            at = answer.at
            row, n_k, model = rows[at], int(choice.n_k[rows[at]]), answer.vector
            has_failed = bool(answer.problem)
            if is_merged[at] and not has_failed:
                try:
                    model = self._codings.update(row, jobs[at].seed, self._vector, model)
                except EncodeError:
                    has_failed = True
            if has_failed:
                learned.has_failed[at] = True
                continue
            loss_before = None if before is None else float(before[at])
            reported = answer.loss_train if loss_before is None else loss_before
            learned.losses[at] = np.nan if reported is None else reported
            if is_merged[at]:
                has_merged = True
                accumulator.add(Report(row, n_k, model, loss_before))
        if has_merged:
            rng = self._decisions.encoding_stream(round_id)
            merged_model = accumulator.finish().vector
            self._vector = self._codings.version(merged_model, self._vector, rng)
        return learned

    def losses(self, rows: Sequence[int]) -> Floats:
        """Return F_k(w_t) of the model of now on the training data of each row, nats, shape (K,).

        Infinite where it is not finite.
        """
        return self._trainer.losses(self._vector, rows)

    def evaluate(self, round_id: int) -> Mapping[str, Score] | None:
        """Return what the model of now scores on each device's held-out data, by name.

        None when `[evaluation] every` leaves this round out.
        """
        if not self._config.evaluation.is_due(round_id, self._config.rounds):
            return None
        started = time.perf_counter()
        scores = self._evaluator.evaluate(self._vector)
        self.evaluate_s = time.perf_counter() - started
        return scores

    def to_state(self) -> dict[str, Any]:
        """Return what a replay that goes on has to know beside the model."""
        return {"owed": self._codings.to_state()}

    def load_state(self, vector: Vector, state: dict[str, Any]) -> None:
        """Go on from the model of a checkpoint, shape (n_values,)."""
        self._vector = vector
        self._codings.load_state(state["owed"])

    def close(self) -> None:
        """Let all threads go."""
        self._trainer.close()


def make_learning(stage: Stage, folder: Path, threads: int | None = None) -> Learning:
    """Return the model of a replay before round 1.

    Args:
        stage: Says which model, training and data; shard n belongs to row n.
        folder: Of the run.
        threads: Devices trained at the same time, None for as many as there are cores; changes
            no bit.

    Raises:
        ExperimentError: `[replay] engine` cannot train this model.
        DataError: Model and data do not fit.
        TaskError: The model cannot be had.
        EngineError: The engine cannot run it.
    """
    experiment, data = stage.experiment, stage.data
    assert data is not None, "a stage that trains has data"
    threads, dataset = threads or free_cores(), data.dataset
    artifact = load_task(experiment.model.name, dataset.x_shape, dataset.classes)
    trainer = make_trainer(artifact, data, experiment.replay.engine, threads)
    evaluator = FleetEvaluator(data, artifact, threads=threads)
    vector = initial_vector(artifact.spec, experiment.seed_for("init"))
    return Learning(stage.decisions, trainer, evaluator, vector, folder)
