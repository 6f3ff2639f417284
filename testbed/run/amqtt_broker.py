"""amqtt as a program: users with their own topics, limits, and fixes for faults of its broker.

Run by its path: `python -I amqtt_broker.py SETTINGS.json`, with `bind`, `max_packet_bytes`,
`max_subscriptions` of a session, and `users`: by name a password, the topic filters that a user
`publishes` and `reads`, whether its packets are paced, and its `max_sessions`. SIGHUP reads the
users again.

The faults of amqtt 0.12.1: a client that connects receives the retained messages of all other
clients' subscriptions; if another client subscribes at that time, the new session ends with
"dictionary changed size during iteration"; both happen whenever a fleet joins. It publishes the
last will of a client on any topic, reads packets of any size, and takes packets from a client
faster than it can forward them, without bound.
"""

import asyncio
import hmac
import json
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from amqtt.adapters import ReaderAdapter, StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Action, Broker
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session

PACKET_COST_S = 5e-3
"""A device may send one packet in this time, once its burst is used up: 200 a second. amqtt
forwards about 2,000 a second for all clients together."""

BURST = 1_000
"""Packets that a device may send at once: the chunks of a large update, several times."""

FLOOD_PACKETS = 500
"""After so many delayed packets in a row the rate has halved; no agent floods for so long."""

REFUSED = 0x80
"""Answer to a subscription (MQTT 3.1.1, section 3.9.3)."""

MAX_SLOWER = 20.0
"""The rate falls to a twentieth: 10 packets a second."""


class Users(BaseAuthPlugin):  # type: ignore[misc]  # amqtt publishes no types
    """Accepts the users of the settings, each with its password."""

    known: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Settings of each user, by name; amqtt makes the plug-in, so they are in its class."""

    @dataclass
    class Config:
        """amqtt passes no settings to this plug-in."""

    async def authenticate(self, *, session: Session) -> bool:
        """Return whether user and password are correct."""
        user = self.known.get(session.username or "")
        password = "" if user is None else user["password"]
        is_equal = hmac.compare_digest(str(session.password).encode(), password.encode())
        return user is not None and is_equal


def covers(allowed: str, topic: str) -> bool:
    """Return whether a filter matches all that a topic, or another filter, matches."""
    have, want = allowed.split("/"), topic.split("/")
    if want[0].startswith("$"):
        return False
    for k, level in enumerate(have):
        if level == "#":
            return True
        if k >= len(want) or want[k] == "#" or (level != "+" and level != want[k]):
            return False
    return len(have) == len(want)


def is_allowed(user: str | None, topic: str, action: Action) -> bool:
    """Return whether a user may publish on a topic, or subscribe to a filter."""
    rights = Users.known.get(user or "")
    filters: Sequence[str] = ()
    if rights is not None:
        filters = rights["publishes" if action is Action.PUBLISH else "reads"]
    return any(covers(allowed, topic) for allowed in filters)


class Pace:
    """When a client may send its next packet: a burst, then a rate that falls under a flood."""

    def __init__(self) -> None:
        self._paid_until = 0.0
        self._delayed = 0
        """Packets in a row that had to wait."""

    def delay_s(self, now: float) -> float:
        """Return how long the next packet has to wait.

        Args:
            now: Monotonic clock, seconds.
        """
        slower = min(1.0 + self._delayed / FLOOD_PACKETS, MAX_SLOWER)
        self._paid_until = max(self._paid_until, now - BURST * PACKET_COST_S)
        self._paid_until += PACKET_COST_S * slower
        wait_s = max(self._paid_until - now, 0.0)
        self._delayed = self._delayed + 1 if wait_s else 0
        return wait_s


class PacedReader(ReaderAdapter):  # type: ignore[misc]  # amqtt publishes no types
    """The packets of one client, those of a device at a bounded rate.

    The rest waits in the socket of the device.
    """

    def __init__(self, reader: StreamReaderAdapter, max_packet_bytes: int) -> None:
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._pace = Pace()
        self.is_paced = False
        self.max_packet_bytes = max_packet_bytes

    async def begin_packet(self) -> None:
        """Wait until the client may send its next packet."""
        if not self.is_paced:
            return
        wait_s = self._pace.delay_s(self._loop.time())
        if wait_s:
            await asyncio.sleep(wait_s)

    async def read(self, n: int = -1) -> bytes:
        """Return the next n bytes."""
        data: bytes = await self._reader.read(n)
        return data

    def feed_eof(self) -> None:
        """End the stream."""
        self._reader.feed_eof()


_read_header = MQTTFixedHeader.from_stream.__func__


async def _read_bounded_header(cls: type[MQTTFixedHeader], reader: Any) -> MQTTFixedHeader | None:
    """Read the header of a packet; None, the end of the connection, for one that is too large."""
    if isinstance(reader, PacedReader):
        await reader.begin_packet()
    header = await _read_header(cls, reader)
    if (
        isinstance(reader, PacedReader)
        and header is not None
        and header.remaining_length > reader.max_packet_bytes
    ):
        logging.getLogger(__name__).warning(
            "a packet must have at most %d bytes, got %d: its client is disconnected",
            reader.max_packet_bytes,
            header.remaining_length,
        )
        return None
    return header


MQTTFixedHeader.from_stream = classmethod(_read_bounded_header)


class FixedBroker(Broker):  # type: ignore[misc]  # amqtt publishes no types
    """amqtt's broker with permissions; no other task runs during a loop over all subscriptions."""

    max_packet_bytes = 1 << 20
    max_subscriptions = 1_000

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._filters: dict[str, set[str]] = {}
        """Subscriptions by client id."""
        self._clients: dict[str, set[str]] = {}
        """Client ids by user, also some whose sessions have ended."""

    async def _authenticate(self, session: Session, *args: Any) -> bool:
        if not await super()._authenticate(session, *args):
            return False
        user = session.username or ""
        most = Users.known[user].get("max_sessions")
        clients = {client for client in self._clients.get(user, ()) if self._is_kept(client)}
        self._clients[user] = clients | {session.client_id}
        if most is None or len(self._clients[user]) <= most:
            return True
        self._clients[user] = clients
        logging.getLogger(__name__).warning("%s: at most %d sessions are kept", user, most)
        return False

    def _is_kept(self, client_id: str) -> bool:
        """Return whether a session is open, or its client asked to keep it."""
        session, _ = self._sessions.get(client_id, (None, None))
        return session is not None and (
            session.transitions.is_connected() or not session.clean_session
        )

    async def add_subscription(self, subscription: tuple[str, int], session: Session) -> int:
        """Add a subscription; return its QoS, or REFUSED."""
        filters = self._filters.setdefault(session.client_id, set())
        if len(filters) >= self.max_subscriptions:
            return REFUSED
        qos: int = await super().add_subscription(subscription, session)
        if qos != REFUSED:
            filters.add(subscription[0])
        return qos

    def _del_subscription(self, a_filter: str, session: Session) -> int:
        filters = self._filters.get(session.client_id, set())
        filters.discard(a_filter)
        if not filters:
            self._filters.pop(session.client_id, None)
        deleted: int = super()._del_subscription(a_filter, session)
        return deleted

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """Serve a client over TCP."""
        paced = PacedReader(StreamReaderAdapter(reader), self.max_packet_bytes)
        await self.external_connected(paced, StreamWriterAdapter(writer), listener_name)

    async def _handle_client_session(
        self, reader: Any, writer: Any, client_session: Session, *args: Any
    ) -> None:
        reader.is_paced = Users.known.get(client_session.username, {}).get("is_paced", False)
        await super()._handle_client_session(reader, writer, client_session, *args)

    async def _handle_disconnect(self, client_session: Session, *args: Any) -> None:
        will = client_session.will_topic
        if client_session.will_flag and not is_allowed(
            client_session.username, will or "", Action.PUBLISH
        ):
            client_session.will_flag = False
        await super()._handle_disconnect(client_session, *args)

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        subscribers = self._subscriptions.get(subscription[0], ())
        if any(subscriber is session for subscriber, _ in subscribers):
            await super()._publish_retained_messages_for_subscription(subscription, session)

    async def _topic_filtering(self, session: Session, topic: str, action: Action) -> bool:
        # A session reads what it has subscribed to, which was checked.
        return action is Action.RECEIVE or is_allowed(session.username, topic, action)


async def serve(file: Path, settings: Mapping[str, Any]) -> None:
    """Run the broker until the process is killed.

    Args:
        file: The settings, which are read again after SIGHUP.
        settings: Its content.
    """
    Users.known = settings["users"]

    def reload() -> None:
        try:
            Users.known = json.loads(file.read_text(encoding="utf-8"))["users"]
        except (OSError, ValueError, KeyError) as exc:
            logging.getLogger(__name__).warning("the users stay as they are: %s", exc)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    broker = FixedBroker(
        {
            "listeners": {"default": {"type": "tcp", "bind": settings["bind"]}},
            "plugins": {f"{__name__}.{Users.__name__}": {}},
        }
    )
    broker.max_packet_bytes = settings["max_packet_bytes"]
    broker.max_subscriptions = settings["max_subscriptions"]
    await broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)r")
    logging.getLogger("transitions").setLevel(logging.WARNING)
    path = Path(sys.argv[1])
    asyncio.run(serve(path, json.loads(path.read_text(encoding="utf-8"))))
