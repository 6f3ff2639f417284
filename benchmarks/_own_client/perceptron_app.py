"""The client of `perceptron` as a Flower app: the same network, formulas and sizes."""

from functools import cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from perceptron import WIDTHS, Client, trained

client, server = ClientApp(), ServerApp()


@cache
def data(partition: int, n: int) -> Any:
    """Return the examples of one partition."""
    rng = np.random.default_rng(partition)
    return rng.random((n, WIDTHS[0]), np.float32), rng.integers(0, WIDTHS[-1], n)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take the steps of one round."""
    config, partition = context.run_config, int(context.node_config["partition-id"])
    x, y = data(partition, int(config["examples"]))
    arrays = [array.copy() for array in message.content["arrays"].to_numpy_ndarrays()]
    seed = [int(message.content["config"]["server-round"]), partition]
    rate, size, steps = config["learning-rate"], int(config["batch-size"]), int(config["max-steps"])
    arrays = trained(arrays, x, y, seed, float(rate), size, steps)
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, all devices in each, without evaluation."""
    arrays = ArrayRecord(Client.initial({"seed": 0}))
    rounds = int(context.run_config["num-server-rounds"])
    FedAvg(fraction_evaluate=0.0).start(grid, initial_arrays=arrays, num_rounds=rounds)
