"""Loss, gradient and training of many dense nets at once, by matrix products alone.

Each model has parameters and a mini-batch of its own. A product of the batch is one call of BLAS
per model, so that no result depends on the other models of the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats, Vector
from fairbed.coordinator.task.recipes import FLAT_MODELS
from fairbed.device_agent.trainer import Descent
from fairbed.testbed.replay.cohort.base import CohortPart, CohortResult, own_states, steps_of
from fairbed.testbed.replay.cohort.batches import Batches, StackedBatch, augmented
from fairbed.testbed.replay.cohort.progress import Progress
from fairbed.testbed.replay.cohort.shards import Examples
from fairbed.wire.artifact import TaskKind, TaskSpec
from fairbed.wire.evaluation import Targets

if TYPE_CHECKING:
    from fairbed.wire.augment import Augmenter

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Position of the weight, shape (O, I), and the bias, shape (O,), in a row of parameters."""

    start: int
    split: int
    end: int
    shape: tuple[int, int]

    def weight(self, params: Array) -> Array:
        """Return the weights of each model, shape (A, O, I), as a view."""
        return params[:, self.start : self.split].reshape(-1, *self.shape)

    def bias(self, params: Array) -> Array:
        """Return the biases of each model, shape (A, O), as a view."""
        return params[:, self.split : self.end]


class DenseNet:
    """One linear layer, or an MLP with ReLU: the shipped families `softmax` and `mlp`.

        h_0 = x,   h_l = max(0, W_l h_{l-1} + b_l),   z = W_L h_{L-1} + b_L,   loss = sum_i w_i l_i

    with the l_i of the task (`wire.artifact.TaskKind`).

    Args:
        spec: A task of one of these families; its layout names weight and bias of each layer.
    """

    def __init__(self, spec: TaskSpec) -> None:
        assert spec.model in FLAT_MODELS, "other models have other layers"
        tensors = spec.layout.tensors
        self._layers: list[_Layer] = []
        for weight, bias in zip(tensors[::2], tensors[1::2], strict=True):
            rows, columns = weight.shape
            end = bias.offset + bias.size
            self._layers.append(_Layer(weight.offset, bias.offset, end, (rows, columns)))
        self._losses = LOSSES[spec.kind]
        self.spec = spec
        self.n_params = spec.layout.n_params
        self.values_per_example = sum(sum(layer.shape) for layer in self._layers)
        """Approximate number of values that a pass holds per example."""

    def gradient(
        self, params: Array, x: Array, y: Targets, w: Array, out: Array, factor: float = 1.0
    ) -> Floats:
        """Return the loss of each model, nats, shape (A,), and write its gradient to `out`.

        Args:
            params: Shape (A, n_params).
            x: Mini-batches, shape (A, B, features).
            y: Targets, shape (A, B).
            w: Weight of each example in the loss, 1 / n or 0 for padding, shape (A, B).
            out: The gradients times `factor`, shape (A, n_params).
            factor: Factor of the gradients; a later product would cost a pass over all values.
        """
        inputs = [x.swapaxes(1, 2)]
        for layer in self._layers[:-1]:
            h = _affine(layer, params, inputs[-1])
            inputs.append(np.maximum(h, 0.0, out=h))
        logits = _affine(self._layers[-1], params, inputs[-1])
        losses = self._losses(_columns(logits), y.reshape(-1)).reshape(y.shape)
        delta, ones = logits, _ones(y.shape[1])
        columns = _columns(delta)
        columns *= (w * np.float32(factor)).reshape(-1)
        for number in range(len(self._layers) - 1, -1, -1):
            layer, h = self._layers[number], inputs[number]
            np.matmul(delta, h.swapaxes(1, 2), out=layer.weight(out))
            np.matmul(delta, ones, out=layer.bias(out))  # a quarter of the time of a sum
            if number > 0:
                delta = np.matmul(layer.weight(params).swapaxes(1, 2), delta)
                delta *= h > 0.0
        losses *= w
        total: Floats = np.add.reduce(losses, axis=1, dtype=np.float64)
        return total

    def losses(self, vector: Vector, x: Array, y: Targets) -> Array:
        """Return the loss of each example with one model, nats, shape (n,).

        Args:
            vector: Shape (n_params,).
            x: Shape (n, features).
            y: Shape (n,).
        """
        params, h = vector[np.newaxis], x.T[np.newaxis]
        for layer in self._layers[:-1]:
            h = _affine(layer, params, h)
            np.maximum(h, 0.0, out=h)
        return self._losses(_columns(_affine(self._layers[-1], params, h)), y)


@lru_cache(maxsize=8)
def _ones(size: int) -> Array:
    return np.ones(size, dtype=np.float32)


def _affine(layer: _Layer, params: Array, h: Array) -> Array:
    """Return W h + b of each model, shape (A, O, B), with memory layout (O, A, B).

    With examples as columns a product takes two thirds of the time that it takes with rows; with
    outputs outermost, so do sums over outputs.
    """
    outputs, models, batch = layer.shape[0], len(params), h.shape[2]
    z: Array = np.empty((outputs, models, batch), dtype=np.float32).swapaxes(0, 1)
    np.matmul(layer.weight(params), h, out=z)
    z += layer.bias(params)[..., np.newaxis]
    return z


def _columns(z: Array) -> Array:
    """Return a result of `_affine` with one column per example of each model, (O, A * B)."""
    columns: Array = z.swapaxes(0, 1).reshape(z.shape[1], -1)
    return columns


def _cross_entropy(logits: Array, y: Targets) -> Array:
    """Return the loss of each of n examples, shape (n,); the logits are columns, shape (C, n).

    Overwrites `logits` with the derivatives of the losses.
    """
    n = len(y)
    logits -= np.maximum.reduce(logits, axis=0)
    flat, label = logits.reshape(-1), y * n + np.arange(n)
    losses: Array = np.negative(flat[label])
    np.exp(logits, out=logits)
    total = np.add.reduce(logits, axis=0)
    losses += np.log(total)
    logits /= total
    flat[label] -= 1.0
    return losses


def _binary_cross_entropy(logits: Array, y: Targets) -> Array:
    """Return the loss of each of n examples, shape (n,), of logits of class 1, shape (1, n).

    Overwrites `logits` with the derivatives of the losses.
    """
    z = logits[0].copy()
    losses: Array = np.logaddexp(np.float32(0.0), z) - y * z
    losses = losses.astype(np.float32)
    np.exp(-np.logaddexp(np.float32(0.0), -z), out=logits[0])
    logits[0] -= y
    return losses


def _half_squares(predictions: Array, y: Targets) -> Array:
    """Return half the squared error of each of n examples, shape (n,); predictions are (1, n).

    Overwrites `predictions` with the derivatives of the losses.
    """
    predictions[0] -= y
    losses: Array = np.float32(0.5) * predictions[0] * predictions[0]
    return losses


LOSSES: Mapping[TaskKind, Callable[[Array, Targets], Array]] = {
    "classification": _cross_entropy,
    "binary": _binary_cross_entropy,
    "regression": _half_squares,
}


def _gradient_at(
    net: DenseNet, x: Array, y: Targets, w: Array, params: Array
) -> tuple[Floats, Array]:
    """Return losses and gradients of mini-batches at other parameters; see `Step.gradient_at`."""
    out = np.empty_like(params)
    return net.gradient(params, x, y, w, out), out


@dataclass(frozen=True, slots=True)
class _MixedBatch:
    """Mini-batches of A models after augmentation."""

    x: Array
    """Shape (A, B, features)."""
    y: Targets
    other: Targets | None
    """Targets of the examples that were mixed in; None: none were."""
    weights: Array
    """Shape (A, B)."""
    shares: Floats
    """Weight of the loss with `y`, shape (A,)."""

    def gradient(self, net: DenseNet, params: Array, out: Array, factor: float) -> Floats:
        """Return losses, and write gradients, as `DenseNet.gradient`."""
        loss = net.gradient(params, self.x, self.y, self.weights, out, factor)
        if self.other is None:
            return loss
        second, share = np.empty_like(out), self.shares[:, np.newaxis].astype(np.float32)
        loss_2 = net.gradient(params, self.x, self.other, self.weights, second, factor)
        out *= share
        second *= np.float32(1.0) - share
        out += second
        mixed: Floats = self.shares * loss + (1.0 - self.shares) * loss_2
        return mixed


def _drawn(
    net: DenseNet,
    augmenter: "Augmenter",
    batch: StackedBatch,
    x: Array,
    y: Targets,
    seeds: Sequence[int],
) -> _MixedBatch:
    """Return mini-batches after the augmentations that each device draws."""
    shaped = x.reshape(*batch.index.shape, *net.spec.x_shape)
    new, y, other, shares = augmented(augmenter, batch, shaped, y, seeds)
    return _MixedBatch(new.reshape(x.shape), y, other, batch.weights, shares)


def _gradient_of(net: DenseNet, mini_batch: _MixedBatch, params: Array) -> tuple[Floats, Array]:
    """Return losses and gradients at other parameters; see `Step.gradient_at`."""
    out = np.empty_like(params)
    return mini_batch.gradient(net, params, out, 1.0), out


def train_chunk(
    net: DenseNet,
    examples: Examples,
    anchor: Vector,
    part: CohortPart,
    params: Vector | None = None,
) -> CohortResult:
    """Train the models of a chunk together, step by step; return the results.

    Args:
        net: The models.
        examples: The training data.
        anchor: The global model w_t, shape (n_params,); not changed.
        part: Jobs of the chunk, those with more steps first; its models are not changed.
        params: Where the models are trained, shape (G, n_params), with the initial ones; None: a
            copy of those of `part`.

    Raises:
        PluginError: The rule breaks its contract.
    """
    hyperparameters, rule = part.hyperparameters, part.rule
    if params is None:
        if part.starts is None:
            params = np.repeat(anchor[np.newaxis], len(part.jobs), axis=0)
        else:
            params = part.starts.copy()
    rows = [examples.rows(job.device) for job in part.jobs]
    steps = steps_of([len(one) for one in rows], part.jobs, hyperparameters)
    seeds = [job.seed for job in part.jobs]
    batches = Batches(seeds, rows, hyperparameters, steps)
    states, lengths = own_states(part, net.n_params), np.array(steps, dtype=np.int64)
    descent = Descent(
        params,
        hyperparameters,
        anchor,
        None if rule is None else rule.rule,
        None if rule is None else rule.vectors,
        states,
        lengths,
    )
    gradient = np.empty_like(params)
    factor = hyperparameters.learning_rate if descent.is_plain else 1.0
    augmenter = None
    if hyperparameters.augment:
        from fairbed.wire.augment import Augmenter

        augmenter = Augmenter(hyperparameters.augment, net.spec)
    progress = Progress(batches.steps, lambda i: examples.take(rows[i])[0])
    with np.errstate(all="ignore"):
        for step in range(progress.last):
            active = progress.active(step)
            batch, on = batches.next(active), slice(0, active)
            x, y = examples.take(batch.index)
            if augmenter is None:
                loss = net.gradient(params[on], x, y, batch.weights, gradient[on], factor)
                gradient_at = partial(_gradient_at, net, x, y, batch.weights)
            else:
                mini_batch = _drawn(net, augmenter, batch, x, y, seeds)
                loss = mini_batch.gradient(net, params[on], gradient[on], factor)
                gradient_at = partial(_gradient_of, net, mini_batch)
            if descent.has_rules:
                descent.apply_rules(gradient[on], loss, params[on, :0], gradient_at, on)
            descent.step(gradient[on], on, is_scaled=descent.is_plain)
            progress.record(step, batch, loss)
        if states is not None:
            descent.count_steps(lengths)
        if rule is None:
            return progress.results(part.at, params, {}, {}, states)
        kept, returned = rule.rule.end(descent.trained(progress.steps))
    return progress.results(part.at, params, kept, returned, states)
