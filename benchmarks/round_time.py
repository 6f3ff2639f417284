"""Round time of 20 unthrottled agents with a 1 MB model, and the time to the first round.

    fairbed bench round-time [--agents 20] [--rounds 20] [--broker auto] [--client direct]
                             [--echo] [--where] [--flower PYTHON] [--turns 5] [--json]

MLP 784-318-10 (253,000 values), 320 training examples per device, batch 32, one epoch, all devices
in every round, no evaluation. A round lasts from the dispatch to the publication of the next
model. `cpu_ms_KIND` is the processor time of all processes of a kind in one round (Linux only),
`first_round_cpu_ms_KIND` that from the command to the end of the first round; its phases are shown
by `python tools/measure_start.py`. Modules are compiled before.
With `--echo` a device takes one step instead of an epoch, so that mostly the exchange remains.

`--where` shows the floor of a round, its bare operations, beside what the processes of a run do, by
library. It needs `perf` (Linux), whose samples take a few percent.

PYTHON is an interpreter with flwr 1.8.0. Then `--turns` runs of ours take turns with as many of
Flower: `start_server` and a process of `start_client` for each agent, FedAvg, the same initial
model, the same formulas in numpy. There a round lasts from the end of one to the end of the next.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np

from benchmarks._floor import floor_of_round
from benchmarks._libraries import sampled, work_of
from benchmarks._live_run import (
    ALL_STEPS,
    KINDS,
    compiled_environment,
    live_run,
    save_random_examples,
)
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.host.loopback import free_port
from fairbed.testbed.progress import tracked
from fairbed.wire.artifact import initial_vector
from fairbed.wire.transport.address import DEFAULT_CLIENT, Client

EXAMPLES, TRAINED = 400, 320
"""Per device; a fifth is held out."""
WIDTHS = (784, 318, 10)
BATCH = 32
FLOWER = "1.8.0"
FLOWER_PROCESSES = "benchmarks._flower_processes"
"""Module of this folder that Flower's interpreter runs."""
FLOWER_S = 300.0
"""Longest run of Flower."""

LEAST_MS = 0.5
"""Of a round: kinds of processes that take less are left out."""

Result = dict[str, float | int | str]


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench round-time", description=__doc__)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--broker", default="auto")
    parser.add_argument("--client", default=DEFAULT_CLIENT, choices=get_args(Client))
    parser.add_argument("--echo", action="store_true", help="one step of training, no epoch")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--where", action="store_true", help="the floor, and what takes the rest")
    parser.add_argument("--flower", metavar="PYTHON", help=f"interpreter with flwr {FLOWER}")
    parser.add_argument("--turns", type=int, default=5, help="of ours and of Flower's")
    options = parser.parse_args(arguments)
    if options.rounds < 3:
        parser.error(f"--rounds: must be at least 3, got {options.rounds}")
    if options.turns < 1:
        parser.error(f"--turns: must be at least 1, got {options.turns}")

    if options.where:
        if options.json or options.flower or options.echo:
            parser.error("--where: must be without --json, --flower and --echo")
        print(where_text(options.agents, options.rounds, options.broker))
        return 0

    def ours() -> Result:
        return measure(
            options.agents,
            options.rounds,
            options.broker,
            client=options.client,
            is_echo=options.echo,
        )

    def flower() -> Result:
        steps = 1 if options.echo else TRAINED // BATCH
        return measure_flower(options.flower, options.agents, options.rounds, steps)

    result = in_turns(ours, flower, options.turns) if options.flower else ours()
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        width = max(map(len, result)) + 2
        for key, value in result.items():
            print(f"{key:<{width}}" + (f"{value:.3f}" if isinstance(value, float) else f"{value}"))
    return 0


def where_text(agents: int, rounds: int, broker: str) -> str:
    """Return tables in Markdown: the floor of a warm round, and what its processes do, ms."""
    floor = [line for line in floor_of_round(agents) if line.times]
    lines = ["| floor | times | ms of a round |", "|---|---|---|"]
    lines += [f"| {line.name} | {line.times} | {line.round_ms:.1f} |" for line in floor]
    lines.append(f"| all | | {sum(line.round_ms for line in floor):.0f} |")
    samples = Counter[tuple[str, str]]()
    found = measure(agents, rounds, broker, client=DEFAULT_CLIENT, is_echo=False, samples=samples)
    spent = {kind: ms for kind in KINDS if (ms := float(found[f"cpu_ms_{kind}"])) >= LEAST_MS}
    of_kind, of_work = Counter[str](), Counter[str]()
    for (work, kind), count in samples.items():
        of_kind[kind] += count
        of_work[work] += count
    lines += ["", f"| work | {' | '.join(spent)} | all |", "|---" * (len(spent) + 2) + "|"]
    for work, _ in of_work.most_common():
        row = [spent[kind] * samples[work, kind] / of_kind[kind] for kind in spent]
        lines.append(f"| {work} | {' | '.join(f'{ms:.1f}' for ms in row)} | {sum(row):.1f} |")
    whole = " | ".join(f"{ms:.0f}" for ms in spent.values())
    return "\n".join([*lines, f"| all | {whole} | {sum(spent.values()):.0f} |"])


def in_turns(ours: Callable[[], Result], flower: Callable[[], Result], turns: int) -> Result:
    """Return the medians of both, each with its quartiles, and their ratios, turn by turn."""
    found: dict[str, list[Result]] = {"ours": [], "flower": []}
    for turn in tracked(range(turns), "turns", "round-time"):
        order = [("ours", ours), ("flower", flower)]
        for name, run in order if turn % 2 else order[::-1]:
            found[name].append(run())
    result: Result = {"turns": turns, "flwr": FLOWER, "load_1min": os.getloadavg()[0]}
    for key in ("round_median_s", "first_round_done_s", "cpu_ms", "first_round_cpu_ms"):
        columns = {name: [cpu_ms(run, key) for run in runs] for name, runs in found.items()}
        columns["ratio"] = [a / b for a, b in zip(columns["ours"], columns["flower"], strict=True)]
        for name, values in columns.items():
            low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
            result |= {f"{name}_{key}": float(median)}
            result |= {f"{name}_{key}_quartiles": f"{low:.3f} to {high:.3f}"}
    return result


def cpu_ms(run: Result, key: str) -> float:
    """Return a number of a run; `cpu_ms` is the sum over the kinds of processes."""
    return sum(float(value) for name, value in run.items() if name.startswith(key))


def measure_flower(python: str, agents: int, rounds: int, steps: int) -> Result:
    """Return the times of one run of Flower's server and clients, seconds.

    Raises:
        SystemExit: A process failed, or the version is another.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        rng = np.random.default_rng(0)
        np.save(folder / "x.npy", rng.standard_normal((TRAINED * agents, 784)).astype(np.float32))
        np.save(folder / "y.npy", np.arange(TRAINED * agents) % 10)
        np.save(folder / "model.npy", initial_vector(load_task("mlp", WIDTHS[:1], 10).spec, 0))
        job = {
            "folder": str(folder),
            "address": f"127.0.0.1:{free_port()}",
            "ends": [TRAINED * (k + 1) for k in range(agents)],
            "widths": WIDTHS,
            "batch": BATCH,
            "steps": steps,
            "learning_rate": 0.05,
            "rounds": rounds,
        }
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        environ = {
            **os.environ,
            "FLOWER_JOB": str(folder / "job.json"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONPATH": str(Path(__file__).parent.parent),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        log = stack.enter_context((folder / "log").open("ab"))
        started = time.monotonic()

        def start(role: str) -> "subprocess.Popen[bytes]":
            process = stack.enter_context(
                subprocess.Popen(
                    guarded([python, "-m", FLOWER_PROCESSES, role]),
                    stdout=subprocess.PIPE if role == "server" else subprocess.DEVNULL,
                    stderr=log,
                    env=environ,
                )
            )
            stack.callback(process.terminate)
            return process

        server = start("server")
        clients = [start(str(k)) for k in range(agents)]
        (folder / "pids.json").write_bytes(msgspec.json.encode([c.pid for c in clients]))
        try:
            output, _ = server.communicate(timeout=FLOWER_S)
        except subprocess.TimeoutExpired:
            sys.stderr.buffer.write((folder / "log").read_bytes()[-3000:])
            raise SystemExit(f"round-time: Flower must end within {FLOWER_S:.0f} s") from None
        if server.returncode:
            sys.stderr.buffer.write((folder / "log").read_bytes()[-2000:])
            raise SystemExit(f"round-time: Flower failed with exit code {server.returncode}")
    found = msgspec.json.decode(output.splitlines()[-1])
    if found["version"] != FLOWER:
        raise SystemExit(f"round-time: flwr must be {FLOWER}, got {found['version']}")
    ends = found["ends"]
    cpu = [1e3 * (ends[-1][k] - ends[0][k]) / (rounds - 1) for k in (1, 2)]
    return {
        "agents": agents,
        "rounds": rounds,
        "first_round_done_s": ends[0][0] - started,
        "round_median_s": statistics.median(b[0] - a[0] for a, b in pairwise(ends)),
        "cpu_ms_server": cpu[0],
        "cpu_ms_clients": cpu[1],
        "first_round_cpu_ms_server": 1e3 * ends[0][1],
        "first_round_cpu_ms_clients": 1e3 * ends[0][2],
    }


def measure(
    agents: int,
    rounds: int,
    broker: str,
    *,
    client: Client,
    is_echo: bool,
    samples: "Counter[tuple[str, str]] | None" = None,
) -> Result:
    """Return the times of one run, seconds.

    Args:
        agents: Number of devices, all in each round.
        rounds: Number of rounds.
        broker: Kind of the broker.
        client: Of MQTT.
        is_echo: Train one step instead of an epoch.
        samples: Receives the samples of `perf` by (work, kind of process); None takes none.
    """
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        data = folder / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        environment = compiled_environment()
        started = time.perf_counter()
        with live_run(
            folder,
            data,
            agents=agents,
            rounds=rounds,
            broker=broker,
            client=client,
            batch_size=BATCH,
            max_steps=1 if is_echo else ALL_STEPS,
            environment=environment,
        ) as run:
            closings = run.rounds()
            next(closings)
            first_s = time.perf_counter() - started
            before = run.cpu_s()
            perf = ExitStack()
            if samples is not None:
                kinds = {p.pid: kind for kind, members in run.processes().items() for p in members}
                perf.enter_context(sampled(kinds, folder / "perf"))
            for round_id in closings:
                if round_id == rounds - 1:  # after the last round the processes have ended
                    after = run.cpu_s()
                    perf.close()
            if samples is not None:
                samples.update(work_of(folder / "perf", kinds))
            with RunReader(run.folder) as reader:
                closed = reader.rounds()
                exchanges = reader.exchanges(0)
    later = [row.duration_s for row in closed[1:]]
    return {
        "agents": agents,
        "client": client,
        "rounds": rounds,
        "first_round_done_s": first_s,
        "round_median_s": statistics.median(later),
        "round_p95_s": float(np.percentile(later, 95)),
        "close_median_s": statistics.median(row.close_s for row in closed[1:]),
        "lag_p99_median_s": statistics.median(row.lag_p99_s for row in closed[1:]),
        **{f"cpu_ms_{kind}": 1e3 * (after[kind] - before[kind]) / (rounds - 2) for kind in after},
        **{f"first_round_cpu_ms_{kind}": 1e3 * before[kind] for kind in before},
        "merged": min(row.aggregated for row in closed),
        **{
            f"{phase}_median_s": statistics.median(
                value
                for x in exchanges
                if x.round > 1 and (value := getattr(x, phase + "_s")) is not None
            )
            for phase in ("tau", "signal", "download", "train", "encode", "upload", "queued")
        },
    }
