"""Memory of the coordinator while it merges a round of large models.

    fairbed bench merge-memory [--devices 100] [--size 50] [--rule fedavg] [--json]

The real executor, uploads and merge in a separate process; devices compute their chunks when they
send them. The benchmark measures the peak of that process, base included, and verifies that the
next model is the weighted mean of the updates. Linux only.
"""

import argparse
import hashlib
import resource
import tempfile
import time
from pathlib import Path

import anyio
import msgspec
import numpy as np
import psutil

from benchmarks._merge_round import Device, SimulatedFleet, simulated_fleet
from experiments.processes import fresh_processes
from fairbed.coordinator.algorithms.aggregation.base import Merge, Models
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from fairbed.coordinator.state.exchange import upload_slots
from fairbed.wire.chunks import DEFAULT_CHUNK_BYTES
from fairbed.wire.tensors import BYTES_PER_VALUE, Layout, Tensor, vector_to_bytes

LIMIT_MB = 1000.0
"""Memory limit for 100 devices of 50 MB with FedAvg, 10^6 bytes."""

PERIOD = DEFAULT_CHUNK_BYTES // BYTES_PER_VALUE
"""Values after which a synthetic model repeats: one chunk."""

LEARNING_RATE = 0.1


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench merge-memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--size", type=float, default=50.0, metavar="MB", help="10^6 bytes")
    parser.add_argument("--rule", default="fedavg", choices=("fedavg", "q-fedavg"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with fresh_processes(1) as pool:
        result = pool.submit(measure, options.devices, options.size, options.rule).result()
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<16}{value:.3f}" if isinstance(value, float) else f"{key:<16}{value}")
    return 0 if result["verified"] else 1


def measure(n_devices: int, size_mb: float, rule: str) -> dict[str, float | int | str | bool]:
    """Return peak memory, 10^6 bytes, and times, seconds, of one round in this process."""
    n_values = int(size_mb * 1e6) // BYTES_PER_VALUE
    layout = Layout(tensors=(Tensor(name="w", shape=(n_values,), offset=0),))
    pattern = np.random.default_rng(0).standard_normal(PERIOD).astype(np.float32)
    devices = {f"device-{k}": _device(pattern, k, n_values) for k in range(n_devices)}
    aggregator = make_aggregator(AggregationConfig(rule=rule))
    assert aggregator.is_streaming
    sent = np.full(n_values, 0.0, dtype=np.float32)  # written, so that its pages are resident
    accumulator = aggregator.begin(sent, n_values, LEARNING_RATE, _no_storage)
    base = psutil.Process().memory_info().rss

    async def run() -> tuple[Merge, float, float]:
        with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
            async with simulated_fleet(devices, layout, accumulator, Path(folder) / "run") as place:
                return await _round(place)

    merge, round_s, close_s = anyio.run(run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "devices": n_devices,
        "size_mb": size_mb,
        "rule": rule,
        "slots": upload_slots(layout.size_bytes),
        "base_rss_mb": base / 1e6,
        "peak_rss_mb": peak / 1e6,
        "limit_mb": LIMIT_MB,
        "round_s": round_s,
        "close_s": close_s,
        "verified": _is_mix(merge, pattern),
    }


def _no_storage() -> Models:
    raise AssertionError("a rule that streams stores no models")


async def _round(place: SimulatedFleet) -> tuple[Merge, float, float]:
    """Return the merge, the seconds until the last arrival, and those from then to the end."""
    started = time.perf_counter()
    await place.run_round(upload_slots(place.layout.size_bytes), target_updates=len(place.devices))
    ended = time.perf_counter()
    merge = await place.merge.finish()
    return merge, ended - started, time.perf_counter() - ended


def _device(pattern: Vector, k: int, n_values: int) -> Device:
    """Return device k, whose update is (k + 1) times the repeated pattern."""

    def chunk(index: int) -> bytes:
        size = min(n_values - index * PERIOD, PERIOD)
        return bytes(vector_to_bytes(_model(pattern, k)[:size]))

    digest = hashlib.sha256()
    for index in range(-(-n_values // PERIOD)):
        digest.update(chunk(index))
    return Device(chunk, digest.digest(), n_k=k + 1, loss_before=1.0 + k)


def _model(pattern: Vector, k: int) -> Vector:
    return np.multiply(pattern, k + 1, dtype=np.float32)


def _is_mix(merge: Merge, pattern: Vector) -> bool:
    """Return whether every period of the next model is the mix that its weights determine."""
    # All models are multiples of one pattern, so the mix is one, too. The weights are in order of
    # arrival, but they differ, and their order by size is the order of the devices.
    factors = np.sort(merge.weights) @ np.arange(1, len(merge.weights) + 1)
    expected = np.resize(pattern.astype(np.float64) * factors, merge.vector.size)
    return bool(np.allclose(merge.vector, expected, rtol=1e-6, atol=0.0))
