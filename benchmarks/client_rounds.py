"""Rounds with a client of the user beside native ones, turn by turn.

    fairbed bench client-rounds [--agents 20] [--rounds 20] [--turns 5] [--echo]
        [--flower PYTHON] [--json]

The job of `round-time`: MLP 784-318-10 (253,000 values), 320 training examples per device, batch
32, one epoch, all devices in every round, no evaluation, unthrottled agents. The client has the
same formulas in numpy (`benchmarks/_own_client`), and native devices train with onnxruntime: so the
times of training differ, and `rest_s` is a round without the median time of training. With `--echo`
a device takes one step, so that mostly the exchange remains. With `--flower` the same numpy code
also runs as a Flower app in that interpreter, whose strategy merges. Each number is a median over
the turns of medians over rounds; `A/B_` is the median of the ratios of the turns.
"""

import argparse
import os
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path

import msgspec

from benchmarks._live_run import (
    ALL_STEPS,
    compiled_environment,
    live_run,
    save_random_examples,
)
from fairbed.coordinator.store import RunReader
from fairbed.testbed.progress import tracked

EXAMPLES, BATCH = 400, 32
"""Per device, of which a fifth is held out; and of a mini-batch."""
FOLDER = Path(__file__).parent / "_own_client"

Result = dict[str, float]


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench client-rounds", description=__doc__)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--echo", action="store_true", help="one step of training, no epoch")
    parser.add_argument("--flower", metavar="PYTHON", help="an interpreter with flwr")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds < 3 or options.turns < 1 or options.agents < 1:
        raise SystemExit("client-rounds: must have at least 3 rounds, one turn and one agent")
    kinds = ["native", "client", *(["flower"] if options.flower else [])]
    found: dict[str, list[Result]] = {kind: [] for kind in kinds}
    for turn in tracked(range(options.turns), "turns", "client-rounds"):
        for kind in kinds if turn % 2 else kinds[::-1]:
            own = settings_of(kind, options.rounds, options.flower, is_echo=options.echo)
            one = measure(options.agents, options.rounds, own, is_echo=options.echo)
            found[kind].append(one)
    result: dict[str, float] = {"turns": options.turns, "load_1min": os.getloadavg()[0]}
    for key in found["native"][0]:
        for kind, turns in found.items():
            result[f"{kind}_{key}"] = statistics.median(one[key] for one in turns)
        for before, kind in pairwise(kinds):
            pairs = zip(found[kind], found[before], strict=True)
            ratio = statistics.median(a[key] / b[key] for a, b in pairs)
            result[f"{kind}/{before}_{key}"] = ratio
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<24}{value:.4f}" if isinstance(value, float) else f"{key:<24}{value}")
    return 0


def settings_of(kind: str, rounds: int, python: str, *, is_echo: bool) -> list[str]:
    """Return the options of a run of one kind."""
    settings = dict[str, str]()
    if kind == "client":
        settings = {
            "training.client": '"perceptron:Client"',
            "training.client_folder": f'"{FOLDER}"',
            "training.learning_rate": "0.01",
        }
    if kind == "flower":
        settings = {
            "flower.app": f'"{FOLDER}"',
            "flower.python": f'"{python}"',
            "flower.config.num-server-rounds": str(rounds),
            "flower.config.max-steps": str(int(is_echo)),
            "selection.policy": "app",
        }
    return [part for key, x in settings.items() for part in ("--set", f"{key}={x}")]


def measure(agents: int, rounds: int, options: list[str], *, is_echo: bool) -> Result:
    """Return the medians of one run, seconds, without its first round."""
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        data = folder / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        with live_run(
            folder,
            data,
            agents=agents,
            rounds=rounds,
            batch_size=BATCH,
            max_steps=1 if is_echo else ALL_STEPS,
            environment=compiled_environment(),
            options=options,
        ) as run:
            before = after = dict[str, float]()
            for round_id in run.rounds():
                if round_id == 1:
                    before = run.cpu_s()
                if round_id == rounds - 1:
                    after = run.cpu_s()
            with RunReader(run.folder) as reader:
                closed, exchanges = reader.rounds()[1:], reader.exchanges(1)
    if any(row.aggregated < agents for row in closed):
        raise SystemExit("client-rounds: every update must be merged; the machine is too busy")
    trained = statistics.median(x.train_s for x in exchanges if x.train_s is not None)
    lasted = statistics.median(row.duration_s for row in closed)
    spent = sum(after.values()) - sum(before.values())
    return {
        "round_s": lasted,
        "train_s": trained,
        "rest_s": lasted - trained,
        "cpu_s": spent / (rounds - 2),
        "encode_s": statistics.median(x.encode_s for x in exchanges if x.encode_s is not None),
    }
