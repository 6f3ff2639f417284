"""Adapters on a frozen network of 100 MB: bytes of a round, and copies in memory.

    fairbed bench frozen-base [--devices 12] [--rank 4] [--json]

A run of emulated devices of this machine with LoRA on all square layers of a network of 25 million
values. `share` is what a device downloads and uploads in a round, divided by the frozen part, which
each device downloads once. `copies` is the sum of the proportional set sizes of its mappings in all
agents, divided by its size: 1 is one copy for all of them.
"""

import argparse
import tempfile
import threading
from pathlib import Path

import msgspec
import psutil

import fairbed
from benchmarks._wide_network import Wide
from fairbed.coordinator.store import RunReader
from fairbed.wire.base_files import PREFIX

INTERVAL_S = 0.5
"""Time between two readings."""

ROUNDS = 3


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench frozen-base", description=__doc__)
    parser.add_argument("--devices", type=int, default=12)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    over, most = threading.Event(), {"mappings": 0.0, "copies": 0.0}
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
        run = Path(folder, "run")
        watch = threading.Thread(target=_watch, args=(over, run, most))
        watch.start()
        experiment = {
            "name": "frozen-base",
            "rounds": ROUNDS,
            "data": {"dataset": "digits"},
            "model": {
                "name": f"{Wide.__module__}:{Wide.__qualname__}",
                "weights": "module",
                "lora": {"rank": options.rank, "on": ["blocks.*"]},
            },
            "training": {"max_steps": 2},
            "selection": {"policy": "uniform", "per_round": options.devices},
            "round": {"deadline_s": 300.0},
            "emulation": {"backend": "process"},
            "fleet": [{"name": "pi", "count": options.devices}],
        }
        try:
            fairbed.run(experiment, out=run)
        finally:
            over.set()
            watch.join()
        with RunReader(run) as reader:
            exchanges = reader.exchanges(0)
            (frozen,) = {device.base_bytes for device in reader.devices()}
    assert frozen is not None, "all devices have the frozen part"
    sent = {(row.bytes_down or 0) + (row.bytes_up or 0) for row in exchanges}
    found = {
        "devices": options.devices,
        "frozen_mb": frozen / 1e6,
        "round_kb": max(sent) / 1e3,
        "share": max(sent) / frozen,
        **most,
    }
    if options.json:
        print(msgspec.json.encode(found).decode())
    else:
        for key, value in found.items():
            print(f"{key:<12}{value:.4g}")
    return 0


def _watch(over: threading.Event, run: Path, most: dict[str, float]) -> None:
    """Keep the largest number of mappings of the frozen part, and their sizes."""
    while not over.wait(INTERVAL_S):
        copies, mappings = 0.0, 0
        for process in psutil.Process().children(recursive=True):
            try:
                maps = [m for m in process.memory_maps() if f"/{PREFIX}" in m.path]
            except (psutil.Error, OSError):
                continue
            copies += sum(m.pss / max(m.size, 1) for m in maps)
            mappings += len(maps)
        if (mappings, copies) > (most["mappings"], most["copies"]):
            most |= {"mappings": float(mappings), "copies": copies}
