"""The engine of a replay: the rounds of the live coordinator on a virtual clock.

It drives the script of a round (`coordinator.script.round`): a world models the devices, an event
heap moves the clock, and what trains does so when a round closes.
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
from fairbed.coordinator.policy.selection import Selection
from fairbed.coordinator.ports import Score
from fairbed.coordinator.script.ended import Ended
from fairbed.coordinator.script.round import (
    AwaitChange,
    AwaitDevices,
    Close,
    ClosedRound,
    Collect,
    Dispatch,
    Evaluate,
    GiveUp,
    Merge,
    Observe,
    ObservedFleet,
    QueryLosses,
    Record,
    Release,
    RoundScript,
    ScorePersonal,
    Shown,
    Step,
    TrainCohort,
)
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
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

    closed: ClosedRound
    """The round, as its script closed it."""
    snapshot: FleetSnapshot
    """The fleet at the first selection."""
    started_s: float
    """Start on the virtual clock; a loss query is part of the round."""
    lasted_s: float
    """Duration from the dispatch to the end."""
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
    def choice(self) -> Selection:
        """All selections of the round."""
        return self.closed.selection

    @property
    def table(self) -> Round:
        """Table of the coordinator at the end of the round."""
        return self.closed.table

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
class _OpenRound:
    """The open round."""

    started_s: float
    last: LastRound
    """Participation before the next selection; an exchange that ends in this round changes it."""
    fleet: FleetSnapshot = field(init=False)
    """The fleet at this instant."""
    snapshot: FleetSnapshot = field(init=False)
    """The fleet at the first selection."""
    began: float = 0.0
    """Instant of the first dispatch, on the clock of the table."""
    lasted_s: float = 0.0
    queried: QueriedLosses | None = None
    faults: list[ModelFault] = field(default_factory=list)
    exchanges: Sequence[ReplayedExchange] = ()
    """Those that were dispatched in it."""
    over: Sequence[ReplayedExchange] = ()
    """Those that ended in it."""
    why: Explanation | None = None
    scores: Mapping[str, Score] | None = None


class ReplayEngine:
    """Replays the rounds of an experiment: a driver of `coordinator.script.round`.

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
        self.at = Position.start(len(world))
        self._absent_until_s = 0.0
        """No device is available before this instant."""
        self._in_flight = InFlight(decisions.config, world)
        self._script = RoundScript(
            decisions,
            lambda: self._in_flight.table,
            explains=explains,
            training="never" if cohort is None else "at close",
        )

    def replay(self, rounds: int) -> Iterator[ReplayedRound]:
        """Replay until `rounds` rounds were not empty; yield each round when it is over.

        Raises:
            NoDeviceError: No device is available for more than `MAX_ABSENCE_S`.
        """
        while self.at.round < rounds + self.at.rounds_empty:
            self._check_absence()
            yield self.replay_round(rounds)

    def replay_round(self, rounds: int) -> ReplayedRound:
        """Replay one round, as its script demands.

        Args:
            rounds: The replay ends when so many rounds were not empty.
        """
        self._script.planned = rounds
        self._in_flight.begin_round()
        current = _OpenRound(self._in_flight.now, self.at.last)
        script, answer = self._script.round(), None
        while True:
            try:
                step = script.send(answer)
            except StopIteration as end:
                return self._over(current, end.value)
            answer = self._answer(current, step)

    def _answer(self, current: _OpenRound, step: Step[Any]) -> Any:
        """Let happen what the script demands; return the answer."""
        match step:
            case Observe():
                return self._observe(current)
            case QueryLosses():
                self._query_losses(current, step)
            case Dispatch():
                self._dispatch(current, step)
            case Collect():
                self._in_flight.run_round()
            case AwaitChange(has_places=has_places):
                flight, wait_s = self._in_flight, self.decisions.config.round.void_wait_s
                flight.step(flight.clock + wait_s if has_places else np.inf)
                return ()
            case Release(exchanges=exchanges):
                self._release(current, exchanges)
            case AwaitDevices():
                self._wait_for_devices(current)
            case GiveUp(reason=reason):
                self._in_flight.give_up(reason)
            case TrainCohort():
                self._train_and_merge()
            case Close(closed=closed, successor=successor):
                self._close(current, closed, successor)
            case Merge(closed=closed):
                return Shown(_ended(current.over, closed.table.id), self._in_flight.now)
            case Record(why=why):
                current.why = why
            case ScorePersonal():
                self._trained.score_personal()
            case _:
                assert isinstance(step, Evaluate), "every step has a case"
                current.scores = self._trained.evaluate()
        return None

    @property
    def _trained(self) -> Cohort:
        """What trains; the script of a replay of times has no step for it."""
        assert self.cohort is not None, "nothing is trained"
        return self.cohort

    def _over(self, current: _OpenRound, closed: ClosedRound) -> ReplayedRound:
        """Return a round that is over."""
        return ReplayedRound(
            closed=closed,
            snapshot=current.snapshot,
            started_s=current.started_s,
            lasted_s=current.lasted_s,
            exchanges=current.exchanges,
            outcome=tuple(x.outcome for x in current.exchanges),
            over=current.over,
            scores=current.scores,
            after=self.at,
            queried=current.queried,
            reached_limits=self.decisions.reached_limits,
            context_changes=self.decisions.context_changes,
            faults=(*current.faults, *self._in_flight.take_faults()),
            why=current.why,
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
        self._script.table = self._in_flight.table
        self._script.rounds_empty, self._script.empty_since = empty

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

    def _observe(self, current: _OpenRound) -> ObservedFleet:
        """Return the fleet at this instant; devices in flight are not available."""
        flight = self._in_flight
        flight.notify_world()
        snapshot = self.world.observe(flight.table.id, flight.now, current.last)
        snapshot = self._claims.of(snapshot)
        current.faults += snapshot.faults
        if flight.table.all_exchanges():
            busy = flight.busy(len(self.world))
            snapshot = replace(snapshot, is_available=snapshot.is_available & ~busy)
        current.fleet = snapshot
        return ObservedFleet(
            roster=snapshot,
            now=flight.now,
            transfer_bits=self.world.transfer_bits,
            true_tau_s=snapshot.true_tau_s,
        )

    def _query_losses(self, current: _OpenRound, step: QueryLosses) -> None:
        """Let devices reply; exchanges in flight continue."""
        flight, examples = self._in_flight, current.fleet.examples
        queried = current.queried = query_losses(
            self.decisions.config,
            self.world,
            step.demand,
            step.query,
            examples,
            flight.now,
            self.cohort,
        )
        current.faults += queried.faults
        end = flight.clock + queried.lasted_s
        while flight.step(end):
            pass

    def _dispatch(self, current: _OpenRound, step: Dispatch) -> None:
        """Plan the exchanges of a cohort and begin them."""
        flight, choice = self._in_flight, step.selection
        planned = self.world.exchange(choice.round, flight.now, choice.rows)
        planned = self._claims.with_cold_starts(planned, choice.rows)
        flight.dispatch(planned, choice, current.fleet)
        if not step.selections_before:
            current.snapshot, current.began = current.fleet, flight.clock

    def _release(self, current: _OpenRound, exchanges: Sequence[Exchange]) -> None:
        """Let devices be selected again in this round."""
        self._in_flight.release(x.device for x in exchanges)
        has_trained = current.last.has_trained.copy()
        for x in map(self._in_flight.of, exchanges):
            has_trained[x.row] = x.has_trained
        current.last = replace(current.last, has_trained=has_trained)

    def _wait_for_devices(self, current: _OpenRound) -> None:
        """Wait until a device is available or a late exchange ends, at most for the deadline."""
        flight, rules = self._in_flight, self.decisions.config.round
        if flight.table.is_idle:
            flight.step(flight.clock + rules.void_wait_s)
            return
        ended, end = len(flight.table.ended), flight.clock + rules.deadline_s
        while flight.clock < end and len(flight.table.ended) == ended:
            has_event = flight.step(min(flight.clock + rules.void_wait_s, end))
            if not has_event:
                self._observe(current)
                if current.fleet.is_available.any():
                    return

    def _train_and_merge(self) -> None:
        """Train the devices that completed local training; merge the updates that arrived."""
        table = self._in_flight.table
        trained = [x for x in self._in_flight.over if x.has_trained]
        trained.sort(key=lambda x: (x.round, x.row))
        groups = [list(group) for _, group in groupby(trained, key=lambda x: x.round)]
        needed = {entry.version for entry in table.all_exchanges() if not entry.is_over}
        batches = [_version_batch(group) for group in groups]
        reports = self._trained.train(table.id, table.version, batches, needed)
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

    def _close(self, current: _OpenRound, closed: ClosedRound, successor: Round) -> None:
        """Open the next table with the exchanges in flight, and note its participants."""
        flight, world = self._in_flight, self.world
        current.exchanges, current.over = flight.dispatched, list(map(flight.of, closed.ended))
        current.lasted_s = flight.clock - current.began
        self._claims.on_over(current.over)
        flight.notify_world()
        trained = [x for x in current.over if x.has_trained]
        rows = np.array([x.row for x in trained], dtype=np.int64)
        versions = np.array([x.entry.version for x in trained], dtype=np.int64)
        world.on_version(rows, versions, successor.version)
        flight.open(successor, current.over)
        last = LastRound.before_first(len(world))
        last.is_selected[closed.selection.rows] = True
        last.has_trained[rows] = True
        empty_since_s = self._script.empty_since
        self.at = Position(closed.table.id, flight.now, last, closed.rounds_empty, empty_since_s)


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


def _ended(over: Sequence[ReplayedExchange], round_id: int) -> Ended:
    """Return the exchanges that ended in a round, as columns.

    The phases before an offer are also seen of an exchange that did not end.
    """
    is_done = flags(over, "is_done")
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
    context = np.full((len(over), CONTEXT), np.nan)
    for at, x in enumerate(over):
        if x.round != round_id:
            context[at] = x.context
    states, tau_s = [x.entry.state for x in over], column(over, "tau_s")
    is_lost = np.array([state is ExchangeState.LOST for state in states], dtype=np.bool_)
    return Ended(
        rows=np.array([x.row for x in over], dtype=np.int64),
        states=states,
        is_late=np.array([x.entry.is_late for x in over], dtype=np.bool_),
        is_trusted=np.array([not x.fault for x in over], dtype=np.bool_),
        tau_s=tau_s,
        phases_s=np.where(is_seen, phases_s, np.nan),
        at_least_s=np.array([x.entry.at_least_s for x in over], dtype=np.float64),
        wasted_s=np.where(is_lost, np.nan, tau_s),
        loss=column(over, "loss"),
        was_cold=flags(over, "was_cold"),
        context=context,
    )
