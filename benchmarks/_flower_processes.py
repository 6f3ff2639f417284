"""A job of `round-time` as processes of Flower; they run where flwr is, without Fairbed.

    FLOWER_JOB=JOB.json PYTHON -m benchmarks._flower_processes server|NUMBER

The job's `pids.json` has the processes of the clients. The server prints, at the end of each round,
the instant of the machine's monotonic clock and the processor times of server and clients.
"""

import json
import os
import socket
import sys
import time
from importlib.metadata import version
from pathlib import Path

from flwr.client import start_client
from flwr.server import ServerConfig, start_server

from benchmarks._flower_training import Client, job, strategy

PAUSE_S, SERVER_S = 0.02, 120.0
"""Between two attempts to reach the server, and the longest wait for it."""
TICKS = os.sysconf("SC_CLK_TCK")


def serve() -> None:
    """Serve all rounds and print their ends."""
    ends: list[tuple[float, float, float]] = []

    def on_round() -> None:
        pids = json.loads(Path(job()["folder"], "pids.json").read_text(encoding="ascii"))
        clients_s = sum(cpu_s(pid) for pid in pids)
        ends.append((time.monotonic(), cpu_s(os.getpid()), clients_s))

    config = ServerConfig(num_rounds=job()["rounds"])
    start_server(server_address=job()["address"], config=config, strategy=strategy(on_round))
    print(json.dumps({"version": version("flwr"), "ends": ends}))


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, seconds."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


def train(number: int) -> None:
    """Be a client until the server ends; it must be there before flwr connects."""
    host, _, port = job()["address"].partition(":")
    for _attempt in range(int(SERVER_S / PAUSE_S)):
        try:
            socket.create_connection((host, int(port)), PAUSE_S).close()
            break
        except OSError:
            time.sleep(PAUSE_S)
    start_client(server_address=job()["address"], client=Client(number).to_client())


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve()
    else:
        train(int(sys.argv[1]))
