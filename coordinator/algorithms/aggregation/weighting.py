"""Weights of updates: equal, by examples, or corrected for a biased selection."""

from typing import Any, Literal, TypeAlias

import numpy as np

from fairbed.coordinator.algorithms.aggregation.base import Updates
from fairbed.coordinator.algorithms.aggregation.running_sum import total_of
from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.columns import RowIndex, grown

Weights: TypeAlias = Literal["equal", "n", "n_over_pi"]
"""p_k of a rule, up to a common factor: 1, n_k or n_k / pi_k."""

RATIO_CAP = 5.0
"""A rate counts as at least 1/5 and at most 5 times the mean, because a rare update has a large
variance: it counts at most five times as much as that of an average device. With RBCS-F no device
is below the lower bound if beta is at least a fifth of the mean rate."""


def taking_part(updates: Updates) -> Ints:
    """Return the rows of the devices that take part in a round, ascending: Q of `Afl`.

    A device joins in the first such round. Until then no rule counts it: one that the experiment
    expects has a row from the start, but no history.
    """
    if updates.not_drawn is None:
        return np.arange(updates.registered)
    takes_part = updates.not_drawn.copy()
    takes_part[updates.rows] = True
    return np.flatnonzero(takes_part)


class JoinedDevices:
    """Numbers devices in the order in which they join, those of one round by row."""

    def __init__(self) -> None:
        self._places = RowIndex()

    def __len__(self) -> int:
        """Return K, the number of devices that have joined."""
        return len(self._places.rows)

    def add(self, updates: Updates) -> Ints:
        """Add the devices that take part in a round; return their numbers, by row."""
        return self._places.of(taking_part(updates))

    def places(self, rows: Ints) -> Ints:
        """Return the numbers of devices that have joined, same shape."""
        return self._places.of(rows)

    def to_state(self) -> dict[str, Any]:
        """Return the rows in the order of joining, for the checkpoint: 0, 1, ..., then others."""
        rows = self._places.rows
        is_other = rows != np.arange(len(rows))
        n = int(is_other.argmax()) if is_other.any() else len(rows)
        return {"first": n, "others": rows[n:].tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        others = np.array(state["others"], dtype=np.int64)
        self._places = RowIndex.restored(np.concatenate([np.arange(state["first"]), others]))


class Participation:
    """Counts aggregated updates per row, to estimate how probable it is that a device has one.

        rho_k = pi_k / C = (a_k + 1) / (C t_k + 1),   between 1 / RATIO_CAP and RATIO_CAP

    a_k counts the rounds that aggregated the device, of t_k rounds since it joined (`taking_part`);
    C = sum a / sum t is the mean rate. The added ones are a prior of 1 / C rounds with one update:
    a new device has the mean rate. Counts of the current round are not included, so an update does
    not change its own weight.

    1 / rho is convex in a_k, so a device that joined late counts more than others of equal rate,
    on average: with x = C t_k expected updates, E 1/rho = (x + 1) (1 - e^-x) / x for small C. This
    is 1 when it joins, at most 1.3 (after two updates), and 1.1 after ten.
    """

    def __init__(self) -> None:
        self._aggregated: Ints = np.zeros(0, dtype=np.int64)
        self._rounds: Ints = np.zeros(0, dtype=np.int64)
        self._mean = 0.0

    def relative_rates(self, rows: Ints) -> Floats:
        """Return rho_k of rows, shape (K,); all are 1 before the first round."""
        aggregated, rounds = np.zeros(len(rows)), np.zeros(len(rows))
        is_known = rows < len(self._rounds)
        aggregated[is_known] = self._aggregated[rows[is_known]]
        rounds[is_known] = self._rounds[rows[is_known]]
        rho = (aggregated + 1.0) / (self._mean * rounds + 1.0)
        return np.clip(rho, 1.0 / RATIO_CAP, RATIO_CAP)

    def observe(self, updates: Updates) -> None:
        """Count a round that aggregates these updates."""
        n = max(updates.registered, int(updates.rows.max()) + 1)
        self._aggregated, self._rounds = grown(self._aggregated, n), grown(self._rounds, n)
        has_joined = self._rounds > 0
        has_joined[taking_part(updates)] = True
        self._rounds[has_joined] += 1
        self._aggregated[updates.rows] += 1
        self._mean = float(self._aggregated.sum() / self._rounds.sum())

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return {"merged": self._aggregated.tolist(), "rounds": self._rounds.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._aggregated = np.array(state["merged"], dtype=np.int64)
        self._rounds = np.array(state["rounds"], dtype=np.int64)
        rounds = int(self._rounds.sum())
        self._mean = float(self._aggregated.sum() / rounds) if rounds else 0.0


class Weighting:
    """Weights p_k of the updates, up to a common factor: 1, n_k or n_k / pi_k.

    pi_k is the device's running rate of aggregated updates, as `Participation` estimates it.
    Division by it corrects for a selector that prefers some devices.

    Source:
        Inverse probability weights after Horvitz & Thompson (1952), normalised.
    Deviates:
        The bounds of `RATIO_CAP` limit the variance; the correction is incomplete beyond them.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights: Weights = weights
        self._participation = Participation()

    def of(self, rows: Ints, n_k: Ints) -> Floats:
        """Return p_k from rows and example counts, all of shape (K,)."""
        if self._weights == "equal":
            return np.ones(len(rows))
        p: Floats = n_k.astype(np.float64)
        if self._weights == "n_over_pi":
            p /= self._participation.relative_rates(rows)
        return p

    def observe(self, updates: Updates) -> None:
        """Count a round that aggregates these updates; see `Participation.observe`."""
        if self._weights == "n_over_pi":
            self._participation.observe(updates)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return self._participation.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned."""
        self._participation.load_state(state)


def weights_of(p: Floats, rows: Ints) -> Floats:
    """Return p_i / sum_(j in rows) p_j, shape (m,): the mixing weights of one round.

    They are equal if all p_i are 0.
    """
    total = total_of(p[rows])
    return p[rows] / total if total > 0.0 else np.full(len(rows), 1.0 / len(rows))


def joined(p: Floats, devices: int) -> Floats:
    """Return p of K = `devices` devices: 1/K for each new device, and the rest for the others.

    Without any p, all are equal.
    """
    new = np.full(devices - len(p), 1.0 / devices)
    return np.concatenate([p * (len(p) / devices), new])
