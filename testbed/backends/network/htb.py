"""The rate of a link in each direction, as lines for `tc -batch`.

    down   HTB on the hub's link to the device, one class
    up     HTB on the hub's link to the host, one class per device, found by source address

Both are in the hub: a process in the device's namespace cannot undo them. HTB and not TBF, because
TBF refills its bucket at each change: a trace of 10 Hz then delivers 14 to 18 % too much.

    wire rate = goodput * packet / 1448           a full packet carries 1448 bytes of payload
    burst     = max(3200 B, 0.5 ms of the rate)   2.5 % of 256 KiB at 100 Mbit/s
    queue     = max(10 packets, 100 ms of the rate)

Coverage that is lost is a leaf that swallows everything, what waits in the queue included.
"""

from dataclasses import dataclass

from testbed.backends.network.addresses import Addresses
from testbed.backends.network.names import HUB_LINK, hub_side

PAYLOAD_BYTES = 1448
"""Of TCP in a full packet of IPv4 with time stamps."""

FRAME_BYTES = 1514
"""What a shaper counts for a full packet on Ethernet."""

IP_BYTES = 1500
"""What a shaper counts for a full packet on a TUN link."""

MIN_BURST_BYTES, BURST_S = 3200, 0.5e-3
MIN_QUEUE_PACKETS, QUEUE_S = 10, 0.1
MAX_QUEUE_BYTES = 1 << 24
"""100 ms of a gigabit; no queue builds up where nothing is limited."""

UNLIMITED_BPS = 100e9
"""Of the wire, for a direction without a limit: it keeps its class, to be slowed any time."""

MIN_BPS = 1000.0
"""Slower is an outage; `tc` keeps the time of one burst in 32 bits of 64 ns."""

_DEVICE_CLASS, _DEVICE_LEAF = 0x10, 0x10
_NOBODY = 0xFFFF
"""Class of what no device has sent: it leads nowhere."""

_BLACK = 0x8000
"""Added to the number of a leaf while it swallows everything."""

_BUCKETS = "2"
"""Hash table of the classifier, one bucket for each last byte of an address."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One direction of one device's link: where its class is."""

    link: str
    class_id: int
    leaf_id: int
    packet_bytes: int
    """What the shaper counts for a packet with `PAYLOAD_BYTES`."""


def down_lane(index: int, packet_bytes: int = FRAME_BYTES) -> Lane:
    """Return the lane towards a device."""
    return Lane(hub_side(index), _DEVICE_CLASS, _DEVICE_LEAF, packet_bytes)


def up_lane(index: int) -> Lane:
    """Return the lane away from a device."""
    return Lane(HUB_LINK, index + 0x10, index + 0x10, FRAME_BYTES)


def hub_lines() -> list[str]:
    """Return what the hub's link to the host gets, before any device."""
    dev = f"dev {HUB_LINK}"
    return [
        f"qdisc add {dev} root handle 1: htb default {_NOBODY:x}",
        f"class add {dev} parent 1: classid 1:{_NOBODY:x} htb rate 1mbit quantum {FRAME_BYTES}",
        f"qdisc add {dev} parent 1:{_NOBODY:x} handle {_NOBODY - 1:x}: blackhole",
        f"filter add {dev} parent 1: protocol ip prio 1 handle {_BUCKETS}: u32 divisor 256",
        f"filter add {dev} parent 1: protocol ip prio 1 u32 ht 800:: match u32 0 0 "
        f"hashkey mask 0x000000ff at 12 link {_BUCKETS}:",
    ]


def device_lines(
    addresses: Addresses, index: int, down: tuple[Lane, float | None], up_bps: float | None
) -> list[str]:
    """Return what a new device's link gets.

    Args:
        addresses: Of the run.
        index: Number of the device.
        down: Lane towards the device, and its goodput, bit/s; None is not limited.
        up_bps: Goodput away from the device, bit/s; None is not limited.
    """
    lane, down_bps = down
    up = up_lane(index)
    source = addresses.device(index)
    return [
        f"qdisc add dev {lane.link} root handle 1: htb default {_DEVICE_CLASS:x}",
        class_line("add", lane, down_bps),
        leaf_line(lane, down_bps),
        class_line("add", up, up_bps),
        leaf_line(up, up_bps),
        f"filter add dev {up.link} parent 1: protocol ip prio 1 u32 "
        f"ht {_BUCKETS}:{int(source) & 0xFF:x}: match ip src {source}/32 flowid 1:{up.class_id:x}",
    ]


def class_line(verb: str, lane: Lane, goodput_bps: float | None) -> str:
    """Return what gives a lane its rate, or changes it: tokens that it has, it keeps."""
    rate = wire_bps(goodput_bps, lane.packet_bytes)
    burst = burst_bytes(rate)
    return (
        f"class {verb} dev {lane.link} parent 1: classid 1:{lane.class_id:x} htb "
        f"rate {rate}bit burst {burst} cburst {burst} quantum {FRAME_BYTES}"
    )


def leaf_line(lane: Lane, goodput_bps: float | None) -> str:
    """Return what gives a lane a queue that fits its rate, and ends an outage."""
    limit = queue_bytes(wire_bps(goodput_bps, lane.packet_bytes))
    return (
        f"qdisc replace dev {lane.link} parent 1:{lane.class_id:x} "
        f"handle {lane.leaf_id:x}: bfifo limit {limit}"
    )


def outage_line(lane: Lane) -> str:
    """Return what makes a lane swallow every packet."""
    return (
        f"qdisc replace dev {lane.link} parent 1:{lane.class_id:x} "
        f"handle {lane.leaf_id + _BLACK:x}: blackhole"
    )


def wire_bps(goodput_bps: float | None, packet_bytes: int) -> int:
    """Return the rate to configure so that TCP's payload has the rate given, bit/s.

    Raises:
        ValueError: It is too slow to be a rate.
    """
    if goodput_bps is None:
        return int(UNLIMITED_BPS)
    if not goodput_bps >= MIN_BPS:
        raise ValueError(
            f"a rate must be >= {MIN_BPS:g} bit/s, got {goodput_bps:g}; "
            "use an outage for a link that is gone"
        )
    return min(round(goodput_bps * packet_bytes / PAYLOAD_BYTES), int(UNLIMITED_BPS))


def burst_bytes(rate_bps: int) -> int:
    """Return how much may pass at once after a pause."""
    return max(MIN_BURST_BYTES, int(rate_bps * BURST_S / 8))


def queue_bytes(rate_bps: int) -> int:
    """Return how much may wait in front of a lane; what comes on top is dropped."""
    wanted = int(rate_bps * QUEUE_S / 8)
    return min(max(MIN_QUEUE_PACKETS * FRAME_BYTES, wanted), MAX_QUEUE_BYTES)
