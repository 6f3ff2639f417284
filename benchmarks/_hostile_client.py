"""A bare MQTT client on a blocking socket: it sends what an agent never would."""

import select
import socket
from collections.abc import Sequence
from contextlib import suppress

from fairbed.wire.errors import DecodeError
from fairbed.wire.transport.address import Address
from fairbed.wire.transport.base import Will
from fairbed.wire.transport.protocol import packets
from fairbed.wire.transport.protocol.packets import Connack, Pingresp, Publish, Reader, Suback

ANSWER_S = 20.0
"""Longest wait for an answer, seconds."""


FLAGS_AFTER_NAME, CLEAN_SESSION = 5, 0x02
"""Of CONNECT (MQTT 3.1.1, section 3.1.2.3)."""


class ClosedError(Exception):
    """The broker refuses the connection, or has closed it."""


class HostileClient:
    """One open connection.

    Args:
        address: Host, port and login.
        client_id: Its MQTT client id.
        will: Its last will.
        keeps_session: Ask the broker to keep the session when the connection ends.

    Raises:
        ClosedError: The broker refuses it, or ends it during a call.
    """

    def __init__(
        self,
        address: Address,
        client_id: str,
        will: Will | None = None,
        *,
        keeps_session: bool = False,
    ) -> None:
        self.received: list[Publish] = []
        """Messages that arrived and were not taken yet."""
        self._reader, self._id, self._answers = Reader(), 0, list[object]()
        try:
            self._socket = socket.create_connection((address.host, address.port), ANSWER_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as exc:
            raise ClosedError(str(exc)) from exc
        hello = packets.connect(
            client_id,
            keepalive_s=0,  # a witness sends nothing
            will=will,
            username=address.username,
            password=address.password,
        )
        if keeps_session:  # an agent never does
            place = hello.index(b"MQTT") + FLAGS_AFTER_NAME
            hello = hello[:place] + bytes([hello[place] & ~CLEAN_SESSION]) + hello[place + 1 :]
        try:
            self.send(hello)
            answer = self._await(Connack)
        except ClosedError:
            self.close()
            raise
        if answer.code:
            self.close()
            raise ClosedError(f"refused with code {answer.code}")

    def close(self) -> None:
        """Close the connection without DISCONNECT, so that the broker publishes the will."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        try:
            self._socket.sendall(data)
        except OSError as exc:
            raise ClosedError(str(exc)) from exc

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Publish without waiting for the acknowledgement."""
        self._id = self._id % 60_000 + 1
        head = packets.publish_head(
            topic, len(payload), qos=qos, retain=retain, packet_id=self._id if qos else 0
        )
        self.send(head + payload)

    def subscribe(self, *filters: str) -> None:
        """Subscribe; refusals are ignored."""
        for name in filters:
            self._id = self._id % 60_000 + 1
            self.send(packets.subscribe(self._id, {name: 1}))
            self._await(Suback)

    def subscribe_all(self, filters: Sequence[str]) -> None:
        """Subscribe in one packet; refusals are ignored."""
        self._id = self._id % 60_000 + 1
        self.send(packets.subscribe(self._id, dict.fromkeys(filters, 0)))
        self._await(Suback)

    def ping(self) -> None:
        """Wait until the broker has read all that was sent before."""
        self.send(packets.PINGREQ)
        self._await(Pingresp)

    def take(self) -> list[Publish]:
        """Return the messages that have arrived since the last call."""
        while select.select([self._socket], [], [], 0.0)[0]:
            self._read()
        taken, self.received = self.received, []
        return taken

    def _await(self, kind: type[object]) -> "Connack":
        while True:
            for k, answer in enumerate(self._answers):
                if isinstance(answer, kind):
                    del self._answers[: k + 1]
                    return answer  # type: ignore[return-value]  # only a Connack is looked at
            self._read()

    def _read(self) -> None:
        try:
            count = self._socket.recv_into(self._reader.get_buffer())
        except OSError as exc:
            raise ClosedError(str(exc) or "no answer") from exc
        if not count:
            raise ClosedError("closed by the broker")
        try:
            arrived = self._reader.buffer_updated(count)
        except DecodeError as exc:
            raise ClosedError(str(exc)) from exc
        for one in arrived:
            if isinstance(one, Publish):
                self.received.append(one._replace(payload=bytes(one.payload)))
                if one.qos:
                    self.send(packets.puback(one.packet_id))
            else:
                self._answers.append(one)


def is_refused(address: Address, client_id: str) -> bool:
    """Return whether the broker refuses a login."""
    with suppress(ClosedError):
        HostileClient(address, client_id).close()
        return False
    return True
