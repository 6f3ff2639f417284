"""What a live run did, imposed on a replay: who was asked, when, and what was known of them.

What is left to the replay is how long each exchange takes, which is what it is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Selector
from fairbed.coordinator.store.tables import ExchangeRow, RoundRow
from fairbed.testbed.replay.world.world import Exchanges, LastRound, ReplayedExchange, Scene, World


@dataclass(frozen=True, slots=True)
class ImposedRounds:
    """One round of a live run; columns of the cohort have shape (K,)."""

    rows: Ints
    at_s: float
    """Instant of the dispatch, on the run's clock."""
    is_cold: Sequence[bool]
    """It had not completed training in the round before."""
    was_selected: Sequence[bool]
    """In the round before."""
    mu_cores: Floats
    down_bps: Floats
    """As the device had measured it; NaN is not known, like the next two."""
    up_bps: Floats
    link_age_s: Floats


def imposed_rounds(
    rounds: Sequence[RoundRow], exchanges: Sequence[ExchangeRow], rows: Mapping[str, int]
) -> dict[int, ImposedRounds]:
    """Return what a live run did, by round.

    Args:
        rounds: All closed ones.
        exchanges: Of these.
        rows: Row of each device.
    """
    by_round: dict[int, list[ExchangeRow]] = {row.round: [] for row in rounds}
    for x in exchanges:
        by_round[x.round].append(x)
    return {
        row.round: ImposedRounds(
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
    """Selects whom a live run selected; queues and all else are those of the policy."""

    def __init__(self, policy: Selector, rounds: Mapping[int, ImposedRounds]) -> None:
        self._policy, self._rounds = policy, rounds

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the rows of the round's live cohort, whoever is thought to be there."""
        chosen: Ints = self._rounds[candidates.round].rows.copy()
        return chosen

    def observe(self, outcomes: Outcomes) -> None:
        """Have the policy learn, as it did live."""
        self._policy.observe(outcomes)

    def queues(self, n: int) -> Floats:
        """Return the fairness debt of the policy, shape (n,)."""
        return self._policy.queues(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the policy."""
        return self._policy.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state of the policy."""
        self._policy.load_state(state)


class ImposedMoments:
    """A world whose rounds begin when those of a live run began, with the contexts of then."""

    def __init__(self, world: World, rounds: Mapping[int, ImposedRounds]) -> None:
        self._world, self._rounds = world, rounds
        self.slots = world.slots

    def __len__(self) -> int:
        return len(self._world)

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """What an exchange takes down and up, bits."""
        return self._world.transfer_bits

    def look(self, round_id: int, now: float, last: LastRound) -> Scene:
        """Return the fleet at the live instant of a selection, with what was known then."""
        given = self._rounds[round_id]
        scene = self._world.look(round_id, given.at_s, _last(given, last))
        rows = given.rows
        return replace(
            scene,
            inverse_mu=_set(scene.inverse_mu, rows, 1.0 / given.mu_cores),
            down_bps=_set(scene.down_bps, rows, given.down_bps),
            up_bps=_set(scene.up_bps, rows, given.up_bps),
        )

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return what the cohort does that was asked at the live instant."""
        return self._world.exchange(round_id, self._rounds[round_id].at_s, rows)

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the duration of an upload that is granted so long after the dispatch."""
        return self._world.upload_s(exchange, granted_s)

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Take note of devices that have the model."""
        self._world.on_pulled(exchanges)

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Take note of exchanges that are over."""
        self._world.on_over(exchanges)

    def on_version(self, rows: Ints, versions: Ints, version: int) -> None:
        """Take note of the model version that the next round trains."""
        self._world.on_version(rows, versions, version)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the world."""
        return self._world.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state of the world."""
        self._world.load_state(state)


class Later:
    """A world that begins at an instant of a live run, and pauses between rounds as that did.

    The coordinator merges and publishes between two rounds: no device's time, but the traces go on.

    Args:
        world: The devices.
        start_s: Instant of the first dispatch, on the live run's clock.
        close_s: Between two rounds, seconds.
    """

    def __init__(self, world: World, start_s: float, close_s: float) -> None:
        self._world, self._start_s, self._close_s = world, start_s, close_s
        self.slots = world.slots

    def __len__(self) -> int:
        return len(self._world)

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """What an exchange takes down and up, bits."""
        return self._world.transfer_bits

    def look(self, round_id: int, now: float, last: LastRound) -> Scene:
        """Return the fleet at the selection of a round."""
        return self._world.look(round_id, self._at(round_id, now), last)

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return what the cohort does that is asked now."""
        return self._world.exchange(round_id, self._at(round_id, now), rows)

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the duration of an upload that is granted so long after the dispatch."""
        return self._world.upload_s(exchange, granted_s)

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Take note of devices that have the model."""
        self._world.on_pulled(exchanges)

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Take note of exchanges that are over."""
        self._world.on_over(exchanges)

    def on_version(self, rows: Ints, versions: Ints, version: int) -> None:
        """Take note of the model version that the next round trains."""
        self._world.on_version(rows, versions, version)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the world."""
        return self._world.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state of the world."""
        self._world.load_state(state)

    def _at(self, round_id: int, now: float) -> float:
        return self._start_s + now + self._close_s * (round_id - 1)


def _last(given: ImposedRounds, last: LastRound) -> LastRound:
    """Return who took part in the round before, as the live run had it of its cohort."""
    is_selected, has_trained = last.is_selected.copy(), last.has_trained.copy()
    is_selected[given.rows] = given.was_selected
    has_trained[given.rows] = [not cold for cold in given.is_cold]
    return LastRound(is_selected, has_trained)


def _set(column: Floats, rows: Ints, values: Floats) -> Floats:
    """Return a column with what is known of some rows in its place."""
    known = ~np.isnan(values)
    changed: Floats = column.copy()
    changed[rows[known]] = values[known]
    return changed


def _column(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
