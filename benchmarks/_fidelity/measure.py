"""The measurement loop: durations, repetitions, and valid windows."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio

from benchmarks._fidelity.rows import QuantitySpec, Row, row_of
from benchmarks._fidelity.windows import Window, failed, find, why_invalid
from fairbed.testbed.errors import BackendError

PAUSE_S = 0.5
"""Pause after an invalid window, in which a disturbance may end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The thoroughness of the measurement."""

    is_quick: bool
    repeats: int
    """Valid windows of each quantity."""
    attempts: int
    """Greatest number of windows; a quantity without a valid one is unknown."""

    def pick(self, full: float, quick: float) -> float:
        """Return a duration or number for a full or a quick measurement."""
        return quick if self.is_quick else full


async def measured_row(
    plan: Plan, spec: QuantitySpec, measure: Callable[[], Awaitable[Window]]
) -> Row:
    """Measure until there are enough valid windows or attempts; report the row on stderr."""

    async def alone() -> list[Window]:
        return [await measure()]

    return (await measured_rows(plan, [spec], alone))[0]


async def measured_rows(
    plan: Plan, specs: Sequence[QuantitySpec], measure: Callable[[], Awaitable[Sequence[Window]]]
) -> list[Row]:
    """Do the same for a measurement that gives one window of each of several quantities."""
    taken: list[Sequence[Window]] = []
    valid = 0
    while valid < plan.repeats and len(taken) < plan.attempts:
        try:
            taken.append(await measure())
        except (BackendError, ValueError) as exc:
            taken.append([failed(str(exc))] * len(specs))
        if all(why_invalid(window.evidence) is None for window in taken[-1]):
            valid += 1
        elif not plan.is_quick:
            await anyio.sleep(PAUSE_S)
    columns = zip(*taken, strict=True)
    rows = [row_of(one, find(column)) for one, column in zip(specs, columns, strict=True)]
    for row in rows:
        print_row(row)
    return rows


def print_row(row: Row) -> None:
    """Print a row on stderr as progress: a whole run takes a quarter of an hour."""
    error = "" if row.error is None else f" {row.error:+.4f}"
    why = f" ({row.reason})" if row.reason else ""
    sys.stderr.write(
        f"{row.backend:<10} {row.quantity:<34} {row.achieved}{error} "
        f"{row.valid}/{row.attempts} ok={row.ok}{why}\n"
    )
