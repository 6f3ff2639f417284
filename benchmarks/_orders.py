"""What crosses between the exchange benchmark and its device processes: one line of JSON each.

Every order is answered: `Pull`, `Send` and `Copy` by `Ended` as soon as the bytes are there,
`Verify` by `Checked` once they have been hashed, `Join` by `Checked` when all links are up.
"""

import asyncio
import socket
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from fairbed.wire.messages import Manifest

MAX_LINE_BYTES = 1 << 20
"""Of one order or answer: a thousand names with their times take 40 kB."""

Direction: TypeAlias = Literal["down", "up"]


class Join(Struct, frozen=True, kw_only=True, tag="join"):
    """Connect to the broker and make an update."""

    urls: dict[str, str]
    """Broker address of each device of this process."""
    tcp_port: int
    """Of the plain copy, on loopback."""
    size_bytes: int
    drop: float
    """Share of chunks to lose between transport and receiver."""
    chunk_bytes: int | None
    """Of uploads; None follows the link."""
    seed: int


class Pull(Struct, frozen=True, kw_only=True, tag="pull"):
    """Pull a public blob."""

    manifest: Manifest
    names: list[str]
    """Who takes part."""


class Send(Struct, frozen=True, kw_only=True, tag="send"):
    """Offer the update and send it when granted."""

    names: list[str]


class Copy(Struct, frozen=True, kw_only=True, tag="copy"):
    """Copy a vector over plain TCP."""

    direction: Direction
    sha256: bytes
    """Of what comes down."""
    names: list[str]


class Verify(Struct, frozen=True, kw_only=True, tag="verify"):
    """Compare what was received with its hash, and report."""


class Quit(Struct, frozen=True, kw_only=True, tag="quit"):
    """Leave."""


Order: TypeAlias = Join | Pull | Send | Copy | Verify | Quit


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """The bytes of all devices of a process have moved."""

    seconds: dict[str, float]
    """By device, on its clock; of an upload from the grant on."""
    cpu_s: float
    """Of the whole process since the order came."""


class Checked(Struct, frozen=True, kw_only=True, tag="checked"):
    """What a process has to say between two phases."""

    is_verified: bool
    downlink_bps: list[float]
    """As measured by the devices, bit/s; empty before the first transfer."""
    repeats: int
    """Chunks asked for or sent more than once, so far."""
    dropped: int
    """Chunks lost on purpose, so far."""
    peak_rss_bytes: int


Answer: TypeAlias = Ended | Checked


class Channel:
    """One end of the line between the benchmark and a device process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @staticmethod
    async def over(sock: socket.socket) -> "Channel":
        """Return the channel over one end of a socket pair."""
        return Channel(*await asyncio.open_connection(sock=sock, limit=MAX_LINE_BYTES))

    async def send(self, message: Order | Answer) -> None:
        """Send one order or answer."""
        self._writer.write(msgspec.json.encode(message) + b"\n")
        await self._writer.drain()

    async def order(self) -> Order:
        """Return the next order; `Quit` when the other side has left."""
        line = await self._reader.readline()
        return msgspec.json.decode(line, type=Order) if line else Quit()

    async def answer(self) -> Answer:
        """Return the next answer.

        Raises:
            EOFError: The process has ended.
        """
        line = await self._reader.readline()
        if not line:
            raise EOFError("a device process ended before it answered; see its messages above")
        answer: Answer = msgspec.json.decode(line, type=Answer)
        return answer

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
