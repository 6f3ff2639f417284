"""Bytes of a broker become packets, wherever the network cut them. Pure.

Whoever reads the socket writes into `space()` and says how much with `take(n)`. Small packets are
cut out of one buffer; the body of a large one gets memory of its own, which the network then
fills, so that a chunk is copied by nobody but the kernel.
"""

from wire.errors import DecodeError
from wire.transport.packets import PUBLISH, Inbound, check_head, decode

READ_BYTES = 64 * 1024
"""Hundreds of control messages at a time; of a chunk at most so much is copied."""

LARGE_BYTES = 8 * 1024
"""An unfinished packet above this gets memory of its own."""

_MAX_LENGTH_BYTES = 4


class Reader:
    """Cuts a stream of bytes into packets; after a `DecodeError` it is of no more use."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(READ_BYTES))
        self._start = self._end = 0
        """What has come and is in no packet yet."""
        self._first = 0
        self._body: memoryview | None = None
        """Of a large packet that has begun."""
        self._filled = 0

    def space(self) -> memoryview:
        """Return where the next bytes belong; never empty."""
        if self._body is not None:
            return self._body[self._filled :]
        return self._view[self._end :]

    def take(self, n_bytes: int) -> list[Inbound]:
        """Return the packets that are complete, now that `n_bytes` more are there.

        Raises:
            DecodeError: A broker must not send this.
        """
        if self._body is not None:
            self._filled += n_bytes
            if self._filled < len(self._body):
                return []
            body, self._body = self._body, None
            return [decode(self._first, body.toreadonly())]
        self._end += n_bytes
        packets: list[Inbound] = []
        while (packet := self._next()) is not None:
            packets.append(packet)
        self._make_room()
        return packets

    def _next(self) -> Inbound | None:
        """Return the next packet of the buffer, or None until more has come."""
        view, start, end = self._view, self._start, self._end
        length = shift = 0
        place = start + 1
        while True:
            if place >= end:
                return None
            byte = view[place]
            length |= (byte & 0x7F) << shift
            place += 1
            if not byte & 0x80:
                break
            shift += 7
            if place - start > _MAX_LENGTH_BYTES:
                raise DecodeError("mqtt: a length must take at most 4 bytes, got more")
        first = view[start]
        check_head(first, length)
        stop = place + length
        if stop <= end:
            self._start = stop
            return decode(first, bytes(view[place:stop]))
        if length > LARGE_BYTES and first >> 4 == PUBLISH:
            self._first, self._body = first, memoryview(bytearray(length))
            self._filled = end - place
            self._body[: self._filled] = view[place:end]
            self._start = end
        return None

    def _make_room(self) -> None:
        """Move what is left to the front: at most `LARGE_BYTES` and a header."""
        left = self._end - self._start
        if self._start and left:
            self._view[:left] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, left
