"""An app that adds 1 in each round, or does what no app should; `what` says which."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()

WAIT = "import os, sys, time; os.fork() and sys.exit(0); time.sleep(987)"
"""A program that leaves its parent."""


def start_processes(context: Context) -> None:
    """Start one that stays a child, in a session of its own, and a daemon."""
    for program in ("import time; time.sleep(987)", WAIT):
        argv = [sys.executable, "-c", program, str(context.run_config["mark"])]
        subprocess.Popen(argv, start_new_session=True)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Add 1 to every value, but for the ends that `what` asks for."""
    what, place = context.run_config["what"], int(context.node_config["partition-id"])
    config = message.content.get("config", {})
    number = int(config.get("server-round", 0))
    if what == "crashes" and (place, number) == (1, 2):
        sys.stdout.write("the last words of a client\n")
        sys.stdout.flush()
        os._exit(3)
    if what == "crashes" and (place, number) == (2, 3):
        raise RuntimeError("no training today")
    if what == "starts" and not context.state:
        context.state["started"] = ConfigRecord({"yes": True})
        start_processes(context)
    arrays = [each + 1 for each in message.content["arrays"].to_numpy_ndarrays()]
    metrics = {"num-examples": place + 1, "number": number, "place": place}
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the first value as the loss."""
    loss = float(message.content["arrays"].to_numpy_ndarrays()[0].ravel()[0])
    metrics = {"num-examples": 2, "loss": loss, "accuracy": 0.5}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


@client.query()
def query(message: Message, context: Context) -> Message:
    """Return the place of the node."""
    place = int(context.node_config["partition-id"])
    return Message(RecordDict({"about": ConfigRecord({"place": place})}), reply_to=message)


class Odd(FedAvg):
    """FedAvg that may raise in round 2."""

    what = ""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise, or aggregate."""
        if self.what == "raises" and server_round == 2:
            raise ValueError("the second round is cursed")
        return super().aggregate_train(server_round, replies)


def first() -> ArrayRecord:
    """Return the arrays before round 1; one is of integers."""
    return ArrayRecord([np.zeros((50, 40), np.float64), np.zeros(3, np.int64)])


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, or do what `what` asks for."""
    what, rounds = context.run_config["what"], int(context.run_config["num-server-rounds"])
    if what == "ends":
        return
    if what == "starts":
        start_processes(context)
    if what == "hangs":
        list(grid.get_node_ids())
        time.sleep(1000)
    if what == "loops":
        loop(grid, rounds)
        return
    fraction = float(context.run_config["fraction-train"])
    least = 5 if what == "polls" else 2
    strategy = Odd(fraction_train=fraction, min_train_nodes=1, min_available_nodes=least)
    strategy.what = what
    strategy.start(grid, initial_arrays=first(), num_rounds=rounds)


def loop(grid: Grid, rounds: int) -> None:
    """Train without a strategy: a record of its own for each node, and several groups."""
    nodes = sorted(grid.get_node_ids())
    queries = [
        Message(RecordDict({"q": ConfigRecord({"a": 1})}), node, MessageType.QUERY)
        for node in nodes
    ]
    places = [int(x.content["about"]["place"]) for x in grid.send_and_receive(queries)]
    assert sorted(places) == list(range(len(nodes))), places
    value = np.zeros((50, 40))
    for number in range(1, rounds + 1):
        config = ConfigRecord({"server-round": number})
        messages = [
            Message(
                # Equal arrays in records of their own, and other ones for the last node.
                RecordDict(
                    {
                        "arrays": ArrayRecord([value + (10 if node == nodes[-1] else 0)]),
                        "config": config,
                    }
                ),
                node,
                MessageType.TRAIN,
                group_id=str(number),
            )
            for node in nodes
        ]
        ids, replies = list(grid.push_messages(messages)), []
        while len(replies) < len(ids):
            replies += grid.pull_messages(ids)
            time.sleep(0.05)
        found = [x.content["arrays"].to_numpy_ndarrays()[0] for x in replies if x.has_content()]
        if np.any(np.ptp(found, axis=0) != 10):
            raise ValueError("a node has trained the arrays of another one")
        value = np.min(found, axis=0)
    sys.stdout.write(f"at the end {value[0, 0]} {len(messages)}\n")
