"""The reference: a vector copied over one plain asyncio TCP connection per device.

down    the benchmark sends, the device receives into a fresh vector
up      the device sends, the benchmark receives into a fresh vector
"""

import asyncio
import hashlib
import socket

from benchmarks._device_commands import Direction

BACKLOG = 1024


def listen() -> socket.socket:
    """Return a listening socket on loopback."""
    server = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    server.setblocking(False)
    return server


async def serve(
    server: socket.socket, direction: Direction, vector: memoryview, n: int
) -> list[bytearray]:
    """Copy to or from `n` devices at once; return the received vectors."""
    loop = asyncio.get_running_loop()

    async def one(sock: socket.socket) -> bytearray:
        with sock:
            if direction == "down":
                await loop.sock_sendall(sock, vector)
                return bytearray()
            return await _receive(sock, len(vector))

    tasks = []
    for _ in range(n):
        sock, _address = await loop.sock_accept(server)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tasks.append(asyncio.create_task(one(sock)))
    return list(await asyncio.gather(*tasks))


async def copy(port: int, direction: Direction, vector: memoryview) -> bytearray:
    """Copy from or to the benchmark; return the received vector."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        if direction == "up":
            await loop.sock_sendall(sock, vector)
            return bytearray()
        return await _receive(sock, len(vector))


def sha256(data: bytes | bytearray | memoryview) -> bytes:
    """Return the hash of a vector."""
    return hashlib.sha256(data).digest()


async def _receive(sock: socket.socket, n_bytes: int) -> bytearray:
    loop = asyncio.get_running_loop()
    vector = bytearray(n_bytes)
    view, at = memoryview(vector), 0
    while at < n_bytes:
        got = await loop.sock_recv_into(sock, view[at:])
        if not got:
            raise EOFError(f"copy: must bring {n_bytes} bytes, got {at}")
        at += got
    return vector
