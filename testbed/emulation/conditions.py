"""The configured conditions of one device at one moment: processor, link, coverage."""

from typing import Literal, TypeAlias

from msgspec import Struct, structs

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

    def dilated(self, dilation: float) -> "Shape":
        """Return the link as this machine has to shape it when time is dilated."""
        return structs.replace(
            self,
            down_bps=None if self.down_bps is None else self.down_bps / dilation,
            up_bps=None if self.up_bps is None else self.up_bps / dilation,
            delay_s=self.delay_s * dilation,
            jitter_s=self.jitter_s * dilation,
        )

    @property
    def is_plain(self) -> bool:
        """Nothing is shaped: the device needs no emulated link."""
        return self == Shape()


class Conditions(Struct, frozen=True):
    """The configured conditions of one device at this moment."""

    speed_ratio: float | None
    """Speed of its processor in cores of this machine; None is not slowed."""
    shape: Shape | None
    """Its access link; None is this machine's own."""
    outage: Outage | None = None
    clock_ratio: float = 1.0
    """Clock / nominal clock, already part of `speed_ratio`; read by the device's sensors."""
    temperature_celsius: float | None = None
    """Read by the device's sensors; None is a device without that sensor."""
    is_willing: bool = True
    """Its owner lets it take part."""

    def dilated(self, dilation: float) -> "Conditions":
        """Return the conditions in seconds of this machine when time is dilated."""
        if dilation == 1.0:
            return self
        return structs.replace(
            self,
            speed_ratio=None if self.speed_ratio is None else self.speed_ratio / dilation,
            shape=self.shape and self.shape.dilated(dilation),
        )
