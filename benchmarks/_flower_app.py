"""A job of `replay-training` as an app of Flower; it runs where flwr is, without Fairbed.

    FLOWER_JOB=JOB.json PYTHONPATH=benchmarks PYTHON -m _flower_app

The clients train with the same formulas in numpy, so that the difference is Flower's own cost.
Each actor reads the data once. The last line of the output has the time of a round.
"""

import json
import os
import time
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
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


def client_fn(context: Any) -> Any:
    """Make the client of a node."""
    return Client(int(context.node_config["partition-id"])).to_client()


class Timed(FedAvg):  # type: ignore[misc]  # flwr is not installed here
    """FedAvg that records the end of each round."""

    def __init__(self, ends: list[float], **options: Any) -> None:
        """Append the end of each round to a list of the caller."""
        super().__init__(**options)
        self._ends = ends

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Average, and record the time."""
        if failures or len(results) != len(job()["ends"]):
            raise RuntimeError(f"every client must answer in every round, got {len(results)}")
        merged = super().aggregate_fit(server_round, results, failures)
        self._ends.append(time.perf_counter())
        return merged


def server(ends: list[float]) -> ServerAppComponents:
    """Return the server; it appends the end of each round to `ends`."""
    widths, n = job()["widths"], len(job()["ends"])
    rng, tensors = np.random.default_rng(0), []
    for i, o in pairwise(widths):
        tensors.append((rng.normal(size=(o, i)) / np.sqrt(i)).astype(np.float32))
        tensors.append(np.zeros(o, np.float32))
    strategy = Timed(
        ends,
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=n,
        min_available_clients=n,
        initial_parameters=ndarrays_to_parameters(tensors),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=job()["rounds"]))


def main() -> None:
    """Run the job and print its times."""
    ends: list[float] = []
    started = time.perf_counter()
    run_simulation(
        server_app=ServerApp(server_fn=lambda context: server(ends)),
        client_app=ClientApp(client_fn=client_fn),
        num_supernodes=len(job()["ends"]),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    result = {
        "version": float(".".join(version("flwr").split(".")[:2])),
        "rounds": len(ends),
        "whole_s": time.perf_counter() - started,
        "round_s": (ends[-1] - ends[0]) / (len(ends) - 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    # Under its own name, so that actors can import the client class.
    import _flower_app

    _flower_app.main()
