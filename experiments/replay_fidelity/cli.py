"""`fairbed compare --live-replay EXP`: how well a replay predicts the live fleet."""

import argparse
import sys
from pathlib import Path

import msgspec

from experiments.replay_fidelity.comparison import (
    LEAST_REPEATS,
    MOST_REPEATS,
    FidelityComparison,
    compare_live_replay,
)
from experiments.replay_fidelity.live import LiveRunError
from experiments.replay_fidelity.report import report
from fairbed.coordinator.store import StoreError
from fairbed.coordinator.task.errors import TaskError
from fairbed.profiles.errors import ProfileError
from fairbed.testbed.cli import DONE
from fairbed.testbed.errors import BackendError, RunError, UsageError
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import ExperimentError, load_experiment
from fairbed.testbed.recording.analysis.compose import IncompleteProfile

COMPARISONS = Path("comparisons")
"""Folder of comparisons without `--out`: by name, so that the next call resumes."""

FILE = "comparison.json"
"""The result of a comparison, in its folder."""


def main(options: argparse.Namespace) -> int:
    """Run or resume a comparison and print its result; return the exit code."""
    try:
        experiment = load_experiment(options.live_replay, options.set)
        if experiment.replay_problem:
            raise UsageError(f"{options.live_replay}: {experiment.replay_problem}")
        folder = options.out or COMPARISONS / f"{experiment.name}-live-replay"
        found = compare_live_replay(
            experiment, folder.resolve(), _print_line, _repeats(options.repeats)
        )
        text = _saved(found, folder)
    except (DatasetError, ExperimentError, ProfileError, TaskError) as exc:
        raise UsageError(str(exc)) from exc
    except (BackendError, LiveRunError, IncompleteProfile, StoreError, ValueError) as exc:
        raise RunError(str(exc)) from exc
    except OSError as exc:
        raise RunError(f"--out: must be a folder to write to, got {exc}") from exc
    print(text if options.json else f"{report(found)}\n\nall files are in {folder}")
    return DONE


def _repeats(requested: int | None) -> int:
    if requested is None:
        return LEAST_REPEATS
    if not LEAST_REPEATS <= requested <= MOST_REPEATS:
        raise UsageError(
            f"--repeats: must be from {LEAST_REPEATS} to {MOST_REPEATS}, got {requested}: the "
            "distance between live runs needs two of them"
        )
    return requested


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _saved(found: FidelityComparison, folder: Path) -> str:
    """Write the result to the folder; return it as JSON."""
    text = msgspec.json.encode(found).decode()
    (folder / FILE).write_text(text, encoding="utf-8")
    return text
