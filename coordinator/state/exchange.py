"""One device's exchange in a round: its state, its instants, and the limits of uploads. Pure.

An exchange begins with its `Train` message and ends when its update has been verified, or when it
is abandoned. `state.round` holds the transitions between its states.
"""

from dataclasses import dataclass, field
from enum import Enum

from fairbed.wire.messages import Manifest, Offer, SteadyTransfer

UPLOAD_MEMORY_BYTES = 256_000_000
MIN_SLOTS, MAX_SLOTS = 2, 16
"""G = clamp(256 MB / vector, 2, 16) updates in memory at the same time (design.md, Transfer)."""

MAX_IN_FLIGHT_BYTES = 8 << 20
"""Limit for the chunks of all granted uploads that wait in the broker for the coordinator."""

LARGE_CHUNK_BYTES = 128 * 1024


def upload_slots(update_bytes: int) -> int:
    """Return how many updates of this size may be in memory at the same time."""
    return min(max(UPLOAD_MEMORY_BYTES // max(update_bytes, 1), MIN_SLOTS), MAX_SLOTS)


def upload_window(manifest: Manifest) -> int:
    """Return how many chunks of an upload may be unacknowledged: 4, or 2 large ones."""
    return 4 if manifest.chunk_bytes <= LARGE_CHUNK_BYTES else 2


def in_flight_bytes(manifest: Manifest) -> int:
    """Return how many bytes of an upload may wait in the broker for the coordinator."""
    return min(upload_window(manifest) * manifest.chunk_bytes, manifest.size_bytes)


class ExchangeState(str, Enum):
    """State of an exchange; the first four are open, the others final."""

    DISPATCHED = "dispatched"
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


_OPEN = frozenset(
    {
        ExchangeState.DISPATCHED,
        ExchangeState.QUEUED,
        ExchangeState.GRANTED,
        ExchangeState.CHECKING,
    }
)


DRAINING = frozenset({ExchangeState.LATE, ExchangeState.CANCELLED, ExchangeState.LOST})
"""States in which the device may still be at work although its exchange is over."""


@dataclass(frozen=True, slots=True)
class Contention:
    """By how much the busy host can have prolonged the phases of an exchange, seconds."""

    download_s: float = 0.0
    """`Train` and the model were on the path, and the broker or a relay waited."""
    compute_s: float = 0.0
    """The device itself waited, between `Train` and its offer."""
    upload_s: float = 0.0
    """The offer, the grant and the update were on the path."""
    network_s: float = 0.0
    """In any phase, the network between this machine and the host of the device was slow."""

    @property
    def total_s(self) -> float:
        """Sum of the phases and of the network."""
        return self.download_s + self.compute_s + self.upload_s + self.network_s


@dataclass(slots=True)
class Exchange:
    """One device's exchange in a round; instants are on the coordinator's clock."""

    device: str
    dispatched: float
    round: int = 0
    """The round in which it was dispatched."""
    attempt: int = 0
    version: int = 0
    """Number of the model version that the device trains."""
    number: int = 0
    """Its position in the order of dispatch, over all rounds."""
    state: ExchangeState = ExchangeState.DISPATCHED
    reason: str = ""
    is_late: bool = False
    """It has missed the deadline; if late updates are merged, it may still be open."""
    staleness: int | None = None
    """Versions published while the device trained; None unless the update was merged."""
    aggregated_round: int | None = None
    """The round whose merge took the update; None unless it was merged."""
    ended: float | None = None
    """When it was abandoned; None unless it was."""
    concurrent: int | None = None
    """Other exchanges of its round; None while that round is open."""
    offer: Offer | None = None
    offered: float | None = None
    granted: float | None = None
    arrived: float | None = None
    signal_s: float | None = None
    bytes_up: int = 0
    duplicates_up: int = 0
    steady: SteadyTransfer | None = None
    """Steady part of the upload, after its first chunk."""
    is_disturbed: bool = False
    """The coordinator lost its own link during the exchange."""
    contention: Contention | None = None
    """Contention of the host that emulates the device; None where it is not measured."""
    lag_s: float = 0.0
    """Lag of the coordinator's event loop when it handled the messages of the exchange."""
    outage_s: float = 0.0
    """Time in which this device could not continue because the coordinator had no link; the
    deadline does not count it."""
    measured: dict[str, float] = field(default_factory=dict)
    """Numbers that only its row needs, by column (`coordinator.store.tables.Column`); those of the
    offer are in the offer."""

    @property
    def is_over(self) -> bool:
        """Its state is final."""
        return not self.state.is_open

    @property
    def is_open_late(self) -> bool:
        """It has missed the deadline and may still succeed."""
        return self.is_late and self.state.is_open

    def queued_s(self, now: float) -> float:
        """Return how long it has waited for its upload grant."""
        if self.offered is None:
            return 0.0
        return (self.granted if self.granted is not None else now) - self.offered

    @property
    def tau_wall_s(self) -> float | None:
        """t_complete - t_dispatch; None until the update has arrived."""
        return None if self.arrived is None else self.arrived - self.dispatched

    @property
    def tau_s(self) -> float | None:
        """The model exchange time: tau_wall - queued; None until the update has arrived."""
        wall = self.tau_wall_s
        return None if wall is None else wall - self.queued_s(wall)

    @property
    def at_least_s(self) -> float | None:
        """Lower bound of tau for an abandoned exchange: the time that it had used."""
        if self.ended is None:
            return None
        used_s = self.ended - self.dispatched - self.queued_s(self.ended) - self.outage_s
        return max(used_s, 0.0)

    @property
    def busy_s(self) -> float | None:
        """Device-seconds: tau, or the time that an abandoned exchange had used; None until then."""
        return self.at_least_s if self.arrived is None else self.tau_s

    @property
    def upload_s(self) -> float | None:
        """Time from the grant to the last chunk; None until the update has arrived."""
        if self.arrived is None or self.granted is None:
            return None
        return self.arrived - self.granted


@dataclass(slots=True)
class StateCounts:
    """Counts of exchanges by state, so that an event need not visit all of them.

    An exchange is removed from the counts before its state changes, and added again afterwards.
    """

    round: int
    """The round that the table belongs to."""
    open: int = 0
    awaited: int = 0
    """Open exchanges of this round that are not late: the round waits for them."""
    done: int = 0
    done_in_round: int = 0
    """Done exchanges that were dispatched in this round."""
    in_memory: int = 0
    """Granted uploads and updates being checked."""
    in_flight_bytes: int = 0
    """Bytes of granted uploads that may be waiting in the broker."""

    def count(self, x: Exchange, by: int) -> None:
        """Add an exchange to the counts of its state (`by` = 1), or remove it (-1)."""
        is_own = x.round == self.round
        if x.state is ExchangeState.DONE:
            self.done += by
            self.done_in_round += by * is_own
        if not x.state.is_open:
            return
        self.open += by
        self.awaited += by * (is_own and not x.is_late)
        if x.state in (ExchangeState.GRANTED, ExchangeState.CHECKING):
            self.in_memory += by
        if x.state is ExchangeState.GRANTED and x.offer is not None:
            self.in_flight_bytes += by * in_flight_bytes(x.offer.manifest)
