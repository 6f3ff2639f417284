"""What can happen to the exchanges of a round, and what has to be done then. Pure."""

from dataclasses import dataclass
from typing import TypeAlias

from wire.messages import Offer


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
