"""What measurements share: how long, how often, and the loop that asks for valid windows."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio

from benchmarks._fidelity.rows import QuantitySpec, Row, row_of
from benchmarks._fidelity.windows import Window, failed, find, why_invalid
from fairbed.testbed.errors import BackendError

PAUSE_S = 0.5
"""After a window that does not count: what disturbed it may be over then."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How thoroughly to measure."""

    is_quick: bool
    repeats: int
    """Valid windows of each quantity."""
    attempts: int
    """Windows at most; a quantity without a valid one among them is unknown."""

    def pick(self, full: float, quick: float) -> float:
        """Return a duration or a number that depends on how thorough it is."""
        return quick if self.is_quick else full


async def windows(plan: Plan, spec: QuantitySpec, measure: Callable[[], Awaitable[Window]]) -> Row:
    """Measure until there are enough valid windows, or too many attempts; say so on stderr."""

    async def alone() -> list[Window]:
        return [await measure()]

    return (await several(plan, [spec], alone))[0]


async def several(
    plan: Plan, spec: Sequence[QuantitySpec], measure: Callable[[], Awaitable[Sequence[Window]]]
) -> list[Row]:
    """Do the same where one measurement gives a window of each of several quantities."""
    taken: list[Sequence[Window]] = []
    valid = 0
    while valid < plan.repeats and len(taken) < plan.attempts:
        try:
            taken.append(await measure())
        except (BackendError, ValueError) as exc:
            taken.append([failed(str(exc))] * len(spec))
        if all(why_invalid(window.evidence) is None for window in taken[-1]):
            valid += 1
        elif not plan.is_quick:
            await anyio.sleep(PAUSE_S)
    columns = zip(*taken, strict=True)
    rows = [row_of(one, find(column)) for one, column in zip(spec, columns, strict=True)]
    for row in rows:
        print_row(row)
    return rows


def print_row(row: Row) -> None:
    """Say on stderr how a quantity came out: a whole run takes a quarter of an hour."""
    error = "" if row.error is None else f" {row.error:+.4f}"
    why = f" ({row.reason})" if row.reason else ""
    sys.stderr.write(
        f"{row.backend:<10} {row.quantity:<34} {row.achieved}{error} "
        f"{row.valid}/{row.attempts} ok={row.ok}{why}\n"
    )
