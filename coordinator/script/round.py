"""The script of a round: what must happen, in which order, and what is decided between. Pure.

`RoundScript.round` is a generator. It yields a step, its driver lets that happen and answers with
what did, until the round is over. The live driver (`rounds.loop`) sends messages and waits for
devices; that of a replay (`testbed.replay.engine`) runs an event heap. An answer is about the whole
cohort, as columns, and never about one device.

    Observe                  the fleet at this instant
    QueryLosses, Observe     only for a selector that needs losses
    Prepare                  only for an application that makes its messages for the cohort
    Dispatch                 the cohort
    Collect                  until the round is over
      or AwaitDevices        a round without a cohort
      or AwaitChange, Release, Observe, Dispatch, ...   an asynchronous round
    GiveUp                   only in the last round: what is still open
    TrainCohort              only where nothing was trained until now
    Close                    the next table is open
    Merge                    the next version, and what the exchanges have shown
    Record, ScorePersonal, Evaluate

Between two steps nothing waits. An `Instant` is answered at once: its driver handles it in a plain
function. So no event is lost between a table that closes and the next one.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.algorithms.selection.base import Reason
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.selection import (
    LossDemand,
    Observations,
    ReportedLosses,
    Roster,
    Selection,
    SelectionBuilder,
)
from fairbed.coordinator.script.ended import Ended
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.round import Round

if TYPE_CHECKING:
    from fairbed.coordinator.algorithms.selection.explanation import Explanation
    from fairbed.coordinator.state.loss_query import LossQuery

OVER = "the run is over"
"""Why the last round ends the exchanges that are still open."""

A_co = TypeVar("A_co", covariant=True)


class Strategy(Protocol):
    """What decides; `policy.decisions.Decisions`, or that of an application."""

    config: CoordinatorConfig

    @property
    def queries_losses(self) -> bool:
        """Return whether a selection needs losses that devices report before it."""
        ...

    def reconfigure(self, config: CoordinatorConfig) -> None:
        """Continue under another configuration, between two rounds."""
        ...

    def loss_demand(
        self,
        round_id: int,
        roster: Roster,
        transfer_bits: tuple[float | Floats, float | Floats],
        now: float,
        true_tau_s: Floats | None = None,
    ) -> LossDemand | None:
        """Return the devices whose loss `select` needs."""
        ...

    def learn_replies(self, round_id: int, losses: ReportedLosses) -> None:
        """Learn which devices answered a loss query."""
        ...

    def select(
        self,
        round_id: int,
        roster: Roster,
        transfer_bits: tuple[float | Floats, float | Floats],
        now: float,
        true_tau_s: Floats | None = None,
        losses: ReportedLosses | None = None,
        *,
        count: int | None = None,
        selections_before: int = 0,
    ) -> Selection:
        """Return the cohort of a round."""
        ...

    def explain(self, selection: Selection) -> "Explanation":
        """Return why each device is in the cohort, or not."""
        ...

    def learn(self, selection: Selection, observed: Observations, left: Sequence[int] = ()) -> None:
        """Learn from the exchanges that ended in a round."""
        ...


class Step(Generic[A_co]):
    """What must happen next; the driver answers with an `A_co`."""

    __slots__ = ()

    def __iter__(self) -> Generator["Step[Any]", Any, A_co]:
        answer: A_co = yield self
        return answer


class Instant(Step[A_co]):
    """A step that takes no time, and must not be waited for."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFleet:
    """A fleet at one instant."""

    roster: Roster
    now: float
    """On the clock of the table, seconds."""
    transfer_bits: tuple[float | Floats, float | Floats]
    """Sizes of an exchange down and up, bits, each (N,) or one for all."""
    true_tau_s: Floats | None = None
    """True expected exchange times, seconds, shape (N,), where a simulated world gives them."""
    absences: Callable[[Bools], Mapping[int, Reason]] | None = None
    """Returns why devices are not available, by row; None where that is not known."""


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A round whose table accepts no further event."""

    table: Round
    selection: Selection
    """All selections of the round."""
    started: float
    """Start of the round's duration, on the clock of the table: the dispatch."""
    query: "LossQuery | None"
    """The loss query before the selection; None without one."""
    ended: Sequence[Exchange]
    """Exchanges that ended in this round, dispatched in it or earlier, in the order of dispatch."""
    merged: set[str]
    """Devices whose update enters the next model."""
    rounds_empty: int
    """Empty rounds up to this one."""
    is_empty: bool
    """No device was selected or queried, and no update arrived."""
    is_repeated: bool
    """It is empty, and so was the round before."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the exchanges that ended in a round have shown."""

    ended: Ended
    closed_at: float
    """End of the round, when the next version was published, on the clock of the table."""
    left: Sequence[int] = ()
    """Rows of the devices that have left the fleet."""


@dataclass(frozen=True, slots=True)
class Observe(Instant[ObservedFleet]):
    """Look at the fleet."""


@dataclass(frozen=True, slots=True)
class QueryLosses(Step[None]):
    """Ask devices for their losses until each has an outcome in `query`."""

    demand: LossDemand
    query: "LossQuery"
    """Empty."""


@dataclass(frozen=True, slots=True)
class Dispatch(Instant[None]):
    """Begin the exchanges of a selection in the open table."""

    selection: Selection
    selections_before: int
    """Earlier selections of this round; 0: it begins now."""
    query: "LossQuery | None"


@dataclass(frozen=True, slots=True)
class Prepare(Step[None]):
    """Make what a cohort is sent, before its exchanges begin: only with `prepares`."""

    selection: Selection


@dataclass(frozen=True, slots=True)
class Collect(Step[None]):
    """Pass events to the open table until it is over."""


@dataclass(frozen=True, slots=True)
class AwaitChange(Step[Collection[str]]):
    """Pass events to the open table until it changes; the answer: updates still in memory.

    With free places for at most `void_wait_s`, since devices may have become available.
    """

    has_places: bool


@dataclass(frozen=True, slots=True)
class AwaitDevices(Step[None]):
    """Wait until the availability of devices changes, or a late exchange ends.

    At most for `void_wait_s` if no exchange is open, otherwise for `deadline_s`.
    """


@dataclass(frozen=True, slots=True)
class Release(Instant[None]):
    """Devices may be selected again: they ended on an earlier version."""

    exchanges: Sequence[Exchange]


@dataclass(frozen=True, slots=True)
class GiveUp(Instant[None]):
    """End every exchange of the open table."""

    reason: str


@dataclass(frozen=True, slots=True)
class TrainCohort(Step[None]):
    """Train what the exchanges of a replay stand for, and merge it; some may fail now."""


@dataclass(frozen=True, slots=True)
class Close(Instant[None]):
    """Make `successor` the receiver of all events."""

    closed: ClosedRound
    successor: Round


@dataclass(frozen=True, slots=True)
class Merge(Step[Shown]):
    """Finish the merge and publish the next version."""

    closed: ClosedRound


@dataclass(frozen=True, slots=True)
class Record(Step[None]):
    """Write the rows and the checkpoint of a round, after it was learned."""

    closed: ClosedRound
    shown: Shown
    why: "Explanation | None"
    """Why the devices were selected, or not; None: it was not asked for."""


@dataclass(frozen=True, slots=True)
class ScorePersonal(Step[None]):
    """Get the scores of the personal models."""

    closed: ClosedRound


@dataclass(frozen=True, slots=True)
class Evaluate(Step[None]):
    """Evaluate the model: last, because no duration may include it."""

    closed: ClosedRound
    is_last: bool


class RoundScript:
    """The rounds of one run.

    Args:
        strategy: Decides.
        open_first: Opens the table of the first round of this process.
        explains: Rounds have the reasons of their selections.
        training: When the exchanges of a round are trained: by the devices meanwhile, all when it
            closes, or never, so that there is no model.
        prepares: The driver makes what a cohort is sent after its selection, and may wait for it.
    """

    def __init__(
        self,
        strategy: Strategy,
        open_first: Callable[[], Round],
        *,
        explains: bool = True,
        training: Literal["meanwhile", "at close", "never"] = "meanwhile",
        prepares: bool = False,
    ) -> None:
        self._strategy, self._open_first = strategy, open_first
        self._explains, self._training = explains, training
        self._prepares = prepares
        self.table: Round | None = None
        """The table of the open or the next round, which accepts events already; None before the
        first one of this process."""
        self.next_config: CoordinatorConfig | None = None
        """Replaces the configuration when the next round begins."""
        self.last_round: int | None = None
        """The run ends after this round, whatever was planned."""
        self.planned: int | None = None
        """The run ends when so many rounds were not empty; None: as configured."""
        self.rounds_empty = 0
        """Empty rounds so far: no device was selected or queried, and no update arrived."""
        self.empty_since: float | None = None
        """Start of the stretch of empty rounds that is not over; None outside one."""
        self._closed_at: float | None = None
        """When the last round of this process ended; None before."""

    @property
    def end_of_run(self) -> int:
        """The last round, if no further one is empty."""
        if self.last_round is not None:
            return self.last_round
        planned = self._strategy.config.rounds if self.planned is None else self.planned
        return planned + self.rounds_empty

    def round(self) -> Generator[Step[Any], Any, ClosedRound]:
        """Play one round: select, dispatch, collect, merge, learn, record, evaluate.

        Synchronous: collecting ends when every device of the cohort has finished, has failed or
        has missed the deadline. With late updates, an exchange that misses the deadline stays
        open, and a later round merges it. Asynchronous: collecting also dispatches a replacement
        whenever a device finishes, and ends after `round.buffer` updates of any version.
        """
        strategy = self._strategy
        table = self._begin()
        fleet = yield from Observe()
        begun, query, losses = fleet.now, None, None
        if strategy.queries_losses:
            query, losses = yield from self._query_losses(table, fleet)
            fleet = yield from Observe()
        selections = SelectionBuilder((yield from self._select(table, fleet, 0, query, losses)))
        started = self._started(table, fleet.now)
        yield from self._collect(table, selections)

        if self._is_last(table, query):
            yield from GiveUp(OVER)
        if self._training == "at close":
            yield from TrainCohort()
        closed, successor = self._close(table, selections.build(), started, begun, query)
        self.table = successor
        yield from Close(closed, successor)
        shown = yield from Merge(closed)
        self._closed_at = shown.closed_at
        selection = closed.selection
        why = strategy.explain(selection) if self._explains else None
        shown = replace(shown, left=_left(selection, shown.left)) if shown.left else shown
        strategy.learn(selection, shown.ended.observations(), shown.left)
        yield from Record(closed, shown, why)
        yield from self._evaluate(closed)
        return closed

    def _begin(self) -> Round:
        """Return the table of the round, after the configuration that an operator chose.

        The queues of the last round have advanced by the old beta; this round's will by the new.
        """
        if self.next_config is not None:
            self._strategy.reconfigure(self.next_config)
            self.next_config = None
            if self.table is not None:
                config = self._strategy.config
                self.table.set_limits(config.round.deadline_s, config.updates_per_version)
        if self.table is None:
            self.table = self._open_first()
        return self.table

    def _query_losses(
        self, table: Round, fleet: ObservedFleet
    ) -> "Generator[Step[Any], Any, tuple[LossQuery, ReportedLosses]]":
        """Query the losses that the selector needs; exchanges in flight continue."""
        strategy = self._strategy
        demand = strategy.loss_demand(
            table.id, fleet.roster, fleet.transfer_bits, fleet.now, fleet.true_tau_s
        )
        assert demand is not None, "a selector that needs losses names the devices"
        limit_s = strategy.config.selection.loss_query_timeout_s
        from fairbed.coordinator.state.loss_query import LossQuery

        query = LossQuery(table.id, table.attempt, limit_s)
        yield from QueryLosses(demand, query)
        losses = ReportedLosses(demand.rows, query.losses())
        strategy.learn_replies(table.id, losses)
        return query, losses

    def _select(
        self,
        table: Round,
        fleet: ObservedFleet,
        selections_before: int = 0,
        query: "LossQuery | None" = None,
        losses: ReportedLosses | None = None,
    ) -> Generator[Step[Any], Any, Selection]:
        """Select and dispatch devices: a whole cohort, or as many as there are free places."""
        count = None
        if table.is_buffered:
            count = self._strategy.config.cohort_size - table.open_count
        selection = self._strategy.select(
            table.id,
            fleet.roster,
            fleet.transfer_bits,
            fleet.now,
            fleet.true_tau_s,
            losses,
            count=count,
            selections_before=selections_before,
        )
        if fleet.absences is not None:
            absences = {**selection.absences, **fleet.absences(selection.is_available)}
            selection = replace(selection, absences=absences)
        if table.is_buffered and not selections_before:
            table.begin(fleet.now)
        if self._prepares:
            yield from Prepare(selection)
        yield from Dispatch(selection, selections_before, query)
        return selection

    def _started(self, table: Round, selected: float) -> float:
        """Return the start of the duration of a round, whose devices were `selected` then."""
        if table.is_buffered:  # devices work between asynchronous rounds, too
            return selected if self._closed_at is None else self._closed_at
        first = next(iter(table.exchanges.values()), None)
        return selected if first is None else first.dispatched

    def _collect(
        self, table: Round, selections: SelectionBuilder
    ) -> Generator[Step[Any], Any, None]:
        """Collect the updates of a round; asynchronous: replace each device that finishes.

        A device that ended on an earlier version may be selected again at once. A device that ended
        on the current version waits for the next one, because no device trains a version twice.
        """
        if not table.is_buffered:
            yield from Collect() if table.exchanges else AwaitDevices()
            return
        number, released = 1, ReleasedDevices(table)
        while not table.is_over:
            has_places = table.open_count < self._strategy.config.cohort_size
            in_memory = yield from AwaitChange(has_places)
            more = yield from self._select_more(table, released, in_memory, number)
            if more is not None:
                selections.add(more)
                number += 1
        if table.is_void:
            yield from AwaitDevices()

    def _select_more(
        self, table: Round, released: "ReleasedDevices", in_memory: Collection[str], number: int
    ) -> Generator[Step[Any], Any, Selection | None]:
        """Dispatch devices to the free places of an asynchronous round, if there are any."""
        if table.is_over:
            return None
        free_again = released.take(in_memory)
        if free_again:
            yield from Release(free_again)
        if table.open_count >= self._strategy.config.cohort_size:
            return None
        fleet = yield from Observe()
        if not fleet.roster.available(fleet.now).any():
            return None
        return (yield from self._select(table, fleet, number))

    def _is_last(self, table: Round, query: "LossQuery | None") -> bool:
        """Return whether no round follows; one that is empty is none of those that were planned."""
        is_ended = self.last_round is not None
        return table.id == self.end_of_run and (is_ended or not self._is_empty(table, query))

    def _evaluate(self, closed: ClosedRound) -> Generator[Step[Any], Any, None]:
        """Evaluate the model if that is due; devices score personal models whenever they train."""
        if self._training == "never":
            return
        config, round_id = self._strategy.config, closed.table.id
        is_last = round_id == self.end_of_run
        is_due = config.evaluation.is_due(round_id, is_last=is_last)
        if config.personalisation.is_on and (is_due or self._training == "meanwhile"):
            yield from ScorePersonal(closed)
        if is_due:
            yield from Evaluate(closed, is_last)

    @staticmethod
    def _is_empty(table: Round, query: "LossQuery | None") -> bool:
        """Return whether no device was selected or queried, and no update has arrived."""
        if table.exchanges or (query is not None and query.devices):
            return False
        return not any(x.state is ExchangeState.DONE for x in table.ended)

    def _close(
        self,
        table: Round,
        selection: Selection,
        started: float,
        begun: float,
        query: "LossQuery | None",
    ) -> tuple[ClosedRound, Round]:
        """Close the table of a round that was `begun` then; return it, and the next table."""
        is_empty, was_empty = self._is_empty(table, query), self.empty_since is not None
        self.rounds_empty += is_empty
        if not is_empty:
            self.empty_since = None
        elif not was_empty:
            self.empty_since = begun
        ended = [x for x in table.all_exchanges() if x.is_over]
        merged = {x.device for x in ended if x.state is ExchangeState.DONE}
        closed = ClosedRound(
            table=table,
            selection=selection,
            started=started,
            query=query,
            ended=ended,
            merged=merged,
            rounds_empty=self.rounds_empty,
            is_empty=is_empty,
            is_repeated=is_empty and was_empty,
        )
        return closed, table.successor(table.version + bool(merged))


class ReleasedDevices:
    """Exchanges of an asynchronous round that ended on an older version, each returned once."""

    def __init__(self, table: Round) -> None:
        self._table = table
        self._examined = 0
        """Number of exchanges of `table.ended` that were examined."""
        self._held: list[Exchange] = []
        """Examined exchanges whose update is still in memory."""

    def take(self, in_memory: Collection[str] = ()) -> list[Exchange]:
        """Return the exchanges that were released since the last call.

        Args:
            in_memory: Devices whose accepted update is still in memory.
        """
        ended, version = self._table.ended, self._table.version
        fresh = [x for x in ended[self._examined :] if x.version < version]
        released, held = list[Exchange](), list[Exchange]()
        for x in [*self._held, *fresh]:
            (held if x.device in in_memory else released).append(x)
        self._examined, self._held = len(ended), held
        return released


def first_table(config: CoordinatorConfig, round_id: int, attempt: int, slots: int) -> Round:
    """Return the table of the first round of this process; all others are its successors."""
    settings = config.round
    return Round(
        id=round_id,
        attempt=attempt,
        deadline_s=settings.deadline_s,
        slots=slots,
        target_updates=config.updates_per_version,
        is_buffered=settings.is_buffered,
        late_limit_s=settings.late_limit_s,
        max_staleness=settings.max_staleness,
    )


def _left(selection: Selection, left: Sequence[int]) -> list[int]:
    """Return the rows of devices that have left the fleet before the round selected.

    A device of its cohort leaves with the next round.
    """
    n, cohort = len(selection.is_available), set(selection.rows.tolist())
    return [row for row in left if row < n and row not in cohort]
