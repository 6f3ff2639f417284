"""Invariants of the rows of a run, whatever happened to its processes. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairbed.coordinator.store.tables import ExchangeRow, RoundRow, SelectionRow

EXACT = 1e-9
"""Rounding of sums of queues and weights."""


@dataclass(frozen=True, slots=True)
class RoundRows:
    """All rows of one closed round that the invariants are about."""

    round: RoundRow
    selections: Sequence[SelectionRow]
    exchanges: Sequence[ExchangeRow]


@dataclass(slots=True)
class StoreAudit:
    """Checks closed rounds one after the other, each once, and that no round is lost or changed.

        Z_n <- max(Z_n + beta - x_n, 0)      the virtual queue of each device, x_n its selection

    For runs of `rbcs-f` without late updates, whose queues count selections.
    """

    beta: float
    closed: list[RoundRow] = field(default_factory=list)
    queues: dict[str, float] = field(default_factory=dict)
    """Z of each device after the last checked round."""

    def check_kept(self, rounds: Sequence[RoundRow]) -> list[str]:
        """Return which rounds that were closed before are lost or changed, one line each."""
        found = {row.round: row for row in rounds}
        return [
            f"round {row.round}: must stay as it was closed, is {_change(row, found)}"
            for row in self.closed
            if row.round not in found or _identity(found[row.round]) != _identity(row)
        ]

    def check_next(self, rows: RoundRows) -> list[str]:
        """Return what is wrong with the next closed round, one line each; empty if nothing is."""
        row = rows.round
        expected = self.closed[-1].round + 1 if self.closed else 1
        problems = [f"must follow round {expected - 1}"] if row.round != expected else []
        problems += _exchange_problems(rows)
        problems += self._clock_problems(row)
        problems += self._queue_problems(rows)
        self.closed.append(row)
        return [f"round {row.round}: {problem}" for problem in problems]

    def _clock_problems(self, row: RoundRow) -> list[str]:
        before = self.closed[-1].closed_at_s if self.closed else 0.0
        if before <= row.closed_at_s and row.dispatched_at_s <= row.closed_at_s:
            return []
        return [
            f"the run's clock must not go back, got {before:.3f}, {row.dispatched_at_s:.3f} and "
            f"{row.closed_at_s:.3f} s"
        ]

    def _queue_problems(self, rows: RoundRows) -> list[str]:
        problems = []
        for selection in rows.selections:
            before = self.queues.get(selection.device, 0.0)
            after = max(before + self.beta - selection.is_selected, 0.0)
            self.queues[selection.device] = selection.queue
            if not math.isclose(selection.queue, after, abs_tol=EXACT):
                problems.append(
                    f"queue of {selection.device} must be {after:.9g}, got {selection.queue:.9g}"
                )
        missing = self.queues.keys() - {selection.device for selection in rows.selections}
        if missing:
            problems.append(f"selection rows must name every device, lack {sorted(missing)}")
        total = math.fsum(selection.queue for selection in rows.selections)
        if not math.isclose(
            total, rows.round.queue_total, abs_tol=EXACT * max(1, len(self.queues))
        ):
            problems.append(
                f"queue_total must be the sum {total:.9g}, got {rows.round.queue_total:.9g}"
            )
        return problems


def _exchange_problems(rows: RoundRows) -> list[str]:
    """Return exchanges that are lost or counted twice."""
    row, problems = rows.round, []
    selected = sorted(s.device for s in rows.selections if s.is_selected)
    exchanged = sorted(x.device for x in rows.exchanges)
    if selected != exchanged:
        problems.append(f"each selected device must have one exchange: {selected}, {exchanged}")
    if row.selected != len(selected):
        problems.append(f"selected must be {len(selected)}, got {row.selected}")
    attempts = {x.attempt for x in rows.exchanges} - {row.attempt}
    if attempts:
        problems.append(f"exchanges must be of attempt {row.attempt}, got {sorted(attempts)}")
    merged = [x for x in rows.exchanges if x.aggregated_round is not None]
    names = sorted(s.device for s in rows.selections if s.is_aggregated)
    if sorted(x.device for x in merged) != names or row.aggregated != len(merged):
        problems.append(
            f"each aggregated update must be counted once: {row.aggregated} in the round, "
            f"{sorted(x.device for x in merged)} in exchanges, {names} in selections"
        )
    if any(x.aggregated_round != row.round or x.outcome != "done" for x in merged):
        problems.append("an aggregated update must be of a done exchange of this round")
    shares = [x.weight_share for x in merged if x.weight_share is not None]
    if shares:  # a replay without training has none
        total = math.fsum(shares)
        if not math.isclose(total, 1.0, abs_tol=EXACT):
            problems.append(f"weight shares must sum to 1, got {total:.9g}")
    if (row.status == "done") != bool(merged):
        problems.append(f"a round must be done if it has updates, got {row.status}")
    return problems


def _identity(row: RoundRow) -> tuple[object, ...]:
    return row.attempt, row.status, row.closed_at_s, row.model_sha256, row.queue_total


def _change(row: RoundRow, found: Mapping[int, RoundRow]) -> str:
    now = found.get(row.round)
    return "lost" if now is None else f"closed at {now.closed_at_s} instead of {row.closed_at_s}"
