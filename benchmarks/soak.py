"""Memory of every process over a long run; it should stay constant.

    fairbed bench soak [--rounds 2000] [--agents 20] [--per-round AGENTS] [--model mlp]
        [--broker auto] [--json]

Unthrottled agents, 80 training examples each, an evaluation every 100 rounds; all agents are in
every round, or the number of `--per-round`, drawn at random.
Resident memory is read 20 times; `growth` compares the mean of the last quarter with that of the
second quarter, so that one-time allocations do not count.
"""

import argparse
import statistics
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks._live_run import KINDS, live_run, save_random_examples
from benchmarks._meter import growth
from fairbed.coordinator.store import RunReader

SAMPLES = 20

PATIENCE = ("--set", "round.join_timeout_s=900", "--set", "round.deadline_s=300")
"""A large fleet on a small machine starts slowly."""

EXAMPLES = 100
"""Per device; a fifth is held out."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--per-round", type=int, help="agents of each round; by default all")
    parser.add_argument("--model", default="mlp", help="mlp has 253,000 values: 1 MB")
    parser.add_argument("--broker", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds < SAMPLES:
        parser.error(f"--rounds: must be at least {SAMPLES}, got {options.rounds}")
    per_round = options.agents if options.per_round is None else options.per_round
    if not 1 <= per_round <= options.agents:
        parser.error(f"--per-round: must be 1 to {options.agents}, got {per_round}")
    result = measure(options.rounds, options.agents, per_round, options.model, options.broker)
    if options.json:
        print(msgspec.json.encode(result).decode())
        return 0
    print(f"{'round':>8}{''.join(f'{kind:>14}' for kind in KINDS)}   MiB, the largest of each")
    for sample in result.samples:
        print(f"{sample['round']:>8.0f}{''.join(f'{sample[kind]:>14.1f}' for kind in KINDS)}")
    print(f"{'growth':>8}{''.join(f'{result.growth[kind]:>14.1%}' for kind in KINDS)}")
    seconds = ", ".join(f"{kind} {result.cpu_s_per_round[kind]:.3f} s" for kind in KINDS)
    print(f"processor time per round: {seconds}")
    print(", ".join(f"{count} exchanges {outcome}" for outcome, count in result.outcomes.items()))
    print(
        f"{result.rounds} rounds, median {result.round_median_s:.3f} s; "
        f"{result.merged} of {result.dispatched} updates merged; store {result.store_mib:.1f} MiB"
    )
    return 0


class Result(Struct, frozen=True, kw_only=True):
    """Memory over a run."""

    rounds: int
    agents: int
    per_round: int
    dispatched: int
    merged: int
    round_median_s: float
    samples: list[dict[str, float]]
    """Round, and resident MiB of the largest process of each kind."""
    cpu_s_per_round: dict[str, float]
    """Processor time of all processes of each kind, between the first and the last sample."""
    outcomes: dict[str, int]
    """Exchanges by outcome."""
    growth: dict[str, float]
    store_mib: float


def measure(rounds: int, agents: int, per_round: int, model: str, broker: str) -> Result:
    """Return the memory of a run over its rounds."""
    samples: list[dict[str, float]] = []
    used: list[dict[str, float]] = []
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
            options=["--set", f"selection.per_round={per_round}", *PATIENCE],
        ) as run:
            for round_id in run.rounds():
                if round_id % (rounds // SAMPLES) == 0 and round_id < rounds:
                    rss_mib = run.rss_mib()  # also that of a relay, which runs beside viewers only
                    samples.append({"round": round_id, **{kind: rss_mib[kind] for kind in KINDS}})
                    used.append(run.cpu_s())
            store_mib = (run.folder / "run.db").stat().st_size / 2**20
            with RunReader(run.folder) as reader:
                closed = reader.rounds()
                outcomes = Counter(exchange.outcome for exchange in reader.exchanges(0))
    between = samples[-1]["round"] - samples[0]["round"]
    return Result(
        rounds=len(closed),
        agents=agents,
        per_round=per_round,
        dispatched=sum(row.selected for row in closed),
        merged=sum(row.aggregated for row in closed),
        round_median_s=statistics.median(row.duration_s for row in closed),
        samples=samples,
        cpu_s_per_round={kind: (used[-1][kind] - used[0][kind]) / between for kind in KINDS},
        outcomes=dict(outcomes),
        growth={kind: growth([sample[kind] for sample in samples]) for kind in KINDS},
        store_mib=store_mib,
    )
