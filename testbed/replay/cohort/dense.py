"""Trains cohorts of dense models by batched matrix products, without a call per device.

See docs/decisions/0011-a-cohort-trains-in-cache.md.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from threadpoolctl import ThreadpoolController

from fairbed.coordinator.algorithms.arrays import Floats, Vector
from fairbed.testbed.replay.cohort.base import (
    CohortJob,
    CohortPart,
    CohortResult,
    CohortRule,
    HelperPool,
    steps_of,
    train_in,
)
from fairbed.testbed.replay.cohort.batches import longest_first
from fairbed.testbed.replay.cohort.net import DenseNet, train_chunk
from fairbed.testbed.replay.cohort.ordered import OrderedThreads
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.cohort.worker_pool import WorkerPool
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.evaluation import Targets
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.selfcheck import Examples, run_selfcheck
from fairbed.wire.tensors import BYTES_PER_VALUE

CHUNK_BYTES = 1 << 20
"""Limit of the models, steps and mini-batches of one chunk of several devices: about the
second-level cache of a core. Larger chunks train more devices per call, but move every value to
memory and back in every step."""

LOSS_ROWS = 1024
"""Examples whose losses are computed at a time."""


class DenseTrainer:
    """Trains a cohort in chunks that fit into a core's cache, each as one array of models.

    Holds at most 2 `threads` + 1 chunks, so that memory does not grow with the cohort.

    Args:
        spec: The task, softmax or mlp.
        shards: The training data.
        threads: Chunks trained at the same time, one in this process and each other one in a
            worker process once that is ready; the results do not depend on it.
        pool: Processes on other hosts, which replace those of this machine.

    Raises:
        SelfCheckFailed: The results differ from those of the task.
        EngineError: The machine cannot start the processes; in `train`, one has ended.
    """

    name = "batched matrix products"

    def __init__(
        self, spec: TaskSpec, shards: Shards, threads: int = 1, pool: HelperPool | None = None
    ) -> None:
        self.spec = spec
        self._net = DenseNet(spec)
        self._shards = shards
        threads = threads if pool is None else pool.size + 1
        self._threads = OrderedThreads(threads)
        self._blas = ThreadpoolController()
        run_selfcheck(spec, self._one)
        most = max(1, CHUNK_BYTES // (2 * BYTES_PER_VALUE * self._net.n_params))
        has_others = threads > 1 and len(shards.n_k) > most
        self._pool = pool
        if pool is None and has_others:
            self._pool = WorkerPool(spec, shards, most, threads - 1)

    def train(
        self,
        vector: Vector,
        jobs: Sequence[CohortJob],
        hyperparameters: Hyperparameters,
        starts: Vector | None = None,
        rule: CohortRule | None = None,
        states: Vector | None = None,
    ) -> Iterator[CohortResult]:
        """Yield the results of all jobs, those with more steps first."""
        chunks = self._chunks(jobs, hyperparameters, 0 if rule is None else rule.n_results)
        cohort = CohortPart(range(len(jobs)), jobs, hyperparameters, starts, rule, states)
        if self._pool is not None:
            self._pool.begin_at(vector)

        def here(chunk: list[int]) -> CohortResult:
            return train_chunk(self._net, self._shards, vector, cohort.take(chunk))

        def elsewhere(chunk: list[int]) -> CohortResult:
            return train_in(self._pool, cohort, chunk) or here(chunk)

        # A product that BLAS splits among its own threads may round differently on another machine.
        with self._blas.limit(limits=1, user_api="blas"):
            yield from self._threads.run(here, chunks, elsewhere)

    def losses(self, vector: Vector, devices: Sequence[int]) -> Floats:
        """Return F_k(w), nats per example, shape (K,); infinite where it is not finite."""

        def work(device: int) -> float:
            rows, total = self._shards.rows(device), 0.0
            for start in range(0, len(rows), LOSS_ROWS):
                x, y = self._shards.take(rows[start : start + LOSS_ROWS])
                with np.errstate(all="ignore"):
                    total += float(self._net.losses(vector, x, y).sum(dtype=np.float64))
            return max(0.0, total / len(rows)) if np.isfinite(total) else np.inf

        with self._blas.limit(limits=1, user_api="blas"):
            return np.array(list(self._threads.run(work, devices)), dtype=np.float64)

    def close(self) -> None:
        """End the threads and processes."""
        self._threads.close()
        if self._pool is not None:
            self._pool.close()

    def _chunks(
        self, jobs: Sequence[CohortJob], hyperparameters: Hyperparameters, rule_vectors: int
    ) -> list[list[int]]:
        """Return the jobs of each chunk, those with more steps first.

        `rule_vectors` is the number of vectors of the local rule per device.
        """
        n_k = self._shards.n_k[[job.device for job in jobs]].tolist()
        chunks: list[list[int]] = []
        size = 0
        for at in longest_first(n_k, steps_of(n_k, jobs, hyperparameters)):
            if not chunks or len(chunks[-1]) >= size:
                size = max(1, CHUNK_BYTES // self._bytes_of(n_k[at], hyperparameters, rule_vectors))
                chunks.append([])
            chunks[-1].append(at)
        return chunks

    def _bytes_of(self, n_k: int, h: Hyperparameters, rule_vectors: int) -> int:
        vectors = 2 + h.n_moments + rule_vectors  # The anchor is one for all models.
        batch = min(n_k, h.batch_size) * 2 * self._net.values_per_example
        return BYTES_PER_VALUE * (vectors * self._net.n_params + batch)

    def _one(self, vector: Vector, x: Examples, y: Targets) -> tuple[float, Vector]:
        """Return the mean loss of one mini-batch and its gradient, for the self-check."""
        gradient = np.empty((1, self._net.n_params), dtype=np.float32)
        w = np.full((1, len(y)), 1.0 / len(y), dtype=np.float32)
        flat = x.reshape(1, len(y), -1).astype(np.float32)
        loss = self._net.gradient(vector[np.newaxis], flat, y[np.newaxis], w, gradient)
        return float(loss[0]), gradient[0]
