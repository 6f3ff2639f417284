"""The experiment of the RBCS-F paper: our numbers beside the reference, and its figures.

    fairbed bench rbcs-f-paper [--seeds 20] [--rounds 500] [--figures 2,3,4,5,6] [--full]
                               [--datasets fashion-mnist,cifar10] [--train-seeds N]
                               [--out rbcs-f-paper] [--json]

Forty devices in four groups of speed, eight a round, on a virtual clock, as in
examples/rbcs-f-paper.toml. The table has the total time, queues and rates of every policy with
standard errors, beside the recorded reference, which holds for 500 rounds; what has to hold for
any number (orderings, the guarantee after every round) is checked. Figures 5 and 6 train, with the
data of FAIRBED_DATA: a small network, or with --full the paper's 500 rounds and a CNN. What was
trained before into the same folder is not trained again. Status 1: a number is too far off, or a
check does not hold.
"""

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks._paper import accuracy, figures
from benchmarks._paper.arms import all_arms
from benchmarks._paper.report import markdown
from benchmarks._paper.rounds import play_all
from benchmarks._paper.summary import Summary, summarise
from benchmarks._paper.table import Played
from benchmarks._paper.training import DATASETS, FULL, QUICK, USUAL, Size, settings_of, train_all
from testbed.commands import DONE, FAILED, RunError, UsageError
from testbed.datasets.catalogue import describe_all
from testbed.experiment import ExperimentError
from testbed.figures import MISSING, files_of

FIGURES = (2, 3, 4, 5, 6)
DRAWN = {
    2: (figures.draw_queues, figures.draw_front),
    3: (figures.draw_times, figures.draw_regret),
    4: (figures.draw_pulls,),
}
"""Figures that need no training, each with what goes beside it."""


def main(arguments: list[str]) -> int:
    """Run the benchmark and print what it measured; return the exit code.

    Raises:
        UsageError: An argument is wrong, or data or a library for the figures are missing.
        RunError: The files cannot be written.
    """
    options = _options(arguments)
    started, wanted, size = time.perf_counter(), _figures(options.figures), _size(options)
    _check(wanted, size)
    try:
        played = play_all(all_arms(), options.rounds, options.seeds)
        summary = summarise(played, options.seeds, options.rounds)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "table.md").write_text(markdown(summary), encoding="utf-8")
        encoded = msgspec.json.encode(summary)
        (options.out / "numbers.json").write_bytes(encoded)
        _say(f"{len(played)} arms of {options.seeds} seeds", started)
        drawn = _draw(wanted, played, size, options.out, started)
    except ExperimentError as exc:
        raise UsageError(str(exc)) from exc
    except OSError as exc:
        raise RunError(str(exc)) from exc
    print(encoded.decode() if options.json else markdown(summary))
    for path in drawn:
        for file in files_of(path):
            print(f"wrote {file}", file=sys.stderr)
    return _status(summary)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fairbed bench rbcs-f-paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seeds", type=int, default=20, help="worlds, each played by every policy (default 20)")
    add("--rounds", type=int, default=500, help="of each replay without training (default 500)")
    add("--figures", default="2,3,4,5,6", help="some of 2,3,4,5,6, or none (default all)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="train as long as the paper: hours")
    size.add_argument("--quick", action="store_true", help="train digits a little: for tests")
    add("--datasets", default=",".join(DATASETS), help="of figures 5 and 6 (default both)")
    add("--train-seeds", type=int, help="of figures 5 and 6 (default 2, with --full 5)")
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
    words = text.split(",")
    if strange := [word for word in words if word not in map(str, FIGURES)]:
        raise UsageError(
            f"bench: --figures must be some of {','.join(map(str, FIGURES))} or none, "
            f"got {strange[0]!r}"
        )
    return sorted({int(word) for word in words})


def _size(options: argparse.Namespace) -> Size:
    if options.quick:
        return QUICK
    datasets = tuple(options.datasets.split(","))
    if strange := [name for name in datasets if name not in DATASETS]:
        raise UsageError(
            f"bench: --datasets must be some of {','.join(DATASETS)}, got {strange[0]!r}"
        )
    size = replace(FULL if options.full else USUAL, datasets=datasets)
    return size if options.train_seeds is None else replace(size, seeds=options.train_seeds)


def _check(wanted: Sequence[int], size: Size) -> None:
    """Refuse before anything is computed what could not be drawn in the end."""
    if wanted and importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"bench: {MISSING}, or draw nothing: --figures none")
    if not set(wanted) - set(DRAWN):
        return
    for status in describe_all(os.environ):
        if status.name in size.datasets and not status.is_available:
            raise UsageError(
                f"bench: figures 5 and 6 need data: {status.problem}; {status.what_to_do}, or "
                "train nothing: --figures 2,3,4"
            )


def _draw(
    wanted: Sequence[int], played: Played, size: Size, folder: Path, started: float
) -> list[Path]:
    drawn = [draw(played, folder) for number in wanted for draw in DRAWN.get(number, ())]
    for number in (number for number in wanted if number not in DRAWN):
        settings = settings_of(number, size)
        curves = train_all(settings, size, folder / "curves")
        _say(f"figure {number}: {len(settings)} runs of training", started)
        drawn += accuracy.draw_accuracy(number, curves, size, folder)
    return drawn


def _say(what: str, started: float) -> None:
    print(f"{what}, {time.perf_counter() - started:.0f} s so far", file=sys.stderr)


def _status(summary: Summary) -> int:
    return DONE if summary.is_reproduced else FAILED
