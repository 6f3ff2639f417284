"""One round as a table: what may happen to each exchange, and what has to be done then.

Pure: the shell reports events with the time they happened, and carries out the commands that
come back. Everything a person may ask about an exchange later is written down here.

    asked ─ Offered ─> queued ─ (slot free) ─> granted ─ Arrived ─> checking ─ Checked ─> done
      │                  │                        │                    │
      └──────────────────┴── late, failed, lost, cancelled ────────────┴──> rejected

The deadline counts t - queued - outage: a device that waits for a grant, or for our link to come
back, waits for us.

Where late updates are merged, a device that misses the deadline goes on: the round does not wait
for it any more, and hands it to the next one (`successor`), until its patience is over or its
update would be too old.

In a buffered (asynchronous) round nobody is late for it: it is over when enough updates have come,
of whichever version, or when none has come for too long, and hands all others to the next one.

An event costs O(log K) among K exchanges: counts, the queue and the deadlines are kept along.

What can happen to the exchanges of a round, and what has to be done then. Pure.

Until when each device may be at work, and whose time is up first. Pure.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fairbed.coordinator.state.exchange import (
    FLIGHT_BYTES,
    Exchange,
    ExchangeState,
    StateCounts,
    flight_bytes,
)
from fairbed.wire.messages import Offer


@dataclass(frozen=True, slots=True)
class Offered:
    """A device has trained and asks to upload."""

    device: str
    offer: Offer


@dataclass(frozen=True, slots=True)
class Arrived:
    """All chunks of an update and its hash are here."""

    device: str
    at: float
    """When the last chunk came."""
    bytes_up: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Checked:
    """An update has been hashed and looked at; `fault` is None when it may be merged."""

    device: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A device says that it cannot go on."""

    device: str
    why: str


@dataclass(frozen=True, slots=True)
class Misbehaved:
    """What a device sent breaks a rule."""

    device: str
    why: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """A device has been gone for too long, or came back as another process."""

    device: str
    why: str


@dataclass(frozen=True, slots=True)
class Excluded:
    """A person took the device out."""

    device: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event: TypeAlias = Offered | Arrived | Checked | GaveUp | Misbehaved | Vanished | Excluded | Tick


@dataclass(frozen=True, slots=True)
class GrantUpload:
    """Let a device upload."""

    device: str


@dataclass(frozen=True, slots=True)
class Check:
    """Verify an update off the loop."""

    device: str


@dataclass(frozen=True, slots=True)
class Accept:
    """Tell a device that its update will be merged."""

    device: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """Tell a device to stop working on this round, and forget its upload."""

    device: str
    why: str


@dataclass(frozen=True, slots=True)
class GoesOn:
    """Write down that a device is late and that its update will be taken all the same."""

    device: str
    why: str


Order: TypeAlias = GrantUpload | Check | Accept | Abandon | GoesOn


@dataclass(slots=True)
class Deadlines:
    """The deadlines of the exchanges of a table; the next one is known without looking at all.

    A deadline counts t - queued - outage: a device that waits for a grant, or for our link to come
    back, waits for us. One that has moved is noted again, and what was noted before is skipped when
    its time comes.
    """

    deadline_s: float
    """From the dispatch; after it a device is late."""
    patience_s: float | None
    """From the dispatch, how long a late device may go on; None is not at all."""
    _noted: list[tuple[float, int]] = field(default_factory=list)
    """A heap of instants, and the numbers of the exchanges that they were noted for."""
    _exchanges: dict[int, Exchange] = field(default_factory=dict)
    """By their numbers."""

    def limit_s(self, x: Exchange) -> float:
        """Return how long an exchange may take, as it stands."""
        if x.is_late and self.patience_s is not None:
            return self.patience_s
        return self.deadline_s

    def of(self, x: Exchange) -> float | None:
        """Return when the time of an exchange is up; None while nothing is expected of it."""
        if x.stage is not ExchangeState.ASKED and x.stage is not ExchangeState.GRANTED:
            return None
        waited = x.queued_s(x.granted) if x.granted is not None else 0.0
        return x.dispatched + self.limit_s(x) + waited + x.outage_s

    def note(self, x: Exchange) -> None:
        """Take note of an exchange that has come in, or whose deadline has moved."""
        at = self.of(x)
        if at is not None:
            self._exchanges[x.number] = x
            heapq.heappush(self._noted, (at, x.number))

    def has_passed(self, x: Exchange, now: float) -> bool:
        """Tell whether the time of an exchange is up."""
        at = self.of(x)
        return at is not None and now >= at

    def next(self) -> float | None:
        """Return when the next deadline passes; None if none can."""
        while self._noted:
            at, number = self._noted[0]
            if self.of(self._exchanges[number]) == at:
                return at
            heapq.heappop(self._noted)
        return None

    def take_passed(self, now: float) -> list[Exchange]:
        """Return whose time is up, in the order of dispatch; whoever goes on is to be noted."""
        numbers = set[int]()
        while (at := self.next()) is not None and at <= now:
            numbers.add(heapq.heappop(self._noted)[1])
        return [self._exchanges[number] for number in sorted(numbers)]


_STAGES: dict[type[Event], frozenset[ExchangeState]] = {
    Offered: frozenset({ExchangeState.ASKED}),
    Arrived: frozenset({ExchangeState.GRANTED}),
    Checked: frozenset({ExchangeState.CHECKING}),
    GaveUp: frozenset({ExchangeState.ASKED, ExchangeState.QUEUED, ExchangeState.GRANTED}),
    Misbehaved: frozenset({ExchangeState.ASKED, ExchangeState.QUEUED, ExchangeState.GRANTED}),
    Vanished: frozenset({ExchangeState.ASKED, ExchangeState.QUEUED, ExchangeState.GRANTED}),
    Excluded: frozenset({ExchangeState.ASKED, ExchangeState.QUEUED, ExchangeState.GRANTED}),
}
"""In which stages an event means something; anywhere else it is a duplicate and ignored."""


@dataclass(slots=True)
class Round:
    """The exchanges of one round, and those of earlier ones that still go on."""

    id: int
    attempt: int
    deadline_s: float
    slots: int
    """Updates that may be on their way or being checked at the same time (G)."""
    wanted: int
    """Updates after which the round is over (per_round)."""
    version: int = 0
    """Number of the version that this round's devices train."""
    patience_s: float | None = None
    """From its dispatch, how long a late device may go on; None ends its exchange at once."""
    max_staleness: int = 0
    """An update is given up when it would be merged more than so many versions late."""
    is_buffered: bool = False
    """Over as soon as `wanted` updates of any version have come; who is still at work goes on."""
    begun: float | None = None
    """When a buffered round began; None before, and of any other."""
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    """Of this round."""
    carried: dict[str, Exchange] = field(default_factory=dict)
    """Of earlier rounds, still open when this one began."""
    ended: list[Exchange] = field(default_factory=list)
    """Those of both that have come to their end in this round, in that order."""
    _dispatched: int = 0
    """How many have been, in this round and the ones before."""
    _queue: deque[Exchange] = field(default_factory=deque)
    """Who waits for a grant; who has come to an end meanwhile is skipped when its turn comes."""
    _tally: StateCounts = field(init=False)
    _deadlines: Deadlines = field(init=False)
    _held_since: float | None = None
    _outage_s: float = 0.0
    """For how long our own link was down since it began."""
    _has_expired: bool = False

    def __post_init__(self) -> None:
        self._tally = StateCounts(self.id)
        self._deadlines = Deadlines(self.deadline_s, self.patience_s)
        for x in self.carried.values():
            self._dispatched = max(self._dispatched, x.number + 1)
            self._take_in(x)

    def begin(self, now: float) -> None:
        """Begin a buffered round."""
        self.begun = now

    def dispatch(self, device: str, now: float) -> None:
        """Take note that `device` was asked to train."""
        assert device not in self.exchanges, "nobody is asked twice in a round"
        x = self.exchanges[device] = Exchange(
            device=device,
            dispatched=now,
            round=self.id,
            attempt=self.attempt,
            version=self.version,
            number=self._dispatched,
            is_disturbed=self._held_since is not None,
        )
        self._dispatched += 1
        self._take_in(x)

    def successor(self, version: int) -> "Round":
        """Return the next round, not begun yet, with all exchanges that are still open.

        Args:
            version: Number of the version that it will train.
        """
        open_ = {x.device: x for x in self.everybody() if x.stage.is_open}
        for x in open_.values():
            if x.companions is None:
                x.companions = len(self.exchanges) - 1
        return Round(
            id=self.id + 1,
            attempt=0,
            deadline_s=self.deadline_s,
            slots=self.slots,
            wanted=self.wanted,
            version=version,
            patience_s=self.patience_s,
            max_staleness=self.max_staleness,
            is_buffered=self.is_buffered,
            carried=open_,
            _dispatched=self._dispatched,
            _queue=deque(x for x in self._queue if x.stage is ExchangeState.QUEUED),
            _held_since=self._held_since,
        )

    def drop_stale(self, now: float) -> Sequence[Order]:
        """Give up what would be merged too late; to be called once, when a round takes over."""
        orders: list[Order] = []
        for x in self.carried.values():
            if x.stage.is_open and self.version - x.version > self.max_staleness:
                why = f"its update would be more than {self.max_staleness} versions late"
                self._end(x, ExchangeState.LATE, why, now, orders)
        self._grant_next(now, orders)
        return orders

    def give_up(self, why: str, now: float) -> Sequence[Order]:
        """End every exchange that is still open: nobody will wait for it."""
        orders: list[Order] = []
        for x in self.everybody():
            if x.stage.is_open:
                self._end(
                    x,
                    ExchangeState.LATE if x.is_late else ExchangeState.CANCELLED,
                    why,
                    now,
                    orders,
                )
        return orders

    def everybody(self) -> list[Exchange]:
        """Return the exchanges of earlier rounds, then those of this one."""
        return [*self.carried.values(), *self.exchanges.values()]

    def find(self, device: str) -> Exchange | None:
        """Return a device's newest exchange here; None if it has none."""
        return self.exchanges.get(device) or self.carried.get(device)

    def hold(self, now: float) -> None:
        """Our own link is down: no deadline passes until `go_on`."""
        if self._held_since is not None:
            return
        self._held_since = now
        for x in self.everybody():
            x.is_disturbed |= x.stage.is_open

    def go_on(self, now: float) -> None:
        """Our link is back: what it was down is given to whoever could not use it."""
        held_since, self._held_since = self._held_since, None
        if held_since is None:
            return
        if self.begun is not None:
            self._outage_s += now - max(held_since, self.begun)
        for x in self.everybody():
            if self._deadlines.of(x) is not None:
                turn = x.dispatched if x.granted is None else x.granted
                x.outage_s += now - max(held_since, turn)
                self._deadlines.note(x)

    @property
    def is_over(self) -> bool:
        """Nothing more can arrive that this round would wait for."""
        if self.is_buffered:
            return self._has_expired or self._is_full or self.is_idle
        return not self._tally.waited_for

    @property
    def is_void(self) -> bool:
        """Nothing has come, and nothing is under way."""
        return self.is_idle and not self._tally.done

    @property
    def open_count(self) -> int:
        """Exchanges that are under way."""
        return self._tally.open

    @property
    def is_idle(self) -> bool:
        """Nothing can arrive, of whatever round."""
        return not self._tally.open

    def in_stage(self, stage: ExchangeState) -> list[Exchange]:
        """Return the exchanges in a stage, earlier rounds first, in the order of dispatch."""
        return [x for x in self.everybody() if x.stage is stage]

    def wake_at(self) -> float | None:
        """Return when the next deadline passes; None if none can."""
        if self._held_since is not None:
            return None
        expires = None if self.is_over else self._expires_at()
        instants = (self._deadlines.next(), expires)
        return min((at for at in instants if at is not None), default=None)

    def on(self, event: Event, now: float) -> Sequence[Order]:
        """Take note of an event and return what has to be done.

        An event about a device that was not asked, or that comes twice or too late, changes
        nothing.
        """
        orders: list[Order] = []
        if not isinstance(event, Tick):
            exchange = self.find(event.device)
            if exchange is None or exchange.stage not in _STAGES[type(event)]:
                return orders
            _HANDLERS[type(event)](self, exchange, event, now, orders)
        self._pass_deadlines(now, orders)
        self._stop_when_enough(now, orders)
        self._grant_next(now, orders)
        return orders

    def _offered(self, x: Exchange, event: Offered, now: float, orders: list[Order]) -> None:
        x.offer, x.offered = event.offer, now
        self._put(x, ExchangeState.QUEUED)
        self._queue.append(x)

    def _arrived(self, x: Exchange, event: Arrived, now: float, orders: list[Order]) -> None:
        x.arrived, x.bytes_up, x.duplicates_up = event.at, event.bytes_up, event.duplicates
        self._put(x, ExchangeState.CHECKING)
        orders.append(Check(x.device))

    def _checked(self, x: Exchange, event: Checked, now: float, orders: list[Order]) -> None:
        if event.fault is None:
            x.why, x.staleness, x.aggregated_round = "", self.version - x.version, self.id
            self._put(x, ExchangeState.DONE)
            orders.append(Accept(x.device))
        else:
            self._end(x, ExchangeState.REJECTED, event.fault, now, orders)

    def _gave_up(self, x: Exchange, event: GaveUp, now: float, orders: list[Order]) -> None:
        self._end(x, ExchangeState.FAILED, event.why, now, orders)

    def _misbehaved(self, x: Exchange, event: Misbehaved, now: float, orders: list[Order]) -> None:
        self._end(x, ExchangeState.REJECTED, event.why, now, orders)

    def _vanished(self, x: Exchange, event: Vanished, now: float, orders: list[Order]) -> None:
        self._end(x, ExchangeState.LOST, event.why, now, orders)

    def _excluded(self, x: Exchange, event: Excluded, now: float, orders: list[Order]) -> None:
        self._end(x, ExchangeState.CANCELLED, "taken out by a person", now, orders)

    def _end(
        self, x: Exchange, stage: ExchangeState, why: str, now: float, orders: list[Order]
    ) -> None:
        x.why, x.ended = why, now
        self._put(x, stage)
        orders.append(Abandon(x.device, why))

    def _take_in(self, x: Exchange) -> None:
        self._tally.count(x, 1)
        self._deadlines.note(x)

    def _put(self, x: Exchange, stage: ExchangeState, *, is_late: bool = False) -> None:
        """Put an exchange into a stage, late from now on if so: nothing else changes either."""
        self._tally.count(x, -1)
        x.stage, x.is_late = stage, x.is_late or is_late
        self._take_in(x)
        if x.is_over:
            self.ended.append(x)

    @property
    def _is_full(self) -> bool:
        return self._tally.done >= self.wanted

    def _expires_at(self) -> float | None:
        if not self.is_buffered or self.begun is None:
            return None
        return self.begun + self.deadline_s + self._outage_s

    def _pass_deadlines(self, now: float, orders: list[Order]) -> None:
        if self._held_since is not None:
            return
        expires = self._expires_at()
        self._has_expired |= expires is not None and now >= expires
        for x in self._deadlines.take_passed(now):
            while self._deadlines.has_passed(x, now):
                why = f"no update within {self._deadlines.limit_s(x):g} s"
                if x.is_late or self.patience_s is None:
                    self._end(x, ExchangeState.LATE, why, now, orders)
                else:
                    x.why = why
                    self._put(x, x.stage, is_late=True)
                    orders.append(GoesOn(x.device, why))

    def _stop_when_enough(self, now: float, orders: list[Order]) -> None:
        is_enough = self._tally.done_in_round >= self.wanted
        if self.is_buffered or not is_enough or not self._tally.waited_for:
            return
        for x in self.exchanges.values():
            if x.stage.is_open and not x.is_late:
                self._end(x, ExchangeState.CANCELLED, "enough updates had arrived", now, orders)

    def _grant_next(self, now: float, orders: list[Order]) -> None:
        """Grant in the order of the queue, as long as there are slots and room in the broker."""
        while self._queue and self._tally.in_memory < self.slots:
            x = self._queue[0]
            if x.stage is ExchangeState.QUEUED:
                assert x.offer is not None, "queued without an offer"
                flight, own = self._tally.flight_bytes, flight_bytes(x.offer.manifest)
                if flight and flight + own > FLIGHT_BYTES:
                    return
                x.granted = now
                self._put(x, ExchangeState.GRANTED)
                orders.append(GrantUpload(x.device))
            self._queue.popleft()


_HANDLERS: dict[type[Event], Callable[..., None]] = {
    Offered: Round._offered,
    Arrived: Round._arrived,
    Checked: Round._checked,
    GaveUp: Round._gave_up,
    Misbehaved: Round._misbehaved,
    Vanished: Round._vanished,
    Excluded: Round._excluded,
}
