"""Warnings of runs in a comparison: one line for each kind, with the runs that have it.

So are the inputs in which its runs differ: sources, files, data and versions (`testbed.inputs`).
"""

from collections.abc import Mapping, Sequence

from fairbed.coordinator.report.summary_table import HASH_DIGITS
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.measures import RunMeasures

MAX_NAMED = 4
"""Arms or runs that a line names."""

SHA256_DIGITS = 64


def warnings_of_runs(results: Sequence[CellResult]) -> list[str]:
    """Return the inputs in which the runs of a comparison differ, and their warnings by kind."""
    runs = _measured(results)
    texts: dict[str, dict[tuple[str, int], str]] = {}
    for cell, run in runs.items():
        for kind, text in run.warnings.items():
            texts.setdefault(kind, {})[cell] = text
    arms = list(dict.fromkeys(arm for arm, _ in runs))
    lines = [_line(kind, found, len(runs), arms) for kind, found in sorted(texts.items())]
    named = {f"{arm} with seed {seed}": run.inputs for (arm, seed), run in runs.items()}
    return [*differing_inputs(named), *lines]


def differing_inputs(runs: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the inputs in which the runs of a comparison differ, one line each.

    An input that only some runs have, such as the rule of one arm, is no difference.

    Args:
        runs: Hash or version of each input, by the name of the run in a line.
    """
    lines = []
    for name in sorted({name for inputs in runs.values() for name in inputs}):
        by_value: dict[str, list[str]] = {}
        for run, inputs in runs.items():
            if name in inputs:
                by_value.setdefault(inputs[name], []).append(run)
        if len(by_value) > 1:
            parts = (f"{_short(value)} in {first_few(own)}" for value, own in by_value.items())
            lines.append(f"{name} differs between the runs: {'; '.join(parts)}")
    return lines


def _short(value: str) -> str:
    """Return the first digits of a hash; a version as it is."""
    return value[:HASH_DIGITS] if len(value) == SHA256_DIGITS else value


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
