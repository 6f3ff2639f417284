"""What one device is meant to have at one moment: processor, link, coverage."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from msgspec import Struct

Outage: TypeAlias = Literal["coverage", "unplugged", "frozen"]
"""`coverage`: packets vanish, as in a radio hole. `unplugged`: the link is down, as in airplane
mode. `frozen`: the device itself stands still."""


class Shape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The access link of one device, as the payload of TCP sees it."""

    down_bps: float | None = None
    """Towards the device, bit/s; None is not limited."""
    up_bps: float | None = None
    """Away from the device, bit/s; None is not limited."""
    delay_s: float = 0.0
    """One way, seconds."""
    jitter_s: float = 0.0
    """Standard deviation of the delay, one way, seconds; nothing is overtaken."""
    loss_ratio: float = 0.0
    """Share of packets that are lost, each way, 0 to 1."""

    @property
    def is_plain(self) -> bool:
        """Nothing is shaped: the device needs no emulated link."""
        return self == Shape()


@dataclass(frozen=True, slots=True)
class Conditions:
    """What one device is meant to have at this moment."""

    speed_ratio: float | None
    """Speed of its processor in cores of this machine; None is not slowed."""
    shape: Shape | None
    """Its access link; None is this machine's own."""
    outage: Outage | None = None
    clock_ratio: float = 1.0
    """Clock / nominal clock, already part of `speed_ratio`: what the device senses."""
    temperature_celsius: float | None = None
    """What the device senses; None is a device that cannot tell."""
    is_willing: bool = True
    """Its owner lets it take part."""
