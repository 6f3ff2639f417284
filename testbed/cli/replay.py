"""`fairbed replay`: replay an experiment on a virtual clock."""

import argparse
import sys
import time
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
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_setup
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.run.notify import notifying
from fairbed.wire.plugins import PluginError

PROGRESS_INTERVAL_S = 0.5
"""Time between two progress lines."""


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
        progress = _ReplayProgress(experiment.rounds)
        started = time.perf_counter()
        run_id = folder.resolve().name
        with notifying(notify_of(experiment), folder):
            rounds = replay_setup(
                setup, folder, run_id, progress, threads=threads, origin=options.experiment.parent
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


class _ReplayProgress:
    """Prints the progress of a replay on stderr at intervals."""

    def __init__(self, rounds: int) -> None:
        self._rounds, self._printed_at = rounds, time.monotonic()

    def __call__(self, replayed: ReplayedRound) -> None:
        now = time.monotonic()
        if now - self._printed_at >= PROGRESS_INTERVAL_S:
            self._printed_at = now
            end_s = replayed.started_s + replayed.duration_s
            print(
                f"round {replayed.choice.round}/{self._rounds}  virtual time {end_s:,.0f} s",
                file=sys.stderr,
            )
