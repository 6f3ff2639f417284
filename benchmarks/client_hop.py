"""A model to the client and back: how long a device waits, alone and with others at once.

    fairbed bench client-hop [--agents 20] [--rounds 40] [--values 250000] [--json]

Each agent is a process with one client, a fork of one server. In each round all agents send a
vector at once, and their clients return it with 1 added. `hop_s` is the time of a request without
that addition, `split_s` the part in which the client splits its arrays; `slowest_s` is that of the
last agent of a round. All are medians, without the first two rounds; `alone_` is one agent.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairbed.device_agent.clients.process import ClientCode, ClientProcess, ClientServer

CLIENT = """
class Client:
    def fit(self, arrays, config):
        arrays[0] += 1
        return arrays, 1, {}
"""

LIMIT_S, WARM_UP = 60.0, 2

Hops = list[tuple[float, float]]
"""Seconds of each round: of the hop, and of splitting."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench client-hop", description=__doc__)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--values", type=int, default=250_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds <= WARM_UP or options.agents < 1 or options.values < 1:
        raise SystemExit("client-hop: must have at least 3 rounds, one agent and one value")
    result: dict[str, float] = {"load_1min": os.getloadavg()[0]}
    for prefix, agents in (("alone_", 1), ("", options.agents)):
        result |= {f"{prefix}{k}": x for k, x in measure(agents, options).items()}
    result["share_of_waiting"] = 1.0 - result["alone_hop_s"] / result["hop_s"]
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:<20}{value:.5f}")
    return 0


def measure(agents: int, options: argparse.Namespace) -> dict[str, float]:
    """Return the medians of one run, seconds."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        Path(folder, "echo.py").write_text(CLIENT, encoding="utf-8")
        server = ClientServer(ClientCode(kind="class", folder=folder, path="echo:Client"))
        barrier, found = context.Barrier(agents, timeout=LIMIT_S), context.Queue()

        def agent() -> None:
            found.put(hops(server.address, options.rounds, options.values, barrier.wait))

        processes = [context.Process(target=agent, daemon=True) for _ in range(agents)]
        try:
            for process in processes:
                process.start()
            rounds = list(zip(*(found.get(timeout=LIMIT_S) for _ in processes), strict=True))
        finally:
            server.close()
    rounds = rounds[WARM_UP:]
    return {
        "hop_s": statistics.median(hop for each in rounds for hop, _ in each),
        "split_s": statistics.median(split for each in rounds for _, split in each),
        "slowest_s": statistics.median(max(each)[0] for each in rounds),
    }


def hops(address: str, rounds: int, values: int, wait: Callable[[], Any]) -> Hops:
    """Return the times of one agent; `wait` returns when all agents are there."""
    process, until_s = ClientProcess(address), time.monotonic() + LIMIT_S
    vector, found = np.zeros(values, np.float32), Hops()
    about = {"do": "open", "is_list": True, "arrays": [["w", "float32", [values]]]}

    def is_late() -> bool:
        return time.monotonic() > until_s

    try:
        process.await_fork(is_late)
        process.request(about, {"state": b""}, is_late, 0.0)
        for round_id in range(rounds):
            wait()
            begun_s = time.monotonic()
            answer, parts = process.request(
                {"do": "fit", "round": round_id},
                {"vector": vector.view(np.uint8).data, "raw": b"", "config": b""},
                is_late,
                0.0,
            )
            found.append((time.monotonic() - begun_s - answer["work_s"], answer["encode_s"]))
            if np.frombuffer(parts["vector"], "<f4")[-1] != 1.0:
                raise SystemExit("client-hop: the vector must come back with 1 added")
    finally:
        process.close()
    return found
