"""A process that trains chunks for a replay: `python -m fairbed.testbed.replay.cohort.helper`.

Arguments are our parent's process id, the descriptor of a socket to it and that of the shared
memory. A process of its own, for threads that train wait for each other's turn at the interpreter.
"""

import sys
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from threadpoolctl import ThreadpoolController

from fairbed.testbed.host.guard import die_with_parent
from fairbed.testbed.replay.cohort.base import Job
from fairbed.testbed.replay.cohort.chunk import train_chunk
from fairbed.testbed.replay.cohort.net import DenseNet
from fairbed.testbed.replay.cohort.shards import Examples
from fairbed.testbed.replay.cohort.shared import Sheet, see
from fairbed.wire.artifact import TaskSpec
from fairbed.wire.messages import Hyperparameters

READY = b"ready"
"""Said once, when all is loaded."""


class SetUp(Struct, frozen=True):
    """Said once: what is trained, and where everything lies."""

    spec: TaskSpec
    sheets: dict[str, Sheet]
    """`vector`, the model of now; `x`, `y`, `rows` and `ends`, the examples, the rows of all
    devices one after the other and where each one's end; `answer-N`, where helper N leaves
    models."""
    answer: str
    """Of these, ours."""


class Order(Struct, frozen=True):
    """Train these from the model of now."""

    devices: list[int]
    seeds: list[int]
    hyperparameters: Hyperparameters


class Report(Struct, frozen=True):
    """What is told of a chunk; its models are in the shared memory."""

    steps: list[int]
    loss_train: list[float]
    problems: tuple[str, ...]


def main() -> None:
    """Train what is ordered until nobody is there to order."""
    parent, socket, memory = map(int, sys.argv[1:])
    die_with_parent(parent)
    orders = Connection(socket)
    try:
        set_up = msgspec.msgpack.decode(orders.recv_bytes(), type=SetUp)
        arrays: dict[str, Any] = see(memory, set_up.sheets)
        rows = tuple(np.split(arrays["rows"], arrays["ends"][:-1]))
        examples, net = Examples(arrays["x"], arrays["y"], rows), DenseNet(set_up.spec)
        vector, answer = arrays["vector"], arrays[set_up.answer]
        decoder = msgspec.msgpack.Decoder(Order)
        orders.send_bytes(READY)
        with ThreadpoolController().limit(limits=1, user_api="blas"):
            while True:
                order = decoder.decode(orders.recv_bytes())
                jobs = [Job(*job) for job in zip(order.devices, order.seeds, strict=True)]
                params = answer[: len(jobs)]
                params[:] = vector
                got = train_chunk(net, examples, params, (), jobs, order.hyperparameters)
                report = Report(got.steps.tolist(), got.loss_train.tolist(), got.problems)
                orders.send_bytes(msgspec.msgpack.encode(report))
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
