"""Clients that subscribe to chunks and never read a byte, to measure their cost for the broker."""

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from fairbed.wire.transport.protocol import packets

CONNACK_BYTES = 4
RECEIVE_BYTES = 4096
"""Receive buffer of the socket: small, so that the data stay in the broker."""


def connect_without_reading(url: str, name: str, topics: Sequence[str]) -> socket.socket:
    """Return the open connection of a client that has subscribed and does not read.

    Raises:
        OSError: The broker refuses the client.
    """
    at = urlsplit(url)
    assert at.hostname is not None
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    link.connect((at.hostname, at.port))
    link.sendall(packets.connect(name, keepalive_s=0, username=at.username, password=at.password))
    if link.recv(CONNACK_BYTES, socket.MSG_WAITALL)[3:] != b"\x00":
        raise OSError(f"{name}: must be accepted by the broker, got a refusal")
    link.sendall(packets.subscribe(1, dict.fromkeys(topics, 0)))
    return link
