"""Records what Flower's strategies make of given updates, for the tests that compare with them.

    python -m venv /tmp/flwr && /tmp/flwr/bin/pip install flwr==1.41.0
    /tmp/flwr/bin/python tools/record_flwr.py

Writes `tests/coordinator/algorithms/aggregation/flwr.json`. Fairbed neither imports nor installs
Flower; this file needs nothing else.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import (
    Code,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.strategy import QFedAvg as LegacyQFedAvg
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi, QFedAvg
from flwr.supercore.task_identity import TaskIdentity

OUT = Path(__file__).parents[1] / "tests/coordinator/algorithms/aggregation/flwr.json"
DEVICES, VALUES, ROUNDS = 4, 6, 3
LEARNING_RATE = 0.1
ADAPTIVE: dict[str, Any] = {"eta": 0.1, "tau": 1e-3}
QS = (0.0, 0.5, 1.0, 5.0)


class NoGrid:
    """Stands for the network: a strategy only counts its nodes."""

    def get_node_ids(self) -> list[int]:
        """Return the numbers of the devices."""
        return list(range(1, DEVICES + 1))


def replies(strategy: Any, round_id: int, w: Any, given: dict[str, Any]) -> list[Message]:
    """Return the messages of the devices to a strategy that has sent w."""
    sent = strategy.configure_train(round_id, record(w), ConfigRecord(), NoGrid())
    models = given["models"]
    return [
        Message(
            RecordDict(
                {
                    "arrays": record(model),
                    "metrics": MetricRecord({"num-examples": n_k, "train_loss": loss}),
                }
            ),
            reply_to=message,
        )
        for message, model, n_k, loss in zip(
            sorted(sent, key=lambda m: m.metadata.dst_node_id),
            models,
            given["n_k"],
            given["losses"],
            strict=True,
        )
    ]


def record(w: Any) -> ArrayRecord:
    """Return a model as two tensors, so that norms over all of them are tested."""
    flat = np.asarray(w, dtype=np.float64)
    return ArrayRecord({"a": Array(flat[:4].reshape(2, 2)), "b": Array(flat[4:])})


def flat(arrays: ArrayRecord) -> list[float]:
    """Return all values of a model."""
    return np.concatenate([array.ravel() for array in arrays.to_numpy_ndarrays()]).tolist()


def path(strategy: Any, start: list[float], rounds: list[dict[str, Any]]) -> list[list[float]]:
    """Return the model after each round; the changes of the devices are given."""
    w, after = start, []
    for round_id, given in enumerate(rounds, start=1):
        moved = given | {"models": np.asarray(w) + np.asarray(given["changes"])}
        arrays, _ = strategy.aggregate_train(round_id, replies(strategy, round_id, w, moved))
        w = flat(arrays)
        after.append(w)
    return after


def legacy_q_fedavg(
    q: float, start: list[float], given: dict[str, Any], loss: float
) -> list[float]:
    """Return the next model of `flwr.server.strategy.QFedAvg`, which evaluates w itself."""
    strategy = LegacyQFedAvg(
        q_param=q, qffl_learning_rate=LEARNING_RATE, evaluate_fn=lambda *_: (loss, {})
    )
    strategy.pre_weights = [np.asarray(start)]
    results = [
        (
            None,
            FitRes(
                Status(Code.OK, ""),
                ndarrays_to_parameters([np.asarray(start) + np.asarray(change)]),
                n_k,
                {},
            ),
        )
        for change, n_k in zip(given["changes"], given["n_k"], strict=True)
    ]
    parameters, _ = strategy.aggregate_fit(1, results, [])
    return parameters_to_ndarrays(parameters)[0].tolist()


def main() -> int:
    """Record all strategies on the same updates."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # of the server process
    rng = np.random.default_rng(14)
    start = rng.normal(size=VALUES).tolist()
    rounds = [
        {
            "changes": (0.3 * rng.normal(size=(DEVICES, VALUES))).round(6).tolist(),
            "n_k": rng.integers(5, 200, DEVICES).tolist(),
            "losses": rng.uniform(0.1, 3.0, DEVICES).round(6).tolist(),
        }
        for _ in range(ROUNDS)
    ]
    sizes = {"min_available_nodes": DEVICES, "min_train_nodes": DEVICES}
    first = rounds[0]
    shared = float(np.average(first["losses"], weights=first["n_k"]))
    recorded = {
        "flwr": version("flwr"),
        "numpy": version("numpy"),
        "made_by": "tools/record_flwr.py",
        "learning_rate": LEARNING_RATE,
        "start": start,
        "rounds": rounds,
        "adagrad": path(FedAdagrad(**ADAPTIVE, **sizes), start, rounds),
        "adam": path(FedAdam(**ADAPTIVE, beta_1=0.9, beta_2=0.99, **sizes), start, rounds),
        "yogi": path(FedYogi(**ADAPTIVE, beta_1=0.9, beta_2=0.99, **sizes), start, rounds),
        "momentum": path(
            FedAvgM(server_learning_rate=0.5, server_momentum=0.9, **sizes), start, rounds
        ),
        "q-fedavg": {
            str(q): path(
                QFedAvg(client_learning_rate=LEARNING_RATE, q=q, **sizes), start, rounds[:1]
            )[0]
            for q in QS
        },
        "q-fedavg of flwr.server": {
            "loss": shared,
            "after": {str(q): legacy_q_fedavg(q, start, first, shared) for q in QS},
        },
    }
    OUT.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
