"""The experiment of the RBCS-F paper's figures: our numbers and the reference, and the figures.

    fairbed bench rbcs-f-paper [--figures 2,3,4] [--seeds 20] [--rounds 500]
                               [--out rbcs-f-paper] [--json]
    fairbed bench rbcs-f-paper --figures 5,6 [--train-seeds 5] [--model softmax]
                               [--datasets fashion-mnist,cifar10] [--mixtures 1,10,inf]
                               [--train-rounds 100] [--examples 6000] [--out ...] [--json]

Forty devices in four speed groups, eight per round, on a virtual clock, as in
examples/rbcs-f-paper.toml: the paper's model with mostly a third party's numbers, because the
paper's are not known (docs/selection.md). With figures 2 to 4, or none, the table has the total
time, queues and rates of every policy with standard errors, and the recorded reference for 500
rounds. Orderings and the guarantee after every round are checked. Figures 5 and 6 train models with
the data of FAIRBED_DATA and print intervals over seeds and the paper's statements about the
figures. Completed training runs in the same folder are not repeated, interrupted ones resume.
Status 1: a number differs too much, or a check fails.
"""

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from experiments.rbcs_f_paper import figures
from experiments.rbcs_f_paper.accuracy import draw_accuracy
from experiments.rbcs_f_paper.accuracy_report import (
    AccuracySummary,
    accuracy_markdown,
    summarise_accuracy,
)
from experiments.rbcs_f_paper.arms import all_arms
from experiments.rbcs_f_paper.report import markdown
from experiments.rbcs_f_paper.rounds import replay_all
from experiments.rbcs_f_paper.settings import (
    DATASETS,
    MIXTURES,
    MODELS,
    QUICK,
    SIZES,
    Figure,
    Size,
    settings_of,
)
from experiments.rbcs_f_paper.summary import Summary, summarise
from experiments.rbcs_f_paper.training import DamagedFile, train_all
from fairbed.coordinator.report.figure_style import files_of
from fairbed.coordinator.task.errors import TaskError
from fairbed.testbed.cli import DONE, FAILED
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.experiment.datasets.catalogue import describe_all
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.install import install_command
from fairbed.testbed.progress import progress

FIGURES = (2, 3, 4, 5, 6)
DRAWN = {
    2: (figures.draw_queues, figures.draw_front),
    3: (figures.draw_times, figures.draw_regret),
    4: (figures.draw_pulls,),
}
"""Functions that draw the figures without training, and related figures."""
TRAINED: tuple[Figure, ...] = (5, 6)
GAMMAS = tuple(f"{mixture:g}" for mixture in MIXTURES)
DEFAULT_MODEL = "softmax"
LEAST_EVALUATIONS = 2
"""Evaluations of a run: a swing is the change between two of them."""
LEAST_EXAMPLES = 1_000
"""Examples of a data set: 25 per device."""
"""Time between two progress lines of the training, seconds."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print its results; return the exit code.

    Raises:
        UsageError: An argument is wrong, or data or a library for the figures are missing.
        RunError: Files cannot be read or written.
    """
    options = _options(arguments)
    wanted, size = _figures(options.figures), _size(options)
    _check(wanted, size)
    trained = [number for number in TRAINED if number in wanted]
    has_replays = not trained or len(trained) < len(wanted)
    results: dict[str, Any] = {}
    tables, drawn = list[str](), list[Path]()
    status = DONE
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if has_replays:
            summary, paths = _play(wanted, options)
            results |= msgspec.to_builtins(summary)
            tables.append(markdown(summary))
            drawn += paths
            status = DONE if summary.is_reproduced else FAILED
        if trained:
            learned, paths = _train(trained, size, options.out)
            results["accuracy"] = msgspec.to_builtins(learned)
            tables.append(accuracy_markdown(learned))
            drawn += paths
    except (ExperimentError, DatasetError, TaskError) as exc:
        raise UsageError(str(exc)) from exc
    except (OSError, DamagedFile) as exc:
        raise RunError(str(exc)) from exc
    print(msgspec.json.encode(results).decode() if options.json else "\n".join(tables))
    for path in drawn:
        for file in files_of(path):
            print(f"wrote {file}", file=sys.stderr)
    return status


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fairbed bench rbcs-f-paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--figures", default="2,3,4,5,6", help="some of 2,3,4,5,6, or none (default all)")
    add("--seeds", type=int, default=20, help="worlds, each replayed by every policy (default 20)")
    add("--rounds", type=int, default=500, help="of each replay without training (default 500)")
    add("--model", choices=MODELS, help=f"of figures 5 and 6 (default {DEFAULT_MODEL})")
    add("--datasets", default=",".join(DATASETS), help="of figures 5 and 6 (default both)")
    add("--mixtures", default=",".join(GAMMAS), help="gamma_1 of figures 5 and 6 (default all)")
    add("--train-seeds", type=int, help="of figures 5 and 6 (default 5)")
    add("--train-rounds", type=int, help="of figures 5 and 6 (default by the model)")
    add("--examples", help="of a data set, a number or all (default by the model)")
    add("--quick", action="store_true", help="train digits a little: for tests")
    add("--out", type=Path, default=Path("rbcs-f-paper"), help="folder (default rbcs-f-paper)")
    add("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    for name in ("seeds", "rounds", "train_seeds"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: must be at least 1, got {value}")
    return options


def _figures(text: str) -> list[int]:
    if text == "none":
        return []
    numbers = text.split(",")
    _check_known("--figures", numbers, list(map(str, FIGURES)), "none")
    return sorted({int(number) for number in numbers})


def _check_known(option: str, values: Sequence[str], known: Sequence[str], other: str = "") -> None:
    if unknown := [value for value in values if value not in known]:
        raise UsageError(
            f"bench: {option} must be some of {','.join(known)}{other and f' or {other}'}, "
            f"got {unknown[0]!r}"
        )


def _size(options: argparse.Namespace) -> Size:
    """Return the extent of the training: the default of the model, with the options."""
    if options.quick:
        return QUICK if options.model is None else replace(QUICK, model=options.model)
    datasets, mixtures = options.datasets.split(","), options.mixtures.split(",")
    _check_known("--datasets", datasets, DATASETS)
    _check_known("--mixtures", mixtures, GAMMAS)
    size = SIZES[options.model or DEFAULT_MODEL]
    size = replace(
        size,
        datasets=tuple(dict.fromkeys(datasets)),
        mixtures=tuple(sorted({float(mixture) for mixture in mixtures})),
        seeds=options.train_seeds or size.seeds,
        rounds=options.train_rounds or size.rounds,
        max_examples=_examples(options.examples, size.max_examples),
    )
    least = LEAST_EVALUATIONS * size.every
    if size.rounds < least:
        raise UsageError(f"bench: --train-rounds must be at least {least}, got {size.rounds}")
    return size


def _examples(text: str | None, default: int | None) -> int | None:
    if text is None or text == "all":
        return default if text is None else None
    if not text.isdecimal() or int(text) < LEAST_EXAMPLES:
        raise UsageError(
            f"bench: --examples must be all or a number of at least {LEAST_EXAMPLES}, got {text!r}"
        )
    return int(text)


def _check(wanted: Sequence[int], size: Size) -> None:
    """Check before the computation that the figures can be drawn."""
    if wanted and importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "bench: figures need matplotlib, which is not installed; run: "
            f"{install_command('fairbed[figures]')}, or draw no figure: --figures none"
        )
    if not set(wanted) - set(DRAWN):
        return
    for status in describe_all(os.environ):
        if status.name in size.datasets and not status.is_available:
            raise UsageError(
                f"bench: figures 5 and 6 need data: {status.problem}; {status.what_to_do}, or "
                "skip the training: --figures 2,3,4"
            )


def _play(wanted: Sequence[int], options: argparse.Namespace) -> tuple[Summary, list[Path]]:
    """Run all replays without training."""
    started, folder = time.perf_counter(), options.out
    replays = replay_all(all_arms(), options.rounds, options.seeds)
    summary = summarise(replays, options.seeds, options.rounds)
    (folder / "table.md").write_text(markdown(summary), encoding="utf-8")
    (folder / "numbers.json").write_bytes(msgspec.json.encode(summary))
    _log(f"{len(replays)} arms of {options.seeds} seeds", started)
    return summary, [draw(replays, folder) for number in wanted for draw in DRAWN.get(number, ())]


def _train(
    wanted: Sequence[Figure], size: Size, folder: Path
) -> tuple[AccuracySummary, list[Path]]:
    """Run the training runs that are not completed."""
    started = time.perf_counter()
    settings = settings_of(wanted, size)
    with progress(len(settings), "training runs", "rbcs-f-paper") as bar:
        trained = train_all(settings, size, folder / "curves", bar.update)
    _log(f"{len(trained)} of {len(settings)} training runs", started)
    summary = summarise_accuracy(wanted, trained, size)
    name = f"accuracy-{size.model}"
    (folder / f"{name}.md").write_text(accuracy_markdown(summary), encoding="utf-8")
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(summary))
    drawn = [draw_accuracy(number, trained, size, folder) for number in wanted]
    return summary, [path for paths in drawn for path in paths]


def _log(done: str, started: float) -> None:
    print(f"{done}, {time.perf_counter() - started:.0f} s so far", file=sys.stderr)
