"""Memory of ten torch clients with their agents, and what a client costs a round.

    fairbed bench client-memory [--devices 10] [--backend process] [--json]

A run of examples/own-client-torch.toml with that many devices, all of which train in each round, so
that every client stays in memory. The number is the largest sum of the proportional set sizes of
the server, the clients, and the agents: pages that forks have in common count once. Beside it, the
part of the clients and their server.
"""

import argparse
import tempfile
import threading
from pathlib import Path

import msgspec
import psutil

import fairbed
from fairbed.device_agent.clients.process import SERVE

EXAMPLE = Path(__file__).parents[1] / "examples" / "own-client-torch.toml"

INTERVAL_S = 0.5
"""Time between two readings; clients stay, so no peak is short."""

ROUNDS = 4


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench client-memory", description=__doc__)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--backend", default="process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    over, peaks = threading.Event(), {"all_mib": 0.0, "clients_mib": 0.0, "processes": 0.0}
    watch = threading.Thread(target=_watch, args=(over, peaks))
    watch.start()
    try:
        with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
            fairbed.run(
                str(EXAMPLE),
                out=Path(folder, "run"),
                set={
                    "rounds": ROUNDS,
                    "selection.per_round": options.devices,
                    "round.deadline_s": 300.0,
                    "emulation.backend": options.backend,
                    "fleet": [{"name": "pi", "count": options.devices}],
                },
            )
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
