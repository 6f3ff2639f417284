"""A bare MQTT client for tests of trespass: it sends what a client of good manners would not.

Only encoding is here: no checks of topics, no reconnects, blocking sockets with short limits.
"""

import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass

ANSWER_S = 5.0
"""Longest wait for an answer that must come, seconds."""

CONNACK, PUBLISH, PUBACK, PUBREC, PUBCOMP, SUBACK, PINGRESP = 2, 3, 4, 5, 7, 9, 13


class Closed(Exception):
    """The broker closed the connection, or never opened it."""


@dataclass(frozen=True)
class Message:
    """A message that arrived."""

    topic: str
    payload: bytes
    retain: bool


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


def packet(first: int, body: bytes) -> bytes:
    """Return a packet with its length."""
    length, encoded = len(body), bytearray()
    while True:
        length, digit = divmod(length, 128)
        encoded.append(digit | (128 if length else 0))
        if not length:
            return bytes([first]) + bytes(encoded) + body


@dataclass
class Login:
    """The arguments of CONNECT."""

    client_id: str = ""
    user: str | None = None
    password: str | None = None
    will: tuple[str, bytes] | None = None
    will_qos: int = 0
    will_retain: bool = True
    is_clean: bool = True
    level: int = 4
    name: bytes = b"MQTT"

    def encode(self) -> bytes:
        """Return the CONNECT."""
        flags = 0x02 if self.is_clean else 0
        body = b""
        if self.will is not None:
            flags |= 0x04 | self.will_qos << 3 | (0x20 if self.will_retain else 0)
            body += _text(self.will[0]) + _text(self.will[1])
        if self.user is not None:
            flags |= 0x80
            body += _text(self.user)
        if self.password is not None:
            flags |= 0x40
            body += _text(self.password)
        properties = b"\0" if self.level == 5 else b""
        head = _text(self.name) + bytes((self.level, flags)) + struct.pack(">H", 60) + properties
        return packet(0x10, head + _text(self.client_id) + body)


class RawClient:
    """One open connection.

    Raises:
        Closed: The broker refuses it, or ends it during a call.
    """

    def __init__(
        self,
        port: int,
        login: Login,
        tls: ssl.SSLContext | None = None,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        self.inbox: list[Message] = []
        self._buffer, self._id = b"", 0
        plain = socket.socket()
        self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        self._socket.settimeout(ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.connect((host, port))  # with the handshake of TLS
            self.send(login.encode())
            code = self._await(CONNACK)[1]
        except OSError as exc:
            self.close()
            raise Closed(f"refused: {exc}") from exc
        except Closed:
            self.close()
            raise
        if code:
            self.close()
            raise Closed(f"refused with code {code}")

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection without a DISCONNECT, so that the will is published."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        try:
            self._socket.sendall(data)
        except OSError as exc:
            raise Closed(str(exc)) from exc

    def publish(
        self, topic: str | bytes, payload: bytes, *, qos: int = 0, retain: bool = False
    ) -> None:
        """Publish; at QoS 1 and 2 wait for the acknowledgement."""
        self._id += 1
        number = struct.pack(">H", self._id) if qos else b""
        self.send(packet(0x30 | qos << 1 | retain, _text(topic) + number + payload))
        if qos == 1:
            self._await(PUBACK)
        elif qos == 2:
            self._await(PUBREC)
            self.send(b"\x62\x02" + number)
            self._await(PUBCOMP)

    def subscribe(self, pattern: str | bytes, qos: int = 0) -> int:
        """Subscribe; return the code of the SUBACK: 0 to 2, or 0x80 for a refusal."""
        self._id += 1
        self.send(packet(0x82, struct.pack(">H", self._id) + _text(pattern) + bytes([qos])))
        return self._await(SUBACK)[2]

    def subscribe_all(self, patterns: list[str]) -> list[int]:
        """Subscribe in one packet; return the codes of the SUBACK."""
        self._id += 1
        filters = b"".join(_text(pattern) + b"\0" for pattern in patterns)
        self.send(packet(0x82, struct.pack(">H", self._id) + filters))
        return list(self._await(SUBACK)[2:])

    def ping(self) -> None:
        """Wait until everything sent before was handled."""
        self.send(b"\xc0\0")
        self._await(PINGRESP)

    def until(self, mark: bytes, *, within_s: float = ANSWER_S) -> list[Message]:
        """Return the messages before the one with the payload `mark`."""
        before: list[Message] = []
        self._socket.settimeout(within_s)
        while True:
            while self.inbox:
                message = self.inbox.pop(0)
                if message.payload == mark:
                    return before
                before.append(message)
            self._next()

    def is_closed(self) -> bool:
        """Return whether the broker closed the connection."""
        try:
            self.ping()
        except Closed:
            return True
        return False

    def await_close(self, within_s: float) -> None:
        """Wait until the broker closes the connection; TimeoutError if it does not."""
        self._socket.settimeout(within_s)
        with suppress(Closed):
            while True:
                self._next()

    def _await(self, kind: int) -> bytes:
        while True:
            got, body = self._next()
            if got == kind:
                return body

    def _next(self) -> tuple[int, bytes]:
        """Return the next packet; a message also enters the inbox, and is acknowledged."""
        first = self._exactly(1)[0]
        length, shift = 0, 0
        while True:
            digit = self._exactly(1)[0]
            length |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                break
        body = self._exactly(length)
        if first >> 4 == PUBLISH:
            end = 2 + int.from_bytes(body[:2], "big")
            start = end + (2 if first & 6 else 0)
            self.inbox.append(Message(body[2:end].decode(), body[start:], bool(first & 1)))
            if first & 6 == 2:
                self.send(b"\x40\x02" + body[end:start])
        return first >> 4, body

    def _exactly(self, n: int) -> bytes:
        while len(self._buffer) < n:
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                raise  # an answer is missing, which no test expects
            except OSError as exc:
                raise Closed(str(exc)) from exc
            if not data:
                raise Closed("closed by the broker")
            self._buffer += data
        taken, self._buffer = self._buffer[:n], self._buffer[n:]
        return taken
