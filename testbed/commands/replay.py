"""`fairbed replay`: the same experiment on a virtual clock."""

import argparse
import sys
import time

import msgspec

from coordinator.store import RunReader, StoreError
from coordinator.summary import summarise_run
from coordinator.summary_table import summary_table
from testbed.commands import DONE, RUNS, RunError, UsageError
from testbed.commands.run import check_new, new_id
from testbed.experiment import ExperimentError, load_experiment
from testbed.replay.play import Played
from testbed.replay.run import replay_experiment

EVERY_S = 0.5
"""Between two progress lines."""


def main(options: argparse.Namespace) -> int:
    """Replay an experiment; return the exit code."""
    try:
        experiment = load_experiment(options.experiment, options.set, options.seed)
        if options.out is not None:
            check_new(options.out)
        folder = options.out or RUNS / new_id(experiment.name)
        tell = _Progress(experiment.rounds)
        started = time.perf_counter()
        replay_experiment(experiment, folder, folder.resolve().name, tell)
        rounds_per_s = experiment.rounds / (time.perf_counter() - started)
    except ExperimentError as exc:
        raise UsageError(str(exc)) from exc
    except (StoreError, OSError) as exc:
        raise RunError(str(exc)) from exc
    with RunReader(folder) as reader:
        summary = summarise_run(reader)
    if options.json:
        said = {**msgspec.to_builtins(summary), "rounds_per_s": rounds_per_s}
        print(msgspec.json.encode(said).decode())
    else:
        print(summary_table(summary))
        print(f"\n{rounds_per_s:,.0f} rounds a second; in {folder}")
    return DONE


class _Progress:
    """Says on stderr how far it is, not too often."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self._said_at = rounds, time.monotonic()

    def __call__(self, played: Played) -> None:
        now = time.monotonic()
        if now - self._said_at >= EVERY_S:
            self._said_at = now
            at = played.started_s + played.duration_s
            print(f"round {played.choice.round}/{self._rounds}  at {at:,.0f} s", file=sys.stderr)
