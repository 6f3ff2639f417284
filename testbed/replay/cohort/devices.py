"""Cohorts of any model by the devices' own engine and trainer, one device after the other."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Vector
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.base import Engine, self_check
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.testbed.replay.cohort.base import (
    CohortJob,
    CohortPart,
    CohortResult,
    CohortRule,
    HelperPool,
    train_in,
)
from fairbed.testbed.replay.cohort.ordered import OrderedThreads
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.run.evaluation import EngineFactory
from fairbed.wire.artifact import Artifact
from fairbed.wire.messages import Hyperparameters


class DeviceTrainer:
    """Trains with the devices' code, with one engine per thread; the results have the same bits.

    Holds one shard per thread, and twice as many models as threads; three times as many if each
    device begins with a model of its own. On processors a convolution is
    not faster if one call computes it for many models
    (docs/decisions/0011-a-cohort-trains-in-cache.md).

    Args:
        artifact: The task.
        shards: The training data.
        threads: Devices trained at the same time; the results do not depend on it.
        make_engine: Opens one engine.
        pool: Processes on hosts of a cluster, which replace the other threads.

    Raises:
        EngineError: The engine cannot run the task, or computes wrong values.
    """

    name = "the devices' engine"

    def __init__(
        self,
        artifact: Artifact,
        shards: Shards,
        threads: int = 1,
        make_engine: EngineFactory = open_own_engine,
        pool: HelperPool | None = None,
    ) -> None:
        self.spec = artifact.spec
        self._shards = shards
        self._pool = pool
        self._threads = OrderedThreads(threads if pool is None else pool.size + 1)
        self._engines: SimpleQueue[Engine] = SimpleQueue()
        for _ in range(max(1, threads)):
            engine = make_engine(artifact)
            self_check(engine)
            self._engines.put(engine)

    def train(
        self,
        vector: Vector,
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        starts: Vector | None = None,
        rule: CohortRule | None = None,
        states: Vector | None = None,
    ) -> Iterator[CohortResult]:
        """Yield the result of each job, in the order of the jobs."""
        cohort = CohortPart(range(len(jobs)), jobs, hyperparameters, starts, rule, states)
        if self._pool is not None:
            self._pool.begin_at(vector)

        def here(at: int) -> CohortResult:
            return self.train_one(vector, cohort.take([at]))

        def elsewhere(at: int) -> CohortResult:
            return train_in(self._pool, cohort, [at]) or here(at)

        return self._threads.run(here, range(len(jobs)), elsewhere)

    def losses(self, vector: Vector, devices: Sequence[int]) -> Floats:
        """Return F_k(w), nats per example, shape (K,); infinite where it is not finite."""

        def work(device: int) -> float:
            x, y = self._shards.whole(device)
            with self._engine() as engine:
                try:
                    loss, _ = trainer.evaluate(engine, vector, x, y, Unpaced())
                    return trainer.reported_loss(self.spec, loss)
                except trainer.TrainingDiverged:
                    return np.inf

        return np.array(list(self._threads.run(work, devices)), dtype=np.float64)

    def close(self) -> None:
        """End the threads, and the processes of the pool."""
        self._threads.close()
        if self._pool is not None:
            self._pool.close()

    def train_one(self, anchor: Vector, part: CohortPart) -> CohortResult:
        """Return the result of a part of one job; `anchor` is the global model, (n_values,)."""
        [at], [job], rule = part.at, part.jobs, part.rule
        start = anchor if part.starts is None else part.starts[0]
        x, y = self._shards.whole(job.device)
        with self._engine() as engine:
            try:
                result = trainer.train(
                    engine,
                    start,
                    x,
                    y,
                    job.fitted(part.hyperparameters),
                    job.seed,
                    Unpaced(),
                    lambda: False,
                    anchor,
                    None if rule is None else rule.rule,
                    None if rule is None else _of_one(rule),
                    None if part.states is None else part.states[0],
                )
            except trainer.TrainingDiverged as exc:
                return _failed(at, start, str(exc), rule)
        found = result.loss_train
        loss = np.nan if found is None else trainer.reported_loss(self.spec, found)
        return CohortResult(
            at=np.array([at]),
            vectors=result.vector[np.newaxis],
            steps=np.array([result.steps]),
            loss_train=np.array([loss]),
            problems=("",),
            kept={name: vector[np.newaxis] for name, vector in result.kept.items()},
            returned={name: vector[np.newaxis] for name, vector in result.returned.items()},
            states=None if result.state is None else result.state[np.newaxis],
        )

    @contextmanager
    def _engine(self) -> Iterator[Engine]:
        """Take an engine for the time of a job; there is one for each thread."""
        engine = self._engines.get()
        try:
            yield engine
        finally:
            self._engines.put(engine)


def _of_one(rule: CohortRule) -> Mapping[str, Vector]:
    """Return the vectors of the rule of one device, each of shape (n_params,)."""
    return {**rule.sent, **{name: kept[0] for name, kept in rule.kept.items()}}


def _failed(at: int, start: Vector, problem: str, rule: CohortRule | None) -> CohortResult:
    """Return the result of one device that has no update."""
    returned = () if rule is None else rule.rule.returned
    return CohortResult(
        at=np.array([at]),
        vectors=start[np.newaxis],
        steps=np.array([0]),
        loss_train=np.array([np.nan]),
        problems=(problem,),
        kept={} if rule is None else rule.kept,
        returned={name: np.zeros((1, start.size), dtype=np.float32) for name in returned},
    )


class Unpaced:
    """The meter of a device without pacing."""

    def step(self, n_examples: int, length: int | None = None) -> None:
        """Do nothing."""

    def read(self, n_bytes: int) -> None:
        """Do nothing."""
