"""Commands and replies between the exchange benchmark and its device processes, JSON lines.

Every command has a reply: `Pull`, `Send` and `Copy` are answered by `Ended` when the bytes have
arrived, `Verify` by `Checked` when they have been hashed, `Join` by `Checked` when all links are
up.
"""

import asyncio
import socket
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from fairbed.wire.messages import Manifest

MAX_LINE_BYTES = 1 << 20
"""Limit of one command or reply: a thousand names with their times take 40 kB."""

Direction: TypeAlias = Literal["down", "up"]


class Join(Struct, frozen=True, kw_only=True, tag="join"):
    """Connect to the broker and make an update."""

    urls: dict[str, str]
    """Broker address of each device of this process."""
    tcp_port: int
    """Port of the plain copy, on loopback."""
    size_bytes: int
    drop: float
    """Share of chunks to drop between transport and receiver."""
    chunk_bytes: int | None
    """Chunk size of uploads; None follows the link."""
    seed: int


class Pull(Struct, frozen=True, kw_only=True, tag="pull"):
    """Pull a public blob."""

    manifest: Manifest
    names: list[str]
    """Devices that take part."""


class Send(Struct, frozen=True, kw_only=True, tag="send"):
    """Offer the update and send it when granted."""

    names: list[str]


class Copy(Struct, frozen=True, kw_only=True, tag="copy"):
    """Copy a vector over plain TCP."""

    direction: Direction
    sha256: bytes
    """Hash of a vector that is copied down."""
    names: list[str]


class Verify(Struct, frozen=True, kw_only=True, tag="verify"):
    """Compare the received vectors with their hashes, and report."""


class Quit(Struct, frozen=True, kw_only=True, tag="quit"):
    """End the process."""


Command: TypeAlias = Join | Pull | Send | Copy | Verify | Quit


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """The bytes of all devices of a process have moved."""

    seconds: dict[str, float]
    """Duration by device, on its clock; of an upload from the grant on."""
    cpu_s: float
    """Processor time of the whole process since the command arrived."""


class Checked(Struct, frozen=True, kw_only=True, tag="checked"):
    """The report of a process between two phases."""

    is_verified: bool
    downlink_bps: list[float]
    """Measured by the devices, bit/s; empty before the first transfer."""
    repeats: int
    """Chunks requested or sent more than once, so far."""
    dropped: int
    """Chunks dropped on purpose, so far."""
    peak_rss_bytes: int


Reply: TypeAlias = Ended | Checked


class Channel:
    """One end of the channel between the benchmark and a device process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @staticmethod
    async def over(sock: socket.socket) -> "Channel":
        """Return the channel over one end of a socket pair."""
        return Channel(*await asyncio.open_connection(sock=sock, limit=MAX_LINE_BYTES))

    async def send(self, message: Command | Reply) -> None:
        """Send one command or reply."""
        self._writer.write(msgspec.json.encode(message) + b"\n")
        await self._writer.drain()

    async def command(self) -> Command:
        """Return the next command; `Quit` when the other side has closed the channel."""
        line = await self._reader.readline()
        return msgspec.json.decode(line, type=Command) if line else Quit()

    async def reply(self) -> Reply:
        """Return the next reply.

        Raises:
            EOFError: The process has ended.
        """
        line = await self._reader.readline()
        if not line:
            raise EOFError("a device process ended before it replied; see its messages above")
        reply: Reply = msgspec.json.decode(line, type=Reply)
        return reply

    def close(self) -> None:
        """Close the channel."""
        self._writer.close()
