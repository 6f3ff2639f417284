"""The job of `round-time` as a client: the same network, the formulas of training in numpy."""

from itertools import pairwise
from typing import Any

import numpy as np

WIDTHS = (784, 318, 10)


class Client:
    """SGD on the shard of a device."""

    def __init__(self, context: Any) -> None:
        """Keep the context, and read the examples once."""
        self.context = context
        x, y = context.examples()
        self._x, self._y = np.asarray(x, np.float32).reshape(len(y), -1), np.asarray(y)

    @staticmethod
    def initial(config: dict[str, Any]) -> list[Any]:
        """Return the model before round 1."""
        rng, tensors = np.random.default_rng(config["seed"]), []
        for i, o in pairwise(WIDTHS):
            tensors.append((rng.normal(size=(o, i)) / np.sqrt(i)).astype(np.float32))
            tensors.append(np.zeros(o, np.float32))
        return tensors

    def fit(self, arrays: list[Any], config: dict[str, Any]) -> Any:
        """Take the steps of one round."""
        h = self.context.hyperparameters
        seed, rate = self.context.seed, h["learning_rate"]
        size, steps = h["batch_size"], h["max_steps"]
        return trained(arrays, self._x, self._y, seed, rate, size, steps), len(self._y), {}


def trained(
    tensors: list[Any], x: Any, y: Any, seed: Any, rate: float, size: int, steps: int | None
) -> list[Any]:
    """Change a model by the mini-batches of one epoch, at most `steps` if given; return it."""
    order = np.random.default_rng(seed).permutation(len(y))
    starts = range(0, len(order), size)
    for start in starts[: steps or len(starts)]:
        rows = order[start : start + size]
        for tensor, gradient in zip(tensors, gradients(tensors, x[rows], y[rows]), strict=True):
            tensor -= np.float32(rate) * gradient
    return tensors


def gradients(tensors: list[Any], x: Any, y: Any) -> list[Any]:
    """Return the gradient of each weight and bias, in their order."""
    first, bias, last, offset = tensors
    hidden = np.maximum(x @ first.T + bias, 0)
    z = hidden @ last.T + offset
    z -= z.max(1, keepdims=True)
    delta = np.exp(z)
    delta /= delta.sum(1, keepdims=True)
    delta[np.arange(len(y)), y] -= 1
    delta /= np.float32(len(y))
    before = (delta @ last) * (hidden > 0)
    return [before.T @ x, before.sum(0), delta.T @ hidden, delta.sum(0)]
