"""Memory of every process over a long run; it should stay constant.

    fairbed bench soak [--rounds 2000] [--agents 20] [--model mlp] [--broker auto] [--json]

Unthrottled agents, 80 training examples each, all in every round, an evaluation every 100 rounds.
Resident memory is read 20 times; `growth` compares the mean of the last quarter with that of the
second quarter, so that one-time allocations do not count.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks._live_run import KINDS, live_run, save_random_examples
from benchmarks._meter import growth
from fairbed.coordinator.store import RunReader

SAMPLES = 20

EXAMPLES = 100
"""Per device; a fifth is held out."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--model", default="mlp", help="mlp has 253,000 values: 1 MB")
    parser.add_argument("--broker", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds < SAMPLES:
        parser.error(f"--rounds: must be at least {SAMPLES}, got {options.rounds}")
    result = measure(options.rounds, options.agents, options.model, options.broker)
    if options.json:
        print(msgspec.json.encode(result).decode())
        return 0
    print(f"{'round':>8}{''.join(f'{kind:>14}' for kind in KINDS)}   MiB, the largest of each")
    for sample in result.samples:
        print(f"{sample['round']:>8.0f}{''.join(f'{sample[kind]:>14.1f}' for kind in KINDS)}")
    print(f"{'growth':>8}{''.join(f'{result.growth[kind]:>14.1%}' for kind in KINDS)}")
    print(
        f"{result.rounds} rounds, median {result.round_median_s:.3f} s; "
        f"{result.merged} of {result.dispatched} updates merged; store {result.store_mib:.1f} MiB"
    )
    return 0


class Result(Struct, frozen=True, kw_only=True):
    """Memory over a run."""

    rounds: int
    agents: int
    dispatched: int
    merged: int
    round_median_s: float
    samples: list[dict[str, float]]
    """Round, and resident MiB of the largest process of each kind."""
    growth: dict[str, float]
    store_mib: float


def measure(rounds: int, agents: int, model: str, broker: str) -> Result:
    """Return the memory of a run over its rounds."""
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        data = folder / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        with live_run(
            folder,
            data,
            agents=agents,
            rounds=rounds,
            model=model,
            broker=broker,
            evaluate_every=100,
        ) as run:
            for round_id in run.rounds():
                if round_id % (rounds // SAMPLES) == 0 and round_id < rounds:
                    rss_mib = run.rss_mib()  # also that of a relay, which runs beside viewers only
                    samples.append({"round": round_id, **{kind: rss_mib[kind] for kind in KINDS}})
            store_mib = (run.folder / "run.db").stat().st_size / 2**20
            with RunReader(run.folder) as reader:
                closed = reader.rounds()
    return Result(
        rounds=len(closed),
        agents=agents,
        dispatched=rounds * agents,
        merged=sum(row.aggregated for row in closed),
        round_median_s=statistics.median(row.duration_s for row in closed),
        samples=samples,
        growth={kind: growth([sample[kind] for sample in samples]) for kind in KINDS},
        store_mib=store_mib,
    )
