"""The cohorts, instants and contexts of a live run, imposed on a replay.

Only the duration of each exchange is left to the replay: the study measures its error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.store.tables import ExchangeRow, RoundRow
from fairbed.testbed.replay.imposed import ImposedInstants
from fairbed.testbed.replay.world.world import FleetSnapshot, LastRound, World


@dataclass(frozen=True, slots=True)
class LiveRound:
    """One round of a live run; columns of the cohort have shape (K,)."""

    rows: Ints
    at_s: float
    """Instant of the dispatch, on the run's clock."""
    is_cold: Sequence[bool]
    """Whether the device had not completed training in the previous round."""
    was_selected: Sequence[bool]
    """Whether the device was selected in the previous round."""
    mu_cores: Floats
    down_bps: Floats
    """Measured by the device; NaN if unknown, like the next two."""
    up_bps: Floats
    link_age_s: Floats


def live_rounds(
    rounds: Sequence[RoundRow], exchanges: Sequence[ExchangeRow], rows: Mapping[str, int]
) -> dict[int, LiveRound]:
    """Return the rounds of a live run by number.

    Args:
        rounds: All closed rounds.
        exchanges: All exchanges of these rounds.
        rows: Row of each device.
    """
    by_round: dict[int, list[ExchangeRow]] = {row.round: [] for row in rounds}
    for x in exchanges:
        by_round[x.round].append(x)
    return {
        row.round: LiveRound(
            rows=np.array([rows[x.device] for x in by_round[row.round]], dtype=np.int64),
            at_s=row.dispatched_at_s,
            is_cold=[x.s_not_previous == 1 for x in by_round[row.round]],
            was_selected=[x.s_literal_seed == 1 for x in by_round[row.round]],
            mu_cores=_column([x.mu_cores for x in by_round[row.round]]),
            down_bps=_column([x.downlink_bps for x in by_round[row.round]]),
            up_bps=_column([x.uplink_bps for x in by_round[row.round]]),
            link_age_s=_column([x.link_age_s for x in by_round[row.round]]),
        )
        for row in rounds
    }


class LiveTimedWorld(ImposedInstants):
    """A world at instants of a live run's clock, with contexts to impose by round.

    Rounds without imposed contexts have those of the world.
    """

    def __init__(
        self,
        world: World,
        instant_s: Callable[[int, float], float],
        imposed: Mapping[int, LiveRound] | None = None,
    ) -> None:
        super().__init__(world, instant_s)
        self._imposed = imposed or {}

    def observe(self, round_id: int, now: float, last: LastRound) -> FleetSnapshot:
        """Return the fleet at the live instant of a selection, with the imposed contexts."""
        live = self._imposed.get(round_id)
        if live is None:
            return super().observe(round_id, now, last)
        snapshot = super().observe(round_id, now, _with_live_cohort(last, live))
        return replace(
            snapshot,
            inverse_mu=_with_known(snapshot.inverse_mu, live.rows, 1.0 / live.mu_cores),
            down_bps=_with_known(snapshot.down_bps, live.rows, live.down_bps),
            up_bps=_with_known(snapshot.up_bps, live.rows, live.up_bps),
        )


def imposed_world(world: World, rounds: Mapping[int, LiveRound]) -> LiveTimedWorld:
    """Return a world whose rounds have the instants and contexts of a live run."""
    return LiveTimedWorld(world, lambda round_id, _: rounds[round_id].at_s, rounds)


def paused_world(world: World, start_s: float, pause_s: float) -> LiveTimedWorld:
    """Return a world that starts at an instant of a live run and pauses between rounds.

    In the pause the coordinator merges and publishes. No exchange includes it, but traces continue.

    Args:
        world: The devices.
        start_s: Instant of the first dispatch, on the live run's clock.
        pause_s: Pause between two rounds, seconds.
    """
    return LiveTimedWorld(world, lambda round_id, now: start_s + now + pause_s * (round_id - 1))


def _with_live_cohort(last: LastRound, live: LiveRound) -> LastRound:
    """Return the participation in the previous round, for the cohort as in the live run."""
    is_selected, has_trained = last.is_selected.copy(), last.has_trained.copy()
    is_selected[live.rows] = live.was_selected
    has_trained[live.rows] = [not cold for cold in live.is_cold]
    return LastRound(is_selected, has_trained)


def _with_known(column: Floats, rows: Ints, values: Floats) -> Floats:
    """Return a column in which the known values replace those of their rows."""
    known = ~np.isnan(values)
    changed: Floats = column.copy()
    changed[rows[known]] = values[known]
    return changed


def _column(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
