"""Queues of a link: one per direction, where packets wait for their transmission.

    depth = queue_bytes of the link, or
            max(2 packets, queue_ms at the fastest rate of the direction), or, if it has neither,
            max(10 packets, 100 ms at the fastest rate of the direction);  at most 16 MiB

Bytes are those of full Ethernet frames: 1514 bytes carry 1448 bytes of TCP payload. A queue keeps
its size when its link becomes slower, as in a base station.

A link saves a burst while it is idle, the tokens of a class of HTB in Linux:

    burst = max(3200 B, 0.5 ms of the rate)        2.5 % of 256 KiB at 100 Mbit/s
"""

from typing import Literal, TypeAlias

from fairbed.profiles import LinkQueue, LinkTracks

Direction: TypeAlias = Literal["down", "up"]

PAYLOAD_BYTES = 1448
"""TCP payload of a full IPv4 packet with time stamps."""

FRAME_BYTES = 1514
"""Bytes of a full packet on Ethernet."""

DEFAULT_S, DEFAULT_MIN_PACKETS = 0.1, 10
"""Depth of a queue that the link does not state."""

MIN_PACKETS = 2
"""Smallest queue: with fewer packets, a packet is lost whenever two arrive together."""

CODEL_TARGET_S, CODEL_INTERVAL_S = 5e-3, 0.1
"""Waiting time that fq_codel allows, and the window over which it judges: RFC 8290, section 5.2."""

MIN_BURST_BYTES, BURST_S = 3200, 0.5e-3
"""A burst after a pause."""

MAX_QUEUE_BYTES = 1 << 24
"""Largest queue. One TCP connection has at most 6 MiB in flight by default (Linux, tcp_rmem)."""


def queue_bytes(link: LinkTracks, direction: Direction) -> int:
    """Return the size of the queue of one direction of a link, bytes of Ethernet frames."""
    rate_bps = link.down_bps if direction == "down" else link.up_bps
    return depth_bytes(link.queue, rate_bps.highest)


def depth_bytes(queue: LinkQueue, fastest_bps: float) -> int:
    """Return the size of a queue, bytes of Ethernet frames.

    Args:
        queue: The queue of the link.
        fastest_bps: Fastest rate of the direction, TCP payload, bit/s; `inf` is not limited.
    """
    if queue.depth_bytes is not None:
        return min(queue.depth_bytes, MAX_QUEUE_BYTES)
    depth_s, packets = queue.depth_s, MIN_PACKETS
    if depth_s is None:
        depth_s, packets = DEFAULT_S, DEFAULT_MIN_PACKETS
    wanted = fastest_bps * FRAME_BYTES / PAYLOAD_BYTES * depth_s / 8.0
    return int(min(max(packets * FRAME_BYTES, wanted), MAX_QUEUE_BYTES))


def codel_target_s(queue: LinkQueue) -> float | None:
    """Return the waiting time that fq_codel allows; None for a drop-tail queue."""
    return CODEL_TARGET_S if queue.discipline == "fq_codel" else None


def depth_s(queue_bytes: int, rate_bps: float) -> float:
    """Return the time in which a link sends a full queue, seconds.

    Args:
        queue_bytes: Size of the queue, bytes of Ethernet frames.
        rate_bps: Rate of TCP payload, bit/s, more than 0.
    """
    return 8.0 * queue_bytes * PAYLOAD_BYTES / FRAME_BYTES / rate_bps


def burst_bytes(wire_bps: int) -> int:
    """Return the size of a burst after a pause.

    Args:
        wire_bps: Rate of frames, bit/s.
    """
    return max(MIN_BURST_BYTES, int(wire_bps * BURST_S / 8))


def burst_s(rate_bps: float) -> float:
    """Return the transmission time that a burst saves, seconds.

    Args:
        rate_bps: Rate of TCP payload, bit/s, more than 0.
    """
    return max(8.0 * MIN_BURST_BYTES * PAYLOAD_BYTES / FRAME_BYTES / rate_bps, BURST_S)
