"""The rate of a link in each direction, as lines for `tc -batch`.

    down   HTB on the hub's link to the device, one class
    up     HTB on the hub's link to the host, one class per device, found by source address

Both are in the hub: a process in the device's namespace cannot undo them. HTB and not TBF, because
TBF refills its bucket at each change: a trace of 10 Hz then delivers 14 to 18 % too much.

    wire rate = goodput * packet / 1448           a full packet carries 1448 bytes of payload
    burst     = max(3200 B, 0.5 ms of the rate)   2.5 % of 256 KiB at 100 Mbit/s
    queue     = max(10 packets, 100 ms of the fastest that the link was)

A queue keeps its size when its link becomes slower, as a base station's does, and most steps of a
trace cost one line, not two.

Where nothing passes, as in a radio hole, the leaf swallows everything, what waited in the queue
included: TCP comes back after its retransmission timeout, as it does on the impairment.

A kernel with netem delays and loses packets in the same leaf. It came with no machine that this
was written on: those lines are tested as text, and the kernel's word on them is the probe's.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from fairbed.testbed.backends.network.plan.delay import NO_IMPAIRMENT, Impairment
from fairbed.testbed.backends.network.plan.names import HUB_LINK, Addresses, hub_side

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

UNLIMITED_BPS = 100_000_000_000
"""Of the wire, for a direction without a limit: it keeps its class, to be slowed any time."""

MIN_BPS = 8000.0
"""One full packet takes 1.5 s of it, and the class owes that time when it becomes faster. Slower
than this nothing passes at all."""

OUTAGE_BPS = 0.0
"""Of a lane that swallows every packet."""

_DEVICE_CLASS, _DEVICE_LEAF = 0x10, 0x10
_HUB = 0xFFFF
"""Class of the hub's own packets: ICMP errors about a disconnected device."""

_BLACK, _NETEM = 0x8000, 0x4000
"""Added to the number of a leaf of another kind: a number keeps its kind."""

NETEM_JITTERS = 4.0
"""Deviations that a packet waits at most, for the room that netem needs."""

NETEM_ORDER_BPS = 100e9

_BUCKETS = "2"
"""Hash table of the classifier, one bucket for each last byte of an address."""


@dataclass(frozen=True)
class Lane:
    """One direction of one device's link: where its class is."""

    link: str
    class_id: int
    leaf_id: int
    packet_bytes: int = FRAME_BYTES
    """What the shaper counts for a packet with `PAYLOAD_BYTES`."""

    @cached_property
    def class_words(self) -> str:
        """How its class is called."""
        return f"dev {self.link} parent 1: classid 1:{self.class_id:x} htb"


def down_lane(index: int, packet_bytes: int = FRAME_BYTES) -> Lane:
    """Return the lane towards a device."""
    return Lane(hub_side(index), _DEVICE_CLASS, _DEVICE_LEAF, packet_bytes)


def up_lane(index: int) -> Lane:
    """Return the lane away from a device."""
    return Lane(HUB_LINK, index + 0x10, index + 0x10)


def hub_lines() -> list[str]:
    """Return what the hub's link to the host gets, before any device."""
    dev = f"dev {HUB_LINK}"
    return [
        f"qdisc add {dev} root handle 1: htb default {_HUB:x}",
        f"class add {dev} parent 1: classid 1:{_HUB:x} htb rate 1mbit quantum {FRAME_BYTES}",
        f"filter add {dev} parent 1: protocol ip prio 1 handle {_BUCKETS}: u32 divisor 256",
        f"filter add {dev} parent 1: protocol ip prio 1 u32 ht 800:: match u32 0 0 "
        f"hashkey mask 0x000000ff at 12 link {_BUCKETS}:",
    ]


def device_lines(addresses: Addresses, index: int, lanes: tuple[Lane, Lane]) -> list[str]:
    """Return what a new device's link gets: classes without limits, to be changed.

    Args:
        addresses: Of the run.
        index: Number of the device.
        lanes: Towards the device, and away from it.
    """
    down, up = lanes
    source = addresses.device(index)
    return [
        f"qdisc add dev {down.link} root handle 1: htb default {_DEVICE_CLASS:x}",
        _class_line("add", down, None),
        leaf_line(down, None),
        _class_line("add", up, None),
        leaf_line(up, None),
        f"filter add dev {up.link} parent 1: protocol ip prio 1 u32 "
        f"ht {_BUCKETS}:{int(source) & 0xFF:x}: match ip src {source}/32 flowid 1:{up.class_id:x}",
    ]


def rate_line(lane: Lane, goodput_bps: float | None) -> str:
    """Return what changes the rate of a lane; tokens that it has, it keeps."""
    return _class_line("change", lane, goodput_bps)


def leaf_line(lane: Lane, goodput_bps: float | None, impairment: Impairment = NO_IMPAIRMENT) -> str:
    """Return what gives a lane a queue that fits a rate, after a hole too.

    Args:
        lane: Which one.
        goodput_bps: The fastest that passes, bit/s; None is not limited, `OUTAGE_BPS` lets nothing
            pass.
        impairment: What netem does to packets; where it is clear, netem is not needed.
    """
    at = f"qdisc replace dev {lane.link} parent 1:{lane.class_id:x} handle"
    if goodput_bps == OUTAGE_BPS:
        return f"{at} {lane.leaf_id + _BLACK:x}: blackhole"
    rate = wire_bps(goodput_bps, lane.packet_bytes)
    if impairment == NO_IMPAIRMENT:
        return f"{at} {lane.leaf_id:x}: bfifo limit {queue_bytes(rate)}"
    return f"{at} {lane.leaf_id + _NETEM:x}: netem {_netem_options(rate, impairment)}"


def wire_bps(goodput_bps: float | None, packet_bytes: int) -> int:
    """Return the rate to configure so that TCP's payload has the rate given, bit/s."""
    if goodput_bps is None:
        return UNLIMITED_BPS
    return min(round(goodput_bps * packet_bytes / PAYLOAD_BYTES), UNLIMITED_BPS)


def burst_bytes(rate_bps: int) -> int:
    """Return how much may pass at once after a pause."""
    return max(MIN_BURST_BYTES, int(rate_bps * BURST_S / 8))


def queue_bytes(rate_bps: int) -> int:
    """Return how much may wait in front of a lane; what comes on top is dropped."""
    wanted = int(rate_bps * QUEUE_S / 8)
    return min(max(MIN_QUEUE_PACKETS * FRAME_BYTES, wanted), MAX_QUEUE_BYTES)


def _class_line(verb: str, lane: Lane, goodput_bps: float | None) -> str:
    rate = wire_bps(goodput_bps, lane.packet_bytes)
    burst = burst_bytes(rate)
    return (
        f"class {verb} {lane.class_words} rate {rate}bit burst {burst} cburst {burst} "
        f"quantum {FRAME_BYTES}"
    )


def _netem_options(rate_bps: int, impairment: Impairment) -> str:
    """Return the options of netem.

    Its `rate` is no limit here: with one, and only with one, it keeps packets in order.
    """
    latest_s = impairment.delay_s + NETEM_JITTERS * impairment.jitter_s
    in_flight_bytes = min(rate_bps * latest_s / 8, MAX_QUEUE_BYTES) + queue_bytes(rate_bps)
    options = [f"limit {ceil(in_flight_bytes / FRAME_BYTES)}"]
    if impairment.delay_s or impairment.jitter_s:
        options.append(f"delay {_us(impairment.delay_s)}us")
    if impairment.jitter_s:
        options.append(
            f"{_us(impairment.jitter_s)}us distribution normal rate {NETEM_ORDER_BPS:.0f}bit"
        )
    if impairment.loss_ratio:
        options.append(f"loss {100 * impairment.loss_ratio:.4f}%")
    return " ".join(options)


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
