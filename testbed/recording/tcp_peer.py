"""A peer for link probes over plain TCP: `fairbed record --serve`, and its client.

    request    U or D, then a number of bytes n, 8 bytes big-endian
    U          n bytes follow; the reply is one byte when all have arrived
    D          the reply is n bytes

The server sends and stores nothing else. It serves every client that can reach it, so run it only
for the time of a recording.
"""

import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketStream, TaskStatus

MAX_BYTES = 32 << 20
"""Limit of one transfer: 0.27 s at 1 Gbit/s."""

MAX_CLIENTS = 16
IDLE_S = 60.0
"""A client that sends nothing for this time is disconnected."""

CONNECT_S = 10.0
BLOCK = bytes(1 << 16)
_HEADER = struct.Struct(">cQ")
_DONE = b"."


def split_address(where: str, host: str = "") -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, or of `PORT` if there is a default host.

    Raises:
        ValueError: It is neither.
    """
    name, colon, port = where.rpartition(":")
    name = name.strip("[]") if colon else host
    if not name or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"address must be mqtt://... or HOST:PORT, got {where!r}")
    return name, int(port)


class TcpPeer:
    """The client of a peer; made by `tcp_peer`."""

    max_bytes = MAX_BYTES

    def __init__(self, stream: SocketStream, name: str) -> None:
        self.name = name
        self._stream = stream

    async def round_trip(self) -> float:
        """Send one byte and wait for one byte."""
        return await self.up(1)

    async def down(self, n_bytes: int) -> float:
        """Request bytes and wait for them."""
        began = time.perf_counter()
        await self._stream.send(_HEADER.pack(b"D", n_bytes))
        await _receive_bytes(self._stream, n_bytes)
        return time.perf_counter() - began

    async def up(self, n_bytes: int) -> float:
        """Send bytes until the peer has received them."""
        began = time.perf_counter()
        await _send_bytes(self._stream, n_bytes, _HEADER.pack(b"U", n_bytes))
        await _receive_bytes(self._stream, 1)
        return time.perf_counter() - began


@asynccontextmanager
async def tcp_peer(host: str, port: int) -> AsyncIterator[TcpPeer]:
    """Connect to a server of probes.

    Raises:
        OSError: No server replies.
    """
    try:
        with anyio.fail_after(CONNECT_S):
            stream = await anyio.connect_tcp(host, port)
    except TimeoutError as exc:
        raise OSError(f"no reply within {CONNECT_S:g} s") from exc
    async with stream:
        _send_at_once(stream)
        yield TcpPeer(stream, f"{host}:{port}")


async def serve(
    host: str, port: int, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Serve probes until cancelled; report the port by `task_status`.

    Raises:
        OSError: The address cannot be bound.
    """
    clients = anyio.CapacityLimiter(MAX_CLIENTS)

    async def serve_client(stream: SocketStream) -> None:
        async with stream:
            try:
                clients.acquire_nowait()
            except anyio.WouldBlock:
                return
            try:
                await _serve_requests(stream)
            except (OSError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream):
                pass  # the client has disconnected
            finally:
                clients.release()

    listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    async with listener:
        task_status.started(listener.extra(anyio.abc.SocketAttribute.local_port))
        await listener.serve(serve_client)


async def _serve_requests(stream: SocketStream) -> None:
    _send_at_once(stream)
    while True:
        with anyio.fail_after(IDLE_S):
            header = await _receive_exactly(stream, _HEADER.size)
        direction, n_bytes = _HEADER.unpack(header)
        if direction not in (b"U", b"D") or not 0 < n_bytes <= MAX_BYTES:
            return
        if direction == b"U":
            await _receive_bytes(stream, n_bytes)
            await stream.send(_DONE)
        else:
            await _send_bytes(stream, n_bytes)


def _send_at_once(stream: SocketStream) -> None:
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _receive_exactly(stream: SocketStream, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        data += await stream.receive(n_bytes - len(data))
    return data


async def _receive_bytes(stream: SocketStream, n_bytes: int) -> None:
    while n_bytes > 0:
        with anyio.fail_after(IDLE_S):
            n_bytes -= len(await stream.receive(min(n_bytes, len(BLOCK))))


async def _send_bytes(stream: SocketStream, n_bytes: int, first: bytes = b"") -> None:
    block = first + BLOCK[: min(n_bytes, len(BLOCK))]
    n_bytes += len(first)
    while n_bytes > 0:
        with anyio.fail_after(IDLE_S):
            await stream.send(block[:n_bytes])
        n_bytes -= len(block)
        block = BLOCK
