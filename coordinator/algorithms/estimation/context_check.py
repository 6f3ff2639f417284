"""Plausibility check of contexts: replaces claims that measured exchanges contradict.

A context is a claim of its device: free cores and link rates. Its exchanges show the truth.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import grown
from fairbed.coordinator.algorithms.estimation.base import (
    COLD,
    CONTEXT,
    DOWN,
    INVERSE_MU,
    PHASES,
    UP,
    Phase,
)

PHASE_OF: dict[int, Phase] = {
    INVERSE_MU: "compute",
    COLD: "load",
    DOWN: "download",
    UP: "upload",
}
"""The phase of an exchange that shows each column of a context."""

WINDOW = 5
"""Number of exchanges that the check remembers of each device."""

CONTRADICTIONS = 3
"""Of the last `WINDOW` exchanges, those that must contradict a claim before it is replaced: a
majority, so that two transfers through an outage of the link replace nothing."""

MIN_DEVICES = 3
"""Devices that must have shown a feature before any claim of it is judged: with fewer, one liar has
half of the weight in the median."""

RETRY_ROUNDS = 100
"""Rounds without an exchange after which a replaced claim is used again, as with the miss limit: a
policy that avoids the device would otherwise never see that it has become honest."""

SHORTEST_S = 1e-3
"""Measured and claimed times below it, seconds, count as it: they decide nothing, and how long a
packet waits on the way would be taken for a contradiction."""


@dataclass(frozen=True, slots=True)
class ContextChange:
    """The check began or ceased to replace one claim of a device."""

    row: int
    column: int
    """Column of the context: `INVERSE_MU`, `COLD`, `DOWN` or `UP`."""
    is_distrusted: bool
    """The claim is replaced from the next prediction on; False: it counts again."""
    claimed: float
    """The claim of the last exchange, in the unit of the column."""
    shown: float
    """What that exchange shows, in the unit of the column; of `COLD`, the loading time in loading
    times of a usual cold start."""

    def text(self) -> str:
        """Return the text of its event."""
        if self.column == COLD:
            if not self.is_distrusted:
                return "its claimed cold starts agree with its loading times again"
            return (
                f"claims a cold start, but loads in {self.shown:.2g} of the time that one takes; "
                "no prediction uses this claim"
            )
        if self.column == INVERSE_MU:
            claimed = f"{1.0 / self.claimed:.3g} free cores"
            shown = f"{1.0 / self.shown:.3g}"
        else:
            claimed = f"{self.claimed:.3g} s for its {PHASE_OF[self.column]}"
            shown = f"{self.shown:.3g} s"
        if not self.is_distrusted:
            return (
                f"claims {claimed}, and its exchange shows {shown}; none of the last {WINDOW} "
                "contradicts its claims, so predictions use them again"
            )
        return (
            f"claims {claimed}, but its exchange shows {shown}; {CONTRADICTIONS} of the last "
            f"{WINDOW} contradict its claims, so predictions use what they show until none does, "
            f"or {RETRY_ROUNDS} rounds pass without one"
        )


class ContextCheck:
    """Replaces what a device claims by what its exchanges show, while they contradict it.

    For each column f of the context and each exchange i of device n, with the claim c and the
    measured phase y (divided by the mini-batches of the training for f = 1/mu):

        z_{n,i} = ln(y / c)
        K       = median over devices n of median_i z_{n,i}          the model of the fleet
        r_{n,i} = z_{n,i} - K                                         residual
        contradiction:  |r_{n,i}| > ln(tolerance)

    over the last five exchanges of each device. A claim is distrusted when 3 of the 5 contradict
    it, and trusted again when none of the 5 does. While it is distrusted, the estimator gets

        c' = e^(median_i ln y - K_n)

    instead, where K_n is the mean z of its exchanges that did not contradict, or K without one. An
    exchange that contradicts before the claim is distrusted is learned with e^(ln y - K_n), so the
    estimator never learns from a false context. Medians make K independent of the claims of a
    minority. What counts is a claim relative to the fleet: slower cores look like a false claim of
    free cores, so `tolerance` must exceed the differences between the cores of a fleet. A device
    that falsely claims a cold start is only reported: the coordinator derives s by itself.

    Phases before the offer are the device's own measurements. The coordinator measures the upload
    and the sum of all; a device whose phases exceed the sum is not learned from.

    Source:
        Own.
    """

    def __init__(self, tolerance: float) -> None:
        """Set the tolerance.

        Args:
            tolerance: Factor between measured and claimed that contradicts a claim, > 1.

        Raises:
            ValueError: The tolerance is not above 1, or not finite.
        """
        if not (math.isfinite(tolerance) and tolerance > 1.0):
            raise ValueError(
                f"context check: tolerance must be > 1, got {tolerance}; 5 covers the cores of "
                "one family of boards"
            )
        self._limit = math.log(tolerance)
        self._shown: Floats = np.zeros((0, CONTEXT, WINDOW))
        """ln y of the last exchanges, the newest last, shape (N, 4, 5)."""
        self._ratio: Floats = np.zeros((0, CONTEXT, WINDOW))
        """z of the same exchanges, shape (N, 4, 5)."""
        self._count: Ints = np.zeros((0, CONTEXT), dtype=np.int64)
        """Number of exchanges that each window has, at most 5, shape (N, 4)."""
        self._agreed: Floats = np.zeros((0, CONTEXT, 2))
        """Number of exchanges that did not contradict, and the sum of their z, shape (N, 4, 2)."""
        self._is_distrusted: Bools = np.zeros((0, CONTEXT), dtype=np.bool_)
        self._last: Ints = np.zeros(0, dtype=np.int64)
        """Round of the last exchange of each device, shape (N,)."""
        self._centre: Floats = np.full(CONTEXT, np.nan)
        """K of each column, shape (4,); NaN before `MIN_DEVICES` devices have shown it."""

    @property
    def distrusted(self) -> Bools:
        """Which claims are distrusted, shape (N, 4), of the devices that have been observed."""
        claims: Bools = self._is_distrusted.copy()
        return claims

    def observe(
        self,
        rows: Ints,
        context: Floats,
        was_cold: Bools,
        phases_s: Floats,
        steps: Ints,
        round_id: int,
    ) -> tuple[Floats, list[ContextChange]]:
        """Judge the claims of devices by new exchanges.

        Args:
            rows: Device rows, distinct, shape (K,).
            context: Claims before the selections, shape (K, 4); not changed. A claim of 0 is
                unknown, and not judged; the column `COLD` is the coordinator's own.
            was_cold: The device claims that it started cold, shape (K,).
            phases_s: Measured phases, seconds, in the order of `PHASES`, shape (K, 5); NaN is a
                phase that was not seen.
            steps: Mini-batches of each training, shape (K,).
            round_id: The round in which the exchanges ended.

        Returns:
            The contexts to learn from, shape (K, 4), and the claims that are replaced or used
            again from this round on, by row and column.

        Raises:
            ValueError: Shapes disagree. Nothing is learned then.
        """
        shapes = rows.shape, context.shape, was_cold.shape, phases_s.shape, steps.shape
        k = len(rows)
        if shapes != ((k,), (k, CONTEXT), (k,), (k, len(PHASES)), (k,)):
            raise ValueError(
                "context check: need rows (K,), contexts (K, 4), cold starts (K,), phases (K, 5) "
                f"and steps (K,), got {', '.join(map(str, shapes))}; pass one row per exchange"
            )
        if k == 0:
            return context, []
        self._grow(int(rows.max()) + 1)
        claimed = context.copy()
        claimed[:, COLD] = was_cold
        shown = phases_s[:, [PHASES.index(PHASE_OF[column]) for column in range(CONTEXT)]]
        is_known = np.isfinite(shown) & np.isfinite(claimed) & (claimed > 0.0)
        is_known[:, [DOWN, UP]] &= shown[:, [DOWN, UP]] > 0.0  # 0 s is no transfer
        shown = np.maximum(shown, SHORTEST_S)
        shown[:, INVERSE_MU] /= np.maximum(steps, 1)
        for at, column in np.argwhere(is_known).tolist():
            row, c = rows[at], claimed[at, column]
            c = max(c, SHORTEST_S) if column in (DOWN, UP) else c
            y = math.log(shown[at, column])
            for window, value in ((self._shown, y), (self._ratio, y - math.log(c))):
                window[row, column] = np.append(window[row, column, 1:], value)
            self._count[row, column] = min(self._count[row, column] + 1, WINDOW)
        self._last[rows] = round_id
        self._set_centre()
        changes, contradicts = self._judge(rows, claimed, is_known)
        learned = self.believed(context, round_id, rows)
        for at, column in np.argwhere(contradicts).tolist():
            if not self._is_distrusted[rows[at], column]:
                learned = learned.copy() if learned is context else learned
                learned[at, column] = self._shown_value(int(rows[at]), column, last=1)
        return learned, changes

    def _judge(
        self, rows: Ints, claimed: Floats, is_known: Bools
    ) -> tuple[list[ContextChange], Bools]:
        """Return the claims whose treatment changes, and which of the new ones are contradicted.

        The second has shape (K, 4), and is False for cold starts, which are not replaced.
        """
        residual = self._ratio[rows] - self._centre[:, None]
        residual[:, COLD] = np.minimum(residual[:, COLD], 0.0)  # a slow cold start is no lie
        in_window = np.arange(WINDOW) >= WINDOW - self._count[rows][:, :, None]
        is_against = in_window & (np.abs(residual) > self._limit)
        against = np.count_nonzero(is_against, axis=2)
        is_judged = is_known & np.isfinite(self._centre)
        agrees = is_judged & ~is_against[:, :, -1]
        newest = np.stack([np.ones(agrees.shape), self._ratio[rows, :, -1]], axis=2)
        self._agreed[rows] += np.where(agrees[:, :, None], newest, 0.0)
        before = self._is_distrusted[rows]
        after = np.where(before, against > 0, against >= CONTRADICTIONS)
        # A column without a new exchange keeps its verdict, although the fleet may have changed.
        after = np.where(is_judged, after, before)
        self._is_distrusted[rows] = after
        changed = np.argwhere(after != before)
        contradicts = is_judged & is_against[:, :, -1]
        contradicts[:, COLD] = False
        changes = [
            ContextChange(
                row=int(rows[at]),
                column=column,
                is_distrusted=bool(after[at, column]),
                claimed=float(claimed[at, column]),
                shown=self._shown_value(int(rows[at]), column, last=1),
            )
            for at, column in sorted(changed.tolist(), key=lambda one: (rows[one[0]], one[1]))
        ]
        return changes, contradicts

    def believed(self, context: Floats, round_id: int, rows: Ints | None = None) -> Floats:
        """Return contexts with distrusted claims replaced, same shape.

        Args:
            context: Claims, shape (K, 4); not changed. A claim of 0 stays: the transfer is not
                needed, or its rate unknown.
            round_id: The round of the prediction.
            rows: Device rows, shape (K,); None: row k of `context` is device k.
        """
        if not self._is_distrusted.any():
            return context
        rows = np.arange(len(context)) if rows is None else rows
        self._grow(int(rows.max(initial=-1)) + 1)
        is_replaced = self._is_distrusted[rows] & (context > 0.0)
        is_replaced &= (round_id - self._last[rows] <= RETRY_ROUNDS)[:, None]
        is_replaced[:, COLD] = False
        result: Floats = context.copy()
        for at, column in np.argwhere(is_replaced).tolist():
            result[at, column] = self._shown_value(int(rows[at]), column)
        return result

    def _shown_value(self, row: int, column: int, last: int = WINDOW) -> float:
        """Return c' of one column of a device, from its `last` exchanges."""
        window = self._shown[row, column, WINDOW - min(last, int(self._count[row, column])) :]
        return math.exp(float(np.median(window)) - self._own(row, column))

    def _own(self, row: int, column: int) -> float:
        """Return K_n of one column of a device."""
        count, total = self._agreed[row, column].tolist()
        return float(total / count if count else self._centre[column])

    def _set_centre(self) -> None:
        for column in range(CONTEXT):
            count = self._count[:, column]
            medians = [
                np.median(self._ratio[count == size, column, WINDOW - size :], axis=1)
                for size in range(1, WINDOW + 1)
            ]
            of_devices = np.concatenate(medians)
            known = len(of_devices) >= MIN_DEVICES
            self._centre[column] = np.median(of_devices) if known else np.nan

    def _grow(self, n: int) -> None:
        self._shown, self._ratio = grown(self._shown, n), grown(self._ratio, n)
        self._count, self._last = grown(self._count, n), grown(self._last, n)
        self._is_distrusted = grown(self._is_distrusted, n)
        self._agreed = grown(self._agreed, n)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        rows = np.flatnonzero(self._count.any(axis=1))
        return {
            "rows": rows.tolist(),
            "shown": self._shown[rows].tolist(),
            "ratio": self._ratio[rows].tolist(),
            "count": self._count[rows].tolist(),
            "agreed": self._agreed[rows].tolist(),
            "is_distrusted": self._is_distrusted[rows].tolist(),
            "last": self._last[rows].tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        rows = np.array(state["rows"], dtype=np.int64)
        self._shown, self._ratio = self._shown[:0], self._ratio[:0]
        self._count, self._last = self._count[:0], self._last[:0]
        self._is_distrusted, self._agreed = self._is_distrusted[:0], self._agreed[:0]
        if rows.size:
            self._grow(int(rows.max()) + 1)
            self._shown[rows], self._ratio[rows] = state["shown"], state["ratio"]
            self._count[rows], self._last[rows] = state["count"], state["last"]
            self._is_distrusted[rows] = state["is_distrusted"]
            self._agreed[rows] = state["agreed"]
        self._set_centre()
