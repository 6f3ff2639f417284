"""The engine of a replay: the rounds of the live coordinator on a virtual clock.

It drives the decisions and the table of the live coordinator; a world models the devices. Rounds
are synchronous or asynchronous, and exchanges that miss the deadline are dropped or continue: one
loop runs all of them, and they differ in the exchanges that outlive a round in the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints, Vector
from fairbed.coordinator.algorithms.estimation.base import CONTEXT
from fairbed.coordinator.algorithms.estimation.context_check import ContextChange
from fairbed.coordinator.algorithms.selection.explanation import Explanation
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.policy.selection import Observations, Selection, SelectionBuilder
from fairbed.coordinator.ports import Score
from fairbed.coordinator.state.exchange import ExchangeState
from fairbed.coordinator.state.round import Round
from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.errors import NoDeviceError
from fairbed.testbed.replay.engine.claims import Claims
from fairbed.testbed.replay.engine.in_flight import InFlight
from fairbed.testbed.replay.engine.loss_query import QueriedLosses, query_losses
from fairbed.testbed.replay.engine.training import Cohort, VersionBatch
from fairbed.testbed.replay.world.world import (
    FleetSnapshot,
    LastRound,
    ModelFault,
    ReplayedExchange,
    World,
)
from fairbed.wire.messages import COMPUTE_PHASES

OVER = "the run is over"
"""Why the last round ends the exchanges that are still open."""

MAX_ABSENCE_S = 7 * 86_400.0
"""Longest time without an available device, on the virtual clock. Habits of owners repeat after a
day or a week; a longer absence is taken for a mistake in the experiment."""

DIVERGED = "training diverged; lower learning_rate or set clip_norm"
"""Why an exchange has failed."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a replay between two rounds."""

    round: int
    """The last round that is over; 0 before the first."""
    now: float
    """Seconds on the virtual clock."""
    last: LastRound
    rounds_empty: int = 0
    """Empty rounds so far: no device was selected or queried, and no update arrived."""
    empty_since_s: float | None = None
    """Start of the stretch of empty rounds that is not over; None outside one."""

    @classmethod
    def start(cls, n: int) -> "Position":
        """Return the position before the first round, for `n` devices."""
        return cls(0, 0.0, LastRound.before_first(n))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRound:
    """One round that is over, after its observations were learned."""

    choice: Selection
    """All selections of the round."""
    snapshot: FleetSnapshot
    """The fleet at the first selection."""
    started_s: float
    """Start on the virtual clock; a loss query is part of the round."""
    lasted_s: float
    """Duration from the dispatch to the end."""
    table: Round
    """Table of the coordinator at the end of the round."""
    exchanges: Sequence[ReplayedExchange]
    """Exchanges dispatched in this round, in the order of `choice`; open ones still change."""
    outcome: tuple[str, ...]
    """Outcome of each exchange at the end of the round: done, late, lost, cancelled or failed."""
    over: Sequence[ReplayedExchange]
    """Exchanges that ended in this round, dispatched in it or before."""
    scores: Mapping[str, Score] | None
    """Scores of the model after the round; None if it was not evaluated."""
    after: Position
    queried: QueriedLosses | None = None
    """Result of the loss query; None if the selector needs none."""
    reached_limits: Sequence[tuple[int, str]]
    """Rows of devices that have reached a miss limit for the first time, and their events."""
    context_changes: Sequence[ContextChange] = ()
    """Claims that the context check began or ceased to replace."""
    faults: Sequence[ModelFault] = ()
    """Internal errors in models of devices."""
    why: Explanation | None = None
    """Why the devices were selected, or not; None: it was not asked for."""

    @property
    def query_s(self) -> float:
        """Duration of the loss query."""
        return 0.0 if self.queried is None else self.queried.lasted_s

    @property
    def query_bytes(self) -> int:
        """Model bytes that the loss query sent to the devices that replied."""
        return 0 if self.queried is None else self.queried.bytes_down

    @property
    def dispatched_s(self) -> float:
        """Instant of the first dispatch."""
        return self.started_s + self.query_s

    @property
    def duration_s(self) -> float:
        """Duration of the round."""
        return self.query_s + self.lasted_s

    @property
    def merged(self) -> Ints:
        """Rows of the devices whose updates entered the model."""
        return np.array([x.row for x in self.over if x.is_done], dtype=np.int64)

    @property
    def participants(self) -> Ints:
        """Rows of the devices that were selected, or whose updates entered the model."""
        return np.union1d(self.choice.rows, self.merged)

    @property
    def tau_s(self) -> Floats:
        """Exchange times of this round, also for updates that did not arrive; (K,)."""
        return column(self.exchanges, "tau_s")


def column(exchanges: Sequence[ReplayedExchange], name: str) -> Floats:
    """Return a number of each exchange, shape (K,)."""
    return np.array([getattr(x, name) for x in exchanges], dtype=np.float64)


def flags(exchanges: Sequence[ReplayedExchange], name: str) -> Bools:
    """Return a boolean of each exchange, shape (K,)."""
    return np.array([getattr(x, name) for x in exchanges], dtype=np.bool_)


@dataclass(slots=True)
class ReplayContext:
    """The open round."""

    id: int
    started_s: float
    last: LastRound
    """Participation before the next selection; an exchange that ends in this round changes it."""
    snapshot: FleetSnapshot = field(init=False)
    selections: SelectionBuilder = field(init=False)
    queried: QueriedLosses | None = None
    faults: list[ModelFault] = field(default_factory=list)


class ReplayEngine:
    """Replays the rounds of an experiment.

    Args:
        decisions: Decisions of the coordinator, which learn; their configuration ends rounds.
        world: The devices.
        cohort: Trains the devices; None replays times only.
        attacks: Behaviour of each malicious device, by its row.
        explains: Rounds have the reasons of their selections.
    """

    def __init__(
        self,
        decisions: Decisions,
        world: World,
        *,
        cohort: Cohort | None = None,
        attacks: Mapping[int, Attack] | None = None,
        explains: bool = False,
    ) -> None:
        self.decisions, self.world, self.cohort = decisions, world, cohort
        self._claims = Claims(attacks or {})
        self._explains = explains
        self.at = Position.start(len(world))
        self._absent_until_s = 0.0
        """No device is available before this instant."""
        self._in_flight = InFlight(decisions.config, world)

    def replay(self, rounds: int) -> Iterator[ReplayedRound]:
        """Replay until `rounds` rounds were not empty; yield each round when it is over.

        Raises:
            NoDeviceError: No device is available for more than `MAX_ABSENCE_S`.
        """
        while self.at.round < rounds + self.at.rounds_empty:
            self._check_absence()
            yield self.replay_round(rounds)

    def replay_round(self, rounds: int) -> ReplayedRound:
        """Replay one round: select, dispatch, run events, train and merge, learn.

        Args:
            rounds: The replay ends when so many rounds were not empty.
        """
        flight = self._in_flight
        flight.begin_round()
        current = ReplayContext(flight.table.id, flight.now, self.at.last)
        current.snapshot = self._observe(current)
        self._query_losses(current)
        self._select(current, current.snapshot)
        began = flight.clock
        self._run_events(current)
        is_last = current.id - self.at.rounds_empty == rounds and not self._is_empty(current)
        if is_last:
            flight.give_up(OVER)
        over, own = flight.over, flight.dispatched
        self._train_and_merge(over, is_last)
        self._claims.on_over(over)
        flight.notify_world()
        choice = current.selections.build()
        why = self.decisions.explain(choice) if self._explains else None
        self.decisions.learn(choice, _observations(over, current.id))
        table, is_empty = flight.table, self._is_empty(current)
        last, before = self._hand_over(choice, over), self.at
        rounds_empty, since_s = before.rounds_empty + is_empty, None
        if is_empty:
            since_s = before.now if before.empty_since_s is None else before.empty_since_s
        self.at = Position(current.id, flight.now, last, rounds_empty, since_s)
        scores = None
        if self.cohort is not None:
            scores = self.cohort.evaluate(current.id, is_last=is_last)
        return ReplayedRound(
            choice=choice,
            snapshot=current.snapshot,
            started_s=current.started_s,
            lasted_s=flight.clock - began,
            table=table,
            exchanges=own,
            outcome=tuple(x.outcome for x in own),
            over=over,
            scores=scores,
            after=self.at,
            queried=current.queried,
            reached_limits=self.decisions.reached_limits,
            context_changes=self.decisions.context_changes,
            faults=(*current.faults, *flight.take_faults()),
            why=why,
        )

    def to_state(self) -> dict[str, Any]:
        """Return the state between two rounds without the vector of the model."""
        last = self.at.last
        return {
            "decisions": self.decisions.to_state(),
            "world": self.world.to_state(),
            "cohort": {} if self.cohort is None else self.cohort.to_state(),
            "now": self.at.now,
            "rounds_empty": self.at.rounds_empty,
            "empty_since": self.at.empty_since_s,
            "is_selected": last.is_selected.tobytes(),
            "has_trained": last.has_trained.tobytes(),
            "in_flight": self._in_flight.to_state(),
            "claims": self._claims.to_state(),
        }

    def load_state(self, round_id: int, vector: Vector, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned.

        Args:
            round_id: The last round that was over.
            vector: The model after it, shape (n_values,); empty without training.
            state: The state.
        """
        self.decisions.load_state(state["decisions"])
        self.world.load_state(state["world"])
        if self.cohort is not None:
            self.cohort.load_state(vector, state["cohort"])
        last = LastRound(_bools(state["is_selected"]), _bools(state["has_trained"]))
        empty = state["rounds_empty"], state["empty_since"]
        self.at = Position(round_id, state["now"], last, *empty)
        self._in_flight.load_state(state["in_flight"], self.at.now)
        self._claims.load_state(state["claims"])

    def _is_empty(self, current: ReplayContext) -> bool:
        """Return whether no device was selected or queried, and no update has arrived."""
        flight, queried = self._in_flight, current.queried
        has_queried = queried is not None and len(queried.rows) > 0
        return not flight.dispatched and not has_queried and not any(x.is_done for x in flight.over)

    def _check_absence(self) -> None:
        """Refuse to wait for a device for too long.

        Raises:
            NoDeviceError: The stretch of empty rounds would be longer than `MAX_ABSENCE_S`.
        """
        now, since_s, last = self.at.now, self.at.empty_since_s, self.at.round
        if since_s is None or now < self._absent_until_s:
            return
        until_s = self._absent_until_s = self.world.available_from_s(last, now)
        if until_s - since_s <= MAX_ABSENCE_S:
            return
        until = "on" if until_s == np.inf else f"to {until_s:,.0f} s"
        raise NoDeviceError(
            f"fleet: a device must be available within {MAX_ABSENCE_S / 86_400.0:g} days of "
            f"virtual time, got none from {since_s:,.0f} s {until} (after round {last}); see "
            "available_hours, availability and outage of [[fleet]], its profiles and its links"
        )

    def _observe(self, current: ReplayContext) -> FleetSnapshot:
        """Return the fleet at this instant; devices in flight are not available."""
        flight = self._in_flight
        flight.notify_world()
        snapshot = self._claims.of(self.world.observe(current.id, flight.now, current.last))
        current.faults += snapshot.faults
        if not flight.table.all_exchanges():
            return snapshot
        busy = flight.busy(len(self.world))
        return replace(snapshot, is_available=snapshot.is_available & ~busy)

    def _query_losses(self, current: ReplayContext) -> None:
        """Query losses if the selector needs them; exchanges in flight continue."""
        flight = self._in_flight
        current.queried = query_losses(
            self.decisions, self.world, current.snapshot, current.id, flight.now, self.cohort
        )
        if current.queried is not None:
            current.faults += current.queried.faults
            end = flight.clock + current.queried.lasted_s
            while flight.step(end):
                pass
            current.snapshot = self._observe(current)

    def _select(self, current: ReplayContext, snapshot: FleetSnapshot, number: int = 0) -> None:
        """Select and dispatch devices: a whole cohort, or as many as there are free places."""
        decisions, flight, world = self.decisions, self._in_flight, self.world
        config = decisions.config
        free = config.cohort_size - flight.table.open_count if config.round.is_buffered else None
        choice = decisions.select(
            current.id,
            snapshot,
            world.transfer_bits,
            flight.now,
            true_tau_s=snapshot.true_tau_s,
            losses=None if current.queried is None else current.queried.losses,
            count=free,
            selections_before=number,
        )
        planned = world.exchange(current.id, flight.now, choice.rows)
        planned = self._claims.with_cold_starts(planned, choice.rows)
        flight.dispatch(planned, choice, snapshot)
        if number:
            current.selections.add(choice)
        else:
            current.selections = SelectionBuilder(choice)

    def _run_events(self, current: ReplayContext) -> None:
        """Run events until the round is over; an asynchronous round also dispatches."""
        flight, void_wait_s = self._in_flight, self.decisions.config.round.void_wait_s
        if self.decisions.config.round.is_buffered:
            flight.table.begin(flight.clock)
            selections = 0
            while not flight.table.is_over:
                selections += self._dispatch_more(current, selections + 1)
            if flight.table.is_void:
                flight.step(flight.clock + void_wait_s)
        elif flight.table.exchanges:
            flight.run_round()
        else:
            self._wait_for_devices(current)

    def _dispatch_more(self, current: ReplayContext, number: int) -> bool:
        """Run one event, then dispatch devices to the free places; return whether it did.

        With free places it checks for devices every `void_wait_s`, whether or not events occur.
        """
        config, flight = self.decisions.config, self._in_flight
        has_places = flight.table.open_count < config.cohort_size
        flight.step(flight.clock + config.round.void_wait_s if has_places else np.inf)
        if flight.table.is_over:
            return False
        self._release(current)
        if flight.table.open_count >= config.cohort_size:
            return False
        snapshot = self._observe(current)
        if not snapshot.is_available.any():
            return False
        self._select(current, snapshot, number)
        return True

    def _release(self, current: ReplayContext) -> None:
        for x in self._in_flight.release():
            has_trained = current.last.has_trained.copy()
            has_trained[x.row] = x.has_trained
            current.last = replace(current.last, has_trained=has_trained)

    def _wait_for_devices(self, current: ReplayContext) -> None:
        """Wait until a device is available or a late exchange ends, at most for the deadline."""
        flight, rules = self._in_flight, self.decisions.config.round
        if flight.table.is_idle:
            flight.step(flight.clock + rules.void_wait_s)
            return
        ended, end = len(flight.table.ended), flight.clock + rules.deadline_s
        while flight.clock < end and len(flight.table.ended) == ended:
            has_event = flight.step(min(flight.clock + rules.void_wait_s, end))
            if not has_event and self._observe(current).is_available.any():
                return

    def _train_and_merge(self, over: Sequence[ReplayedExchange], is_last: bool) -> None:
        """Train the devices that completed local training; merge the updates that arrived."""
        if self.cohort is None:
            return
        table = self._in_flight.table
        trained = sorted((x for x in over if x.has_trained), key=lambda x: (x.round, x.row))
        groups = [list(group) for _, group in groupby(trained, key=lambda x: x.round)]
        needed = {entry.version for entry in table.all_exchanges() if not entry.is_over}
        batches = [_version_batch(group) for group in groups]
        reports = self.cohort.train(table.id, table.version, batches, needed, is_last=is_last)
        for group, learned in zip(groups, reports, strict=True):
            losses, failed = learned.losses.tolist(), learned.has_failed.tolist()
            for x, loss, has_failed, rejection, merged in zip(
                group, losses, failed, learned.rejections, learned.merged, strict=True
            ):
                entry, x.loss = x.entry, loss
                entry.measured.update(merged)
                if has_failed:
                    entry.state, entry.reason, entry.offer = ExchangeState.FAILED, DIVERGED, None
                elif rejection:
                    entry.state, entry.reason = ExchangeState.REJECTED, rejection
                if has_failed or rejection:
                    entry.staleness = entry.aggregated_round = None

    def _hand_over(self, choice: Selection, over: Sequence[ReplayedExchange]) -> LastRound:
        """Open the next table with the exchanges in flight; return participation in this round."""
        table = self._in_flight.table
        trained = [x for x in over if x.has_trained]
        rows = np.array([x.row for x in trained], dtype=np.int64)
        versions = np.array([x.entry.version for x in trained], dtype=np.int64)
        version = table.version + any(x.is_done for x in over)
        self.world.on_version(rows, versions, version)
        self._in_flight.open_next_table(over, version)
        last = LastRound.before_first(len(self.world))
        last.is_selected[choice.rows] = True
        last.has_trained[rows] = True
        return last


def _bools(data: bytes) -> Bools:
    column: Bools = np.frombuffer(data, dtype=np.bool_).copy()
    return column


def _version_batch(group: Sequence[ReplayedExchange]) -> VersionBatch:
    """Return exchanges of one round, which have one model version, as a batch."""
    return VersionBatch(
        round=group[0].round,
        version=group[0].entry.version,
        rows=np.array([x.row for x in group], dtype=np.int64),
        n_k=np.array([x.n_k for x in group], dtype=np.int64),
        is_merged=flags(group, "is_done"),
    )


def _observations(over: Sequence[ReplayedExchange], round_id: int) -> Observations:
    """Return the observations of a round: times of updates that arrived, and bounds of others.

    The phases before an offer are also seen of an exchange that did not end.
    """
    k, is_done = len(over), flags(over, "is_done")
    compute_s = reduce(np.add, [column(over, f"{phase}_s") for phase in COMPUTE_PHASES])
    phases_s = np.stack(
        [
            column(over, "download_s"),
            column(over, "load_s"),
            compute_s,
            column(over, "upload_s"),
            column(over, "signal_s"),
        ],
        axis=1,
    )
    has_offered = is_done | flags(over, "has_trained")
    is_seen = np.stack([has_offered, has_offered, has_offered, is_done, is_done], axis=1)
    refused = ExchangeState.FAILED, ExchangeState.REJECTED
    is_wasted = np.array([x.entry.state in refused and not x.fault for x in over], dtype=np.bool_)
    context = np.full((k, CONTEXT), np.nan)
    for at, x in enumerate(over):
        if x.round != round_id:
            context[at] = x.context
    return Observations(
        rows=np.array([x.row for x in over], dtype=np.int64),
        tau_s=np.where(is_done, column(over, "tau_s"), np.nan),
        phases_s=np.where(is_seen, phases_s, np.nan),
        is_aggregated=is_done,
        timed_out=np.array([x.entry.state is ExchangeState.LATE for x in over], dtype=np.bool_),
        loss=column(over, "loss"),
        at_least_s=np.array([_at_least_s(x) for x in over], dtype=np.float64),
        context=context,
        was_cold=flags(over, "was_cold"),
        wasted_s=np.where(is_wasted, column(over, "tau_s"), np.nan),
    )


def _at_least_s(x: ReplayedExchange) -> float:
    """Return the lower bound of a cancelled exchange's time; NaN if there is none."""
    entry = x.entry
    is_bound = entry.state is ExchangeState.CANCELLED or (
        entry.state is ExchangeState.LATE and entry.is_late
    )
    return np.nan if not is_bound or entry.at_least_s is None else entry.at_least_s
