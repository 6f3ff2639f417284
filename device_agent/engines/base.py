"""The interface of training engines, and the checks that all of them share."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.errors import EngineMismatch
from fairbed.wire.artifact import Artifact, TaskSpec
from fairbed.wire.buckets import buckets_of
from fairbed.wire.evaluation import Evaluation, Targets, mean_weights
from fairbed.wire.selfcheck import SelfCheckFailed, run_selfcheck
from fairbed.wire.tensors import batch_text

EVALUATION_BATCH, EVALUATION_VALUES = 64, 1 << 20
"""Most examples of an evaluation run, and most values of x, or logits of all positions, in it. One
example may have more. They bound the memory of activations."""


EMPTY: Mapping[str, NDArray[np.float32]] = MappingProxyType({})
"""The base of a task without one."""

Examples = NDArray[np.float32] | NDArray[np.int64]


class Engine(Protocol):
    """Computes losses and gradients of one task on flat vectors. Not thread-safe."""

    spec: TaskSpec

    @property
    def name(self) -> str:
        """Engine and version, for messages."""
        ...

    def reseed(self, seed: int, step: int) -> None:
        """Set the random numbers (dropout) of the next gradients.

        The same seed and step give the same numbers.

        Args:
            seed: Seed of the device and round.
            step: Number of the mini-batch, from 0.
        """
        ...

    def gradient(
        self,
        vector: NDArray[np.float32],
        x: Examples,
        y: Targets,
        micro_batch: int | None = None,
        factor: float = 1.0,
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the mean loss of a mini-batch and `factor` times its gradient, shape (n_params,).

        The mean is over all positions of all examples (`wire.evaluation.positions_of`).
        `vector` has shape (n_values,); its buffers, if any, are updated in place, by each part in
        order. The caller may change the returned array; the next call overwrites it.

        Args:
            vector: The model.
            x: Examples, shape (B, *x_shape).
            y: Targets, shape (B, *y_shape).
            micro_batch: Examples of a part, see `parts`. The sum over the parts, with weights of
                the whole mini-batch, is its gradient up to the order of the sums, unless the
                examples of a part affect each other, as in batch normalisation.
            factor: Is in the weights of the examples: a step of its size needs no product of its
                own. The loss is without it.
        """
        ...

    def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
        """Return the evaluation of examples, in evaluation mode."""
        ...

    def counts(self, y: Targets) -> NDArray[np.float64]:
        """Return the weights c of examples in a loss that has them (`TaskSpec.weighs`), shape (B,).

        Then the mean of `gradient` is sum l / sum c.
        """
        ...

    def running_s(self) -> float:
        """Return how long the step in progress has taken; 0 between steps. Thread-safe."""
        ...

    def interrupt(self) -> None:
        """End the step in progress if that is possible: it raises `EngineError`. Thread-safe."""
        ...


OpenEngine: TypeAlias = Callable[[Artifact, int], Engine]
"""Opens the engine of a task, with that many threads of one training step."""


def evaluation_batch(spec: TaskSpec) -> int:
    """Return the examples of an evaluation run of a task."""
    logits = math.prod(spec.y_shape) * (spec.classes if spec.kind == "classification" else 1)
    of_one = max(math.prod(spec.x_shape), logits if spec.y_shape else 1)
    return max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // of_one))


def parts(n: int, size: int | None) -> list[slice]:
    """Return the parts of n examples, of `size` and in order; without a size, one part."""
    size = n if size is None else size
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


class BucketEngine:
    """An `Engine` for sequences that are padded to several lengths (`wire.buckets`).

    Each mini-batch runs at the shortest length that holds it; each example of an evaluation, too.

    Args:
        spec: The task, with buckets.
        engines: The engine of each length.
    """

    def __init__(self, spec: TaskSpec, engines: Mapping[int, Engine]) -> None:
        self.spec, self.engines = spec, engines

    @property
    def name(self) -> str:
        """Engine and version, for messages."""
        return self.engines[self.spec.buckets[-1]].name

    def reseed(self, seed: int, step: int) -> None:
        """Set the random numbers of the next gradients."""
        for engine in self.engines.values():
            engine.reseed(seed, step)

    def gradient(
        self,
        vector: NDArray[np.float32],
        x: Examples,
        y: Targets,
        micro_batch: int | None = None,
        factor: float = 1.0,
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the mean loss of a mini-batch and its gradient; see `Engine.gradient`."""
        x, y = shaped_examples(self.spec, x, y)
        length = int(self._buckets(x, y).max())
        return self.engines[length].gradient(vector, *self._cut(x, y, length), micro_batch, factor)

    def evaluate(self, vector: NDArray[np.float32], x: Examples, y: Targets) -> Evaluation:
        """Return the evaluation of examples, in evaluation mode."""
        x, y = shaped_examples(self.spec, x, y)
        buckets, found, places = self._buckets(x, y), list[Evaluation](), list[NDArray[np.int64]]()
        for length, engine in self.engines.items():
            rows = np.flatnonzero(buckets == length)
            if len(rows):
                found.append(engine.evaluate(vector, *self._cut(x[rows], y[rows], length)))
                places.append(rows)
        pooled = Evaluation.pooled(found)
        if pooled.scores is None:
            return pooled
        return pooled._replace(scores=pooled.scores[np.argsort(np.concatenate(places))])

    def counts(self, y: Targets) -> NDArray[np.float64]:
        """Return the weights c of examples in the loss, padded to the longest length."""
        return self.engines[self.spec.buckets[-1]].counts(y)

    def running_s(self) -> float:
        """Return how long the step in progress has taken; 0 between steps."""
        return max(engine.running_s() for engine in self.engines.values())

    def interrupt(self) -> None:
        """End the step in progress if that is possible."""
        for engine in self.engines.values():
            engine.interrupt()

    def _buckets(self, x: Examples, y: Targets) -> NDArray[np.int64]:
        buckets = buckets_of(self.spec, x, y)
        assert buckets is not None, "the task has buckets"
        return buckets

    def _cut(self, x: Examples, y: Targets, length: int) -> tuple[Examples, Targets]:
        return x[:, :length], y[:, :length] if self.spec.labels_tokens else y


def weights_of(
    y: Targets, counts: Callable[[Targets], NDArray[np.float64]] | None, factor: float
) -> NDArray[np.float32]:
    """Return the weight of each example in the mean of a mini-batch, shape (B,).

    Where no example has a weight in the loss, all are 0: the step has no gradient.

    Args:
        y: Targets.
        counts: Weights in the loss; None: their positions.
        factor: Multiplies all.
    """
    if counts is None:
        return mean_weights(y, factor)
    total = float(counts(y).sum())
    return np.full(len(y), factor / total if total else 0.0, np.float32)


def self_check(engine: Engine) -> None:
    """Run the task's self-check on an engine, that of each length if it has several.

    Raises:
        EngineMismatch: The results differ from the expected results of the task.
    """
    if isinstance(engine, BucketEngine):
        for each in engine.engines.values():
            self_check(each)
        return
    if engine.spec.masks:
        engine.reseed(engine.spec.selfcheck.seed, 0)
    try:
        run_selfcheck(engine.spec, engine.gradient)
    except SelfCheckFailed as exc:
        raise EngineMismatch(f"{engine.name}: {exc}") from exc


def shaped_examples(spec: TaskSpec, x: Examples, y: Targets) -> tuple[Examples, Targets]:
    """Return x as (B, *x_shape) and y as (B, *y_shape), contiguous.

    Raises:
        ValueError: A shape or dtype does not fit the task.
    """
    size = math.prod(spec.x_shape)
    is_fit = y.shape[1:] == spec.y_shape and len(x) == len(y) and x.size == len(y) * size
    if not is_fit or len(y) == 0:
        raise ValueError(
            f"{spec.name}: x must be {batch_text(spec.x_shape)} and y {batch_text(spec.y_shape)} "
            f"with B >= 1, got {x.shape} and {y.shape}"
        )
    if x.dtype != spec.x_dtype or y.dtype != spec.y_dtype:
        raise ValueError(
            f"{spec.name}: x must be {spec.x_dtype} and y {spec.y_dtype}, got {x.dtype} and "
            f"{y.dtype}"
        )
    shaped: Examples = x.reshape((len(y), *spec.x_shape))
    if not shaped.flags.c_contiguous:
        shaped = shaped.copy()
    return shaped, y if y.flags.c_contiguous else y.copy()


def checked_vector(spec: TaskSpec, vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a model if it has the shape, dtype and memory order of the task.

    Raises:
        ValueError: It has not.
    """
    n_values = spec.layout.n_values
    if vector.shape != (n_values,) or vector.dtype != np.float32:
        raise ValueError(
            f"{spec.name}: vector must be ({n_values},) float32, got {vector.shape} {vector.dtype}"
        )
    if not (vector.flags.c_contiguous and vector.flags.aligned):
        raise ValueError(f"{spec.name}: vector must be contiguous; copy it first")
    return vector
