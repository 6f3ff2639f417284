"""Plausibility check of contexts: replaces claims that measured exchanges contradict.

A context is a claim of its device: free cores and link rates. Its exchanges show the truth.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.columns import RowIndex, grown
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

LINKS = [DOWN, UP]
"""The columns of links."""

WINDOW = 5
"""Number of judged exchanges that the check remembers of each device."""

CONTRADICTIONS = 3
"""Of the last `WINDOW` judged exchanges, those that must contradict a claim in one direction before
it is replaced: a majority, so that two transfers through an outage of the link replace nothing."""

SLOW_LINK = WINDOW
"""The same for a link that is claimed to be slower than it is. A device averages its rates, so that
after one outage its honest claim is too slow, by half as much after each transfer."""

MIN_DEVICES = 3
"""Devices that must have shown a transfer before any claim of a link is judged: with fewer, one
liar has half of the weight in the median."""

LEVEL = 3
"""Exchanges of a device that set its speed per claimed core before it is held to it."""

RETRY_ROUNDS = 100
"""Rounds without an exchange after which a replaced claim is used again, as with the miss limit: a
policy that avoids the device would otherwise never see that it has become honest."""

SHORTEST_S = 1e-3
"""A shorter measured time, seconds, is not judged: it shows the clock and the waiting of packets. A
shorter claimed transfer counts as it."""

ROUND_TRIPS = 3.0
"""Round trips of control messages that a transfer may take beside its bits: its request, its slow
start and its last packet."""

MOST_OVERHEAD = 0.5
"""Share of `ROUND_TRIPS` in a transfer from which it is not judged: its bits are unknown then."""

SPREADS = 2.0
"""Median differences of successive transfers by which the limit of a link is wider. A false factor
does not change differences, a link of a moving car does."""

SLOW_CLAIMS = np.array([CONTRADICTIONS, CONTRADICTIONS, SLOW_LINK, SLOW_LINK])
"""Contradictions of a slow claim that replace it, by column."""

_COLUMNS = (
    "low",
    "high",
    "shown",
    "count",
    "agreed",
    "agreed_count",
    "cold_s",
    "is_distrusted",
    "last",
)
"""The state of each observed device."""


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
    times of its own cold starts. NaN if no device has shown the speed of a core."""
    contradictions: int
    """Of the last judged exchanges, those that contradict the claims in one direction."""

    def text(self) -> str:
        """Return the text of its event."""
        if self.column == COLD:
            if not self.is_distrusted:
                return "its claimed cold starts agree with its loading times again"
            return (
                f"claims a cold start, but loads in {self.shown:.2g} of the time of its known cold "
                "starts; no prediction uses this claim"
            )
        if self.column == INVERSE_MU:
            claimed = f"{1.0 / self.claimed:.3g} free cores"
            is_known = math.isfinite(self.shown)
            shown = f"{1.0 / self.shown:.3g}" if is_known else "fewer, as its hello does"
        else:
            claimed = f"{self.claimed:.3g} s for its {PHASE_OF[self.column]}"
            shown = f"{self.shown:.3g} s"
        if not self.is_distrusted:
            return (
                f"claims {claimed}, and its exchange shows {shown}; none of the last {WINDOW} "
                "that were judged contradicts its claims, so predictions use them again"
            )
        return (
            f"claims {claimed}, but its exchange shows {shown}; {self.contradictions} of the "
            f"last {WINDOW} that were judged contradict its claims, so predictions use what they "
            f"show until none does, or {RETRY_ROUNDS} rounds pass without one"
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """What K exchanges show, and what the coordinator knows of their devices; columns (K,)."""

    claims_cold: Bools
    """The device claims that it started cold."""
    is_cold: Bools
    """The coordinator knows that it did."""
    phases_s: Floats
    """Measured phases, seconds, in the order of `PHASES`, shape (K, 5); NaN was not seen."""
    steps: Ints
    """Mini-batches of the training."""
    cores: Floats
    """Cores that a training of the device may use, by its hello; `inf` is unknown."""


@dataclass(frozen=True, slots=True)
class CheckedRound:
    """What the check made of the exchanges of a round, K of them."""

    context: Floats
    """The contexts to learn from, shape (K, 4)."""
    changes: list[ContextChange]
    """Claims that are replaced or used again from this round on, by row and column."""
    is_judged: Bools
    """Whether a claim of each exchange was judged, shape (K,)."""


class ContextCheck:
    """Replaces what a device claims by what its exchanges show, while they contradict it.

    For each column f of the context and each exchange i of device n, with the claim c and the
    measured phase y (divided by the mini-batches of the training for f = 1/mu), z = ln(y / c). An
    exchange shows only bounds of z relative to a reference, l <= u, and with
    h = ln(tolerance) it contradicts

        a fast claim  if  l > h + max(0, K) + S,        a slow claim  if  u < -h + min(0, K) - S

        link      l = ln((y - 3 rest) / c),  u = ln(y / c)
                  K = median over devices of their median l,   S = 2 median_i |l_i - l_(i-1)|
        compute   l = u = max(z - K_n, ln(mu / cores)),        K = S = 0
        cold      l = u = max(0, ln(y_n / y)),                 K = S = 0

    `rest` is the time of the control messages of the exchange, about a round trip. K_n is the
    median z of the last five exchanges of the device that contradicted nothing, from the third on;
    `cores` are the threads of a training by its hello. y_n is the shortest loading time of the
    device in a round in which the coordinator knows that it was cold.

    Over the last five judged exchanges of each device, a claim is distrusted when 3 contradict it
    in one direction (5 for a link that is claimed to be slow), and trusted again when none does.
    While it is distrusted, the estimator gets

        c' = e^(median_i ln y - K_n)

    instead, where K_n is the median K_n of the fleet if the device has none. An exchange that
    contradicts before the claim is distrusted is learned with e^(ln y - K_n), so the estimator
    never learns from a false context. A device that falsely claims a cold start is only reported:
    the coordinator derives s by itself.

    An exchange that cannot show a false claim is not judged: its times are below 1 ms, its
    transfers are half round trips, or its phases are unknown. Links are compared with the fleet,
    cores with their own device: slow cores and a false claim of free cores from the first exchange
    on look alike, unless the claim exceeds the cores of the device.

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
                f"context check: tolerance must be > 1, got {tolerance}; 5 covers the noise of "
                "honest devices"
            )
        self._limit = math.log(tolerance)
        self._index = RowIndex()
        """Place of each device that was observed in the columns below, M of them."""
        self._low: Floats = np.zeros((0, CONTEXT, WINDOW))
        """l of the last judged exchanges, the newest last, shape (M, 4, 5)."""
        self._high: Floats = np.zeros((0, CONTEXT, WINDOW))
        """u of the same exchanges, shape (M, 4, 5)."""
        self._shown: Floats = np.zeros((0, CONTEXT, WINDOW))
        """ln y of the same exchanges; of `COLD` ln(y / y_n). Shape (M, 4, 5)."""
        self._count: Ints = np.zeros((0, CONTEXT), dtype=np.int64)
        """Number of exchanges that each window has, at most 5, shape (M, 4)."""
        self._agreed: Floats = np.zeros((0, CONTEXT, WINDOW))
        """z of the last exchanges that contradicted nothing, shape (M, 4, 5)."""
        self._agreed_count: Ints = np.zeros((0, CONTEXT), dtype=np.int64)
        """Number of exchanges that each of these has, at most 5, shape (M, 4)."""
        self._cold_s: Floats = np.zeros(0)
        """y_n, seconds, shape (M,); 0 before the first known cold start."""
        self._is_distrusted: Bools = np.zeros((0, CONTEXT), dtype=np.bool_)
        self._last: Ints = np.zeros(0, dtype=np.int64)
        """Round of the last exchange of each device, shape (M,)."""
        self._centre: Floats = np.zeros(CONTEXT)
        """K of each column, shape (4,); NaN of a link before `MIN_DEVICES` devices show it."""
        self._usual: Floats = np.full(CONTEXT, np.nan)
        """Median K_n of the fleet, shape (4,); NaN before a device has one."""

    @property
    def distrusted(self) -> Bools:
        """Which claims are distrusted, shape (M, 4), of the devices that have been observed."""
        claims: Bools = self._is_distrusted.copy()
        return claims

    def observe(
        self, rows: Ints, context: Floats, evidence: Evidence, round_id: int
    ) -> CheckedRound:
        """Judge the claims of devices by new exchanges.

        Args:
            rows: Device rows, distinct, shape (K,).
            context: Claims before the selections, shape (K, 4); not changed. A claim of 0 is
                unknown, and not judged; the column `COLD` is the coordinator's own.
            evidence: What the exchanges show.
            round_id: The round in which the exchanges ended.

        Raises:
            ValueError: Shapes disagree. Nothing is learned then.
        """
        columns = [rows, *(getattr(evidence, name) for name in Evidence.__slots__)]
        k, phases_s = len(rows), evidence.phases_s
        if (
            context.shape != (k, CONTEXT)
            or phases_s.shape != (k, len(PHASES))
            or any(column.shape != (k,) for column in columns if column is not phases_s)
        ):
            raise ValueError(
                "context check: need contexts (K, 4), phases (K, 5) and other columns (K,), got "
                f"{context.shape} and {', '.join(str(column.shape) for column in columns)}; pass "
                "one row per exchange"
            )
        if k == 0:
            return CheckedRound(context, [], np.zeros(0, dtype=np.bool_))
        places = self._index.of(rows)
        self._grow(len(self._index.rows))
        claimed = context.copy()
        claimed[:, COLD] = evidence.claims_cold
        shown = phases_s[:, [PHASES.index(PHASE_OF[column]) for column in range(CONTEXT)]]
        is_seen = np.isfinite(shown) & np.isfinite(claimed) & (claimed > 0.0)
        is_seen &= (shown >= SHORTEST_S) | (np.arange(CONTEXT) == COLD)
        shown = np.maximum(np.where(is_seen, shown, 1.0), SHORTEST_S)
        claimed[:, LINKS] = np.maximum(claimed[:, LINKS], SHORTEST_S)
        overhead = ROUND_TRIPS * np.maximum(phases_s[:, [PHASES.index("rest")]], 0.0) / shown
        shown[:, INVERSE_MU] /= np.maximum(evidence.steps, 1)
        y, z = np.log(shown), np.log(shown / np.where(is_seen, claimed, 1.0))
        low, high = z.copy(), z.copy()
        low[:, INVERSE_MU] = high[:, INVERSE_MU] = self._against_cores(
            places, z[:, INVERSE_MU], -np.log(context[:, INVERSE_MU] * evidence.cores)
        )
        y[:, COLD] = self._against_cold_starts(
            places, shown[:, COLD], is_seen[:, COLD], evidence.is_cold
        )
        low[:, COLD] = high[:, COLD] = np.maximum(-y[:, COLD], 0.0)
        is_clear = overhead[:, LINKS] < MOST_OVERHEAD  # False where the rest is unknown
        low[:, LINKS] += np.log1p(-np.where(is_clear, overhead[:, LINKS], 0.0))
        is_shown = is_seen & np.isfinite(low)
        is_shown[:, LINKS] &= is_clear
        for at, column in np.argwhere(is_shown).tolist():
            place = places[at], column
            _push(self._low, place, low[at, column])
            _push(self._high, place, high[at, column])
            _push(self._shown, place, y[at, column])
            self._count[place] = min(self._count[place] + 1, WINDOW)
        self._last[places] = round_id
        self._set_centres()
        is_judged = is_shown & np.isfinite(self._centre)
        changes, contradicts = self._judge(rows, places, claimed, is_judged)
        agrees = is_judged & ~contradicts
        agrees[:, INVERSE_MU] = is_seen[:, INVERSE_MU] & ~contradicts[:, INVERSE_MU]
        for at, column in np.argwhere(agrees).tolist():
            place = places[at], column
            _push(self._agreed, place, z[at, column])
            self._agreed_count[place] = min(self._agreed_count[place] + 1, WINDOW)
        self._set_centres()
        learned = self.believed(context, round_id, rows)
        contradicts[:, COLD] = False
        for at, column in np.argwhere(contradicts).tolist():
            shown_value = self._shown_value(int(places[at]), column, last=1)
            if not self._is_distrusted[places[at], column] and math.isfinite(shown_value):
                learned = learned.copy() if learned is context else learned
                learned[at, column] = shown_value
        return CheckedRound(learned, changes, is_judged.any(axis=1))

    def _against_cores(self, places: Ints, z: Floats, beyond: Floats) -> Floats:
        """Return l of computing, shape (K,); NaN if nothing is known of the device.

        Args:
            places: Places of the devices, shape (K,).
            z: Of computing, shape (K,).
            beyond: ln(mu / cores), shape (K,); -inf if the cores are unknown.
        """
        has_level = self._agreed_count[places, INVERSE_MU] >= LEVEL
        from_level = z - self._own(places, INVERSE_MU)
        from_level = np.where(has_level, from_level, np.where(beyond > -np.inf, 0.0, np.nan))
        result: Floats = np.where(beyond > self._limit, np.fmax(from_level, beyond), from_level)
        return result

    def _against_cold_starts(
        self, places: Ints, load_s: Floats, is_seen: Bools, is_cold: Bools
    ) -> Floats:
        """Return ln(y / y_n) of claimed cold starts, shape (K,); NaN if they are not judged.

        A cold start that the coordinator knows of is true. It sets y_n.
        """
        known_s = self._cold_s[places]
        is_shorter = is_seen & is_cold & ((known_s == 0.0) | (load_s < known_s))
        self._cold_s[places] = np.where(is_shorter, load_s, known_s)
        is_judged = is_seen & ~is_cold & (known_s > SHORTEST_S)
        ratio = np.where(is_judged, load_s, np.nan) / np.where(is_judged, known_s, 1.0)
        result: Floats = np.log(ratio)
        return result

    def _judge(
        self, rows: Ints, places: Ints, claimed: Floats, is_judged: Bools
    ) -> tuple[list[ContextChange], Bools]:
        """Return the claims whose treatment changes, and which of the new ones are contradicted.

        The second has shape (K, 4).
        """
        low, high = self._low[places], self._high[places]
        in_window = np.arange(WINDOW) >= WINDOW - self._count[places][:, :, None]
        limit = np.full((len(rows), CONTEXT, 1), self._limit)
        for column in LINKS:
            limit[:, column, 0] += SPREADS * _spread(low[:, column], in_window[:, column])
        centre = np.nan_to_num(self._centre)[:, None]
        is_fast = in_window & (low > limit + np.maximum(centre, 0.0))
        is_slow = in_window & (high < np.minimum(centre, 0.0) - limit)
        fast, slow = np.count_nonzero(is_fast, axis=2), np.count_nonzero(is_slow, axis=2)
        before = self._is_distrusted[places]
        after = np.where(before, fast + slow > 0, (fast >= CONTRADICTIONS) | (slow >= SLOW_CLAIMS))
        # A column without a new exchange keeps its verdict, although the fleet may have changed.
        after = np.where(is_judged, after, before)
        self._is_distrusted[places] = after
        changes = [
            ContextChange(
                row=int(rows[at]),
                column=column,
                is_distrusted=bool(after[at, column]),
                claimed=float(claimed[at, column]),
                shown=self._shown_value(int(places[at]), column, last=1),
                contradictions=int(max(fast[at, column], slow[at, column])),
            )
            for at, column in np.argwhere(after != before).tolist()
        ]
        changes.sort(key=lambda change: (change.row, change.column))
        return changes, is_judged & (is_fast | is_slow)[:, :, -1]

    def believed(self, context: Floats, round_id: int, rows: Ints | None = None) -> Floats:
        """Return contexts with distrusted claims replaced, same shape.

        Args:
            context: Claims, shape (K, 4); not changed. A claim of 0 stays: the transfer is not
                needed, or its rate unknown.
            round_id: The round of the prediction.
            rows: Device rows, shape (K,), all observed; None: row k of `context` is device k.
        """
        if not self._is_distrusted.any():
            return context
        if rows is None:
            known, at = self._index.known(len(context))
            places = np.arange(len(self._is_distrusted))[known]
        else:
            places, at = self._index.of(rows), np.arange(len(rows))
        is_replaced = self._is_distrusted[places] & (context[at] > 0.0)
        is_replaced &= (round_id - self._last[places] <= RETRY_ROUNDS)[:, None]
        is_replaced[:, COLD] = False
        result: Floats = context.copy()
        for one, column in np.argwhere(is_replaced).tolist():
            shown = self._shown_value(int(places[one]), column)
            result[at[one], column] = shown if math.isfinite(shown) else result[at[one], column]
        return result

    def _shown_value(self, place: int, column: int, last: int = WINDOW) -> float:
        """Return c' of one column of a device, from its `last` exchanges."""
        one = np.array([place])
        count = np.minimum(self._count[one, column], last)
        shown: Floats = _medians(self._shown[one, column], count) - self._own(one, column)
        return math.exp(shown[0])

    def _own(self, places: Ints, column: int) -> Floats:
        """Return K_n of one column of devices, or that of the fleet, shape (K,).

        Without either it is 0 for a link, and unknown (NaN) for computing.
        """
        usual = float(self._usual[column])
        if column != INVERSE_MU and math.isnan(usual):
            usual = 0.0
        own = _medians(self._agreed[places, column], self._agreed_count[places, column])
        result: Floats = np.where(np.isnan(own), usual, own)
        return result

    def _set_centres(self) -> None:
        for column in LINKS:
            self._centre[column] = _median(self._low, self._count, column, MIN_DEVICES)
        for column in (INVERSE_MU, *LINKS):
            self._usual[column] = _median(self._agreed, self._agreed_count, column)

    def _grow(self, n: int) -> None:
        for name in _COLUMNS:
            setattr(self, f"_{name}", grown(getattr(self, f"_{name}"), n))

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        order = np.argsort(self._index.rows)
        columns = {name: getattr(self, f"_{name}")[order].tolist() for name in _COLUMNS}
        return {"rows": self._index.rows[order].tolist(), **columns}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._index, rows = RowIndex(), np.array(state["rows"], dtype=np.int64)
        if rows.size:
            self._index.of(rows)
        for name in _COLUMNS:
            empty = getattr(self, f"_{name}")[:0]
            values = np.array(state[name], dtype=empty.dtype).reshape(-1, *empty.shape[1:])
            setattr(self, f"_{name}", values)
        self._set_centres()


def _push(windows: Floats, place: tuple[int, int], value: float) -> None:
    """Put the newest value at the end of one window."""
    windows[place][:-1] = windows[place][1:]
    windows[place][-1] = value


def _medians(windows: Floats, counts: Ints) -> Floats:
    """Return the median of the `counts` newest values of each window, NaN without one.

    Args:
        windows: Shape (K, 5), the newest value last.
        counts: Shape (K,).
    """
    is_in = np.arange(WINDOW) >= WINDOW - counts[:, None]
    ordered, rows = np.sort(np.where(is_in, windows, np.inf), axis=1), np.arange(len(counts))
    low, high = np.maximum(counts - 1, 0) // 2, counts // 2
    with np.errstate(invalid="ignore"):
        middle = 0.5 * (ordered[rows, low] + ordered[rows, high])
    result: Floats = np.where(counts > 0, middle, np.nan)
    return result


def _median(windows: Floats, counts: Ints, column: int, least: int = 1) -> float:
    """Return the median over devices of the medians of their windows, one column.

    NaN if fewer than `least` devices have a value.
    """
    of_devices = _medians(windows[:, column], counts[:, column])
    known = of_devices[~np.isnan(of_devices)]
    return float(np.median(known)) if len(known) >= least else math.nan


def _spread(values: Floats, in_window: Bools) -> Floats:
    """Return the median difference of successive values of each device, shape (K,)."""
    is_pair = in_window[:, :-1]  # windows fill up from the end
    steps = np.where(is_pair, np.abs(np.diff(values, axis=1)), np.nan)
    steps[~is_pair.any(axis=1)] = 0.0
    result: Floats = np.nanmedian(steps, axis=1)
    return result
