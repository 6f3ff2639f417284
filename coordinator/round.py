"""One round as a table: what may happen to each exchange, and what has to be done then.

Pure: the shell reports events with the time they happened, and carries out the commands that
come back. Everything a person may ask about an exchange later is written down here.

    asked ─ Offered ─> queued ─ (slot free) ─> granted ─ Arrived ─> checking ─ Checked ─> done
      │                  │                        │                    │
      └──────────────────┴── late, failed, lost, cancelled ────────────┴──> rejected

The deadline counts t - queued - outage: a device that waits for a grant, or for our link to come
back, waits for us.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from wire.messages import Manifest, Offer, Settled

FLIGHT_BYTES = 8 << 20
"""What granted uploads together may have waiting for us in the broker."""

LARGE_CHUNK_BYTES = 128 * 1024


class Stage(str, Enum):
    """Where an exchange stands."""

    ASKED = "asked"
    QUEUED = "queued"
    GRANTED = "granted"
    CHECKING = "checking"
    DONE = "done"
    LATE = "late"
    FAILED = "failed"
    LOST = "lost"
    REJECTED = "rejected"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """The exchange may still succeed."""
        return self in _OPEN


_OPEN = frozenset({Stage.ASKED, Stage.QUEUED, Stage.GRANTED, Stage.CHECKING})


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


Order: TypeAlias = GrantUpload | Check | Accept | Abandon


@dataclass(frozen=True, slots=True)
class Starved:
    """For how long the machine that emulates a device kept others waiting during an exchange."""

    device_s: float
    """The device itself."""
    path_s: float
    """The broker, or what carries the device's bytes to it."""
    watched_s: float
    """How long the exchange was watched: from the dispatch to its end."""


@dataclass(slots=True)
class Exchange:
    """One device's exchange in this round; instants are on the coordinator's clock."""

    device: str
    dispatched: float
    stage: Stage = Stage.ASKED
    why: str = ""
    offer: Offer | None = None
    offered: float | None = None
    granted: float | None = None
    arrived: float | None = None
    signal_s: float | None = None
    bytes_up: int = 0
    duplicates_up: int = 0
    resent_up: int = 0
    settled: Settled | None = None
    """Of the update."""
    decode_s: float | None = None
    """Decoding the update here, off the loop; None if it came as it is."""
    is_disturbed: bool = False
    """The coordinator lost its own link meanwhile."""
    starved: Starved | None = None
    """By the machine that emulates the device; None where nobody can tell."""
    outage_s: float = 0.0
    """For how long, while it was this device's turn; no part of its deadline."""

    def queued_s(self, now: float) -> float:
        """Return how long it has waited for its grant."""
        if self.offered is None:
            return 0.0
        return (self.granted if self.granted is not None else now) - self.offered

    @property
    def tau_wall_s(self) -> float | None:
        """t_complete - t_dispatch."""
        return None if self.arrived is None else self.arrived - self.dispatched

    @property
    def tau_s(self) -> float | None:
        """The model exchange time: tau_wall - queued."""
        wall = self.tau_wall_s
        return None if wall is None else wall - self.queued_s(wall)

    @property
    def upload_s(self) -> float | None:
        """From the grant to the last chunk."""
        if self.arrived is None or self.granted is None:
            return None
        return self.arrived - self.granted


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
    """The exchanges of one round."""

    id: int
    attempt: int
    deadline_s: float
    slots: int
    """Updates that may be on their way or being checked at the same time (G)."""
    wanted: int
    """Updates after which the round is over (per_round)."""
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    _queue: list[str] = field(default_factory=list)
    _held_since: float | None = None

    def dispatch(self, device: str, now: float) -> None:
        """Take note that `device` was asked to train."""
        self.exchanges[device] = Exchange(device=device, dispatched=now)

    def hold(self, now: float) -> None:
        """Our own link is down: no deadline passes until `go_on`."""
        if self._held_since is not None:
            return
        self._held_since = now
        for x in self.exchanges.values():
            x.is_disturbed |= x.stage.is_open

    def go_on(self, now: float) -> None:
        """Our link is back: what it was down is given to whoever could not use it."""
        held_since, self._held_since = self._held_since, None
        if held_since is None:
            return
        for x in self.exchanges.values():
            if self._has_deadline(x):
                turn = x.dispatched if x.granted is None else x.granted
                x.outage_s += now - max(held_since, turn)

    @property
    def is_over(self) -> bool:
        """Nothing more can arrive."""
        return not any(x.stage.is_open for x in self.exchanges.values())

    def in_stage(self, stage: Stage) -> list[Exchange]:
        """Return the exchanges in a stage, in the order of dispatch."""
        return [x for x in self.exchanges.values() if x.stage is stage]

    def wake_at(self) -> float | None:
        """Return when the next deadline passes; None if none can."""
        if self._held_since is not None:
            return None
        return min(
            (self._deadline(x) for x in self.exchanges.values() if self._has_deadline(x)),
            default=None,
        )

    def on(self, event: Event, now: float) -> Sequence[Order]:
        """Take note of an event and return what has to be done.

        An event about a device that was not asked, or that comes twice or too late, changes
        nothing.
        """
        orders: list[Order] = []
        if not isinstance(event, Tick):
            exchange = self.exchanges.get(event.device)
            if exchange is None or exchange.stage not in _STAGES[type(event)]:
                return orders
            _HANDLERS[type(event)](self, exchange, event, now, orders)
        self._pass_deadlines(now, orders)
        self._stop_when_enough(orders)
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
            x.stage = Stage.DONE
            orders.append(Accept(x.device))
        else:
            self._end(x, Stage.REJECTED, event.fault, orders)

    def _gave_up(self, x: Exchange, event: GaveUp, now: float, orders: list[Order]) -> None:
        self._end(x, Stage.FAILED, event.why, orders)

    def _misbehaved(self, x: Exchange, event: Misbehaved, now: float, orders: list[Order]) -> None:
        self._end(x, Stage.REJECTED, event.why, orders)

    def _vanished(self, x: Exchange, event: Vanished, now: float, orders: list[Order]) -> None:
        self._end(x, Stage.LOST, event.why, orders)

    def _excluded(self, x: Exchange, event: Excluded, now: float, orders: list[Order]) -> None:
        self._end(x, Stage.CANCELLED, "taken out by a person", orders)

    def _end(self, x: Exchange, stage: Stage, why: str, orders: list[Order]) -> None:
        x.stage, x.why = stage, why
        if x.device in self._queue:
            self._queue.remove(x.device)
        orders.append(Abandon(x.device, why))

    def _has_deadline(self, x: Exchange) -> bool:
        return x.stage in (Stage.ASKED, Stage.GRANTED)

    def _deadline(self, x: Exchange) -> float:
        waited = x.queued_s(x.granted) if x.granted is not None else 0.0
        return x.dispatched + self.deadline_s + waited + x.outage_s

    def _pass_deadlines(self, now: float, orders: list[Order]) -> None:
        if self._held_since is not None:
            return
        for x in self.exchanges.values():
            if self._has_deadline(x) and now >= self._deadline(x):
                self._end(x, Stage.LATE, f"no update within {self.deadline_s:g} s", orders)

    def _stop_when_enough(self, orders: list[Order]) -> None:
        if len(self.in_stage(Stage.DONE)) < self.wanted:
            return
        for x in self.exchanges.values():
            if x.stage.is_open:
                self._end(x, Stage.CANCELLED, "enough updates had arrived", orders)

    def _grant_next(self, now: float, orders: list[Order]) -> None:
        """Grant in the order of the queue, as long as there are slots and room in the broker."""
        granted = self.in_stage(Stage.GRANTED)
        free = self.slots - len(granted) - len(self.in_stage(Stage.CHECKING))
        flight = sum(flight_bytes(x.offer.manifest) for x in granted if x.offer is not None)
        while self._queue and free > 0:
            x = self.exchanges[self._queue[0]]
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
