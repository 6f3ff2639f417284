"""Evaluates a model on every device's held-out examples, outside the measured time."""

import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.ports import Predictions, Score
from fairbed.device_agent.engines.base import Engine
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.trainer import check_targets, check_tokens
from fairbed.testbed.experiment.datasets.dataset import Dataset, DatasetError
from fairbed.testbed.experiment.shards import FleetData
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.evaluation import Evaluation, Quality, Spread, positions_of
from fairbed.wire.shard import make_shard

BATCH = 256
"""Examples per call of the engine: large enough for speed, small enough for memory."""

EngineFactory = Callable[[Artifact], Engine]


class EvaluationStopped(Exception):
    """The evaluator was closed during an evaluation."""


@dataclass(frozen=True, slots=True)
class _Batch:
    device: int
    rows: Ints


class FleetEvaluator:
    """Evaluates models on the held-out data of a fleet; a `coordinator.ports.Evaluator`.

    Only one call at a time. Its threads, each with its own engine, exist only during a call.
    `close` stops a call within one batch.
    """

    def __init__(
        self,
        data: FleetData,
        artifact: Artifact,
        *,
        threads: int = 1,
        make_engine: EngineFactory = open_own_engine,
        model_of: Callable[[int, Vector], Vector] | None = None,
    ) -> None:
        """Check that the model fits the data, and open the engines.

        Args:
            data: The held-out examples of each device.
            artifact: The task.
            threads: Batches evaluated at the same time.
            make_engine: Opens one engine.
            model_of: Returns the model as the device with a shard has it, which keeps values of
                it; not set: all have the same.

        Raises:
            DatasetError: The model was made for data of another size, type or number of classes.
            EngineError: The engine cannot run the model.
        """
        check_fit(data.dataset, artifact.spec)
        self._data, self._model_of, self._spec = data, model_of, artifact.spec
        self._closed = threading.Event()
        self._engines = [make_engine(artifact) for _ in range(max(1, threads))]
        batches = list(_batches(data.test_rows))
        self._work = [batches[i :: len(self._engines)] for i in range(len(self._engines))]

    def evaluate(self, vector: Vector) -> dict[str, Score]:
        """Return the score of each device that holds a shard, by name.

        Args:
            vector: Flat model, shape (n_values,); not changed.

        Raises:
            EngineError: The engine failed.
            EvaluationStopped: `close` was called.
        """
        names = {number: name for name, number in self._data.assignments().items()}
        found = self._evaluations(vector, names)
        return {
            name: self._score(self._data.test_rows[k], found[k])
            for k, name in sorted(names.items())
        }

    def test(self, vector: Vector) -> Score:
        """Return the score on the held-out examples of all shards, also of those without a device.

        Args:
            vector: Flat model, shape (n_values,); not changed.

        Raises:
            EngineError: The engine failed.
            EvaluationStopped: `close` was called.
        """
        found = self._evaluations(vector, range(len(self._data.test_rows)))
        rows = np.concatenate([self._data.test_rows[k] for k in found])
        return self._score(rows, Evaluation.pooled(list(found.values())))

    def _evaluations(self, vector: Vector, shards: Collection[int]) -> dict[int, Evaluation]:
        """Return the evaluation of each of these shards."""
        batches: dict[int, list[Evaluation]] = {k: [] for k in shards}
        with ThreadPoolExecutor(len(self._engines), "evaluation") as pool:
            jobs = [
                pool.submit(self._run, engine, [b for b in work if b.device in batches], vector)
                for engine, work in zip(self._engines, self._work, strict=True)
            ]
        # Pooled in a fixed order, so that the result does not depend on the number of threads.
        results = [result for job in jobs for result in job.result()]
        for batch, found in sorted(results, key=_device_and_row):
            batches[batch.device].append(found)
        return {k: Evaluation.pooled(found) for k, found in batches.items()}

    def _score(self, rows: Ints, found: Evaluation) -> Score:
        """Return the score of the examples in `rows`, shape (n,)."""
        if not len(rows):
            return Score(0, Quality(), 0.0)
        y = self._data.dataset.y[rows]
        predictions = None if found.scores is None else Predictions(y, found.scores)
        quality, loss_sum, is_in_loss = Quality.of(y, found), found.loss_sum, True
        if self._spec.has_own_loss:
            is_in_loss = found.count_sum != 0.0
            loss_sum = found.loss_of(y) * int(positions_of(y).sum())
        if self._spec.named_metrics:
            from fairbed.wire.named_metrics import sums_by_name

            quality = replace(quality, sums=sums_by_name(self._spec.named_metrics, found))
        return Score(
            len(rows),
            quality,
            loss_sum,
            predictions=predictions,
            class_counts=found.class_counts,
            spread=Spread.of(y) if y.dtype.kind == "f" and y.ndim > 1 else None,
            has_own_loss=self._spec.has_own_loss,
            is_in_loss=is_in_loss,
        )

    def close(self) -> None:
        """Stop a running evaluation within one batch, and refuse further ones."""
        self._closed.set()

    def _run(
        self, engine: Engine, batches: Sequence[_Batch], vector: Vector
    ) -> list[tuple[_Batch, Evaluation]]:
        dataset = self._data.dataset
        results = []
        for batch in batches:
            if self._closed.is_set():
                raise EvaluationStopped("evaluation: stopped before its last batch")
            # Made as on the device, so that pixels are scaled by the same rule.
            x, y = make_shard(dataset.x[batch.rows], dataset.y[batch.rows]).arrays()
            own = vector if self._model_of is None else self._model_of(batch.device, vector)
            results.append((batch, engine.evaluate(own, x, y)))
        return results


def check_fit(dataset: Dataset, spec: TaskSpec) -> None:
    """Check that a model fits a data set, and its targets and tokens the model.

    Raises:
        DatasetError: Size, type, vocabulary, number of classes or shape of the targets differ, or
            an example has no label at any position.
    """
    x_dtype = "int64" if dataset.x.dtype.kind == "i" else "float32"
    has = _fit(
        math.prod(dataset.x_shape),
        x_dtype,
        dataset.x_classes,
        dataset.y.shape[1:],
        dataset.classes,
        dataset.is_regression,
    )
    takes = _fit(
        math.prod(spec.x_shape),
        spec.x_dtype,
        spec.x_classes,
        spec.y_shape,
        spec.classes,
        spec.kind == "regression",
    )
    if has != takes:
        raise DatasetError(
            f"model {spec.name}",
            f"must take {has}, as data set {dataset.name} has, got {takes}",
            "choose another model or data set",
        )

    name = f"data set {dataset.name}"
    try:
        check_targets(spec, dataset.y, name)
        check_tokens(spec, dataset.x, name)
    except ValueError as exc:
        problem, _, what_to_do = str(exc).removeprefix(f"{name}: ").rpartition("; ")
        raise DatasetError(name, problem or what_to_do, what_to_do) from exc


def _fit(
    values: int,
    x_dtype: str,
    x_classes: int,
    y_shape: tuple[int, ...],
    classes: int,
    is_regression: bool,
) -> str:
    kinds = f" of {x_classes} tokens" if x_classes else ""
    targets = "targets of regression" if is_regression else f"{classes} classes"
    at = f" at positions of shape {y_shape}" if y_shape else ""
    return f"{values} {x_dtype} values{kinds} and {targets}{at}"


def _batches(rows_by_device: Sequence[Ints]) -> Iterator[_Batch]:
    for device, rows in enumerate(rows_by_device):
        for start in range(0, len(rows), BATCH):
            yield _Batch(device, rows[start : start + BATCH])


def _device_and_row(result: tuple[_Batch, Evaluation]) -> tuple[int, int]:
    return result[0].device, int(result[0].rows[0])
