"""A job of `replay-training` as an app of Flower; it runs where flwr is, without Fairbed.

    FLOWER_JOB=JOB.json PYTHON -m benchmarks._flower_app

The last line of the output has the time of a round.
"""

import json
import time
from importlib.metadata import version
from typing import Any

from flwr.client import ClientApp
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.simulation import run_simulation

from benchmarks._flower_training import Client, job, strategy


def client_fn(context: Any) -> Any:
    """Make the client of a node."""
    return Client(int(context.node_config["partition-id"])).to_client()


def server(ends: list[float]) -> ServerAppComponents:
    """Return the server; it appends the end of each round to `ends`."""
    return ServerAppComponents(
        strategy=strategy(lambda: ends.append(time.perf_counter())),
        config=ServerConfig(num_rounds=job()["rounds"]),
    )


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
    from benchmarks import _flower_app

    _flower_app.main()
