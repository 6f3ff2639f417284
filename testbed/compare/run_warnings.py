"""Warnings of runs in a comparison: one line for each kind, with the runs that have it."""

from collections.abc import Mapping, Sequence

from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.measures import RunMeasures

MAX_NAMED = 4
"""Arms, or seeds of an arm, that a line names."""


def warnings_of_runs(results: Sequence[CellResult]) -> list[str]:
    """Return the warnings of the runs of a comparison, one line for each kind."""
    runs = _measured(results)
    texts: dict[str, dict[tuple[str, int], str]] = {}
    for cell, run in runs.items():
        for kind, text in run.warnings.items():
            texts.setdefault(kind, {})[cell] = text
    arms = list(dict.fromkeys(arm for arm, _ in runs))
    return [_line(kind, found, len(runs), arms) for kind, found in sorted(texts.items())]


def _measured(results: Sequence[CellResult]) -> dict[tuple[str, int], RunMeasures]:
    """Return the measures of finished runs, by arm and seed."""
    found = [(r.arm, r.seed, r.outcome.measured) for r in results]
    return {(arm, seed): run for arm, seed, run in found if run is not None}


def _line(kind: str, texts: Mapping[tuple[str, int], str], n_runs: int, arms: Sequence[str]) -> str:
    """Return the line of one kind of warning."""
    concerned = [arm for arm in arms if any(own == arm for own, _ in texts)]
    where = "all arms" if len(concerned) == len(arms) else first_few(concerned)
    text = next(iter(texts.values()))
    example = "" if len(set(texts.values())) == 1 else "for example "
    return f"{kind} in {len(texts)} of {n_runs} runs ({where}): {example}{text}"


def first_few(names: Sequence[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"
