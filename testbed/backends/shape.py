"""What crosses to the process that shapes links."""

from msgspec import Struct


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


class ProxySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of JSON on a proxy's stdin; the answer is one line, `{name: port}`."""

    host: str
    """Of the broker behind the proxies."""
    port: int
    devices: dict[str, Shape]
