"""MQTT 3.1.1 packets of a client: encoding, decoding, and a reader of byte streams. Pure.

    fixed header: type and flags u8 | remaining length, 1 to 4 bytes of 7 bits, least first
    variable header and payload: `remaining length` bytes, integers big-endian

Encoders raise `EncodeError` for invalid arguments, `decode` raises `DecodeError` for a packet that
a broker must not send. QoS 2 is not supported.

`Reader` turns received bytes into packets. The socket is read into `get_buffer()`, then
`buffer_updated(n)` returns the complete packets. Small packets are copied out of one buffer; the
body of a large packet is received directly into memory of its own, without a further copy. The
payload of an oversized packet is discarded as it arrives.

Source:
    OASIS, MQTT Version 3.1.1, 2014, chapters 2 and 3.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from fairbed.wire.errors import DecodeError, EncodeError
from fairbed.wire.transport.base import Will

PINGREQ = b"\xc0\x00"
DISCONNECT = b"\xe0\x00"

MAX_REMAINING = (1 << 28) - 1
"""The largest remaining length that four bytes of seven bits can hold."""

MAX_TEXT_BYTES = (1 << 16) - 1

PUBLISH = 3
"""Type of the PUBLISH packet, the only one with a payload."""

_U16 = struct.Struct(">H")
FAILURE = 0x80
"""Return code of a SUBACK for a filter that the broker refuses."""

_MAX_SUBACK = 2 + 1024
"""Largest SUBACK accepted, bytes: packet id and the codes of 1,024 filters."""


class Connack(NamedTuple):
    """The answer to CONNECT; code 0 is success (section 3.2.2.3)."""

    code: int


class Publish(NamedTuple):
    """A message on a subscribed topic."""

    topic: str
    payload: bytes | memoryview
    qos: int
    retain: bool
    packet_id: int
    """Packet id to acknowledge at QoS 1; 0 at QoS 0."""


class Oversized(NamedTuple):
    """A message whose payload was discarded: it is larger than any that Fairbed sends."""

    topic: str
    n_bytes: int
    """Size of the payload."""
    qos: int
    packet_id: int


class Puback(NamedTuple):
    """The broker acknowledges a message of QoS 1."""

    packet_id: int


class Suback(NamedTuple):
    """The answer to SUBSCRIBE."""

    packet_id: int
    codes: bytes
    """For each filter, in the order of the SUBSCRIBE: the granted QoS, or `FAILURE`."""


class Unsuback(NamedTuple):
    """The answer to UNSUBSCRIBE."""

    packet_id: int


class Pingresp(NamedTuple):
    """The answer to PINGREQ."""


Inbound: TypeAlias = Connack | Publish | Oversized | Puback | Suback | Unsuback | Pingresp


def connect(
    client_id: str,
    *,
    keepalive_s: int,
    will: Will | None = None,
    username: str | None = None,
    password: str | None = None,
) -> bytes:
    """Return a CONNECT with a clean session; the will is retained, at QoS 1.

    Raises:
        EncodeError: A text is too long or has forbidden characters, or a password has no user.
    """
    if password is not None and username is None:
        raise EncodeError("mqtt: a password needs a user name, got none")
    flags = 0x02 | (0x2C if will else 0) | (0x80 if username is not None else 0)
    flags |= 0x40 if password is not None else 0
    fields = [_text("MQTT"), bytes((4, flags)), _U16.pack(keepalive_s), _text(client_id)]
    if will is not None:
        fields += [_topic(will.topic), _sized(will.payload, "will")]
    if username is not None:
        fields.append(_text(username))
    if password is not None:
        fields.append(_sized(password.encode(), "password"))
    return _packet(0x10, b"".join(fields))


def publish_head(
    topic: str, n_bytes: int, *, qos: int = 0, retain: bool = False, packet_id: int = 0
) -> bytes:
    """Return the header of a PUBLISH; its payload of `n_bytes` is sent after it.

    Raises:
        EncodeError: The topic is empty, too long, or a pattern; or the payload is too large.
    """
    name = _topic(topic)
    tail = _U16.pack(packet_id) if qos else b""
    length = len(name) + len(tail) + n_bytes
    return b"".join((bytes((0x30 | qos << 1 | retain,)), _length(length), name, tail))


def puback(packet_id: int) -> bytes:
    """Return the acknowledgement of a message of QoS 1."""
    return b"\x40\x02" + _U16.pack(packet_id)


def subscribe(packet_id: int, filters: Mapping[str, int]) -> bytes:
    """Return a SUBSCRIBE; `filters` maps each filter to its QoS.

    Raises:
        EncodeError: There are no filters, or one is empty or too long.
    """
    entries = [_filter(name) + bytes((qos,)) for name, qos in filters.items()]
    return _packet(0x82, _U16.pack(packet_id) + _joined(entries))


def unsubscribe(packet_id: int, filters: Iterable[str]) -> bytes:
    """Return an UNSUBSCRIBE.

    Raises:
        EncodeError: There are no filters, or one is empty or too long.
    """
    return _packet(0xA2, _U16.pack(packet_id) + _joined([_filter(name) for name in filters]))


def check_head(first: int, length: int) -> None:
    """Check the fixed header of a packet from a broker.

    Raises:
        DecodeError: A broker must not send such a packet.
    """
    if first >> 4 == PUBLISH:
        if first & 0x06 > 0x02:
            raise DecodeError(f"mqtt: PUBLISH must be of QoS 0 or 1, got {first >> 1 & 3}")
        return
    bounds = _LENGTHS.get(first)
    if bounds is None:
        raise DecodeError(
            f"mqtt: packet type must be one that a broker sends, got type {first >> 4} "
            f"with flags {first & 15}"
        )
    if not bounds[0] <= length <= bounds[1]:
        raise DecodeError(
            f"mqtt: a packet of type {first >> 4} must hold {bounds[0]} to {bounds[1]} bytes, "
            f"got {length}"
        )


def decode(first: int, body: bytes | memoryview) -> Inbound:
    """Return the packet with this first byte and body; `check_head` must have accepted its header.

    The payload of a PUBLISH is a slice of `body`, and a view if `body` is one.

    Raises:
        DecodeError: The body is malformed.
    """
    if first >> 4 == PUBLISH:
        return _publish(first, body)
    return _DECODERS[first](body)


def _publish(first: int, body: bytes | memoryview) -> Publish:
    qos = first >> 1 & 3
    end = 2 + (body[0] << 8 | body[1]) if len(body) >= 2 else 2
    start = end + 2 if qos else end
    if len(body) < start:
        raise DecodeError(f"mqtt: PUBLISH must hold its topic, got {len(body)} bytes")
    try:
        topic = str(body[2:end], "utf-8")
    except UnicodeDecodeError as exc:
        raise DecodeError(f"mqtt: a topic must be UTF-8, got {bytes(body[2:end])[:60]!r}") from exc
    if not topic or "\0" in topic:
        raise DecodeError(f"mqtt: a topic must be a text without zeros, got {topic[:60]!r}")
    packet_id = body[end] << 8 | body[end + 1] if qos else 0
    if qos and not packet_id:
        raise DecodeError("mqtt: a message of QoS 1 must have a packet id, got 0")
    return Publish(topic, body[start:], qos, bool(first & 1), packet_id)


def _connack(body: bytes | memoryview) -> Connack:
    if body[0] & 0xFE:
        raise DecodeError(f"mqtt: CONNACK flags must be 0 or 1, got {body[0]}")
    return Connack(body[1])


def _suback(body: bytes | memoryview) -> Suback:
    codes = bytes(body[2:])
    if not set(codes) <= {0, 1, 2, FAILURE}:
        raise DecodeError(f"mqtt: SUBACK codes must be 0, 1, 2 or 128, got {list(codes)[:16]}")
    return Suback(_id(body), codes)


def _id(body: bytes | memoryview) -> int:
    return body[0] << 8 | body[1]


_DECODERS: Mapping[int, Callable[[bytes | memoryview], Inbound]] = {
    0x20: _connack,
    0x40: lambda body: Puback(_id(body)),
    0x90: _suback,
    0xB0: lambda body: Unsuback(_id(body)),
    0xD0: lambda body: Pingresp(),
}
"""Decoders by first byte: the packet type and its only valid flags."""

_LENGTHS: Mapping[int, tuple[int, int]] = {
    0x20: (2, 2),
    0x40: (2, 2),
    0x90: (3, _MAX_SUBACK),
    0xB0: (2, 2),
    0xD0: (0, 0),
}
"""Fewest and most bytes after the fixed header, by first byte."""


def _packet(first: int, body: bytes) -> bytes:
    return b"".join((bytes((first,)), _length(len(body)), body))


def _length(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value > MAX_REMAINING:
        raise EncodeError(f"mqtt: a packet must stay below {MAX_REMAINING} bytes, got {value}")
    digits = bytearray()
    while value:
        digits.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
    return bytes(digits)


def _text(text: str) -> bytes:
    if "\0" in text:
        raise EncodeError(f"mqtt: a text must be without zeros, got {text[:60]!r}")
    try:
        return _sized(text.encode(), "text")
    except UnicodeEncodeError as exc:
        raise EncodeError(f"mqtt: a text must be valid UTF-8, got {text[:60]!r}") from exc


def _topic(topic: str) -> bytes:
    if not topic or "+" in topic or "#" in topic:
        raise EncodeError(f"mqtt: a topic must be a text without + and #, got {topic[:60]!r}")
    return _text(topic)


def _filter(name: str) -> bytes:
    if not name:
        raise EncodeError("mqtt: a filter must not be empty, got ''")
    return _text(name)


def _joined(entries: list[bytes]) -> bytes:
    if not entries:
        raise EncodeError("mqtt: there must be at least one filter, got none")
    return b"".join(entries)


def _sized(data: bytes, name: str) -> bytes:
    if len(data) > MAX_TEXT_BYTES:
        raise EncodeError(
            f"mqtt: {name} must stay below {MAX_TEXT_BYTES + 1} bytes, got {len(data)}"
        )
    return _U16.pack(len(data)) + data


READ_BYTES = 64 * 1024
"""Size of the buffer: hundreds of control messages. At most this much of a chunk is copied."""

LARGE_BYTES = 8 * 1024
"""An incomplete PUBLISH longer than this gets memory of its own."""

MAX_PAYLOAD_BYTES = 1_000_000
"""Largest payload that is received; that of a larger message is discarded as it arrives. Any client
that may publish decides the size: it must neither take memory here nor end the link."""

_MAX_HEAD_BYTES = 2 + MAX_TEXT_BYTES + 2
"""Longest topic and packet id in a PUBLISH."""

_MAX_BODY_BYTES = _MAX_HEAD_BYTES + MAX_PAYLOAD_BYTES

_MAX_LENGTH_BYTES = 4


class Reader:
    """Splits a stream of bytes into packets; not usable after a `DecodeError`."""

    def __init__(self) -> None:
        self.large_bytes = 0
        """Bytes of large messages so far, also of an incomplete one."""
        self._view = memoryview(bytearray(READ_BYTES))
        self._start = self._end = 0
        """Range of the received bytes that are not decoded yet."""
        self._first = 0
        self._body: memoryview | None = None
        """Body of an incomplete large packet, or the beginning of an oversized one."""
        self._filled = 0
        self._to_skip = 0
        """Bytes of an oversized packet after its `_body` that have not arrived."""
        self._oversized: Oversized | None = None
        """The packet that is being skipped."""

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        if self._body is not None:
            return self._body[self._filled :]
        if self._to_skip:
            return self._view[: self._to_skip]
        return self._view[self._end :]

    def buffer_updated(self, n_bytes: int) -> list[Inbound]:
        """Return the packets completed by the `n_bytes` written into the buffer.

        Raises:
            DecodeError: A broker must not send these bytes.
        """
        if self._body is not None:
            self.large_bytes += n_bytes
            self._filled += n_bytes
            if self._filled < len(self._body):
                return []
            body, self._body = self._body, None
            whole = decode(self._first, body.toreadonly())
            if not self._to_skip:
                return [whole]
            assert isinstance(whole, Publish)
            n_bytes = len(whole.payload) + self._to_skip
            self._oversized = Oversized(whole.topic, n_bytes, whole.qos, whole.packet_id)
            return []
        if self._oversized is not None:
            self.large_bytes += n_bytes
            self._to_skip -= n_bytes
            if self._to_skip:
                return []
            oversized, self._oversized = self._oversized, None
            return [oversized]
        self._end += n_bytes
        packets: list[Inbound] = []
        while (packet := self._next()) is not None:
            packets.append(packet)
        self._compact()
        return packets

    def _next(self) -> Inbound | None:
        """Return the next packet in the buffer, or None if it is incomplete."""
        view, start, end = self._view, self._start, self._end
        length = shift = 0
        at = start + 1
        while True:
            if at >= end:
                return None
            byte = view[at]
            length |= (byte & 0x7F) << shift
            at += 1
            if not byte & 0x80:
                break
            shift += 7
            if at - start > _MAX_LENGTH_BYTES:
                raise DecodeError("mqtt: a length must take at most 4 bytes, got more")
        first = view[start]
        check_head(first, length)
        stop = at + length
        if stop <= end:
            self._start = stop
            return decode(first, bytes(view[at:stop]))
        if length > LARGE_BYTES and first >> 4 == PUBLISH:
            kept = length if length <= _MAX_BODY_BYTES else _MAX_HEAD_BYTES
            self._first, self._body = first, memoryview(bytearray(kept))
            self._to_skip = length - kept
            self._filled = end - at
            self.large_bytes += self._filled
            self._body[: self._filled] = view[at:end]
            self._start = end
        return None

    def _compact(self) -> None:
        """Move the remaining bytes to the front: at most `LARGE_BYTES` and a header."""
        left = self._end - self._start
        if self._start and left:
            self._view[:left] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, left
