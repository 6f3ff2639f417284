"""False contexts in a replay: the values that `lying-context` devices report."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.state.registry import LINK_BOUNDS_BPS, MU_BOUNDS
from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.replay.world.world import Exchanges, FleetSnapshot


class Claims:
    """Replaces reported values; true values and durations stay as they are.

    Args:
        attacks: Behaviour of each malicious device, by its row.
    """

    def __init__(self, attacks: Mapping[int, Attack]) -> None:
        liars = {row: a for row, a in attacks.items() if a.kind == "lying-context"}
        self._rows: Ints = np.array(sorted(liars), dtype=np.int64)
        self._speed: Floats = np.array([liars[row].speed for row in sorted(liars)])
        cold = sorted(row for row, attack in liars.items() if attack.claims_cold)
        self._cold_rows: Ints = np.array(cold, dtype=np.int64)

    def of(self, snapshot: FleetSnapshot) -> FleetSnapshot:
        """Return the fleet as the coordinator sees it: clamped, as it clamps contexts.

        mu and the link rates times the claimed speed
        """
        if not self._rows.size:
            return snapshot
        rows, speed = self._rows, self._speed
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
        if not self._cold_rows.size:
            return exchanges
        claims: Bools = np.isin(rows, self._cold_rows)
        return replace(exchanges, was_cold=exchanges.was_cold | claims)
