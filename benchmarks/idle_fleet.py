"""Cost of a large fleet for this machine: start, memory after training, processor when idle.

    fairbed bench idle-fleet [--agents 200] [--model mlp] [--seconds 20] [--separate] [--json]

Unthrottled agents, forked from one warm process (or started separately, as on separate devices),
train in two rounds. Then the run is paused: the processor time of agents, coordinator and broker
is the cost of contexts at 1 Hz. Linux only.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import anyio
import msgspec

from benchmarks._live_run import LiveRun, live_run, save_random_examples
from benchmarks._meter import peak_rss_bytes
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.runs import make_command, send_command
from fairbed.testbed.run_folder import read_endpoint

ROUNDS = 2
MANY_ROUNDS = 1000
"""Rounds of the experiment; the run is paused and ended long before."""

REST_S = 3.0
"""Idle time of all agents before the measurement: an agent returns memory after a second."""

IDLE_LIMIT_S = 120.0
"""Time limit for the open round to end after the pause."""

EXAMPLES = 100
"""Per device; a fifth is held out."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench idle-fleet", description=__doc__)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--model", default="mlp", help="mlp has 253,000 values: 1 MB")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--separate", action="store_true", help="agents share no warm process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = measure(options.agents, options.model, options.seconds, options.separate)
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<28}{value:.3f}")
    return 0


def measure(agents: int, model: str, seconds: float, separate: bool) -> dict[str, float]:
    """Return seconds, MiB, and cores in use when idle."""
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        data = folder / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        started = time.monotonic()
        with ExitStack() as stack:
            run = stack.enter_context(
                live_run(
                    folder,
                    data,
                    agents=agents,
                    rounds=MANY_ROUNDS,
                    model=model,
                    starts_fleet=not separate,
                )
            )
            if separate:
                stack.enter_context(run.join(agents))
            rounds = run.rounds()
            next(rounds)
            first_s = time.monotonic() - started
            for _ in range(ROUNDS - 1):
                next(rounds)
            endpoint = read_endpoint(run.folder)
            assert endpoint is not None
            anyio.run(send_command, endpoint, make_command("pause"))
            _wait_until_idle(run)
            memory = run.pss_mib("agents")
            before, since = run.cpu_s(), time.monotonic()
            time.sleep(seconds)
            after, wall_s = run.cpu_s(), time.monotonic() - since
            (broker,) = run.processes()["broker"]
            broker_peak_mib = peak_rss_bytes(broker.pid) / 2**20
    return {
        "agents": float(len(memory)),
        "first_round_done_s": first_s,
        "pss_median_mib": statistics.median(memory),
        "pss_max_mib": max(memory),
        "broker_peak_mib": broker_peak_mib,
        **{f"idle_cores_{k}": (after[k] - before[k]) / wall_s for k in after if k != "fork server"},
    }


def _wait_until_idle(run: LiveRun) -> None:
    deadline = time.monotonic() + IDLE_LIMIT_S
    idle_since = time.monotonic()
    with RunReader(run.folder) as reader:
        while time.monotonic() - idle_since < REST_S:
            if any(row.phase != "idle" for _, row in reader.telemetry_latest()):
                idle_since = time.monotonic()
            if time.monotonic() > deadline:
                raise SystemExit(f"idle-fleet: an agent still works {IDLE_LIMIT_S:g} s later")
            time.sleep(0.2)
