"""`fairbed replay`: replay an experiment on a virtual clock."""

import argparse
import sys
import time

import msgspec

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.store import RunReader
from fairbed.testbed.api.errors import one_line_errors
from fairbed.testbed.api.hosts import training
from fairbed.testbed.api.replay import plan_replay, run_replay
from fairbed.testbed.cli import DONE, count_option, output_width
from fairbed.testbed.cli.following import followers_of
from fairbed.testbed.progress import progress
from fairbed.wire.printable import printable


def main(options: argparse.Namespace) -> int:
    """Replay an experiment; return the exit code."""
    threads = count_option("--threads", options.threads)
    if options.no_training:
        options.set.append("replay.training=false")
    with one_line_errors():
        plan = plan_replay(
            options.experiment, settings=options.set, seed=options.seed, out=options.out
        )
        for warning in plan.warnings:
            _warn(warning)
        planned = plan.setup.experiment.rounds
        with followers_of(options) as followers:
            for line in followers.lines:
                print(line, file=sys.stderr)
            with (
                followers.following(plan.folder),
                training(options.hosts, [plan.setup.experiment], _warn) as helpers,
                progress(planned, "rounds", "replay") as bar,
            ):
                started = time.perf_counter()
                rounds = run_replay(plan, bar, threads, helpers)
            rounds_per_s = rounds / (time.perf_counter() - started)
        with RunReader(plan.folder) as reader:
            summary = summarise_run(reader)
    if options.json:
        summary_and_rate = {**msgspec.to_builtins(summary), "rounds_per_s": rounds_per_s}
        print(msgspec.json.encode(summary_and_rate).decode())
    else:
        print(summary_table(summary, output_width()))
        print(f"\n{rounds_per_s:,.3g} rounds per second; the run is in {plan.folder}")
    return DONE


def _warn(line: str) -> None:
    print(f"warning: {printable(line)}", file=sys.stderr)
