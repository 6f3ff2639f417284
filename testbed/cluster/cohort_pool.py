"""Processes on the hosts of a cluster that train a part of each cohort.

A process receives the examples once and the global model once per round. It computes with one
thread, as every process of a replay does, so that results have the same bits wherever they come
from. The replay itself trains what a lost process had begun.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.testbed.errors import HostLostError
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.replay.cohort.base import CohortPart, CohortResult
from fairbed.testbed.replay.cohort.devices import DeviceTrainer
from fairbed.testbed.replay.cohort.net import DenseNet, train_chunk
from fairbed.testbed.replay.cohort.shards import DividedData, Examples, Shards
from fairbed.testbed.replay.cohort.worker_pool import SentRule, received_rule, sent_rule
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.evaluation import Targets

if TYPE_CHECKING:
    from fairbed.testbed.cluster.connection import Cluster, RemoteObject

Train: TypeAlias = Callable[[Vector, CohortPart], CohortResult]
"""Trains a part of a cohort from the global model, shape (n_values,)."""


class ClusterPool:
    """As many processes as the cluster has cores, but one, which the replay itself takes.

    A `testbed.replay.cohort.base.HelperPool`.

    Args:
        cluster: The cluster.
        make: Returns what trains in a process: `make_dense_training` or `make_device_training`.
        *arguments: Its arguments; each host receives them once.
    """

    def __init__(self, cluster: "Cluster", make: Callable[..., Train], *arguments: Any) -> None:
        self._cluster = cluster
        shared = [cluster.share(argument) for argument in arguments]
        free = [host for host in cluster.hosts for _ in range(int(host.cores))]
        if any(host.is_here for host in free):
            free.remove(next(host for host in free if host.is_here))
        self._workers = [
            cluster.start(host, RemoteTrainer, make, *shared, cores=1) for host in free
        ]
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

    def train(self, part: CohortPart) -> CohortResult:
        """Train some jobs on a host; see `HelperPool`."""
        worker = self._idle.get()
        if worker is None:
            self._idle.put(None)
            raise HostLostError("a process that trained is lost")
        jobs, is_lost = replace(part, rule=None), False
        try:
            call = worker.call("train", self._vector, jobs, sent_rule(part.rule))
            result: CohortResult = call.result()
        except HostLostError:
            is_lost = True
            raise
        finally:
            self._idle.put(None if is_lost else worker)
        return result

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()


def dense_pool(cluster: "Cluster", spec: TaskSpec, shards: Shards) -> ClusterPool:
    """Return the processes that train dense models on the data of a fleet."""
    return ClusterPool(cluster, make_dense_training, spec, shards.x, shards.y, shards.train_rows)


def device_pool(cluster: "Cluster", artifact: Artifact, data: DividedData) -> ClusterPool:
    """Return the processes that train any model on the data of a fleet."""
    sent = SentData(data.dataset, data.train_rows)
    if artifact.base is None:
        return ClusterPool(cluster, make_device_training, artifact, sent)
    from fairbed.wire.base_files import default_bases

    blob = bytes(default_bases(os.environ).blob(artifact.base))
    return ClusterPool(cluster, make_device_training, artifact, sent, blob)


class RemoteTrainer:
    """Trains in a process on a host, with one thread.

    Args:
        make: Returns what trains.
        *arguments: Its arguments.
    """

    def __init__(self, make: Callable[..., Train], *arguments: Any) -> None:
        self._train = make(*arguments)
        self._limits = ThreadpoolController().limit(limits=1)

    def begin(self) -> None:
        """Return as soon as the process has started."""

    def train(self, vector: Vector, part: CohortPart, sent: SentRule | None) -> CohortResult:
        """Train some jobs, as `ClusterPool.train` has received them."""
        return self._train(vector, replace(part, rule=received_rule(sent)))


def make_dense_training(
    spec: TaskSpec, x: NDArray[Any], y: Targets, train_rows: Sequence[Ints]
) -> Train:
    """Return what trains chunks of dense models, as `DenseTrainer` does."""
    net, examples = DenseNet(spec), Examples(x, y, train_rows)
    return lambda vector, part: train_chunk(net, examples, vector, part)


@dataclass(frozen=True, slots=True)
class SentData:
    """The data of a fleet, as `testbed.replay.cohort.shards.DividedData`."""

    dataset: Dataset
    train_rows: tuple[Ints, ...]


def make_device_training(artifact: Artifact, data: SentData, base: bytes | None = None) -> Train:
    """Return what trains one device at a time, as `DeviceTrainer` does.

    Args:
        artifact: The task.
        data: The data of the fleet.
        base: Frozen part of the model, which this host keeps in the cache of its user.

    Raises:
        BaseMissing: It is that of another task.
        EngineError: The engine cannot run the task.
    """
    if artifact.base is not None and base is not None:
        from fairbed.wire.base_files import default_bases

        default_bases(os.environ).receive(artifact.base, memoryview(base))
    return DeviceTrainer(artifact, Shards(data, artifact.spec.x_shape)).train_one
