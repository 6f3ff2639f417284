"""Personal models of a replay (Ditto): trained beside the cohort, kept by row, scored on the shard.

Every device does what `device_agent.worker` does: v_k begins at the model before round 1 or, if
that has weights, at the first one that the device receives, and takes the mini-batches of the
global section.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.ports import Score
from fairbed.device_agent.ditto import train_personal
from fairbed.device_agent.engines.base import Engine
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.trainer import TrainingDiverged, evaluate, reported_loss
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.replay.cohort.base import CohortJob, Trainer
from fairbed.testbed.replay.cohort.devices import Unpaced
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.device_vectors import STARTS_BYTES, DeviceVectors
from fairbed.testbed.replay.engine.training import PersonalScoreOf
from fairbed.wire.artifact import Artifact
from fairbed.wire.messages import Personal
from fairbed.wire.shard import make_shard


class PersonalCohort:
    """Trains and scores personal models.

    A fixed lambda takes the trainer of the cohort. Devices that choose lambda run their own code
    one after another: a comparison of losses that are nearly equal has the bits of the device.

    Args:
        trainer: The trainer of the cohort.
        artifact: The task.
        data: The training and held-out examples; shard n belongs to row n.
        initial: The model before round 1, shape (n_values,).
    """

    def __init__(
        self, trainer: Trainer, artifact: Artifact, data: FleetData, initial: Vector
    ) -> None:
        self._trainer, self._artifact, self._data = trainer, artifact, data
        self._shards = Shards(data, artifact.spec.x_shape)
        self.models = DeviceVectors(initial)
        self._opened: Engine | None = None
        self._unscored: dict[int, int] = {}
        """Round in which each device trained that was not scored since, by row."""

    def train(
        self, w_t: Vector, jobs: Sequence[CohortJob], personal: Personal, round_id: int
    ) -> None:
        """Train the personal models of a cohort; one that diverges is kept as it was.

        Args:
            w_t: The global model that was sent, shape (n_values,).
            jobs: Training of each device.
            personal: Hyperparameters, and where lambda comes from.
            round_id: The round of the dispatch.
        """
        self._unscored |= {job.device: round_id for job in jobs}
        if personal.choice != "fixed":
            for job in jobs:
                self._train_one(w_t, job, personal)
            return
        hyperparameters = personal.hyperparameters
        size, first = max(1, STARTS_BYTES // w_t.nbytes), _first(personal, w_t)
        for begin in range(0, len(jobs), size):
            part = jobs[begin : begin + size]
            starts = self.models.starts([job.device for job in part], first)
            for result in self._trainer.train(w_t, part, hyperparameters, starts):
                for at, trained, problem in zip(
                    result.at.tolist(), result.vectors, result.problems, strict=True
                ):
                    self.models.keep(part[at].device, starts[at] if problem else trained)

    def _train_one(self, w_t: Vector, job: CohortJob, personal: Personal) -> None:
        """Train the personal model of a device as the device does."""
        start = self.models.starts([job.device], _first(personal, w_t))[0]
        fitted = job.fitted(personal.hyperparameters)
        personal = structs.replace(personal, hyperparameters=fitted)
        x, y = self._shards.whole(job.device)
        try:
            trained = train_personal(
                self._engine(),
                start,
                w_t,
                x,
                y,
                personal,
                job.seed,
                Unpaced(),
                lambda: nullcontext(Unpaced()),
                lambda: False,
            )
        except TrainingDiverged:
            trained = start
        self.models.keep(job.device, trained)

    def _engine(self) -> Engine:
        self._opened = self._opened or open_own_engine(self._artifact)
        return self._opened

    def scores(self) -> list[PersonalScoreOf]:
        """Score every personal model that was trained since the last call.

        A device without held-out examples, or whose loss is not finite, has no score.
        """
        scored, self._unscored = self._unscored, {}
        found = [(row, self._score(row, self._data.test_rows[row])) for row in sorted(scored)]
        return [PersonalScoreOf(scored[row], row, one) for row, one in found if one is not None]

    def to_state(self) -> dict[str, Any]:
        """Return the models and what is not scored, for the checkpoint."""
        return self.models.to_state() | {"unscored": list(self._unscored.items())}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self.models.load_state(state)
        self._unscored = {row: round_id for row, round_id in state["unscored"]}

    def _score(self, row: int, held_out: Ints) -> Score | None:
        if not len(held_out):
            return None
        dataset = self._data.dataset
        x, y = make_shard(dataset.x[held_out], dataset.y[held_out]).arrays()
        try:
            loss, quality = evaluate(self._engine(), self.models[row], x, y, Unpaced())
        except TrainingDiverged:
            return None
        loss = reported_loss(self._artifact.spec, loss)
        return Score(len(y), quality, loss * (quality.positions or len(y)))


def _first(personal: Personal, w_t: Vector) -> Vector | None:
    """Return the model at which a new personal model begins; None: that before round 1."""
    return w_t if personal.init_seed is None else None
