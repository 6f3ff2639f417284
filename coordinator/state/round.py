"""The table of one round: the events of each exchange and the actions that follow. Pure.

The shell reports each event with its time and executes the actions that `Round.on` returns.

    dispatched ─ Offered ─> queued ─ (slot free) ─> granted ─ Arrived ─> checking ─ Checked ─> done
        │                     │                        │                    │
        └─────────────────────┴── late, failed, lost, cancelled ────────────┴──> rejected

Deadline: it counts t - queued - outage. The device is not charged for time in the upload queue,
nor for time without the coordinator's own link.

Late updates: with `late_limit_s` an exchange that misses the deadline stays open. Its round no
longer waits for it and hands it to the next round (`successor`), until the limit passes or the
update would be too stale.

Asynchronous rounds (`is_buffered`): a round is over when `target_updates` updates of any version
have arrived, or when its deadline passes. All open exchanges move to the next round.

An event costs O(log K) among K exchanges: the counts, the upload queue and the deadlines are kept
up to date instead of being searched.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fairbed.coordinator.state.exchange import (
    MAX_IN_FLIGHT_BYTES,
    Exchange,
    ExchangeState,
    StateCounts,
    in_flight_bytes,
)
from fairbed.wire.messages import Offer


@dataclass(frozen=True, slots=True)
class Offered:
    """A device has trained and requests an upload grant."""

    device: str
    offer: Offer


@dataclass(frozen=True, slots=True)
class Arrived:
    """All chunks of an update and its hash have arrived."""

    device: str
    at: float
    """Arrival of the last chunk."""
    bytes_up: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Checked:
    """The check of an update is over; `fault` is None if it may be merged."""

    device: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class DeviceFailed:
    """A device reports that it cannot finish."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class BrokeProtocol:
    """A device sent a message that breaks a rule of the protocol."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceLost:
    """A device has been gone for too long, or its agent was restarted."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Excluded:
    """An operator excluded the device, or ended its exchange."""

    device: str
    reason: str = "excluded by an operator"


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event: TypeAlias = (
    Offered | Arrived | Checked | DeviceFailed | BrokeProtocol | DeviceLost | Excluded | Tick
)


@dataclass(frozen=True, slots=True)
class GrantUpload:
    """Grant a device its upload."""

    device: str


@dataclass(frozen=True, slots=True)
class VerifyUpdate:
    """Verify an update off the loop, then report `Checked`."""

    device: str


@dataclass(frozen=True, slots=True)
class AcceptUpdate:
    """Notify a device that its update will be merged."""

    device: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """Cancel a device's work on this exchange, and free its upload."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class MarkLate:
    """Record that a device missed the deadline; its update is merged if it still arrives."""

    device: str
    reason: str


Action: TypeAlias = GrantUpload | VerifyUpdate | AcceptUpdate | Abandon | MarkLate


@dataclass(slots=True)
class Deadlines:
    """The deadlines of a table's exchanges, in a heap.

    A deadline that moves is pushed again; its older entry is skipped at the top of the heap.
    """

    deadline_s: float
    """Time from the dispatch until a device is late."""
    late_limit_s: float | None
    """Time from the dispatch until a late exchange ends; None: it ends at the deadline."""
    _heap: list[tuple[float, int]] = field(default_factory=list)
    """(instant, number of the exchange)."""
    _exchanges: dict[int, Exchange] = field(default_factory=dict)
    """By number."""

    def limit_s(self, x: Exchange) -> float:
        """Return how long an exchange may take: the deadline, or the limit if it is late."""
        if x.is_late and self.late_limit_s is not None:
            return self.late_limit_s
        return self.deadline_s

    def of(self, x: Exchange) -> float | None:
        """Return when an exchange times out; None while it waits for the coordinator."""
        if x.state is not ExchangeState.DISPATCHED and x.state is not ExchangeState.GRANTED:
            return None
        waited = x.queued_s(x.granted) if x.granted is not None else 0.0
        return x.dispatched + self.limit_s(x) + waited + x.outage_s

    def update(self, x: Exchange) -> None:
        """Push the deadline of an exchange that is new, or whose deadline has moved."""
        at = self.of(x)
        if at is not None:
            self._exchanges[x.number] = x
            heapq.heappush(self._heap, (at, x.number))

    def has_passed(self, x: Exchange, now: float) -> bool:
        """Return whether an exchange has timed out."""
        at = self.of(x)
        return at is not None and now >= at

    def next(self) -> float | None:
        """Return when the next deadline passes; None without one."""
        while self._heap:
            at, number = self._heap[0]
            if self.of(self._exchanges[number]) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def pop_passed(self, now: float) -> list[Exchange]:
        """Return the exchanges that have timed out, in the order of dispatch.

        An exchange that stays open afterwards has to be updated again.
        """
        numbers = set[int]()
        while (at := self.next()) is not None and at <= now:
            numbers.add(heapq.heappop(self._heap)[1])
        return [self._exchanges[number] for number in sorted(numbers)]


_ALLOWED_STATES: dict[type[Event], frozenset[ExchangeState]] = {
    Offered: frozenset({ExchangeState.DISPATCHED}),
    Arrived: frozenset({ExchangeState.GRANTED}),
    Checked: frozenset({ExchangeState.CHECKING}),
    DeviceFailed: frozenset(
        {ExchangeState.DISPATCHED, ExchangeState.QUEUED, ExchangeState.GRANTED}
    ),
    BrokeProtocol: frozenset(
        {ExchangeState.DISPATCHED, ExchangeState.QUEUED, ExchangeState.GRANTED}
    ),
    DeviceLost: frozenset({ExchangeState.DISPATCHED, ExchangeState.QUEUED, ExchangeState.GRANTED}),
    Excluded: frozenset({ExchangeState.DISPATCHED, ExchangeState.QUEUED, ExchangeState.GRANTED}),
}
"""States in which an event applies; in any other it is a duplicate and is ignored."""


@dataclass(slots=True)
class Round:
    """The exchanges of one round, and the open ones of earlier rounds."""

    id: int
    attempt: int
    deadline_s: float
    slots: int
    """Updates that may be uploaded or checked at the same time (G)."""
    target_updates: int
    """Updates after which the round is over."""
    version: int = 0
    """Number of the model version that this round's devices train."""
    late_limit_s: float | None = None
    """Time from the dispatch until a late exchange ends; None: it ends at the deadline."""
    max_staleness: int = 0
    """An exchange ends when its update would be more than this many versions late."""
    is_buffered: bool = False
    """Asynchronous: the round is over after `target_updates` updates of any version."""
    begun: float | None = None
    """Start of an asynchronous round; None before it, and in a synchronous round."""
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    """Exchanges dispatched in this round, by device."""
    carried: dict[str, Exchange] = field(default_factory=dict)
    """Exchanges of earlier rounds that were open when this one began, by device."""
    ended: list[Exchange] = field(default_factory=list)
    """Exchanges of both kinds that ended in this round, in the order of their ends."""
    _dispatched: int = 0
    """Number of exchanges dispatched so far, in this round and earlier ones."""
    _queue: deque[Exchange] = field(default_factory=deque)
    """Exchanges that wait for a grant; one that has ended is skipped at the head."""
    _counts: StateCounts = field(init=False)
    _deadlines: Deadlines = field(init=False)
    _link_down_since: float | None = None
    _outage_s: float = 0.0
    """Time without the coordinator's own link since an asynchronous round began."""
    _has_expired: bool = False

    def __post_init__(self) -> None:
        self._counts = StateCounts(self.id)
        self._deadlines = Deadlines(self.deadline_s, self.late_limit_s)
        for x in self.carried.values():
            self._dispatched = max(self._dispatched, x.number + 1)
            self._add(x)

    def set_limits(self, deadline_s: float, target_updates: int) -> None:
        """Change the deadline and the number of updates, before the first dispatch of the round."""
        assert not self.exchanges, "limits hold for a whole round"
        self.deadline_s = self._deadlines.deadline_s = deadline_s
        self.target_updates = target_updates

    def begin(self, now: float) -> None:
        """Start the clock of an asynchronous round."""
        self.begun = now

    def dispatch(self, device: str, now: float) -> None:
        """Open the exchange of a device that is sent its `Train` message."""
        assert device not in self.exchanges, "a device is dispatched at most once in a round"
        x = self.exchanges[device] = Exchange(
            device=device,
            dispatched=now,
            round=self.id,
            attempt=self.attempt,
            version=self.version,
            number=self._dispatched,
            is_disturbed=self._link_down_since is not None,
        )
        self._dispatched += 1
        self._add(x)

    def successor(self, version: int) -> "Round":
        """Return the table of the next round, which takes over all open exchanges.

        Args:
            version: Number of the model version that the next round trains.
        """
        open_ = {x.device: x for x in self.all_exchanges() if x.state.is_open}
        for x in open_.values():
            if x.concurrent is None:
                x.concurrent = len(self.exchanges) - 1
        return Round(
            id=self.id + 1,
            attempt=0,
            deadline_s=self.deadline_s,
            slots=self.slots,
            target_updates=self.target_updates,
            version=version,
            late_limit_s=self.late_limit_s,
            max_staleness=self.max_staleness,
            is_buffered=self.is_buffered,
            carried=open_,
            _dispatched=self._dispatched,
            _queue=deque(x for x in self._queue if x.state is ExchangeState.QUEUED),
            _link_down_since=self._link_down_since,
        )

    def drop_stale(self, now: float) -> Sequence[Action]:
        """End carried exchanges whose update would be too stale; called once per round."""
        actions: list[Action] = []
        for x in self.carried.values():
            if x.state.is_open and self.version - x.version > self.max_staleness:
                reason = f"its update would be more than {self.max_staleness} versions late"
                self._end(x, ExchangeState.LATE, reason, now, actions)
        self._grant_next(now, actions)
        return actions

    def end_all(self, reason: str, now: float) -> Sequence[Action]:
        """End every open exchange."""
        actions: list[Action] = []
        for x in self.all_exchanges():
            if x.state.is_open:
                self._end(
                    x,
                    ExchangeState.LATE if x.is_late else ExchangeState.CANCELLED,
                    reason,
                    now,
                    actions,
                )
        return actions

    def all_exchanges(self) -> list[Exchange]:
        """Return the exchanges of earlier rounds, then those of this one."""
        return [*self.carried.values(), *self.exchanges.values()]

    def find(self, device: str) -> Exchange | None:
        """Return a device's newest exchange in this table; None if it has none."""
        return self.exchanges.get(device) or self.carried.get(device)

    def on_link_down(self, now: float) -> None:
        """The coordinator lost its link: no deadline passes until `on_link_up`."""
        if self._link_down_since is not None:
            return
        self._link_down_since = now
        for x in self.all_exchanges():
            x.is_disturbed |= x.state.is_open

    def on_link_up(self, now: float) -> None:
        """The link is restored: extend the deadlines of exchanges that needed it."""
        down_since, self._link_down_since = self._link_down_since, None
        if down_since is None:
            return
        if self.begun is not None:
            self._outage_s += now - max(down_since, self.begun)
        for x in self.all_exchanges():
            if self._deadlines.of(x) is not None:
                resumed = x.dispatched if x.granted is None else x.granted
                x.outage_s += now - max(down_since, resumed)
                self._deadlines.update(x)

    @property
    def is_over(self) -> bool:
        """The round waits for no further update."""
        if self.is_buffered:
            return self._has_expired or self._is_full or self.is_idle
        return not self._counts.awaited

    @property
    def is_void(self) -> bool:
        """No update has arrived, and no exchange is open."""
        return self.is_idle and not self._counts.done

    @property
    def is_empty(self) -> bool:
        """No device has been selected for the round, and no update has arrived in it."""
        return not self.exchanges and not self._counts.done

    @property
    def open_count(self) -> int:
        """Number of open exchanges, of this round and of earlier ones."""
        return self._counts.open

    @property
    def is_idle(self) -> bool:
        """No exchange is open."""
        return not self._counts.open

    def in_state(self, state: ExchangeState) -> list[Exchange]:
        """Return the exchanges in a state, earlier rounds first, in the order of dispatch."""
        return [x for x in self.all_exchanges() if x.state is state]

    def wake_at(self) -> float | None:
        """Return when the next deadline passes; None while there is no deadline."""
        if self._link_down_since is not None:
            return None
        expires = None if self.is_over else self._expires_at()
        instants = (self._deadlines.next(), expires)
        return min((at for at in instants if at is not None), default=None)

    def on(self, event: Event, now: float) -> Sequence[Action]:
        """Apply an event and return the actions that follow.

        An event of a device without an exchange here, a duplicate and a late event change nothing.
        """
        actions: list[Action] = []
        if not isinstance(event, Tick):
            exchange = self.find(event.device)
            if exchange is None or exchange.state not in _ALLOWED_STATES[type(event)]:
                return actions
            _HANDLERS[type(event)](self, exchange, event, now, actions)
        self._pass_deadlines(now, actions)
        self._cancel_when_enough(now, actions)
        self._grant_next(now, actions)
        return actions

    def _on_offered(self, x: Exchange, event: Offered, now: float, actions: list[Action]) -> None:
        x.offer, x.offered = event.offer, now
        self._set_state(x, ExchangeState.QUEUED)
        self._queue.append(x)

    def _on_arrived(self, x: Exchange, event: Arrived, now: float, actions: list[Action]) -> None:
        x.arrived, x.bytes_up, x.duplicates_up = event.at, event.bytes_up, event.duplicates
        self._set_state(x, ExchangeState.CHECKING)
        actions.append(VerifyUpdate(x.device))

    def _on_checked(self, x: Exchange, event: Checked, now: float, actions: list[Action]) -> None:
        if event.fault is None:
            x.reason, x.staleness, x.aggregated_round = "", self.version - x.version, self.id
            self._set_state(x, ExchangeState.DONE)
            actions.append(AcceptUpdate(x.device))
        else:
            self._end(x, ExchangeState.REJECTED, event.fault, now, actions)

    def _on_failed(
        self, x: Exchange, event: DeviceFailed, now: float, actions: list[Action]
    ) -> None:
        self._end(x, ExchangeState.FAILED, event.reason, now, actions)

    def _on_broke_protocol(
        self, x: Exchange, event: BrokeProtocol, now: float, actions: list[Action]
    ) -> None:
        self._end(x, ExchangeState.REJECTED, event.reason, now, actions)

    def _on_lost(self, x: Exchange, event: DeviceLost, now: float, actions: list[Action]) -> None:
        self._end(x, ExchangeState.LOST, event.reason, now, actions)

    def _on_excluded(self, x: Exchange, event: Excluded, now: float, actions: list[Action]) -> None:
        self._end(x, ExchangeState.CANCELLED, event.reason, now, actions)

    def _end(
        self, x: Exchange, state: ExchangeState, reason: str, now: float, actions: list[Action]
    ) -> None:
        x.reason, x.ended = reason, now
        self._set_state(x, state)
        actions.append(Abandon(x.device, reason))

    def _add(self, x: Exchange) -> None:
        self._counts.count(x, 1)
        self._deadlines.update(x)

    def _set_state(self, x: Exchange, state: ExchangeState, *, is_late: bool = False) -> None:
        """Change the state of an exchange or mark it late; no other method does either."""
        self._counts.count(x, -1)
        x.state, x.is_late = state, x.is_late or is_late
        self._add(x)
        if x.is_over:
            self.ended.append(x)

    @property
    def _is_full(self) -> bool:
        return self._counts.done >= self.target_updates

    def _expires_at(self) -> float | None:
        if not self.is_buffered or self.begun is None:
            return None
        return self.begun + self.deadline_s + self._outage_s

    def _pass_deadlines(self, now: float, actions: list[Action]) -> None:
        if self._link_down_since is not None:
            return
        expires = self._expires_at()
        self._has_expired |= expires is not None and now >= expires
        for x in self._deadlines.pop_passed(now):
            while self._deadlines.has_passed(x, now):
                reason = f"no update within {self._deadlines.limit_s(x):g} s"
                if x.is_late or self.late_limit_s is None:
                    self._end(x, ExchangeState.LATE, reason, now, actions)
                else:
                    x.reason = reason
                    self._set_state(x, x.state, is_late=True)
                    actions.append(MarkLate(x.device, reason))

    def _cancel_when_enough(self, now: float, actions: list[Action]) -> None:
        is_enough = self._counts.done_in_round >= self.target_updates
        if self.is_buffered or not is_enough or not self._counts.awaited:
            return
        for x in self.exchanges.values():
            if x.state.is_open and not x.is_late:
                self._end(x, ExchangeState.CANCELLED, "enough updates had arrived", now, actions)

    def _grant_next(self, now: float, actions: list[Action]) -> None:
        """Grant uploads in queue order while slots and bytes in flight allow it."""
        while self._queue and self._counts.in_memory < self.slots:
            x = self._queue[0]
            if x.state is ExchangeState.QUEUED:
                assert x.offer is not None, "queued without an offer"
                flight, own = self._counts.in_flight_bytes, in_flight_bytes(x.offer.manifest)
                if flight and flight + own > MAX_IN_FLIGHT_BYTES:
                    return
                x.granted = now
                self._set_state(x, ExchangeState.GRANTED)
                actions.append(GrantUpload(x.device))
            self._queue.popleft()


_HANDLERS: dict[type[Event], Callable[..., None]] = {
    Offered: Round._on_offered,
    Arrived: Round._on_arrived,
    Checked: Round._on_checked,
    DeviceFailed: Round._on_failed,
    BrokeProtocol: Round._on_broke_protocol,
    DeviceLost: Round._on_lost,
    Excluded: Round._on_excluded,
}
