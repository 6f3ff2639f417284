"""False contexts in a replay: the values that `lying-context` devices report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.state.registry import LINK_BOUNDS_BPS, MU_BOUNDS
from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.replay.world.world import Exchanges, FleetSnapshot, ReplayedExchange


class Claims:
    """Replaces reported values; true values and durations stay as they are.

    Args:
        attacks: Behaviour of each malicious device, by its row.
    """

    def __init__(self, attacks: Mapping[int, Attack]) -> None:
        liars = {row: attacks[row] for row in sorted(attacks)}
        liars = {row: one for row, one in liars.items() if one.kind == "lying-context"}
        self._rows: Ints = np.array(list(liars), dtype=np.int64)
        self._speed: Floats = np.array([one.speed for one in liars.values()])
        self._claims_cold: Bools = np.array([one.claims_cold for one in liars.values()], dtype=bool)
        self._honest_for: Ints = np.array(
            [one.honest_exchanges for one in liars.values()], dtype=np.int64
        )
        """Exchanges in which each of them trains before it lies."""

    def of(self, snapshot: FleetSnapshot) -> FleetSnapshot:
        """Return the fleet as the coordinator sees it: clamped, as it clamps contexts.

        mu and the link rates times the claimed speed
        """
        lies = self._honest_for <= 0
        if not lies.any():
            return snapshot
        rows, speed = self._rows[lies], self._speed[lies]
        inverse_mu, down_bps = snapshot.inverse_mu.copy(), snapshot.down_bps.copy()
        up_bps = snapshot.up_bps.copy()
        inverse_mu[rows] = 1.0 / np.clip(speed / inverse_mu[rows], *MU_BOUNDS)
        for bps in (down_bps, up_bps):
            is_measured = np.isfinite(bps[rows])
            claimed = np.clip(bps[rows] * speed, *LINK_BOUNDS_BPS)
            bps[rows] = np.where(is_measured, claimed, bps[rows])
        return replace(snapshot, inverse_mu=inverse_mu, down_bps=down_bps, up_bps=up_bps)

    def with_cold_starts(self, exchanges: Exchanges, rows: Ints) -> Exchanges:
        """Return planned exchanges of `rows`, shape (K,), with the claimed cold starts."""
        cold = self._rows[self._claims_cold & (self._honest_for <= 0)]
        if not cold.size:
            return exchanges
        return replace(exchanges, was_cold=exchanges.was_cold | np.isin(rows, cold))

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Count the exchanges in which a device has trained."""
        if self._rows.size:
            trained = np.array([x.row for x in exchanges if x.has_trained], dtype=np.int64)
            self._honest_for -= np.isin(self._rows, trained)

    def to_state(self) -> Any:
        """Return the state for a checkpoint: how long each liar is still honest."""
        return self._honest_for.tolist()

    def load_state(self, state: Any) -> None:
        """Restore a state that `to_state` returned."""
        self._honest_for = np.array(state, dtype=np.int64)
