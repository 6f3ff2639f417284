"""Memory and processor time of every process over a long run; both should stay constant.

    fairbed bench soak [--rounds 2000] [--agents 20] [--per-round AGENTS] [--model mlp]
        [--broker auto] [--json]

Unthrottled agents, 80 training examples each, an evaluation every 100 rounds; all agents are in
every round, or the number of `--per-round`, drawn at random. Resident memory, and the processor
time of a round since the reading before, are read 20 times. `growth` compares the mean of the last
quarter with that of the second quarter, so that one-time allocations do not count. A reading
belongs to the newest round that had closed, so there are fewer than 20 where many rounds fit into
the time of one.
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

SAMPLES, MIN_SAMPLES = 20, 8

PATIENCE = ("--set", "round.join_timeout_s=900", "--set", "round.deadline_s=300")
"""A large fleet on a small machine starts slowly."""

MORE_ROUNDS = 10_000
"""The run would go on: its processes must not end while they are measured."""

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
    heads = "".join(f"{kind:>14}" for kind in KINDS)
    print(f"{'round':>8}{heads}{heads}")
    print(f"{'':>8}{'MiB, the largest of each':>{14 * len(KINDS)}}   ms of a core per round, all")
    for sample in result.samples:
        mib = "".join(f"{sample.rss_mib[kind]:>14.1f}" for kind in KINDS)
        ms = "".join(f"{1e3 * sample.cpu_s_per_round[kind]:>14.2f}" for kind in KINDS)
        print(f"{sample.round:>8}{mib}{ms}")
    for name, growths in (("memory", result.growth), ("time", result.cpu_growth)):
        print(f"growth of {name}: {', '.join(f'{kind} {growths[kind]:+.1%}' for kind in KINDS)}")
    seconds = ", ".join(f"{kind} {result.cpu_s_per_round[kind]:.4f} s" for kind in KINDS)
    print(f"processor time per round: {seconds}")
    print(", ".join(f"{count} exchanges {outcome}" for outcome, count in result.outcomes.items()))
    print(
        f"{result.rounds} rounds, median {result.round_median_s:.3f} s; "
        f"{result.merged} of {result.dispatched} updates merged; store {result.store_mib:.1f} MiB"
    )
    return 0


class Sample(Struct, frozen=True, kw_only=True):
    """The processes of a run after a round, by kind."""

    round: int
    rss_mib: dict[str, float]
    """Resident memory of the largest process."""
    cpu_s_per_round: dict[str, float]
    """Processor time of all processes since the sample before; that of the first has their
    start."""


class Result(Struct, frozen=True, kw_only=True):
    """Memory and processor time over a run."""

    rounds: int
    agents: int
    per_round: int
    dispatched: int
    merged: int
    round_median_s: float
    samples: list[Sample]
    cpu_s_per_round: dict[str, float]
    """Processor time of all processes of each kind, between the first and the last sample."""
    outcomes: dict[str, int]
    """Exchanges by outcome."""
    growth: dict[str, float]
    """Of resident memory."""
    cpu_growth: dict[str, float]
    """Of processor time per round; 0 for processes that used none between two samples."""
    store_mib: float


def measure(rounds: int, agents: int, per_round: int, model: str, broker: str) -> Result:
    """Return the memory and the processor time of a run over its rounds."""
    samples: list[Sample] = []
    used = [dict.fromkeys(KINDS, 0.0)]
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        data = folder / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        with live_run(
            folder,
            data,
            agents=agents,
            rounds=rounds + MORE_ROUNDS,
            model=model,
            broker=broker,
            evaluate_every=100,
            options=["--set", f"selection.per_round={per_round}", *PATIENCE],
        ) as run:
            for round_id in run.rounds(only_newest=True):
                before = samples[-1].round if samples else 0
                if round_id >= rounds:
                    break
                if round_id // (rounds // SAMPLES) > before // (rounds // SAMPLES):
                    used.append(run.cpu_s())
                    rss_mib = run.rss_mib()  # also that of a relay, which runs beside viewers only
                    rounds_between = round_id - before
                    samples.append(
                        Sample(
                            round=round_id,
                            rss_mib={kind: rss_mib[kind] for kind in KINDS},
                            cpu_s_per_round={
                                kind: (used[-1][kind] - used[-2][kind]) / rounds_between
                                for kind in KINDS
                            },
                        )
                    )
            store_mib = (run.folder / "run.db").stat().st_size / 2**20
            with RunReader(run.folder) as reader:
                closed = [row for row in reader.rounds() if row.round <= rounds]
                outcomes = Counter(x.outcome for x in reader.exchanges(0) if x.round <= rounds)
    if len(samples) < MIN_SAMPLES:
        raise SystemExit(
            f"soak: --rounds: needs {MIN_SAMPLES} readings, got {len(samples)} in {rounds} rounds; "
            "use more rounds"
        )
    between = samples[-1].round - samples[0].round
    cpu_s = {kind: [sample.cpu_s_per_round[kind] for sample in samples] for kind in KINDS}
    return Result(
        rounds=len(closed),
        agents=agents,
        per_round=per_round,
        dispatched=sum(row.selected for row in closed),
        merged=sum(row.aggregated for row in closed),
        round_median_s=statistics.median(row.duration_s for row in closed),
        samples=samples,
        cpu_s_per_round={kind: (used[-1][kind] - used[1][kind]) / between for kind in KINDS},
        outcomes=dict(outcomes),
        growth={kind: growth([sample.rss_mib[kind] for sample in samples]) for kind in KINDS},
        cpu_growth={kind: growth(cpu_s[kind]) if min(cpu_s[kind]) else 0.0 for kind in KINDS},
        store_mib=store_mib,
    )
