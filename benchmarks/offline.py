"""Errors of estimators on a file of exchange times, in the order in which they were measured.

    fairbed bench offline FILE [--estimator module:Name ...] [--json] [--write PAGE ...]

Each estimator begins empty with each run of the file and predicts every exchange from the earlier
ones of that run; only timed exchanges count and teach. An estimator of your own is the plug-in of
`selection.estimator`, named as `module:Name`. `fairbed bench exchange-times` makes such files.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from benchmarks._exchange_log import LoggedExchange, read_exchanges
from benchmarks._pages import page, require_place, write_place
from fairbed.coordinator.algorithms.estimation.base import Learner
from fairbed.coordinator.algorithms.estimation.prequential import (
    Errors,
    Predicted,
    pooled_errors,
    predictions,
)
from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.policy.factories import make_estimator
from fairbed.coordinator.report.estimators import built_in_learners, trials_of
from fairbed.coordinator.report.quantities import LEAST, percent
from fairbed.coordinator.store.reader import PlannedSelection
from fairbed.testbed.errors import UsageError
from fairbed.wire.plugins import PluginError

PLACE = "offline table"
"""Name of the place in a document that `--write` replaces."""

BY = ("link", "model")
"""Columns by which errors are also given."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The errors on a part of the file."""

    by: str
    """all, link or model."""
    value: str
    """The link or model; empty for all."""
    runs: int
    exchanges: int
    timed: int
    errors: dict[str, Errors]
    """By estimator."""


def main(arguments: list[str]) -> int:
    """Score the estimators and print the errors; return the exit code.

    Raises:
        UsageError: The file or an estimator cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="fairbed bench offline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="of exchange times, .csv.xz")
    add("--estimator", action="append", default=[], metavar="NAME", help="of your own; repeatable")
    add("--json", action="store_true")
    add("--write", nargs="+", type=page, default=[], metavar="PAGE", help="pages with the table")
    options = parser.parse_args(arguments)
    require_place(options.write, PLACE)
    try:
        found = score(read_exchanges(options.file), options.estimator)
    except (PluginError, ValueError) as exc:
        raise UsageError(f"offline: {exc}") from exc
    text = table(found)
    print(msgspec.json.encode(found).decode() if options.json else text)
    for path in options.write:
        origin = f"`fairbed bench offline {options.file}`: {_sample(found[0])}"
        write_place(path, PLACE, f"{origin}\n\n{text}")
    return 0


def score(exchanges: Sequence[LoggedExchange], own: Sequence[str] = ()) -> list[Group]:
    """Return the errors on all runs, by link and by model.

    Args:
        exchanges: Exchanges of one or more runs, in order within each run.
        own: Names of plug-ins.

    Raises:
        PluginError: A plug-in cannot be loaded, or breaks the contract.
    """
    ordered = sorted(exchanges, key=_run)  # stable: the order within a run stays
    runs = [list(rows) for _, rows in groupby(ordered, key=_run)]
    guesses = [_predicted(rows, own) for rows in runs]
    groups = [_group("all", "", list(zip(runs, guesses, strict=True)))]
    for by in BY:
        for value in sorted({rows[0].key[by] for rows in runs}):
            part = [
                (rows, guess)
                for rows, guess in zip(runs, guesses, strict=True)
                if rows[0].key[by] == value
            ]
            groups.append(_group(by, value, part))
    return groups


def _run(x: LoggedExchange) -> str:
    return x.key["run"]


def _predicted(run: Sequence[LoggedExchange], own: Sequence[str]) -> dict[str, Predicted]:
    """Return the predictions by estimator; each learns from this run alone."""
    rows = {name: at for at, name in enumerate(sorted({x.row.device for x in run}))}
    trials = trials_of([x.row for x in run], rows, PlannedSelection())
    learners: dict[str, Learner] = {**built_in_learners(PlannedSelection())}
    learners |= {name: make_estimator(SelectionConfig(estimator=name)) for name in own}
    return {name: predictions(learner, trials) for name, learner in learners.items()}


def _group(
    by: str,
    value: str,
    runs: Sequence[tuple[Sequence[LoggedExchange], Mapping[str, Predicted]]],
) -> Group:
    rows = [x.row for run, _ in runs for x in run]
    return Group(
        by=by,
        value=value,
        runs=len(runs),
        exchanges=len(rows),
        timed=sum(x.outcome == "done" and x.is_valid and x.tau_s is not None for x in rows),
        errors={name: pooled_errors([guess[name] for _, guess in runs]) for name in runs[0][1]},
    )


def _sample(group: Group) -> str:
    return f"{group.timed} of {group.exchanges} exchanges of {group.runs} runs are timed."


def table(found: Sequence[Group]) -> str:
    """Return the errors as a table of Markdown."""
    lines = [
        "| runs | estimator | exchanges | mean error | median | in 80 % interval |",
        "|---|---|---|---|---|---|",
    ]
    for group in found:
        what = "all" if group.by == "all" else f"{group.by} {group.value}"
        for name, e in group.errors.items():
            few = f"n < {LEAST}"
            cells = (
                few if e.count < LEAST else percent(e.mape),
                few if e.count < LEAST else percent(e.median_ape),
                few if e.bounded < LEAST else f"{percent(e.coverage)} of {e.bounded}",
            )
            lines.append(f"| {what} | {name} | {e.count} | {' | '.join(cells)} |")
    return "\n".join(lines)
