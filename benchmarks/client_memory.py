"""Memory of ten torch clients of a small CNN with their agents.

    fairbed bench client-memory [--devices 10] [--backend process] [--flower PYTHON] [--json]

A run of examples/own-client-torch.toml with that many devices, all of which train in each round, so
that every client stays in memory; with `--flower`, of the app examples/flower-torch, in an
interpreter that has flwr and torch. The number is the largest sum of the proportional set sizes of
all processes that the run starts: broker, links, agents, clients, their server, the ServerApp.
Pages that forks have in common count once. Beside it, the part of the clients and their server.
"""

import argparse
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import psutil

import fairbed
from fairbed.device_agent.clients.process import SERVE

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE, TEN_PIS, APP = (
    EXAMPLES / name for name in ("own-client-torch.toml", "flower-ten-pis.toml", "flower-torch")
)

INTERVAL_S = 0.5
"""Time between two readings; clients stay, so no peak is short."""

ROUNDS = 4


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench client-memory", description=__doc__)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--backend", default="process")
    parser.add_argument(
        "--flower", metavar="PYTHON", help="a Flower app instead, with flwr and torch there"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    over, peaks = threading.Event(), {"all_mib": 0.0, "clients_mib": 0.0, "processes": 0.0}
    watch = threading.Thread(target=_watch, args=(over, peaks))
    watch.start()
    try:
        with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
            settings: dict[str, Any] = {
                "round.deadline_s": 300.0,
                "emulation.backend": options.backend,
                "fleet": [{"name": "pi", "count": options.devices}],
            }
            if options.flower is None:
                settings |= {"rounds": ROUNDS, "selection.per_round": options.devices}
            else:
                settings |= {
                    "selection.policy": "app",
                    "flower.app": str(APP),
                    "flower.python": options.flower,
                    "flower.config": {"num-server-rounds": ROUNDS},
                }
            example = EXAMPLE if options.flower is None else TEN_PIS
            fairbed.run(str(example), out=Path(folder, "run"), set=settings)
    finally:
        over.set()
        watch.join()
    if options.json:
        print(msgspec.json.encode(peaks).decode())
    else:
        for key, value in peaks.items():
            print(f"{key:<14}{value:.0f}")
    return 0


def _watch(over: threading.Event, peaks: dict[str, float]) -> None:
    """Keep the largest sums until the run is over."""
    while not over.wait(INTERVAL_S):
        clients, others = dict[int, float](), dict[int, float]()
        for process in psutil.Process().children(recursive=True):
            try:
                is_client = str(SERVE) in process.cmdline()
                found = clients if is_client else others
                found[process.pid] = _pss_mib(process.pid)
            except (psutil.Error, OSError):
                continue
        total = sum(clients.values()) + sum(others.values())
        if total > peaks["all_mib"]:
            peaks["all_mib"], peaks["processes"] = total, float(len(clients) + len(others))
        peaks["clients_mib"] = max(peaks["clients_mib"], sum(clients.values()))


def _pss_mib(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith("Pss:")]
    return int(line.split()[1]) / 1024
