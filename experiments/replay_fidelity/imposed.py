"""The cohorts, instants and contexts of a live run, imposed on a replay.

Only the duration of each exchange is left to the replay: the study measures its error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector
from fairbed.coordinator.store.tables import ExchangeRow, RoundRow
from fairbed.testbed.replay.world.shared_air import Carried
from fairbed.testbed.replay.world.world import (
    Exchanges,
    FleetSnapshot,
    LastRound,
    ReplayedExchange,
    SharingWorld,
    World,
)


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


class ImposedCohorts:
    """Selects the cohorts of a live run; queues and learning are those of the policy."""

    def __init__(self, policy: Selector, rounds: Mapping[int, LiveRound]) -> None:
        self._policy, self._rounds = policy, rounds

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the rows of the round's live cohort, whether available or not."""
        cohort: Ints = self._rounds[candidates.round].rows.copy()
        return cohort

    def observe(self, outcomes: Outcomes) -> None:
        """Pass the outcomes to the policy, as in the live run."""
        self._policy.observe(outcomes)

    def queues(self, n: int) -> Floats:
        """Return the virtual queues of the policy, shape (n,)."""
        return self._policy.queues(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the policy."""
        return self._policy.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state of the policy."""
        self._policy.load_state(state)


class LiveTimedWorld:
    """A world whose rounds take place at instants of a live run's clock.

    Args:
        world: The devices.
        instant_s: Returns the instant on the live run's clock, from the round and the replay's
            clock, seconds.
        imposed: Contexts to impose, by round; rounds without an entry have those of the world.
    """

    def __init__(
        self,
        world: World,
        instant_s: Callable[[int, float], float],
        imposed: Mapping[int, LiveRound] | None = None,
    ) -> None:
        self._world, self._instant_s, self._imposed = world, instant_s, imposed or {}
        self.slots = world.slots
        self.air = world.air if isinstance(world, SharingWorld) else None

    def __len__(self) -> int:
        return len(self._world)

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """Sizes of an exchange down and up, bits."""
        return self._world.transfer_bits

    def observe(self, round_id: int, now: float, last: LastRound) -> FleetSnapshot:
        """Return the fleet at the live instant of a selection, with the imposed contexts."""
        at_s = self._instant_s(round_id, now)
        live = self._imposed.get(round_id)
        if live is None:
            return self._world.observe(round_id, at_s, last)
        snapshot = self._world.observe(round_id, at_s, _with_live_cohort(last, live))
        return replace(
            snapshot,
            inverse_mu=_with_known(snapshot.inverse_mu, live.rows, 1.0 / live.mu_cores),
            down_bps=_with_known(snapshot.down_bps, live.rows, live.down_bps),
            up_bps=_with_known(snapshot.up_bps, live.rows, live.up_bps),
        )

    def available_from_s(self, round_id: int, now: float) -> float:
        """Return an instant on the replay's clock before which no device is available."""
        at_s = self._instant_s(round_id, now)
        return now + self._world.available_from_s(round_id, at_s) - at_s

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return the exchanges of a cohort that is dispatched at the live instant."""
        return self._world.exchange(round_id, self._instant_s(round_id, now), rows)

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the duration of an upload that is granted `granted_s` after the dispatch."""
        return self._world.upload_s(exchange, granted_s)

    def begin_transfer(self, exchange: ReplayedExchange, granted_s: float | None) -> None:
        """Begin a transfer in a cell of the world."""
        assert isinstance(self._world, SharingWorld)
        self._world.begin_transfer(exchange, granted_s)

    def on_carried(self, exchange: ReplayedExchange, carried: Carried) -> None:
        """Set the phases of an exchange whose transfer in a cell has ended."""
        assert isinstance(self._world, SharingWorld)
        self._world.on_carried(exchange, carried)

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Note the devices that have the model."""
        self._world.on_pulled(exchanges)

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Note the exchanges that have ended."""
        self._world.on_over(exchanges)

    def on_version(self, rows: Ints, versions: Ints, version: int) -> None:
        """Note the model version that the next round trains."""
        self._world.on_version(rows, versions, version)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the world."""
        return self._world.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state of the world."""
        self._world.load_state(state)


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
