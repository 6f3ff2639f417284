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
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coordinator.exchange import Exchange as Exchange
from coordinator.exchange import Stage as Stage
from coordinator.exchange import Starved as Starved
from coordinator.round_events import Abandon as Abandon
from coordinator.round_events import Accept as Accept
from coordinator.round_events import Arrived as Arrived
from coordinator.round_events import Check as Check
from coordinator.round_events import Checked as Checked
from coordinator.round_events import Event as Event
from coordinator.round_events import Excluded as Excluded
from coordinator.round_events import GaveUp as GaveUp
from coordinator.round_events import GoesOn as GoesOn
from coordinator.round_events import GrantUpload as GrantUpload
from coordinator.round_events import Misbehaved as Misbehaved
from coordinator.round_events import Offered as Offered
from coordinator.round_events import Order as Order
from coordinator.round_events import Tick as Tick
from coordinator.round_events import Vanished as Vanished
from wire.messages import Manifest

FLIGHT_BYTES = 8 << 20
"""What granted uploads together may have waiting for us in the broker."""

LARGE_CHUNK_BYTES = 128 * 1024

_STAGES: dict[type[Event], frozenset[Stage]] = {
    Offered: frozenset({Stage.ASKED}),
    Arrived: frozenset({Stage.GRANTED}),
    Checked: frozenset({Stage.CHECKING}),
    GaveUp: frozenset({Stage.ASKED, Stage.QUEUED, Stage.GRANTED}),
    Misbehaved: frozenset({Stage.ASKED, Stage.QUEUED, Stage.GRANTED}),
    Vanished: frozenset({Stage.ASKED, Stage.QUEUED, Stage.GRANTED}),
    Excluded: frozenset({Stage.ASKED, Stage.QUEUED, Stage.GRANTED}),
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
    _queue: list[str] = field(default_factory=list)
    _held_since: float | None = None
    _outage_s: float = 0.0
    """For how long our own link was down since it began."""
    _has_expired: bool = False

    def begin(self, now: float) -> None:
        """Begin a buffered round."""
        self.begun = now

    def dispatch(self, device: str, now: float) -> None:
        """Take note that `device` was asked to train."""
        self.exchanges[device] = Exchange(
            device=device,
            dispatched=now,
            round=self.id,
            attempt=self.attempt,
            version=self.version,
            is_disturbed=self._held_since is not None,
        )

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
            _queue=[device for device in self._queue if device in open_],
            _held_since=self._held_since,
        )

    def drop_stale(self, now: float) -> Sequence[Order]:
        """Give up what would be merged too late; to be called once, when a round takes over."""
        orders: list[Order] = []
        for x in self.carried.values():
            if x.stage.is_open and self.version - x.version > self.max_staleness:
                why = f"its update would be more than {self.max_staleness} versions late"
                self._end(x, Stage.LATE, why, now, orders)
        self._grant_next(now, orders)
        return orders

    def give_up(self, why: str, now: float) -> Sequence[Order]:
        """End every exchange that is still open: nobody will wait for it."""
        orders: list[Order] = []
        for x in self.everybody():
            if x.stage.is_open:
                self._end(x, Stage.LATE if x.is_late else Stage.CANCELLED, why, now, orders)
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
            if self._has_deadline(x):
                turn = x.dispatched if x.granted is None else x.granted
                x.outage_s += now - max(held_since, turn)

    @property
    def is_over(self) -> bool:
        """Nothing more can arrive that this round would wait for."""
        if self.is_buffered:
            return self._has_expired or self._is_full or self.is_idle
        return not any(x.stage.is_open and not x.is_late for x in self.exchanges.values())

    @property
    def is_void(self) -> bool:
        """Nothing has come, and nothing is under way."""
        return self.is_idle and not self.in_stage(Stage.DONE)

    @property
    def open_count(self) -> int:
        """Exchanges that are under way."""
        return sum(x.stage.is_open for x in self.everybody())

    @property
    def is_idle(self) -> bool:
        """Nothing can arrive, of whatever round."""
        return not any(x.stage.is_open for x in self.everybody())

    def in_stage(self, stage: Stage) -> list[Exchange]:
        """Return the exchanges in a stage, earlier rounds first, in the order of dispatch."""
        return [x for x in self.everybody() if x.stage is stage]

    def wake_at(self) -> float | None:
        """Return when the next deadline passes; None if none can."""
        if self._held_since is not None:
            return None
        deadlines = [self._deadline(x) for x in self.everybody() if self._has_deadline(x)]
        if (expires := self._expires_at()) is not None and not self.is_over:
            deadlines.append(expires)
        return min(deadlines, default=None)

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
        x.stage, x.offer, x.offered = Stage.QUEUED, event.offer, now
        self._queue.append(x.device)

    def _arrived(self, x: Exchange, event: Arrived, now: float, orders: list[Order]) -> None:
        x.stage, x.arrived = Stage.CHECKING, event.at
        x.bytes_up, x.duplicates_up = event.bytes_up, event.duplicates
        orders.append(Check(x.device))

    def _checked(self, x: Exchange, event: Checked, now: float, orders: list[Order]) -> None:
        if event.fault is None:
            x.stage, x.why = Stage.DONE, ""
            x.staleness, x.merged_round = self.version - x.version, self.id
            orders.append(Accept(x.device))
        else:
            self._end(x, Stage.REJECTED, event.fault, now, orders)

    def _gave_up(self, x: Exchange, event: GaveUp, now: float, orders: list[Order]) -> None:
        self._end(x, Stage.FAILED, event.why, now, orders)

    def _misbehaved(self, x: Exchange, event: Misbehaved, now: float, orders: list[Order]) -> None:
        self._end(x, Stage.REJECTED, event.why, now, orders)

    def _vanished(self, x: Exchange, event: Vanished, now: float, orders: list[Order]) -> None:
        self._end(x, Stage.LOST, event.why, now, orders)

    def _excluded(self, x: Exchange, event: Excluded, now: float, orders: list[Order]) -> None:
        self._end(x, Stage.CANCELLED, "taken out by a person", now, orders)

    def _end(self, x: Exchange, stage: Stage, why: str, now: float, orders: list[Order]) -> None:
        x.stage, x.why, x.ended = stage, why, now
        if x.device in self._queue:
            self._queue.remove(x.device)
        orders.append(Abandon(x.device, why))

    @property
    def _is_full(self) -> bool:
        return len(self.in_stage(Stage.DONE)) >= self.wanted

    def _expires_at(self) -> float | None:
        if not self.is_buffered or self.begun is None:
            return None
        return self.begun + self.deadline_s + self._outage_s

    def _has_deadline(self, x: Exchange) -> bool:
        return x.stage in (Stage.ASKED, Stage.GRANTED)

    def _deadline(self, x: Exchange) -> float:
        waited = x.queued_s(x.granted) if x.granted is not None else 0.0
        return x.dispatched + self._limit_s(x) + waited + x.outage_s

    def _limit_s(self, x: Exchange) -> float:
        if x.is_late and self.patience_s is not None:
            return self.patience_s
        return self.deadline_s

    def _pass_deadlines(self, now: float, orders: list[Order]) -> None:
        if self._held_since is not None:
            return
        expires = self._expires_at()
        self._has_expired |= expires is not None and now >= expires
        for x in self.everybody():
            while self._has_deadline(x) and now >= self._deadline(x):
                why = f"no update within {self._limit_s(x):g} s"
                if x.is_late or self.patience_s is None:
                    self._end(x, Stage.LATE, why, now, orders)
                else:
                    x.is_late, x.why = True, why
                    orders.append(GoesOn(x.device, why))

    def _stop_when_enough(self, now: float, orders: list[Order]) -> None:
        done = sum(x.stage is Stage.DONE for x in self.exchanges.values())
        if self.is_buffered or done < self.wanted:
            return
        for x in self.exchanges.values():
            if x.stage.is_open and not x.is_late:
                self._end(x, Stage.CANCELLED, "enough updates had arrived", now, orders)

    def _grant_next(self, now: float, orders: list[Order]) -> None:
        """Grant in the order of the queue, as long as there are slots and room in the broker."""
        granted = self.in_stage(Stage.GRANTED)
        free = self.slots - len(granted) - len(self.in_stage(Stage.CHECKING))
        flight = sum(flight_bytes(x.offer.manifest) for x in granted if x.offer is not None)
        while self._queue and free > 0:
            x = self.find(self._queue[0])
            assert x is not None, "queued without an exchange"
            assert x.offer is not None, "queued without an offer"
            own = flight_bytes(x.offer.manifest)
            if flight and flight + own > FLIGHT_BYTES:
                return
            free, flight = free - 1, flight + own
            x.stage, x.granted = Stage.GRANTED, now
            orders.append(GrantUpload(x.device))
            del self._queue[0]


def upload_window(manifest: Manifest) -> int:
    """Return how many chunks of an upload may be un-acknowledged: 4, of large ones 2."""
    return 4 if manifest.chunk_bytes <= LARGE_CHUNK_BYTES else 2


def flight_bytes(manifest: Manifest) -> int:
    """Return how much of an upload may wait for us in the broker."""
    return min(upload_window(manifest) * manifest.chunk_bytes, manifest.size_bytes)


_HANDLERS: dict[type[Event], Callable[..., None]] = {
    Offered: Round._offered,
    Arrived: Round._arrived,
    Checked: Round._checked,
    GaveUp: Round._gave_up,
    Misbehaved: Round._misbehaved,
    Vanished: Round._vanished,
    Excluded: Round._excluded,
}
