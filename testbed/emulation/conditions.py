"""The configured conditions of one device at one moment: processor, link, coverage."""

from typing import Literal, TypeAlias

from msgspec import Struct, structs

Outage: TypeAlias = Literal["coverage", "unplugged", "frozen"]
"""`coverage`: packets are lost, as without radio coverage. `unplugged`: the link is down, as in
airplane mode. `frozen`: the processes of the device are stopped."""

Congestion: TypeAlias = Literal["cubic", "bbr"]
"""Congestion control of TCP: CUBIC (RFC 9438), the default of Linux, or BBR."""

LinkFeature: TypeAlias = Literal["loss", "fq_codel", "bbr"]
"""A feature of links that some backends or kernels lack."""


class Shape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The access link of one device; rates count TCP payload."""

    down_bps: float | None = None
    """Towards the device, bit/s; None is not limited."""
    up_bps: float | None = None
    """Away from the device, bit/s; None is not limited."""
    delay_s: float = 0.0
    """One way, seconds."""
    jitter_s: float = 0.0
    """Standard deviation of the one-way delay, seconds; packets keep their order."""
    loss_ratio: float = 0.0
    """Share of packets lost in each direction, 0 to 1."""
    down_queue_bytes: int | None = None
    """Size of the queue towards the device, bytes of Ethernet frames; None: 100 ms at the fastest
    rate so far (`testbed.emulation.queues`)."""
    up_queue_bytes: int | None = None
    """Size of the queue away from the device."""
    codel_target_s: float | None = None
    """Waiting time that fq_codel allows, seconds; None is a drop-tail queue."""

    def dilated(self, dilation: float) -> "Shape":
        """Return the link that this machine must shape under time dilation."""
        return structs.replace(
            self,
            down_bps=None if self.down_bps is None else self.down_bps / dilation,
            up_bps=None if self.up_bps is None else self.up_bps / dilation,
            delay_s=self.delay_s * dilation,
            jitter_s=self.jitter_s * dilation,
            codel_target_s=None if self.codel_target_s is None else self.codel_target_s * dilation,
        )

    @property
    def is_impaired(self) -> bool:
        """Whether packets are delayed or lost."""
        return max(self.delay_s, self.jitter_s, self.loss_ratio) > 0.0

    @property
    def is_plain(self) -> bool:
        """Whether nothing is shaped, so that the device needs no emulated link."""
        return self.down_bps is None and self.up_bps is None and not self.is_impaired


class Conditions(Struct, frozen=True):
    """The configured conditions of one device at one moment."""

    speed_ratio: float | None
    """Speed of the processor in cores of this machine; None is not slowed."""
    shape: Shape | None
    """The access link; None is this machine's own."""
    outage: Outage | None = None
    clock_ratio: float = 1.0
    """Clock / nominal clock, already part of `speed_ratio`; reported by the device's sensors."""
    temperature_celsius: float | None = None
    """Reported by the device's sensors; None is a device without a temperature sensor."""
    is_willing: bool = True
    """Whether the owner lets the device take part."""

    def dilated(self, dilation: float) -> "Conditions":
        """Return the conditions that this machine must emulate under time dilation."""
        if dilation == 1.0:
            return self
        return structs.replace(
            self,
            speed_ratio=None if self.speed_ratio is None else self.speed_ratio / dilation,
            shape=self.shape and self.shape.dilated(dilation),
        )
