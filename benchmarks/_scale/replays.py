"""Costs of replays: over the devices of a fleet, and over rounds. Nothing is trained."""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._meter import peak_rss_bytes
from benchmarks._scale.curve import Curve, Row
from benchmarks.selection import PART_OF_FAIR_SHARE
from experiments.processes import fresh_processes
from fairbed.testbed.experiment.file import parse_experiment
from fairbed.testbed.progress import tracked
from fairbed.testbed.replay.run import replay_experiment

PER_ROUND = 50
WARM_ROUNDS, ROUNDS = 5, 30
"""Rounds of a replay, and those at its start that do not count."""

PAPER_DEVICES, PAPER_PER_ROUND = 40, 8


def over_devices(counts: Sequence[int]) -> Curve:
    """Return the cost of a round of RBCS-F over a linear world of so many devices."""
    costs = [_alone(count, PER_ROUND, ROUNDS) for count in tracked(counts, "fleets", "replays")]
    return _curve("devices", counts, costs)


def over_rounds(counts: Sequence[int]) -> Curve:
    """Return the cost of replays of 40 devices, 8 in a round, that have so many rounds."""
    costs = [
        _alone(PAPER_DEVICES, PAPER_PER_ROUND, count)
        for count in tracked(counts, "replays", "replays")
    ]
    return _curve("rounds", counts, costs)


def _curve(title: str, counts: Sequence[int], costs: Sequence[dict[str, float]]) -> Curve:
    rows = [Row(text=text, values=[cost[text] for cost in costs]) for text in costs[0]]
    return Curve(title=title, sizes=list(map(float, counts)), rows=rows)


def _alone(devices: int, per_round: int, rounds: int) -> dict[str, float]:
    with fresh_processes(1) as pool:
        return pool.submit(measure, devices, per_round, rounds).result()


def measure(devices: int, per_round: int, rounds: int) -> dict[str, float]:
    """Replay in this process; return costs by the text of their row."""
    beta = PART_OF_FAIR_SHARE * per_round / devices
    raw: dict[str, Any] = {
        "name": "scale",
        "rounds": rounds,
        "selection": {"policy": "rbcs-f", "per_round": per_round, "beta": beta},
        "fleet": [{"model": "linear", "count": devices, "theta": [1.0, 1.0, 0.2]}],
    }  # fmt: skip
    used: list[float] = []
    empty_bytes = peak_rss_bytes(os.getpid())
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name) / "run"
        replay_experiment(
            parse_experiment(raw, "scale"), folder, "run",
            lambda _: used.append(time.process_time()),
        )  # fmt: skip
        store_bytes = (folder / "run.db").stat().st_size
    return {
        "a round, ms of a core": 1e3 * (used[-1] - used[WARM_ROUNDS]) / (rounds - WARM_ROUNDS - 1),
        "peak memory beyond an empty process, MiB": (peak_rss_bytes(os.getpid()) - empty_bytes)
        / 2**20,
        "store, MiB": store_bytes / 2**20,
    }
