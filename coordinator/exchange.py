"""One device's exchange in a round: where it stands, and when it got there. Pure."""

from dataclasses import dataclass
from enum import Enum

from wire.messages import Offer, Settled


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
    round: int = 0
    """The round that it was asked in."""
    attempt: int = 0
    version: int = 0
    """Number of the version of the model that it trains."""
    number: int = 0
    """Its place in the order of dispatch, through all rounds."""
    stage: Stage = Stage.ASKED
    why: str = ""
    is_late: bool = False
    """It has missed the deadline and goes on."""
    staleness: int | None = None
    """Versions made while it trained; None unless it was merged."""
    merged_round: int | None = None
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
    starved: Starved | None = None
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
