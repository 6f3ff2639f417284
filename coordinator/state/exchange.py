"""One device's exchange in a round: where it stands, and when it got there. Pure.

How many exchanges of a table stand where, so that nobody has to go through all of them. Pure.

How much room uploads get: in memory, and in the broker. Pure.
"""

from dataclasses import dataclass
from enum import Enum

from fairbed.wire.messages import Manifest, Offer, Settled

UPLOAD_MEMORY_BYTES = 256_000_000
MIN_SLOTS, MAX_SLOTS = 2, 16
"""G = clamp(256 MB / vector, 2, 16) updates in memory at the same time (design.md, Transfer)."""

FLIGHT_BYTES = 8 << 20
"""What granted uploads together may have waiting for us in the broker."""

LARGE_CHUNK_BYTES = 128 * 1024


def slots(update_bytes: int) -> int:
    """Return how many updates of this size may be in memory at the same time."""
    return min(max(UPLOAD_MEMORY_BYTES // max(update_bytes, 1), MIN_SLOTS), MAX_SLOTS)


def upload_window(manifest: Manifest) -> int:
    """Return how many chunks of an upload may be un-acknowledged: 4, of large ones 2."""
    return 4 if manifest.chunk_bytes <= LARGE_CHUNK_BYTES else 2


def flight_bytes(manifest: Manifest) -> int:
    """Return how much of an upload may wait for us in the broker."""
    return min(upload_window(manifest) * manifest.chunk_bytes, manifest.size_bytes)


class ExchangeState(str, Enum):
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


_OPEN = frozenset(
    {ExchangeState.ASKED, ExchangeState.QUEUED, ExchangeState.GRANTED, ExchangeState.CHECKING}
)


@dataclass(frozen=True, slots=True)
class Contention:
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
    round: int = 0
    """The round that it was asked in."""
    attempt: int = 0
    version: int = 0
    """Number of the version of the model that it trains."""
    number: int = 0
    """Its place in the order of dispatch, through all rounds."""
    stage: ExchangeState = ExchangeState.ASKED
    why: str = ""
    is_late: bool = False
    """It has missed the deadline and goes on."""
    staleness: int | None = None
    """Versions made while it trained; None unless it was merged."""
    aggregated_round: int | None = None
    """The round that its update entered; None unless it was merged."""
    ended: float | None = None
    """When it was given up; None unless it was."""
    companions: int | None = None
    """Other exchanges of its round; None while that is open."""
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
    contended: Contention | None = None
    """By the machine that emulates the device; None where nobody can tell."""
    outage_s: float = 0.0
    """For how long, while it was this device's turn; no part of its deadline."""

    @property
    def is_over(self) -> bool:
        """Nothing more becomes of it."""
        return not self.stage.is_open

    @property
    def goes_on(self) -> bool:
        """It is late, and may still succeed."""
        return self.is_late and self.stage.is_open

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
    def at_least_s(self) -> float | None:
        """How much of its time had passed when it was given up: a bound of its tau."""
        if self.ended is None:
            return None
        return self.ended - self.dispatched - self.queued_s(self.ended) - self.outage_s

    @property
    def upload_s(self) -> float | None:
        """From the grant to the last chunk."""
        if self.arrived is None or self.granted is None:
            return None
        return self.arrived - self.granted


@dataclass(slots=True)
class StateCounts:
    """Kept along: an exchange is counted out before it changes, and in again afterwards."""

    round: int
    """The round that the table is of."""
    open: int = 0
    """Under way."""
    waited_for: int = 0
    """Of this round, under way and not late."""
    done: int = 0
    done_in_round: int = 0
    """Of this round."""
    in_memory: int = 0
    """On their way up, or being checked."""
    flight_bytes: int = 0
    """What those on their way may have waiting for us in the broker."""

    def count(self, x: Exchange, by: int) -> None:
        """Count an exchange in where it stands (`by` = 1), or out of there (-1)."""
        is_own = x.round == self.round
        if x.stage is ExchangeState.DONE:
            self.done += by
            self.done_in_round += by * is_own
        if not x.stage.is_open:
            return
        self.open += by
        self.waited_for += by * (is_own and not x.is_late)
        if x.stage in (ExchangeState.GRANTED, ExchangeState.CHECKING):
            self.in_memory += by
        if x.stage is ExchangeState.GRANTED and x.offer is not None:
            self.flight_bytes += by * flight_bytes(x.offer.manifest)
