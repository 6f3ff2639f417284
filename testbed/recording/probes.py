"""Measures the link of this machine with transfers to a peer.

First round trips, then in each direction transfers that grow until they last long enough to show
the rate, then some of that size. A peer is a broker, or `fairbed record --serve` on a machine
at the other end.
"""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol, TypeAlias

import anyio

from fairbed.testbed.recording.analysis.from_machine import Probed
from fairbed.testbed.recording.analysis.rates import Transfer, transfer
from fairbed.wire.errors import TransportError
from fairbed.wire.transport.address import parse_url

FIRST_BYTES = 64 * 1024
GROWTH = 4
ENOUGH_S = 0.5
"""A transfer that lasts this long is hardly touched by what the first round trips do to TCP."""

REPEATS = 5
ROUND_TRIPS = 10

LIMIT_S = 180.0
"""For everything: a link of 64 kbit/s manages."""


class ProbeFailed(Exception):
    """The link cannot be probed; the message is one line."""


class Peer(Protocol):
    """Whoever answers at the other end. Each method returns the seconds that it took."""

    name: str
    max_bytes: int
    """The largest transfer that it takes part in."""

    async def round_trip(self) -> float:
        """Have something tiny go there and come back."""
        ...

    async def down(self, n_bytes: int) -> float:
        """Ask for bytes; one round trip is part of the time."""
        ...

    async def up(self, n_bytes: int) -> float:
        """Send bytes until the peer says that it has them."""
        ...


OpenPeer: TypeAlias = Callable[[], AbstractAsyncContextManager[Peer]]


def open_probe(where: str) -> Callable[[], Probed]:
    """Return what probes the link to `mqtt://...` or to `HOST:PORT`.

    Raises:
        ValueError: It is neither.
    """
    from fairbed.testbed.recording.mqtt_peer import mqtt_peer
    from fairbed.testbed.recording.tcp_peer import split_address, tcp_peer

    opened: OpenPeer
    if "://" in where:
        parse_url(where)
        opened = partial(mqtt_peer, where)
    else:
        opened = partial(tcp_peer, *split_address(where))
    return lambda: anyio.run(_probe, opened, where.rpartition("@")[2])


async def _probe(opened: OpenPeer, name: str) -> Probed:
    try:
        with anyio.fail_after(LIMIT_S):
            async with opened() as peer:
                return await ask(peer)
    except TimeoutError as exc:
        raise ProbeFailed(
            f"--probe {name}: must answer within {LIMIT_S:g} s in all; take a nearer peer"
        ) from exc
    except (OSError, TransportError, anyio.EndOfStream, anyio.BrokenResourceError) as exc:
        reason = (str(exc) or type(exc).__name__).splitlines()[0]
        raise ProbeFailed(f"--probe {name}: must be reachable, got: {reason}") from exc


async def ask(peer: Peer) -> Probed:
    """Return what a peer tells of the link to it."""
    began_s = time.monotonic()
    trips = [await peer.round_trip() for _ in range(ROUND_TRIPS)]
    quick_s = min(trips)
    moved: dict[str, list[Transfer | None]] = {}
    for way, move in (("down", peer.down), ("up", peer.up)):
        n_bytes = FIRST_BYTES
        while await move(n_bytes) - quick_s < ENOUGH_S and n_bytes < peer.max_bytes:
            n_bytes = min(n_bytes * GROWTH, peer.max_bytes)
        moved[way] = []
        for _ in range(REPEATS):
            elapsed_s = await move(n_bytes)
            now_s = time.monotonic() - began_s
            moved[way].append(transfer(now_s, elapsed_s, quick_s, n_bytes))
    return Probed(peer=peer.name, round_trips_s=trips, down=moved["down"], up=moved["up"])
