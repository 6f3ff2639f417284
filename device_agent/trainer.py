"""Local training and evaluation on one flat vector: numpy, with the gradients of an engine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.engines.base import Engine, Examples
from fairbed.device_agent.host import Meter
from fairbed.wire.messages import Hyperparameters


def draw_examples(n: int, examples: int | None, seed: int) -> NDArray[np.int64] | slice:
    """Return the indices of the examples that a loss query evaluates, distinct and ascending.

    Args:
        n: Examples of the device.
        examples: Number of examples to draw; None, or n and more, returns all of them.
        seed: Seed of the draw (`wire.messages.EvaluateRequest`).
    """
    if examples is None or examples >= n:
        return slice(None)
    rng = np.random.Generator(np.random.PCG64(seed))
    return np.sort(rng.choice(n, examples, replace=False))


EVALUATION_BATCH = 256
"""Examples per evaluation step, the unit of work for an emulated host."""


class TrainingDiverged(Exception):
    """The loss or a parameter is not finite."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of local training."""

    vector: NDArray[np.float32]
    """`[params | buffers]` after the last step, shape (n_values,)."""
    steps: int
    """Number of mini-batches."""
    loss_train: float | None
    """Mean loss of the last started epoch, nats per example; None without any step."""


def train(
    engine: Engine,
    vector: NDArray[np.float32],
    x: Examples,
    y: NDArray[np.int64],
    hyperparameters: Hyperparameters,
    seed: int,
    meter: Meter,
    should_stop: Callable[[], bool],
    anchor: NDArray[np.float32] | None = None,
    adjust: Callable[[NDArray[np.float32], NDArray[np.float32]], None] | None = None,
) -> TrainResult:
    """Train by mini-batch SGD, starting from the global model or, for Ditto, from a personal one.

        g = grad F(w) + mu (w - w_t)               FedProx, mu = `proximal`; Ditto, mu = lambda
        g = g min(1, c / |g|)                      c = `clip_norm`
        v = momentum v + g + weight_decay w        v = 0 at the start of each round
        w = w - learning_rate v

    Every epoch visits all examples in a new random order; its last mini-batch may be smaller.
    All terms act on parameters; the engine updates the buffers.

    Args:
        engine: Computes the gradients.
        vector: The model before the first step, shape (n_values,); not changed.
        x: Examples, shape (n, *x_shape).
        y: Labels, shape (n,).
        hyperparameters: Epochs, batch size, step size and the terms above.
        seed: Seed of the mini-batch orders (`wire.messages.Train`).
        meter: Counts every mini-batch.
        should_stop: Called before every mini-batch; True ends the training.
        anchor: The global model w_t, shape (n_values,); not set: it is `vector`.
        adjust: Called with the model, shape (n_values,), and each gradient, shape (n_params,),
            which it may change.

    Raises:
        ValueError: There are no examples, or a label is not one of the classes.
        TrainingDiverged: The loss or a parameter is not finite.

    Source:
        McMahan et al., AISTATS 2017, Algorithm 1, ClientUpdate (arXiv:1602.05629); proximal term:
        Li et al., MLSys 2020, Algorithm 2 (arXiv:1812.06127); personal models: Li et al., ICML
        2021, Algorithm 1 (arXiv:2012.04221).
    """
    _check_labels(engine, y)
    work, n_params = vector.copy(), engine.spec.layout.n_params
    w_t = vector if anchor is None else anchor
    descent = Descent(work[:n_params], hyperparameters, w_t[:n_params])
    limit = hyperparameters.max_steps
    steps, loss_sum, seen = 0, 0.0, 0
    for is_first, batch in mini_batches(len(y), hyperparameters, seed):
        if (limit is not None and steps >= limit) or should_stop():
            break
        if is_first:
            loss_sum, seen = 0.0, 0
        loss, gradient = engine.gradient(work, x[batch], y[batch])
        steps += 1
        if not np.isfinite(loss):
            raise divergence_error("the loss", loss, steps)
        meter.step(len(batch))
        if adjust is not None:
            adjust(work, gradient)
        descent.step(gradient)
        loss_sum += loss * len(batch)
        seen += len(batch)
    if not np.isfinite(work).all():
        raise divergence_error("every parameter", work[~np.isfinite(work)][0], steps)
    return TrainResult(vector=work, steps=steps, loss_train=loss_sum / seen if seen else None)


def evaluate(
    engine: Engine,
    vector: NDArray[np.float32],
    x: Examples,
    y: NDArray[np.int64],
    meter: Meter,
) -> tuple[float, float]:
    """Return the mean loss F_k(w), nats per example, and the accuracy, a ratio, over all examples.

    Args:
        engine: Runs the model in evaluation mode.
        vector: The model w, shape (n_values,).
        x: Examples, shape (n, *x_shape).
        y: Labels, shape (n,).
        meter: Counts every `EVALUATION_BATCH` examples.

    Raises:
        ValueError: There are no examples, or a label is not one of the classes.
        TrainingDiverged: The loss is not finite.
    """
    _check_labels(engine, y)
    loss_sum, correct_sum = 0.0, 0
    for start in range(0, len(y), EVALUATION_BATCH):
        batch = slice(start, start + EVALUATION_BATCH)
        loss, correct = engine.evaluate(vector, x[batch], y[batch])
        loss_sum += loss
        correct_sum += correct
        meter.step(len(y[batch]))
    if not np.isfinite(loss_sum):
        raise TrainingDiverged(
            f"evaluation: the loss must be finite, got {loss_sum}; lower learning_rate"
        )
    return loss_sum / len(y), correct_sum / len(y)


class Descent:
    """Stochastic gradient descent on parameters, shape (..., n_params), in place.

    Leading axes, if any, are independent models that train in parallel.

    Args:
        params: The models; changed by each step.
        hyperparameters: Step size and terms of a step.
        anchor: Parameters of the global model w_t, shape (n_params,); not changed.
    """

    def __init__(
        self,
        params: NDArray[np.float32],
        hyperparameters: Hyperparameters,
        anchor: NDArray[np.float32],
    ) -> None:
        self._params = params
        self._h = hyperparameters
        self._anchor = anchor
        self._velocity = np.zeros_like(params) if hyperparameters.momentum else None

    @property
    def is_plain(self) -> bool:
        """A step is the learning rate times the gradient, without other terms."""
        h = self._h
        return not (h.proximal or h.momentum or h.weight_decay) and h.clip_norm is None

    def step(
        self,
        gradient: NDArray[np.float32],
        part: slice | EllipsisType = ...,
        *,
        is_scaled: bool = False,
    ) -> None:
        """Take one step.

        Args:
            gradient: Gradient of the models in `part`; overwritten.
            part: Models that take the step, on the first axis.
            is_scaled: The gradient includes the learning rate; only if `is_plain`.
        """
        h, direction, params = self._h, gradient, self._params[part]
        # A diverging run overflows here; `train` detects it by its loss and raises.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if h.proximal:
                direction += np.float32(h.proximal) * (params - self._anchor)
            if h.clip_norm is not None:
                norm = np.sqrt(np.vecdot(direction, direction)).astype(np.float64)
                scale = np.fmin(h.clip_norm / norm, 1.0).astype(np.float32)
                direction *= scale[..., np.newaxis]
            if h.weight_decay:
                direction += np.float32(h.weight_decay) * params
            if self._velocity is not None:
                velocity = self._velocity[part]
                velocity *= np.float32(h.momentum)
                velocity += direction
                np.copyto(direction, velocity)
            if not is_scaled:
                direction *= np.float32(h.learning_rate)
            params -= direction


def mini_batches(
    n: int, hyperparameters: Hyperparameters, seed: int
) -> Iterator[tuple[bool, NDArray[np.int64]]]:
    """Yield whether a mini-batch is the first of its epoch, and its indices, shape (B,).

    Every epoch visits all `n` examples in a new random order; its last mini-batch may be smaller.
    """
    orders = EpochOrders()
    for epoch in range(hyperparameters.epochs):
        order = orders.draw(seed, epoch, n)
        for start in range(0, n, hyperparameters.batch_size):
            yield start == 0, order[start : start + hyperparameters.batch_size]


class EpochOrders:
    """Draws the order of the examples of an epoch, keyed by seed and epoch.

    The numbers of a Philox generator depend only on its key and counter. One generator therefore
    serves all keys: setting its state costs a tenth of creating a generator.
    """

    def __init__(self) -> None:
        philox = np.random.Philox(key=0)
        self._generator, self._philox = np.random.Generator(philox), philox
        self._state = philox.state

    def draw(self, seed: int, epoch: int, n: int) -> NDArray[np.int64]:
        """Return a random order of `n` examples, shape (n,).

        Equals `Generator(Philox(key=seed, counter=[0, 0, 0, epoch])).permutation(n)`.

        Args:
            seed: Seed of the device and round.
            epoch: Number of the epoch, from 0.
            n: Number of examples.
        """
        self._state["state"]["key"][0] = seed
        self._state["state"]["counter"][3] = epoch
        self._philox.state = self._state
        return self._generator.permutation(n)


def _check_labels(engine: Engine, y: NDArray[np.int64]) -> None:
    classes = engine.spec.classes
    if len(y) == 0:
        raise ValueError("data: must hold at least one example, got 0; give the device more data")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(
            f"data: every label must be in 0..{classes - 1}, got {y.min()}..{y.max()}; "
            f"choose a model for these classes"
        )


def divergence_error(name: str, value: float, steps: int) -> TrainingDiverged:
    """Return the error of a training whose loss or parameters are not finite."""
    return TrainingDiverged(
        f"training: {name} must be finite, got {value} at step {steps}; "
        "lower learning_rate or set clip_norm"
    )
