"""The rate of a link in each direction, as lines for `tc -batch`.

    down   HTB on the hub's link to the device, one class
    up     HTB on the hub's link to the host, one class per device, selected by source address

    cell   on both of the links that all its devices share (`plan.links`), a class above theirs

A class in a cell has no rate of its own to speak of: it borrows from the cell, up to the rate of
its own link. The kernel lends to classes of one priority in turn, packet by packet, so that they
have equal shares; a class of a later priority gets what the others leave. A cell behind another
borrows from that one in the same way.

    class of a device, or of a cell behind another     rate 8 kbit/s, ceil = its own rate
    class of a cell that is behind no other            rate = ceil = its own rate

All are in the hub, where a process in the device's namespace cannot change them. HTB is used
instead of TBF, because TBF refills its bucket at each change: a trace of 10 Hz then delivers 14 to
18 % too much.

    wire rate = goodput * packet / 1448           a full packet carries 1448 bytes of payload
    burst     = `testbed.emulation.queues`
    queue     = the same, for all rates of the link

A queue keeps its size when its link becomes slower, as in a base station; most steps of a trace
then cost one line, not two. It drops what does not fit, or is an fq_codel where the kernel has it.

In an outage the leaf is a blackhole, which drops all packets including the queued ones: TCP resumes
after its retransmission timeout, as in a real coverage hole.

A kernel with netem delays and drops packets in the same leaf, in front of an fq_codel. `probe`
tests whether the kernel has both. HTB expects a packet from each leaf that has any, and netem has
packets that are not due: the kernel reports `netem qdisc ... is non-work-conserving` once per leaf,
takes the next class, and wakes up when the packet is due.

Links with jitter use netem only where no relay works (`probe`): netem delays each packet
independently, so that a dense stream in order always has the largest delays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address
from math import ceil

from msgspec import Struct

from fairbed.testbed.backends.network.plan.delay import NO_IMPAIRMENT, Impairment
from fairbed.testbed.backends.network.plan.names import (
    CELL_LINK,
    HUB_LINK,
    Addresses,
    hub_side,
)
from fairbed.testbed.emulation.cell import Cell
from fairbed.testbed.emulation.queues import (
    CODEL_INTERVAL_S,
    CODEL_TARGET_S,
    FRAME_BYTES,
    MAX_QUEUE_BYTES,
    PAYLOAD_BYTES,
    burst_bytes,
)

IP_BYTES = 1500
"""Bytes that a shaper counts for a full packet on a TUN link."""

UNLIMITED_BPS = 100_000_000_000
"""Wire rate of a direction without a limit; the class stays, so that a limit can be set later."""

MIN_BPS = 8000.0
"""Lower rates are an outage. At this rate a full packet takes 1.5 s, a debt that the class keeps
when it becomes faster."""

OUTAGE_BPS = 0.0
"""Rate of a lane that drops every packet."""

_DEVICE_CLASS, _DEVICE_LEAF = 0x10, 0x10
_HUB = 0xFFFF
"""Class of the hub's own packets: ICMP errors about a disconnected device."""

_CELL_CLASS = 0x8000
"""Class of the first cell, beyond those of devices."""

_BORROWS = "rate 8000bit burst 1600"
"""Options of a class that borrows all of its rate but for one packet per 1.5 s."""

_BLACK, _NETEM, _CODEL = 0x8000, 0x4000, 0xB000
"""Offsets of leaf ids by qdisc kind, as an id cannot change its kind."""

NETEM_JITTERS = 4.0
"""Largest jitter in standard deviations, for the size of netem's queue."""

NETEM_ORDER_BPS = 100e9
"""Rate option of netem, far above any link: with it netem keeps packets in order."""

_BUCKETS = "2"
"""Hash table of the classifier, with one bucket per last byte of an address."""


class Leaf(Struct, frozen=True):
    """The queue of a lane."""

    queue_bytes: int = MAX_QUEUE_BYTES
    """Bytes of Ethernet frames; packets beyond it are dropped. Links without a limit build up no
    queue."""
    fastest_bps: float | None = None
    """Fastest rate of TCP payload, bit/s; None is not limited."""
    codel_target_s: float | None = None
    """Waiting time that fq_codel allows, seconds; None is a drop-tail queue."""


@dataclass(frozen=True)
class Lane:
    """One direction of a device's link: the location of its HTB class and leaf qdisc."""

    link: str
    class_id: int
    leaf_id: int
    packet_bytes: int = FRAME_BYTES
    """Bytes that the shaper counts for a packet with `PAYLOAD_BYTES`."""
    cell_id: int | None = None
    """The class of its cell; None is no cell."""
    priority: int = 0
    """In the cell, 0 first."""

    @cached_property
    def class_words(self) -> str:
        """The words of `tc` that select the class."""
        parent = "" if self.cell_id is None else f"{self.cell_id:x}"
        return f"dev {self.link} parent 1:{parent} classid 1:{self.class_id:x} htb"


def down_lane(index: int, packet_bytes: int = FRAME_BYTES) -> Lane:
    """Return the lane towards a device."""
    return Lane(hub_side(index), _DEVICE_CLASS, _DEVICE_LEAF, packet_bytes)


def up_lane(index: int) -> Lane:
    """Return the lane away from a device."""
    return Lane(HUB_LINK, index + 0x10, index + 0x10)


def cell_lanes(index: int, cell: int, priority: int) -> tuple[Lane, Lane]:
    """Return the lanes of a device in a cell: towards it, and away from it.

    Args:
        index: Index of the device.
        cell: Number of the cell.
        priority: Priority in the cell.
    """
    down, up = (
        Lane(link, index + 0x10, index + 0x10, cell_id=_CELL_CLASS + cell, priority=priority)
        for link in (CELL_LINK, HUB_LINK)
    )
    return down, up


def cell_class_lines(cells: Sequence[Cell]) -> list[str]:
    """Return the lines that set up the cells, after `hub_lines`; no device has a class yet.

    Args:
        cells: All cells, at least one; those in front before those behind them.
    """
    dev, numbers = f"dev {CELL_LINK}", {cell.name: at for at, cell in enumerate(cells)}
    lines = [
        f"qdisc add {dev} root handle 1: htb default {_HUB:x}",
        f"class add {dev} parent 1: classid 1:{_HUB:x} htb rate 1mbit quantum {FRAME_BYTES}",
        *_hash_lines(CELL_LINK, "1:", 16),
        f"qdisc add dev {HUB_LINK} handle ffff: ingress",
        *_hash_lines(HUB_LINK, "ffff:", 16),
    ]
    for at, cell in enumerate(cells):
        parent = "" if cell.behind is None else f"{_CELL_CLASS + numbers[cell.behind]:x}"
        for link, goodput_bps in ((CELL_LINK, cell.down_bps), (HUB_LINK, cell.up_bps)):
            bps = wire_bps(goodput_bps, FRAME_BYTES)
            own = f"rate {bps}bit burst {burst_bytes(bps)}" if not parent else _BORROWS
            lines.append(
                f"class add dev {link} parent 1:{parent} classid 1:{_CELL_CLASS + at:x} htb {own} "
                f"ceil {bps}bit cburst {burst_bytes(bps)} quantum {FRAME_BYTES}"
            )
    return lines


def hub_lines() -> list[str]:
    """Return the lines that set up the hub's link to the host, before any device."""
    dev = f"dev {HUB_LINK}"
    return [
        f"qdisc add {dev} root handle 1: htb default {_HUB:x}",
        f"class add {dev} parent 1: classid 1:{_HUB:x} htb rate 1mbit quantum {FRAME_BYTES}",
        *_hash_lines(HUB_LINK, "1:", 12),
    ]


def _hash_lines(link: str, parent: str, offset: int) -> list[str]:
    """Return the lines of a hash table over the last byte of the IP address at an offset."""
    add = f"filter add dev {link} parent {parent} protocol ip prio 1"
    return [
        f"{add} handle {_BUCKETS}: u32 divisor 256",
        f"{add} u32 ht 800:: match u32 0 0 hashkey mask 0x000000ff at {offset} link {_BUCKETS}:",
    ]


def device_lines(addresses: Addresses, index: int, lanes: tuple[Lane, Lane]) -> list[str]:
    """Return the lines that set up the link of a new device: classes without limits.

    Args:
        addresses: Addresses of the run.
        index: Index of the device.
        lanes: Towards the device, and away from it.
    """
    down, up = lanes
    address = addresses.device(index)
    if down.cell_id is None:
        root = [f"qdisc add dev {down.link} root handle 1: htb default {_DEVICE_CLASS:x}"]
        towards = []
    else:
        root, towards = (
            [],
            [
                _filter_line(down.link, "1:", "dst", address, f"flowid 1:{down.class_id:x}"),
                _filter_line(
                    HUB_LINK,
                    "ffff:",
                    "dst",
                    address,
                    f"action mirred egress redirect dev {CELL_LINK}",
                ),
            ],
        )
    return [
        *root,
        _class_line("add", down, None),
        *leaf_lines(down, Leaf()),
        *towards,
        _class_line("add", up, None),
        *leaf_lines(up, Leaf()),
        _filter_line(up.link, "1:", "src", address, f"flowid 1:{up.class_id:x}"),
    ]


def _filter_line(link: str, parent: str, side: str, address: IPv4Address, then: str) -> str:
    """Return the line that classifies packets with an address on a link of many devices."""
    return (
        f"filter add dev {link} parent {parent} protocol ip prio 1 u32 "
        f"ht {_BUCKETS}:{int(address) & 0xFF:x}: match ip {side} {address}/32 {then}"
    )


def rate_line(lane: Lane, goodput_bps: float | None) -> str:
    """Return the line that changes the rate of a lane; the class keeps its tokens."""
    return _class_line("change", lane, goodput_bps)


def leaf_lines(lane: Lane, leaf: Leaf | None, impairment: Impairment = NO_IMPAIRMENT) -> list[str]:
    """Return the lines that replace the leaf qdisc of a lane.

    Args:
        lane: The lane.
        leaf: Its queue; None drops all packets.
        impairment: Impairment by netem; without any, netem is not used.
    """
    dev = f"qdisc replace dev {lane.link}"
    at = f"{dev} parent 1:{lane.class_id:x} handle"
    if leaf is None:
        return [f"{at} {lane.leaf_id + _BLACK:x}: blackhole"]
    codel = f"handle {lane.leaf_id + _CODEL:x}: fq_codel {_codel_options(leaf)}"
    if impairment == NO_IMPAIRMENT:
        if leaf.codel_target_s is not None:
            return [f"{dev} parent 1:{lane.class_id:x} {codel}"]
        # queues hold packets of the lane: a TUN link counts fewer bytes per packet
        limit_bytes = leaf.queue_bytes * lane.packet_bytes // FRAME_BYTES
        return [f"{at} {lane.leaf_id:x}: bfifo limit {limit_bytes}"]
    netem = lane.leaf_id + _NETEM
    lines = [f"{at} {netem:x}: netem {_netem_options(lane, leaf, impairment)}"]
    if leaf.codel_target_s is not None:
        lines.append(f"{dev} parent {netem:x}:1 {codel}")
    return lines


def wire_bps(goodput_bps: float | None, packet_bytes: int) -> int:
    """Return the wire rate at which TCP payload has the given rate, bit/s."""
    if goodput_bps is None:
        return UNLIMITED_BPS
    return min(round(goodput_bps * packet_bytes / PAYLOAD_BYTES), UNLIMITED_BPS)


def _class_line(verb: str, lane: Lane, goodput_bps: float | None) -> str:
    rate = wire_bps(goodput_bps, lane.packet_bytes)
    burst = burst_bytes(rate)
    if lane.cell_id is not None:
        return (
            f"class {verb} {lane.class_words} prio {lane.priority} {_BORROWS} ceil {rate}bit "
            f"cburst {burst} quantum {FRAME_BYTES}"
        )
    return (
        f"class {verb} {lane.class_words} rate {rate}bit burst {burst} cburst {burst} "
        f"quantum {FRAME_BYTES}"
    )


def _netem_options(lane: Lane, leaf: Leaf, impairment: Impairment) -> str:
    """Return the options of netem.

    `rate` is no limit here: netem keeps packets in order only if it has a rate.
    """
    latest_s = impairment.delay_s + NETEM_JITTERS * impairment.jitter_s
    rate_bps = wire_bps(leaf.fastest_bps, lane.packet_bytes)
    in_flight_bytes = min(rate_bps * latest_s / 8, MAX_QUEUE_BYTES) + leaf.queue_bytes
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


def _codel_options(leaf: Leaf) -> str:
    """Return the options of fq_codel: its interval grows with the target under time dilation."""
    target_s = leaf.codel_target_s or CODEL_TARGET_S
    interval_s = target_s * CODEL_INTERVAL_S / CODEL_TARGET_S
    packets = ceil(leaf.queue_bytes / FRAME_BYTES)
    return f"limit {packets} target {_us(target_s)}us interval {_us(interval_s)}us noecn"


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
