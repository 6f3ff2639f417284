"""`fairbed replay`: replay an experiment on a virtual clock."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fairbed.coordinator.report.summary import changes_of, summarise_run
from fairbed.coordinator.report.summary_table import change_line, summary_table
from fairbed.coordinator.rounds.loop import NothingAggregatedError
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.task.errors import TaskError, UnknownTask
from fairbed.device_agent.engines.base import EngineError
from fairbed.profiles.errors import ProfileError
from fairbed.testbed.cli import DONE, RUNS, count_option, output_width, without_errno
from fairbed.testbed.cli.run import (
    check_new,
    check_resumable,
    holds_run,
    named_experiment,
    new_id,
    notify_of,
    selector_of,
)
from fairbed.testbed.errors import BackendError, RunError, UsageError
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.progress import Bar, progress
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_setup
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.run.notify import notifying
from fairbed.wire.plugins import PluginError


def main(options: argparse.Namespace) -> int:
    """Replay an experiment; return the exit code."""
    threads = count_option("--threads", options.threads)
    try:
        if options.no_training:
            options.set.append("replay.training=false")
        experiment, named = named_experiment(options)
        folder = named or options.out or RUNS / new_id(experiment.name)
        is_new = not holds_run(folder)
        if is_new and options.out is not None:
            check_new(folder)
        selector_of(experiment)
        setup = setup_of(experiment)
        if not is_new:
            check_resumable(folder, setup.experiment, is_named=named is not None, command="replay")
        for change in changed_live(options.experiment.parent):
            print(f"warning: not in this replay: {change}", file=sys.stderr)
        for finding in setup.findings():
            print(f"warning: {finding.text}", file=sys.stderr)
        started = time.perf_counter()
        run_id = folder.resolve().name
        with (
            notifying(notify_of(experiment), folder),
            progress(experiment.rounds, "rounds", "replay") as bar,
        ):
            rounds = replay_setup(
                setup,
                folder,
                run_id,
                _listener(bar),
                threads=threads,
                origin=options.experiment.parent,
            )
        rounds_per_s = rounds / (time.perf_counter() - started)
    except (DatasetError, ExperimentError, ProfileError, UnknownTask) as exc:
        raise UsageError(str(exc)) from exc
    except (
        BackendError,
        EngineError,
        NothingAggregatedError,
        PluginError,
        StoreError,
        TaskError,
        OSError,
    ) as exc:
        raise RunError(without_errno(exc)) from exc
    with RunReader(folder) as reader:
        summary = summarise_run(reader)
    if options.json:
        summary_and_rate = {**msgspec.to_builtins(summary), "rounds_per_s": rounds_per_s}
        print(msgspec.json.encode(summary_and_rate).decode())
    else:
        print(summary_table(summary, output_width()))
        print(f"\n{rounds_per_s:,.3g} rounds per second; the run is in {folder}")
    return DONE


def changed_live(folder: Path) -> list[str]:
    """Return what operators changed in the run of a folder, which its experiment file lacks.

    Empty if the folder has no run that can be read.
    """
    try:
        with RunReader(folder) as reader:
            changes = changes_of(reader.commands())
    except StoreError:
        return []
    return [change_line(change) for change in changes]


def _listener(bar: Bar) -> Callable[[ReplayedRound], None]:
    """Return what counts the rounds of a replay; those before a resumed one are not counted."""

    def on_round(replayed: ReplayedRound) -> None:
        bar.skip(max(replayed.choice.round - 1 - bar.done, 0))
        bar.advance()

    return on_round
