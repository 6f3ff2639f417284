"""Round time of 20 unthrottled agents with a 1 MB model, and the time to the first round.

    fairbed bench round-time [--agents 20] [--rounds 20] [--broker auto] [--client direct]
                             [--echo] [--json]

MLP 784-318-10 (253,000 values), 320 training examples per device, batch 32, one epoch, all devices
in every round, no evaluation. A round lasts from the dispatch to the publication of the next
model. `cpu_ms_KIND` is the processor time of all processes of a kind in one round (Linux only).
With `--echo` a device takes one step instead of an epoch, so that mostly the exchange remains.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np

from benchmarks._live_run import ALL_STEPS, live_run, save_random_examples
from fairbed.coordinator.store import RunReader
from fairbed.wire.transport.address import DEFAULT_CLIENT, Client

EXAMPLES = 400
"""Per device; a fifth is held out."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench round-time", description=__doc__)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--broker", default="auto")
    parser.add_argument("--client", default=DEFAULT_CLIENT, choices=get_args(Client))
    parser.add_argument("--echo", action="store_true", help="one step of training, no epoch")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds < 3:
        parser.error(f"--rounds: must be at least 3, got {options.rounds}")
    result = measure(
        options.agents,
        options.rounds,
        options.broker,
        client=options.client,
        is_echo=options.echo,
    )
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<22}{value:.3f}" if isinstance(value, float) else f"{key:<22}{value}")
    return 0


def measure(
    agents: int, rounds: int, broker: str, *, client: Client, is_echo: bool
) -> dict[str, float | int | str]:
    """Return the times of one run, seconds."""
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        data = folder / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        started = time.perf_counter()
        with live_run(
            folder,
            data,
            agents=agents,
            rounds=rounds,
            broker=broker,
            client=client,
            batch_size=32,
            max_steps=1 if is_echo else ALL_STEPS,
        ) as run:
            closings = run.rounds()
            next(closings)
            first_s = time.perf_counter() - started
            before = run.cpu_s()
            for round_id in closings:
                if round_id == rounds - 1:  # after the last round the processes have ended
                    after = run.cpu_s()
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
