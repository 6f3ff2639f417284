"""Processes on the hosts of a cluster that train a part of each cohort.

A process receives the examples once and the global model once per round. It computes with one
thread, as every process of a replay does, so that results have the same bits wherever they come
from. The replay itself trains what a lost process had begun.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.testbed.errors import HostLostError
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.replay.cohort.base import CohortJob, CohortResult, CohortRule
from fairbed.testbed.replay.cohort.devices import DeviceTrainer
from fairbed.testbed.replay.cohort.net import DenseNet, train_chunk
from fairbed.testbed.replay.cohort.shards import DividedData, Examples, Shards
from fairbed.testbed.replay.cohort.worker_pool import SentRule, received_rule, sent_rule
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.evaluation import Targets
from fairbed.wire.messages import Hyperparameters

if TYPE_CHECKING:
    from fairbed.testbed.cluster.connection import Cluster, RemoteObject


class ClusterPool:
    """As many processes as the cluster has cores, but one, which the replay itself takes.

    A `testbed.replay.cohort.base.HelperPool`.

    Args:
        cluster: The cluster.
        make: Makes the object that trains, `DenseWorker` or `DeviceWorker`, in each process.
        *arguments: Its arguments; each host receives them once.
    """

    def __init__(self, cluster: "Cluster", make: Callable[..., object], *arguments: Any) -> None:
        self._cluster = cluster
        shared = [cluster.share(argument) for argument in arguments]
        free = [host for host in cluster.hosts for _ in range(int(host.cores))]
        if any(host.is_here for host in free):
            free.remove(next(host for host in free if host.is_here))
        self._workers = [cluster.start(host, make, *shared, cores=1) for host in free]
        self._begun: list[Future[Any]] = [worker.call("begin") for worker in self._workers]
        self._vector: Any = None
        self._idle: SimpleQueue[RemoteObject | None] = SimpleQueue()
        """Workers that train nothing; None stands for one that is lost."""
        for worker in self._workers:
            self._idle.put(worker)

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self._workers)

    def is_ready(self) -> bool:
        """Return whether every process has begun, or is lost; any thread may call it."""
        return all(future.done() for future in self._begun)

    def begin_at(self, vector: Vector) -> None:
        """Set the global model w_t of all later training, shape (n_values,)."""
        self._vector = self._cluster.share(vector)

    def train(
        self,
        at: Sequence[int],
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        starts: Vector | None = None,
        rule: CohortRule | None = None,
    ) -> CohortResult:
        """Train some jobs on a host; see `HelperPool`."""
        worker = self._idle.get()
        if worker is None:
            self._idle.put(None)
            raise HostLostError("a process that trained is lost")
        sent = None if rule is None else sent_rule(rule)
        is_lost = False
        try:
            call = worker.call("train", self._vector, jobs, hyperparameters, starts, sent)
            vectors, steps, loss_train, problems, kept, returned = call.result()
        except HostLostError:
            is_lost = True
            raise
        finally:
            self._idle.put(None if is_lost else worker)
        places = np.array(at, dtype=np.int64)
        return CohortResult(places, vectors, steps, loss_train, problems, kept, returned)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()


def dense_pool(cluster: "Cluster", spec: TaskSpec, shards: Shards) -> ClusterPool:
    """Return the processes that train dense models on the data of a fleet."""
    return ClusterPool(cluster, DenseWorker, spec, shards.x, shards.y, shards.train_rows)


def device_pool(cluster: "Cluster", artifact: Artifact, data: DividedData) -> ClusterPool:
    """Return the processes that train any model on the data of a fleet."""
    return ClusterPool(cluster, DeviceWorker, artifact, SentData(data.dataset, data.train_rows))


class _OneThread:
    """An object in a process on a host that computes with one thread."""

    def __init__(self) -> None:
        self._limits = ThreadpoolController().limit(limits=1)

    def begin(self) -> None:
        """Return as soon as the process has started."""


class DenseWorker(_OneThread):
    """Trains chunks of dense models, as `DenseTrainer` does."""

    def __init__(
        self, spec: TaskSpec, x: NDArray[Any], y: Targets, train_rows: Sequence[Ints]
    ) -> None:
        self._net, self._examples = DenseNet(spec), Examples(x, y, train_rows)
        super().__init__()

    def train(
        self,
        vector: Vector,
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        starts: Vector | None,
        sent: SentRule | None,
    ) -> tuple[Any, ...]:
        """Return models, steps, losses, problems, and the vectors of the local rule."""
        params = np.repeat(vector[np.newaxis], len(jobs), axis=0)
        if starts is not None:
            params[:] = starts
        rule = None if sent is None else received_rule(*sent)
        done = train_chunk(
            self._net, self._examples, params, vector, (), jobs, hyperparameters, rule
        )
        return _sent(done)


@dataclass(frozen=True, slots=True)
class SentData:
    """The data of a fleet, as `testbed.replay.cohort.shards.DividedData`."""

    dataset: Dataset
    train_rows: tuple[Ints, ...]


class DeviceWorker(_OneThread):
    """Trains one device after the other, as `DeviceTrainer` does."""

    def __init__(self, artifact: Artifact, data: SentData) -> None:
        self._trainer = DeviceTrainer(artifact, Shards(data, artifact.spec.x_shape))
        super().__init__()

    def train(
        self,
        vector: Vector,
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        starts: Vector | None,
        sent: SentRule | None,
    ) -> tuple[Any, ...]:
        """Return model, steps, loss, problem, and the vectors of the local rule."""
        [job] = jobs
        start = vector if starts is None else starts[0]
        rule = None if sent is None else received_rule(*sent)
        return _sent(self._trainer.train_one(start, vector, 0, job, hyperparameters, rule))


def _sent(done: CohortResult) -> tuple[Any, ...]:
    return done.vectors, done.steps, done.loss_train, done.problems, done.kept, done.returned
