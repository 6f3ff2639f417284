"""What the jobs of `replay-training` and `round-time` are as clients of Flower.

It runs where flwr is, without Fairbed. The clients train with the same formulas in numpy, so that
the difference is Flower's own cost. A process reads the data once.
"""

import json
import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server.strategy import FedAvg
from numpy.typing import NDArray

Tensors = list[NDArray[np.float32]]


@cache
def job() -> dict[str, Any]:
    """Return the description of the job."""
    found: dict[str, Any] = json.loads(Path(os.environ["FLOWER_JOB"]).read_text(encoding="utf-8"))
    return found


@cache
def examples() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return all features, shape (n, features), and labels, shape (n,), as maps of their files."""
    folder = Path(job()["folder"])
    return np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")


class Client(NumPyClient):  # type: ignore[misc]  # flwr is not installed here
    """One client: SGD on its own examples."""

    def __init__(self, number: int) -> None:
        """Take the examples of a client, 0 for the first."""
        ends = [0, *job()["ends"]]
        part, (x, y) = slice(ends[number], ends[number + 1]), examples()
        self._x, self._y, self._number = np.asarray(x[part]), np.asarray(y[part]), number

    def fit(self, parameters: Tensors, config: object) -> tuple[Tensors, int, dict[str, float]]:
        """Take the steps of one round."""
        batch, rate = job()["batch"], np.float32(job()["learning_rate"])
        tensors = [tensor.copy() for tensor in parameters]
        rng = np.random.default_rng(self._number)
        order, at = rng.permutation(len(self._y)), 0
        for _ in range(job()["steps"]):
            if at >= len(order):
                order, at = rng.permutation(len(self._y)), 0
            rows = order[at : at + batch]
            at += batch
            found = gradients(tensors, self._x[rows], self._y[rows])
            for tensor, gradient in zip(tensors, found, strict=True):
                tensor -= rate * gradient
        return tensors, len(self._y), {}


def gradients(tensors: Tensors, x: NDArray[np.float32], y: NDArray[np.int64]) -> Tensors:
    """Return the gradient of each weight and bias, in their order."""
    inputs = [x]
    for weight, bias in zip(tensors[:-2:2], tensors[1:-2:2], strict=True):
        inputs.append(np.maximum(inputs[-1] @ weight.T + bias, 0))
    z = inputs[-1] @ tensors[-2].T + tensors[-1]
    z -= z.max(1, keepdims=True)
    delta = np.exp(z)
    delta /= delta.sum(1, keepdims=True)
    delta[np.arange(len(y)), y] -= 1
    delta /= np.float32(len(y))
    found = []
    for number in range(len(inputs) - 1, -1, -1):
        found += [delta.sum(0), delta.T @ inputs[number]]
        if number:
            delta = (delta @ tensors[2 * number]) * (inputs[number] > 0)
    return found[::-1]


class Timed(FedAvg):  # type: ignore[misc]  # flwr is not installed here
    """FedAvg that calls a function at the end of each round."""

    def __init__(self, on_round: Callable[[], None], **options: Any) -> None:
        """Keep the function."""
        super().__init__(**options)
        self._on_round = on_round

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Average, and report the end."""
        if failures or len(results) != len(job()["ends"]):
            raise RuntimeError(f"every client must answer in every round, got {len(results)}")
        merged = super().aggregate_fit(server_round, results, failures)
        self._on_round()
        return merged


def strategy(on_round: Callable[[], None]) -> Timed:
    """Return FedAvg over all clients, which calls a function at the end of each round."""
    clients = len(job()["ends"])
    return Timed(
        on_round,
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(initial_tensors()),
    )


def initial_tensors() -> Tensors:
    """Return the model before the first round: that of the job's file, or a random one."""
    folder = Path(job()["folder"])
    if (folder / "model.npy").exists():
        values, tensors, at = np.load(folder / "model.npy"), [], 0
        for i, o in pairwise(job()["widths"]):
            for shape in ((o, i), (o,)):
                size = int(np.prod(shape))
                tensors.append(values[at : at + size].reshape(shape))
                at += size
        return tensors
    rng, tensors = np.random.default_rng(0), []
    for i, o in pairwise(job()["widths"]):
        tensors.append((rng.normal(size=(o, i)) / np.sqrt(i)).astype(np.float32))
        tensors.append(np.zeros(o, np.float32))
    return tensors
