"""What TLS costs in a lab: exchange throughput, round time, and an idle agent.

    fairbed bench tls-cost [--agents 20] [--size 10] [--repeats 5] [--rounds 20] [--seconds 20]
                           [--json]

One broker with two listeners, as in every lab with mosquitto: TLS for devices, and one without TLS
on loopback, which also serves the coordinator. The same agents use each in turn, and passes and
runs alternate, so the ratios compare equals. All agents share the processor of this machine, so a
ratio is that of a machine that TLS keeps busy at both ends; devices on a network encrypt at the
same time. An agent without work waits for a coordinator, or is in a paused run, where it sends a
context each second. `pi4_*_share` is its processor time with TLS on a core of a Raspberry Pi 4: the
time here, times the speed of a core here over the speed of one there.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec
import psutil

from benchmarks._device_commands import Join
from benchmarks._device_processes import DeviceProcesses, fork_device_processes
from benchmarks._exchange_coordinator import ExchangeCoordinator
from benchmarks._exchange_passes import ExchangePasses, Pass
from benchmarks._lab import BenchmarkLab, benchmark_lab
from benchmarks._live_run import (
    LiveRun,
    live_run,
    save_random_examples,
    separate_agents,
)
from benchmarks._meter import MEGABYTE, cpu_s, median
from benchmarks._tcp import listen
from fairbed.coordinator.store import RunReader
from fairbed.profiles import load
from fairbed.testbed.cli.runs import make_command, send_command
from fairbed.testbed.host.speed import host_speed
from fairbed.testbed.run_folder import read_endpoint

LISTENERS = ("plain", "tls")
READY_S = 30.0
EXAMPLES = 400
"""Per device; a fifth is held out."""
MANY_ROUNDS = 100_000
"""Rounds of a run that is ended long before."""
SETTLE_S = 4.0
"""Idle time before an idle agent is measured."""

Result = dict[str, float]


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench tls-cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--size", type=float, default=10.0, metavar="MB", help="vector (10)")
    parser.add_argument("--repeats", type=int, default=5, help="passes of each kind, runs: half")
    parser.add_argument("--rounds", type=int, default=20, help="of each run")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the idle agent")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds < 3:
        parser.error(f"--rounds: must be at least 3, got {options.rounds}")
    processes = fork_device_processes(options.agents)
    try:
        result = anyio.run(
            _exchange, processes, options.agents, int(options.size * MEGABYTE), options.repeats
        )
    finally:
        processes.kill()
    result |= _rounds(options.agents, options.rounds, max(1, options.repeats // 2))
    result |= _idle(options.seconds)
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<28}{value:.3f}")
    return 0


async def _exchange(processes: DeviceProcesses, agents: int, n_bytes: int, repeats: int) -> Result:
    """Return throughput and processor time of exchanges through both listeners."""
    names = {kind: [f"{kind}-{i}" for i in range(agents)] for kind in LISTENERS}
    with (
        tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder,
        listen() as server,
        benchmark_lab(Path(folder), [*names["plain"], *names["tls"]]) as lab,
    ):
        async with anyio.create_task_group() as group:
            coordinator = ExchangeCoordinator(lab.url, n_bytes, 0.0, 0, group)
            group.start_soon(coordinator.run, name="bench.coordinator")
            with anyio.fail_after(READY_S):
                await coordinator.linked.wait()
            await processes.open()
            await processes.send(
                [
                    Join(
                        urls={
                            names[kind][i]: lab.device_url(names[kind][i], is_tls=kind == "tls")
                            for kind in LISTENERS
                        },
                        tcp_port=server.getsockname()[1],
                        size_bytes=n_bytes,
                        drop=0.0,
                        chunk_bytes=None,
                        seed=i * 10_000,
                    )
                    for i in range(agents)
                ]
            )
            await processes.checked()
            passes = ExchangePasses(processes, coordinator, lab, server, n_bytes, None)
            done: dict[str, list[Pass]] = {}
            for repeat in range(repeats + 1):
                for kind in LISTENERS:
                    down, up = await passes.down(names[kind]), await passes.up(names[kind])
                    if repeat:  # the first pass measures the links
                        done.setdefault(f"down_{kind}", []).append(down)
                        done.setdefault(f"up_{kind}", []).append(up)
            processes.close()
            group.cancel_scope.cancel()
    if not passes.findings.is_verified:
        raise SystemExit("tls-cost: a vector arrived with another hash")
    rates = {key: median([one.mb_s for one in kind]) for key, kind in done.items()}
    result = {f"{key}_mb_s": rate for key, rate in rates.items()}
    for way in ("down", "up"):
        result[f"{way}_ratio"] = rates[f"{way}_tls"] / rates[f"{way}_plain"]
        for kind in LISTENERS:
            both = done[f"{way}_{kind}"]
            result[f"{way}_{kind}_broker_ms_mb"] = median([one.broker_ms for one in both])
            result[f"{way}_{kind}_agents_ms_mb"] = median([one.agents_ms for one in both])
    return result


def _rounds(agents: int, rounds: int, repeats: int) -> Result:
    """Return the median round times of runs through both listeners, seconds."""
    names = [f"agent-{number + 1}" for number in range(agents)]
    times: dict[str, list[float]] = {kind: [] for kind in LISTENERS}
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        data = Path(name) / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        with benchmark_lab(Path(name), names) as lab:
            for repeat in range(repeats):
                for kind in LISTENERS:
                    folder = Path(name) / f"{kind}-{repeat}"
                    folder.mkdir()
                    with (
                        separate_agents(folder, _urls(lab, names, kind), task_keys=lab.task_keys()),
                        _coordinator(folder, data, lab, agents, rounds) as run,
                    ):
                        for _ in run.rounds():
                            pass
                        with RunReader(run.folder) as reader:
                            times[kind] += [row.duration_s for row in reader.rounds()[1:]]
    plain, tls = (statistics.median(times[kind]) for kind in LISTENERS)
    return {"round_plain_s": plain, "round_tls_s": tls, "round_ratio": tls / plain}


def _idle(seconds: float) -> Result:
    """Return memory (MiB) and processor time (cores) of one agent that has nothing to train."""
    result: Result = {}
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        data = Path(name) / "random.npz"
        save_random_examples(data, EXAMPLES)
        with benchmark_lab(Path(name), ["agent-1"]) as lab:
            for kind in LISTENERS:
                folder = Path(name) / kind
                folder.mkdir()
                urls = _urls(lab, ["agent-1"], kind)
                with separate_agents(folder, urls, task_keys=lab.task_keys()) as (agent,):
                    time.sleep(SETTLE_S)
                    result[f"{kind}_waiting_mib"] = agent.memory_info().rss / 2**20
                    result[f"{kind}_waiting_cores"] = _cores(agent, seconds)
                    with _coordinator(folder, data, lab, 1, MANY_ROUNDS) as run:
                        next(run.rounds())
                        endpoint = read_endpoint(run.folder)
                        assert endpoint is not None
                        anyio.run(send_command, endpoint, make_command("pause"))
                        time.sleep(SETTLE_S)
                        result[f"{kind}_in_run_mib"] = agent.memory_info().rss / 2**20
                        result[f"{kind}_in_run_cores"] = _cores(agent, seconds)
                    time.sleep(SETTLE_S)
                    result[f"{kind}_after_run_mib"] = agent.memory_info().rss / 2**20
    here, pi = host_speed(os.environ).core_speed, load("raspberry-pi-4b").core_speed
    result["core_here_over_pi4"] = here / pi
    for state in ("waiting", "in_run"):
        result[f"pi4_{state}_share"] = result[f"tls_{state}_cores"] * here / pi
    return result


def _cores(process: psutil.Process, seconds: float) -> float:
    """Return the processor time of a process over wall time."""
    before_s, since_s = cpu_s(process.pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(process.pid) - before_s) / (time.monotonic() - since_s)


def _urls(lab: BenchmarkLab, names: Sequence[str], kind: str) -> dict[str, str]:
    return {name: lab.device_url(name, is_tls=kind == "tls") for name in names}


@contextmanager
def _coordinator(
    folder: Path, data: Path, lab: BenchmarkLab, agents: int, rounds: int
) -> Iterator[LiveRun]:
    """Run a coordinator that uses the lab."""
    with live_run(
        folder,
        data,
        agents=agents,
        rounds=rounds,
        batch_size=32,
        starts_fleet=False,
        broker_url="lab",
        environment=lab.environment,
    ) as run:
        yield run
