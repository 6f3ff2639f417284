"""Cost of namespace networks: set-up, teardown, changes, and a packet in the relay.

    fairbed bench network-cost [--devices 100] [--json]

Run it on an otherwise idle machine. Needs root, or a user namespace.
"""

import argparse
import statistics
import sys
import time

import anyio
import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct

from benchmarks._traffic import traffic
from fairbed.testbed.backends.cpu_time import cpu_s
from fairbed.testbed.backends.network.network import Network, open_network
from fairbed.testbed.emulation.conditions import Conditions, Shape
from fairbed.testbed.errors import BackendError

TURNS = 20
"""Changes of all devices; the result is the median."""

RELAYED_BPS = 2e7
STREAM_S = 5.0
PACKET_BYTES = 1500


class Cost(Struct, frozen=True, kw_only=True):
    """The output of `--json`."""

    devices: int
    set_up_s: float
    change_us: float
    """Time per device to change both rates of all devices."""
    counters_ms: float
    """Time to read the counters of all devices."""
    teardown_s: float
    relay_us: float | None
    """Processor time of the relay for a full packet and its share of the answers; None if the
    kernel delays packets."""


async def measure(n_devices: int) -> Cost:
    """Measure and clean up.

    Raises:
        BackendError: This machine cannot create networks.
    """
    shapes: dict[str, Shape | None] = {f"device-{index}": _both(1e6) for index in range(n_devices)}
    began = time.monotonic()
    async with open_network("bench", shapes) as network:
        set_up_s = time.monotonic() - began
        changes_s = [await _change(network, shapes, 1e6 * (2 + turn)) for turn in range(TURNS)]
        began = time.monotonic()
        await network.counters()
        counters_s = time.monotonic() - began
        began = time.monotonic()
    teardown_s = time.monotonic() - began
    return Cost(
        devices=n_devices,
        set_up_s=set_up_s,
        change_us=1e6 * statistics.median(changes_s) / n_devices,
        counters_ms=1e3 * counters_s,
        teardown_s=teardown_s,
        relay_us=await _relay_us(),
    )


async def _change(network: Network, names: dict[str, Shape | None], rate_bps: float) -> float:
    began = time.monotonic()
    await network.apply(dict.fromkeys(names, Conditions(speed_ratio=None, shape=_both(rate_bps))))
    return time.monotonic() - began


async def _relay_us() -> float | None:
    far = Shape(down_bps=RELAYED_BPS, up_bps=RELAYED_BPS, delay_s=0.01)
    async with open_network("bench", {"pi": far}) as network:
        if not network.pids:
            return None

        def stream() -> None:
            with traffic(network.namespace("pi"), network.hub_address) as peer:
                peer.stream_down(seconds=STREAM_S)

        before_s = cpu_s(network.pids[0]) or 0.0
        await run_sync(stream)
        used_s = (cpu_s(network.pids[0]) or 0.0) - before_s
        n_packets = (await network.counters())["pi"].down_bytes / PACKET_BYTES
        return 1e6 * used_s / n_packets


def _both(rate_bps: float) -> Shape:
    return Shape(down_bps=rate_bps, up_bps=rate_bps)


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench network-cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        cost = anyio.run(measure, options.devices)
    except BackendError as exc:
        print(exc, file=sys.stderr)
        return 1
    if options.json:
        print(msgspec.json.encode(cost).decode())
        return 0
    for name, value in msgspec.structs.asdict(cost).items():
        print(f"{name:<14}{'-' if value is None else format(value, '.4g')}")
    return 0
