"""Measures the link of this machine with transfers to a peer.

A probe consists of round trips, then, in each direction, transfers that grow until they last long
enough to show the rate, then some transfers of that size. A peer is a broker, or
`fairbed record --serve` on a machine at the other end.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol, TypeAlias

import anyio

from fairbed.testbed.recording.analysis.from_machine import ProbeResult
from fairbed.testbed.recording.analysis.rates import Transfer, transfer
from fairbed.wire.errors import TransportError
from fairbed.wire.transport.address import PASSWORD_VARIABLE, parse_url, with_password

FIRST_BYTES = 64 * 1024
GROWTH = 4
ENOUGH_S = 0.5
"""In a transfer of this length the slow start of TCP hardly counts."""

REPEATS = 5
ROUND_TRIPS = 10

LIMIT_S = 180.0
"""Limit of a whole probe; a link of 64 kbit/s needs less."""


class ProbeFailed(Exception):
    """The link cannot be probed; the message is one line."""


class Peer(Protocol):
    """The other end of a link probe. Each method returns its duration, seconds."""

    name: str
    max_bytes: int
    """Size of the largest transfer."""

    async def round_trip(self) -> float:
        """Send a small message and wait for the reply."""
        ...

    async def down(self, n_bytes: int) -> float:
        """Request bytes; the duration includes one round trip."""
        ...

    async def up(self, n_bytes: int) -> float:
        """Send bytes until the peer acknowledges them."""
        ...


OpenPeer: TypeAlias = Callable[[], AbstractAsyncContextManager[Peer]]


def open_probe(where: str) -> Callable[[], ProbeResult]:
    """Return a function that probes the link to `mqtt://...` or to `HOST:PORT`.

    The password of a broker may be in `FAIRBED_BROKER_PASSWORD`.

    Raises:
        ValueError: It is neither, or has no user for the password.
    """
    from fairbed.testbed.recording.mqtt_peer import mqtt_peer
    from fairbed.testbed.recording.tcp_peer import split_address, tcp_peer

    open_peer: OpenPeer
    if "://" in where:
        parse_url(where)
        given = os.environ.get(PASSWORD_VARIABLE)
        open_peer = partial(mqtt_peer, where if given is None else with_password(where, given))
    else:
        open_peer = partial(tcp_peer, *split_address(where))
    return lambda: anyio.run(_probe, open_peer, where.rpartition("@")[2])


async def _probe(open_peer: OpenPeer, name: str) -> ProbeResult:
    try:
        with anyio.fail_after(LIMIT_S):
            async with open_peer() as peer:
                return await probe_peer(peer)
    except TimeoutError as exc:
        raise ProbeFailed(
            f"--probe {name}: must answer within {LIMIT_S:g} s in all; take a nearer peer"
        ) from exc
    except (OSError, TransportError, anyio.EndOfStream, anyio.BrokenResourceError) as exc:
        reason = (str(exc) or type(exc).__name__).splitlines()[0]
        raise ProbeFailed(f"--probe {name}: must be reachable, got: {reason}") from exc


async def probe_peer(peer: Peer) -> ProbeResult:
    """Probe the link to a peer."""
    began_s = time.monotonic()
    trips = [await peer.round_trip() for _ in range(ROUND_TRIPS)]
    shortest_s = min(trips)
    transfers: dict[str, list[Transfer | None]] = {}
    for direction, move in (("down", peer.down), ("up", peer.up)):
        n_bytes = FIRST_BYTES
        while await move(n_bytes) - shortest_s < ENOUGH_S and n_bytes < peer.max_bytes:
            n_bytes = min(n_bytes * GROWTH, peer.max_bytes)
        transfers[direction] = []
        for _ in range(REPEATS):
            elapsed_s = await move(n_bytes)
            now_s = time.monotonic() - began_s
            transfers[direction].append(transfer(now_s, elapsed_s, shortest_s, n_bytes))
    return ProbeResult(
        peer=peer.name, round_trips_s=trips, down=transfers["down"], up=transfers["up"]
    )
