"""`fairbed core`: whether coalitions of devices would gain by leaving finished runs."""

import argparse
import math

import msgspec

from fairbed.coordinator.store import RunNotFoundError, StoreError, resolve_run
from fairbed.coordinator.task.errors import TaskError, UnknownTask
from fairbed.device_agent.errors import EngineError
from fairbed.testbed.cli import DONE, count_option
from fairbed.testbed.core_stability.finished_runs import game_of, read_all
from fairbed.testbed.core_stability.report import CoreOptions, core_report, core_table
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.progress import progress
from fairbed.testbed.replay.cohort.ordered import free_cores

MAX_EPOCHS = 10_000


def main(options: argparse.Namespace) -> int:
    """Print the core stability of finished runs; return the exit code."""
    settings = _options(options)
    try:
        runs = read_all([resolve_run(options.runs, reference) for reference in options.run])
        with progress(None, "models", "core") as bar:

            def on_trained(done: int, of: int) -> None:
                bar.total = of
                bar.update(done)

            report = core_report(runs, game_of(runs), settings, bar.line, on_trained)
    except (DatasetError, ExperimentError, RunNotFoundError, UnknownTask) as exc:
        raise UsageError(str(exc)) from exc
    except (EngineError, StoreError, TaskError, OSError) as exc:
        raise RunError(str(exc)) from exc
    print(msgspec.json.encode(report).decode() if options.json else core_table(report))
    return DONE


def _options(options: argparse.Namespace) -> CoreOptions:
    for key in ("M", "radius"):
        value = getattr(options, key)
        if value is not None and not 0.0 < value < math.inf:
            raise UsageError(f"--{key}: must be a number > 0, got {value:g}; or leave it out")
    if options.epochs is not None and not 1 <= options.epochs <= MAX_EPOCHS:
        raise UsageError(
            f"--epochs: must be from 1 to {MAX_EPOCHS:,}, got {options.epochs}; or leave it out"
        )
    if options.seed < 0:
        raise UsageError(f"--seed: must be at least 0, got {options.seed}")
    kinds = options.coalitions
    return CoreOptions(
        M=options.M,
        weights=options.weights,
        split=options.split,
        coalitions=None if kinds is None else tuple(kinds.split(",")),
        epochs=options.epochs,
        radius=options.radius,
        seed=options.seed,
        threads=count_option("--threads", options.threads) or free_cores(),
    )
