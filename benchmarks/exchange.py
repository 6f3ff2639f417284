"""Speed, processor time and memory of the model exchange, against a plain TCP copy.

    fairbed bench exchange [--agents 20] [--size 10] [--broker auto] [--processes N] [--json]
                           [--client direct] [--repeats 5] [--chunk KIB] [--drop 0.01]
                           [--slow 1mbit:1] [--kill-broker-at 50%] [--deaf 4]

The coordinator's chunk store, uploads and grants, the agent's pulls and pushes, and a real
broker; no training. Four kinds of pass alternate: copy down, ours down, copy up, ours up. Each
moves one vector per device; hashing is not timed. docs/exchange.md explains the numbers.
"""

import argparse
import math
import os
import re
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import anyio
import msgspec

from benchmarks._device_commands import Join
from benchmarks._device_processes import DeviceProcesses, fork_device_processes
from benchmarks._exchange_coordinator import ExchangeCoordinator
from benchmarks._exchange_passes import ExchangePasses, Pass
from benchmarks._meter import MEGABYTE, median, peak_rss_bytes, percentile
from benchmarks._tcp import listen
from fairbed.testbed.backends.proxy.links import shaped_links
from fairbed.testbed.backends.proxy.protocol import Shape
from fairbed.testbed.broker.configuration import BrokerChoice
from fairbed.testbed.run.broker import Broker, start_broker
from fairbed.wire.transport.address import DEFAULT_CLIENT, Client, with_client

UNITS_BPS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

READY_S = 30.0
"""Time limit for the coordinator's connection."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark."""

    agents: int
    n_bytes: int
    broker: BrokerChoice
    client: Client
    processes: int
    repeats: int
    chunk_bytes: int | None
    slow_bps: float
    n_slow: int
    kill_at: tuple[float, bool] | None
    """Seconds, or a fraction of the undisturbed time if the second is true."""
    drop: float
    n_deaf: int
    seed: int

    @property
    def slow(self) -> list[str]:
        """Devices behind a shaped link."""
        return [_name(i) for i in range(self.n_slow)]

    @property
    def fast(self) -> list[str]:
        """All others."""
        return [_name(i) for i in range(self.n_slow, self.agents)]


@dataclass(frozen=True, slots=True)
class Series:
    """The passes of each kind, in order."""

    tcp_down: list[Pass]
    down: list[Pass]
    tcp_up: list[Pass]
    up: list[Pass]


Result = dict[str, object]


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    options = _options(parser, given)
    processes = fork_device_processes(options.processes)
    try:
        result = anyio.run(_measure, options, processes)
    finally:
        processes.kill()
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        _print(result)
    return 0 if result["verified"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairbed bench exchange",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--agents", type=int, default=20, help="devices (default 20)")
    add("--size", type=float, default=10.0, metavar="MB", help="vector, 10^6 bytes (default 10)")
    add("--broker", default="auto", choices=("auto", "mosquitto", "nats", "amqtt"))
    add("--client", default=DEFAULT_CLIENT, choices=get_args(Client), help="MQTT client")
    add("--processes", type=int, help="processes that share the devices (default: one each)")
    add("--repeats", type=int, default=5, help="passes of each kind (default 5)")
    add("--chunk", type=int, metavar="KIB", help="chunk size (default: follows the link)")
    add("--slow", metavar="RATE:N", help="N more devices behind a slow link, such as 1mbit:1")
    add("--kill-broker-at", metavar="AT", help="restart the broker after 0.2 s, or at 50%%")
    add("--drop", type=float, default=0.0, help="share of chunks to drop, such as 0.01")
    add("--deaf", type=int, default=0, metavar="N", help="N more clients that never read")
    add("--seed", type=int, default=0)
    add("--json", action="store_true")
    return parser


def _options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Options:
    slow = re.fullmatch(r"([\d.]+)(kbit|mbit|gbit):(\d+)", given.slow or "1mbit:0")
    if slow is None:
        parser.error(f"--slow: must be RATE:N such as 1mbit:1, got {given.slow}")
    kill = re.fullmatch(r"([\d.]+)(%|s?)", given.kill_broker_at or "0")
    if kill is None:
        parser.error(f"--kill-broker-at: must be like 0.2 or 50%, got {given.kill_broker_at}")
    agents = given.agents + int(slow[3])
    processes = given.processes or agents
    n_bytes = int(given.size * MEGABYTE) // 4 * 4
    if (
        given.deaf < 0
        or given.agents < 1
        or not 1 <= processes <= agents
        or given.repeats < 1
        or n_bytes < 4096
    ):
        parser.error("--agents, --repeats: must be at least 1, --size 0.01, --deaf 0")
    if not 1 <= processes <= agents:
        parser.error(f"--processes: must be in 1 to {agents}, got {processes}")
    if not 0.0 <= given.drop < 1.0:
        parser.error(f"--drop: must be in [0, 1), got {given.drop}")
    is_part = kill[2] == "%"
    return Options(
        agents=agents,
        n_bytes=n_bytes,
        broker=given.broker,
        client=given.client,
        processes=processes,
        repeats=given.repeats,
        chunk_bytes=given.chunk * 1024 if given.chunk else None,
        slow_bps=float(slow[1]) * UNITS_BPS[slow[2]],
        n_slow=int(slow[3]),
        kill_at=(float(kill[1]) / (100.0 if is_part else 1.0), is_part)
        if given.kill_broker_at
        else None,
        drop=given.drop,
        n_deaf=given.deaf,
        seed=given.seed,
    )


def _name(index: int) -> str:
    return f"device-{index}"


async def _measure(options: Options, processes: DeviceProcesses) -> Result:
    link = Shape(down_bps=options.slow_bps, up_bps=options.slow_bps)
    shapes = dict.fromkeys(options.slow, link)
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name, listen() as server:
        folder = Path(name)
        log = folder / "proxy.log"
        async with (
            start_broker(options.broker, folder=folder) as broker,
            shaped_links("127.0.0.1", broker.port, shapes, log, lambda _: None) as links,
            anyio.create_task_group() as group,
        ):
            assert broker.pid is not None
            base_rss = peak_rss_bytes(broker.pid)
            url = with_client(broker.url, options.client)
            coordinator = ExchangeCoordinator(
                url, options.n_bytes, options.drop, options.seed, group
            )
            group.start_soon(coordinator.run, name="bench.coordinator")
            with anyio.fail_after(READY_S):
                await coordinator.linked.wait()
            await _join(options, processes, broker, links.ports, server)
            passes = ExchangePasses(
                processes,
                coordinator,
                broker,
                server,
                options.n_bytes,
                options.chunk_bytes,
                options.n_deaf,
            )
            try:
                result = await _run(options, passes, broker)
            finally:
                passes.close()
            processes.close()
            group.cancel_scope.cancel()
    memory = {
        "coordinator": peak_rss_bytes(os.getpid()),
        "broker": passes.findings.broker_rss_bytes,
        "broker_base": base_rss,
        "agent": passes.findings.agent_rss_bytes,
    }
    result["peak_rss_mb"] = {key: value / MEGABYTE for key, value in memory.items()}
    return result


async def _join(
    options: Options,
    processes: DeviceProcesses,
    broker: Broker,
    ports: dict[str, int],
    server: socket.socket,
) -> None:
    await processes.open()
    groups: list[dict[str, str]] = [{} for _ in range(options.processes)]
    for i in range(options.agents):
        port = ports.get(_name(i), broker.port)
        url = f"{broker.url.rsplit(':', 1)[0]}:{port}"
        groups[i % options.processes][_name(i)] = with_client(url, options.client)
    await processes.send(
        [
            Join(
                urls=urls,
                tcp_port=server.getsockname()[1],
                size_bytes=options.n_bytes,
                drop=options.drop,
                chunk_bytes=options.chunk_bytes,
                seed=options.seed + (i + 1) * 10_000,
            )
            for i, urls in enumerate(groups)
        ]
    )
    await processes.checked()


async def _run(options: Options, passes: ExchangePasses, broker: Broker) -> Result:
    fast = options.fast
    await passes.down(fast)  # the links are measured, the processes warm
    await passes.up(fast)
    series = Series([], [], [], [])
    for _ in range(options.repeats):
        series.tcp_down.append(await passes.copy("down", fast))
        series.down.append(await passes.down(fast))
        series.tcp_up.append(await passes.copy("up", fast))
        series.up.append(await passes.up(fast))
    result = _result(options, passes, broker, series)
    if options.slow:
        names = [*fast, *options.slow]
        together = (await passes.down(names), await passes.up(names))
        result["slow"] = _slow(options, together, series)
    if options.kill_at is not None:
        result["kill"] = await _kill(options, passes, broker, series)
    result["verified"] = passes.findings.is_verified
    result["repeats"] = passes.findings.repeats
    result["dropped"] = passes.findings.dropped
    return result


def _result(options: Options, passes: ExchangePasses, broker: Broker, series: Series) -> Result:
    def of(kind: Sequence[Pass], key: str) -> float:
        return median([getattr(one, key) for one in kind])

    down, up = of(series.down, "mb_s"), of(series.up, "mb_s")
    ceiling = of(series.tcp_down, "mb_s")
    device_down = [took_s for one in series.down for took_s in one.device_s.values()]
    device_up = [took_s for one in series.up for took_s in one.device_s.values()]
    both = [*series.down, *series.up]
    return {
        "broker": broker.kind,
        "client": options.client,
        "agents": len(options.fast),
        "processes": options.processes,
        "deaf": options.n_deaf,
        "size_mb": options.n_bytes / MEGABYTE,
        "chunk_kib": passes.findings.chunk_bytes / 1024,
        "tcp_down_mb_s": ceiling,
        "tcp_up_mb_s": of(series.tcp_up, "mb_s"),
        "down_mb_s": down,
        "up_mb_s": up,
        "down_ratio": down / ceiling,
        "up_ratio": up / ceiling,
        "cpu_ms_per_mb": {
            "coordinator_down": of(series.down, "coordinator_ms"),
            "coordinator_up": of(series.up, "coordinator_ms"),
            "broker": of(both, "broker_ms"),
            "broker_down": of(series.down, "broker_ms"),
            "broker_up": of(series.up, "broker_ms"),
            "agents": of(both, "agents_ms"),
            "agents_down": of(series.down, "agents_ms"),
            "agents_up": of(series.up, "agents_ms"),
            "tcp_coordinator_down": of(series.tcp_down, "coordinator_ms"),
            "tcp_coordinator_up": of(series.tcp_up, "coordinator_ms"),
            "tcp_agents_down": of(series.tcp_down, "agents_ms"),
            "tcp_agents_up": of(series.tcp_up, "agents_ms"),
        },
        "publish_s": median(passes.findings.publish_s),
        "device_s": {"p50": percentile(device_down, 50), "p95": percentile(device_down, 95)},
        "device_up_s": {"p50": percentile(device_up, 50), "p95": percentile(device_up, 95)},
    }


def _slow(options: Options, together: tuple[Pass, Pass], series: Series) -> Result:
    """Compare slow devices with their link, and fast ones with passes without slow devices."""
    limit_s = 8.0 * options.n_bytes / options.slow_bps
    found: Result = {"devices": options.n_slow, "rate_bps": options.slow_bps, "limit_s": limit_s}
    for direction, one, alone in zip(
        ("down", "up"), together, (series.down, series.up), strict=True
    ):
        slowest_s = max(one.device_s[name] for name in options.slow)
        found[direction] = {
            "slow_s": slowest_s,
            "slow_over_limit": slowest_s / limit_s,
            "fast_p95_s": percentile([one.device_s[name] for name in options.fast], 95),
            "fast_alone_p95_s": percentile(
                [took_s for each in alone for took_s in each.device_s.values()], 95
            ),
        }
    return found


async def _kill(options: Options, passes: ExchangePasses, broker: Broker, series: Series) -> Result:
    """Kill the broker during a pass in each direction and restart it at once."""
    assert options.kill_at is not None
    found: Result = {}
    for direction, act, usual in (
        ("down", passes.down, series.down),
        ("up", passes.up, series.up),
    ):
        undisturbed_s = median([one.wall_s for one in usual])
        at, is_part = options.kill_at
        at_s = at * undisturbed_s if is_part else at
        outage_s = math.nan

        async def restart(after_s: float = at_s) -> None:
            nonlocal outage_s
            await anyio.sleep(after_s)
            started_s = time.perf_counter()
            await broker.restart()
            outage_s = time.perf_counter() - started_s

        passed = await act(options.fast, restart)
        found[direction] = {
            "at_s": at_s,
            "outage_s": outage_s,
            "wall_s": passed.wall_s,
            "lost_s": passed.wall_s - undisturbed_s,
        }
    return found


def _print(result: Result) -> None:
    for key, value in result.items():
        if isinstance(value, dict):
            print(key)
            for name, number in value.items():
                print(f"  {name:<22}{_text(number)}")
        else:
            print(f"{key:<24}{_text(value)}")


def _text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
