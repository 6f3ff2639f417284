"""A grid of small replays on two local Ray nodes, compared with two local processes.

    fairbed bench cluster [--cells 64] [--rounds 300] [--repeats 5] [--json]

Each node has one core. Both ways run the same grid, one right after the other and in turn first, so
that other load of the machine meets both. The start is left out: times and processor times run from
the `WARM`-th finished cell to the last. Processor times are of this process and all that descend
from it, the daemons of Ray included; they are also useful on a machine with other load.
"""

import argparse
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import psutil

from fairbed.testbed.cluster.api import ReplayingHosts
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.grid import Grid, make_grid
from fairbed.testbed.compare.pool import run_cells
from fairbed.testbed.errors import RunError
from fairbed.testbed.progress import tracked

if TYPE_CHECKING:
    from fairbed.testbed.cluster.connection import Cluster

WARM = 8
"""Finished cells before the measurement begins."""

NODES = 2
"""Nodes of a core each, and local processes."""

STORE_BYTES = 100_000_000
"""Memory of the objects of a node."""

FLEET = {"model": "linear", "count": 100, "theta": [1.0, 1.0, 0.2]}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the grid, after its start."""

    cells_per_s: float
    cpu_s_per_cell: float


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=300, help="rounds of each replay")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.cells <= WARM:
        raise SystemExit(f"cluster: --cells must be above {WARM}, got {options.cells}")
    grid = _grid(options.cells, options.rounds)
    found: dict[str, list[Measured]] = {"local": [], "ray": []}
    with two_nodes() as cluster:
        for repeat in tracked(range(options.repeats), "repeats", "cluster"):
            for name in ("local", "ray") if repeat % 2 else ("ray", "local"):
                found[name].append(_measure(grid, cluster if name == "ray" else None))
    result = _summary(found["local"], found["ray"])
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        print("\n".join(f"{key:<24}{value:.4g}" for key, value in result.items()))
    return 0


def _summary(local: Sequence[Measured], ray: Sequence[Measured]) -> dict[str, float]:
    """Return medians of both ways, and of ratios of pairs that ran one after the other.

    `ratio` is the rate on Ray over the local one, `cpu_ratio` the local processor time over that on
    Ray: above 1 Ray is the better one.
    """
    pairs = list(zip(local, ray, strict=True))
    return {
        "local_cells_per_s": statistics.median(one.cells_per_s for one in local),
        "ray_cells_per_s": statistics.median(one.cells_per_s for one in ray),
        "ratio_median": statistics.median(b.cells_per_s / a.cells_per_s for a, b in pairs),
        "ratio_min": min(b.cells_per_s / a.cells_per_s for a, b in pairs),
        "ratio_max": max(b.cells_per_s / a.cells_per_s for a, b in pairs),
        "local_cpu_s_per_cell": statistics.median(one.cpu_s_per_cell for one in local),
        "ray_cpu_s_per_cell": statistics.median(one.cpu_s_per_cell for one in ray),
        "cpu_ratio_median": statistics.median(
            a.cpu_s_per_cell / b.cpu_s_per_cell for a, b in pairs
        ),
    }


def _grid(cells: int, rounds: int) -> Grid:
    document: dict[str, Any] = {
        "seeds": cells,
        "arm": [{"name": "rbcs-f"}],
        "experiment": {
            "name": "small",
            "rounds": rounds,
            "selection": {"policy": "rbcs-f", "per_round": 10, "beta": 0.05},
            "fleet": [FLEET],
        },
    }
    return make_grid(document, Path("cluster"))


@contextmanager
def two_nodes() -> "Iterator[Cluster]":
    """Start a cluster of local nodes, and join it."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster as LocalNodes

    from fairbed.testbed.cluster.connection import connect

    sizes = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    nodes: Any = LocalNodes(initialize_head=True, head_node_args=sizes)
    try:
        for _ in range(NODES - 1):
            nodes.add_node(**sizes)
        with connect(nodes.address) as cluster:
            yield cluster
    finally:
        nodes.shutdown()


def _measure(grid: Grid, cluster: "Cluster | None") -> Measured:
    """Run a grid in a new folder."""
    times, cpu_s = list[float](), list[float]()

    def count(result: CellResult) -> None:
        if result.outcome.problem:
            raise RunError(f"seed {result.seed}: {result.outcome.problem}")
        times.append(time.perf_counter())
        if len(times) in (WARM, len(grid.seeds)):
            cpu_s.append(_cpu_s())

    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        hosts = None if cluster is None else ReplayingHosts(cluster)
        run = partial(run_cells, hosts=hosts)
        if not anyio.run(run, grid, Path(folder), NODES, count):
            raise RunError("interrupted; the same command starts again")
    cells = len(grid.seeds) - WARM
    return Measured(
        cells_per_s=cells / (times[-1] - times[WARM - 1]),
        cpu_s_per_cell=(cpu_s[1] - cpu_s[0]) / cells,
    )


def _cpu_s() -> float:
    """Return the processor time of this process and all that descend from it, seconds."""
    this, total = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            spent = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system + spent.children_user + spent.children_system
    return total
