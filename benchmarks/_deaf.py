"""Devices that ask for chunks and then never read a byte: what such a one costs the broker."""

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

CONNACK_BYTES = 4
RECEIVE_BYTES = 4096
"""Of the socket's buffer: what the broker sends stays with the broker."""


def deafen(url: str, name: str, topics: Sequence[str]) -> socket.socket:
    """Return the open connection of a client that has subscribed, and will not read.

    Raises:
        OSError: The broker does not let it in.
    """
    at = urlsplit(url)
    assert at.hostname is not None
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    link.connect((at.hostname, at.port))
    user, password = _text(at.username or ""), _text(at.password or "")
    # MQTT 3.1.1: clean session, user and password, no keepalive
    link.sendall(_packet(0x10, _text("MQTT") + b"\x04\xc2\x00\x00" + _text(name) + user + password))
    if link.recv(CONNACK_BYTES, socket.MSG_WAITALL)[3:] != b"\x00":
        raise OSError(f"{name}: must be let in by the broker, got a refusal")
    link.sendall(_packet(0x82, b"\x00\x01" + b"".join(_text(topic) + b"\x00" for topic in topics)))
    return link


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def _packet(kind: int, body: bytes) -> bytes:
    length, rest = b"", len(body)
    while rest or not length:
        rest, digit = divmod(rest, 128)
        length += bytes([digit | (0x80 if rest else 0)])
    return bytes([kind]) + length + body
