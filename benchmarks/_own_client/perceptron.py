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
        order = np.random.default_rng(self.context.seed).permutation(len(self._y))
        rate, size = np.float32(h["learning_rate"]), h["batch_size"]
        starts = range(0, len(order), size)
        for start in starts[: h["max_steps"] or len(starts)]:
            rows = order[start : start + size]
            found = gradients(arrays, self._x[rows], self._y[rows])
            for tensor, gradient in zip(arrays, found, strict=True):
                tensor -= rate * gradient
        return arrays, len(self._y), {}


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
