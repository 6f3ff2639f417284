"""A transport over MQTT 3.1.1: a link that reconnects by itself, with jitter.

Every connection has a clean session, so no state of the previous one remains; `Subscriptions` keeps
the filters that are restored after a reconnect. `make_connection` chooses the MQTT client.
"""

import logging
import math
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup

from fairbed.wire.errors import Disconnected, Refused
from fairbed.wire.transport.address import node_urls, parse_url, redact
from fairbed.wire.transport.base import (
    KEEPALIVE_S,
    Incoming,
    LinkDown,
    LinkUp,
    OnComplete,
    Packet,
    Transport,
    Will,
)
from fairbed.wire.transport.link import (
    DISCONNECT_TIMEOUT_S,
    Connection,
    ConnectOptions,
    PacketHandler,
)
from fairbed.wire.transport.own_client import OwnConnection
from fairbed.wire.transport.receive_queue import ReceiveQueue

REFUSALS_AFTER_UP = 4
"""So many refusals in a row are final for a login that was accepted before: the NATS server refuses
valid logins for some milliseconds while it reads its users again. At a cluster it is so many of
each node: NATS refuses subscriptions, too, until the streams of a lost node have new leaders."""

SUBSCRIBES_TO_CLUSTER = 8
"""Attempts to restore subscriptions at a node of a cluster. After the loss of one of
three nodes, NATS waits for it in a third of new subscriptions of QoS 1, for some seconds; the next
attempt draws again."""

NODE_DIAL_S = 3.0
"""Time for the TCP connection to a node of a cluster in the first pass over all nodes, doubled in
each further one: a machine that is switched off answers nothing, and the next node is one attempt
away. One lost packet of a handshake is repeated within it (RFC 6298: after 1 s)."""

NODE_PING_S = 10.0
"""Longest silence of a node of a cluster after a ping; at a single broker it is the keepalive. A
machine that vanishes closes no connection, and its clients have `CLUSTER_SILENT_S` to find another
node. Chunks that arrive end the silence, so that a slow link is no dead one."""

REFUSED_BASE_S, REFUSED_CAP_S = 1.0, 60.0
"""Backoff of a link that waits while the broker refuses it. The cap is half of the default
`round.join_timeout_s`: the device is back before the run gives up."""


OnRefused: TypeAlias = Callable[[Refused], Awaitable[float]]
"""Called after a refusal; returns the least seconds until the next attempt."""


def backoff_s(retry: int, draw: float, base_s: float = 0.1, cap_s: float = 5.0) -> float:
    """Return the seconds to wait before the n-th consecutive retry ("full jitter").

    The wait is uniform between half of `base_s` and `base_s` x 2^(n + 1), at most `cap_s`. A fleet
    that lost its broker therefore reconnects spread over time; by default a short failure costs 50
    to 200 ms.

    Args:
        retry: n, from 0.
        draw: A random number, uniform in [0, 1].
        base_s: Seconds.
        cap_s: Longest wait, seconds.

    Source:
        Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 ("full jitter").
    """
    least = min(cap_s, base_s / 2)
    most = min(cap_s, base_s * 2.0 ** min(retry + 1, 64))
    return least + draw * (most - least)


KNOWN_TOPICS = 4_096
"""Topics whose QoS is remembered: those of a thousand devices."""


class Subscriptions:
    """The topic filters of one client and their QoS; fast for many topics and few patterns."""

    def __init__(self) -> None:
        self.qos: dict[str, int] = {}
        """QoS by filter, oldest first."""
        self._patterns: list[str] = []
        self._found: dict[str, int | None] = {}
        """Answers of `qos_of` since the last change of the filters; bounded."""

    def add(self, filters: Iterable[str], qos: int) -> None:
        """Add filters, or change their QoS."""
        self.qos.update(dict.fromkeys(filters, qos))
        self._find_patterns()

    def discard(self, filters: Iterable[str]) -> None:
        """Remove filters; ignore those that are not subscribed."""
        for name in filters:
            self.qos.pop(name, None)
        self._find_patterns()

    def qos_of(self, topic: str) -> int | None:
        """Return the highest QoS at which `topic` is subscribed; None if it is not subscribed."""
        if topic in self._found:
            return self._found[topic]
        qos = [self.qos[pattern] for pattern in self._patterns if matches(pattern, topic)]
        if topic in self.qos:
            qos.append(self.qos[topic])
        if len(self._found) >= KNOWN_TOPICS:
            self._found.clear()
        found = self._found[topic] = max(qos, default=None)
        return found

    def _find_patterns(self) -> None:
        self._found.clear()
        self._patterns = [name for name in self.qos if "+" in name or "#" in name]


def matches(pattern: str, topic: str) -> bool:
    """Return whether a topic filter covers `topic` (MQTT 3.1.1, section 4.7)."""
    pattern_levels, topic_levels = pattern.split("/"), topic.split("/")
    if topic_levels[0].startswith("$") and pattern_levels[0] in ("+", "#"):
        return False
    for i, level in enumerate(pattern_levels):
        if level == "#":
            return True
        if i >= len(topic_levels) or level not in ("+", topic_levels[i]):
            return False
    return len(pattern_levels) == len(topic_levels)


STABLE_S = 5.0
"""A link that was up longer than this restarts the backoff."""

NOT_CONNECTED = "not connected yet"
"""Why a link is down that was never up and has not failed yet."""

_log = logging.getLogger(__name__)


def make_connection(
    options: ConnectOptions, on_packet: PacketHandler, tasks: TaskGroup
) -> Connection:
    """Return a connection of the MQTT client that the address selects.

    `tasks` runs the background work of the connection.
    """
    if options.address.client == "direct":
        return OwnConnection(options, on_packet)
    from fairbed.wire.transport.aiomqtt_client import AiomqttConnection

    return AiomqttConnection(options, on_packet, tasks)


class MqttTransport(Transport):
    """One client's link to an MQTT broker.

    Args:
        url: `mqtt://user:password@host:port`, or `mqtts://...?cafile=FILE`; `?client=aiomqtt`
            selects that library as the MQTT client. Of the nodes of a cluster, `host,host,host`,
            the checksum of `client_id` selects the first one to try, which spreads a fleet evenly;
            after each failure or loss the next one follows. The wait before it grows with each
            pass over all of them.
        client_id: Unique at the broker, which disconnects an older client of the same id.
        will: Published, retained, by the broker if this client is lost.
        keepalive_s: The broker declares a silent client lost after 1.5 times this.
        connect_timeout_s: For the TCP connection, and again for the CONNACK; a node of a cluster
            has less for the former (`NODE_DIAL_S`).
        publish_timeout_s: For one operation, plus the time that its bytes and the bytes queued
            before it take at 100 kbit/s; after it the link is closed and made again. The
            keepalive detects a dead link sooner.
        backoff: Seconds before the n-th consecutive retry; None is `backoff_s`.
        waits_if_refused: A refusal of the broker (credentials, permissions, certificate, protocol)
            is tried again, too, more slowly; its reason is logged when it changes. Otherwise
            `events()` raises it: the first, or after a link that was up the fourth in a row; of a
            cluster so many of each node.
        on_refused: Called after each refusal that is tried again.

    Raises:
        ValueError: The URL is not a broker address, or its certificates cannot be read.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        *,
        will: Will | None = None,
        keepalive_s: int = KEEPALIVE_S,
        connect_timeout_s: float = 10.0,
        publish_timeout_s: float = 60.0,
        backoff: Callable[[int], float] | None = None,
        waits_if_refused: bool = False,
        on_refused: OnRefused | None = None,
    ) -> None:
        self.url, self.client_id = redact(url), client_id
        self.down_reason: str | None = NOT_CONNECTED
        """Why the link is down; None while it is up."""
        self.unexpected_packets = 0
        """Ignored packets: on topics that were never subscribed to, or not any more."""
        tls = parse_url(url).tls_context()
        self._nodes = [
            ConnectOptions(
                address=parse_url(node),
                url=redact(node),
                client_id=client_id,
                will=will,
                tls=tls,
                keepalive_s=keepalive_s,
                connect_timeout_s=connect_timeout_s,
                dial_timeout_s=connect_timeout_s,
                ping_timeout_s=keepalive_s,
                publish_timeout_s=publish_timeout_s,
            )
            for node in node_urls(url)
        ]
        self._node = zlib.crc32(client_id.encode()) % len(self._nodes)
        self._backoff, self._random = backoff, random.Random()
        self._waits_if_refused, self._on_refused = waits_if_refused, on_refused
        self._received, self._subscriptions = ReceiveQueue(), Subscriptions()
        self._connection: Connection | None = None
        self._before_link_up: list[tuple[Packet, int]] = []
        """Packets and their QoS that arrived before `LinkUp`, which must be the first event."""
        self._link_ups = 0
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> "MqttTransport":
        """Start connecting; return at once."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run, self._tasks, name=f"mqtt[{self.client_id}].link")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect in bounded time; the broker does not publish the will."""
        assert self._tasks is not None, "the transport was not entered"
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._received.close()

    def events(self) -> AsyncIterator[Incoming]:
        """Yield packets and link changes in order, to a single consumer; waits may be cancelled.

        Raises:
            Refused: The broker refused this client for good.
        """
        return self._received

    @property
    def large_bytes(self) -> int:
        """Number that changes with each part of a message above 8 KiB; 0 if unknown."""
        connection = self._connection
        return 0 if connection is None else connection.large_bytes

    @property
    def silent_s(self) -> float:
        """Seconds since the broker last sent anything while the link is up; 0 if unknown."""
        connection = self._connection
        return 0.0 if connection is None else connection.silent_s

    @property
    def node_count(self) -> int:
        """Nodes of the broker's address; more than 1 is a cluster."""
        return len(self._nodes)

    @property
    def dropped(self) -> int:
        """Packets of QoS 0 that were dropped because the receive queue was full."""
        return self._received.dropped

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | memoryview,
        *,
        qos: int = 0,
        retain: bool = False,
        on_complete: OnComplete,
    ) -> None:
        """Publish without waiting; `on_complete` is called once.

        Raises:
            Disconnected: The link is down; `on_complete` is not called.
        """
        self._up_connection("publish").publish_nowait(topic, payload, qos, retain, on_complete)

    async def publish(
        self, topic: str, payload: bytes | memoryview, *, qos: int = 0, retain: bool = False
    ) -> None:
        """Publish; return when acknowledged (QoS 1), or accepted by the link (QoS 0).

        Raises:
            Disconnected: The link is down, or went down before that.
        """
        await self._up_connection("publish").publish(topic, payload, qos, retain)

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        """Subscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters take effect after the reconnect.
            Refused: The broker does not allow one of the filters.
        """
        self._subscriptions.add(filters, qos)
        await self._up_connection("subscribe").subscribe(dict.fromkeys(filters, qos))

    async def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters are not restored after the reconnect.
        """
        self._subscriptions.discard(filters)
        await self._up_connection("unsubscribe").unsubscribe(filters)

    @property
    def node(self) -> str:
        """Address, without password, of the node of the current or next connection."""
        return self._options.url

    @property
    def _options(self) -> ConnectOptions:
        """Options of the current node."""
        return self._nodes[self._node]

    def _up_connection(self, action: str) -> Connection:
        if self._connection is None:
            raise Disconnected(f"{self.url}: cannot {action} while down ({self.down_reason})")
        return self._connection

    async def _run(self, tasks: TaskGroup) -> None:
        """Keep the link up until cancelled, or refused and not waiting."""
        retry, was_refused, refusals, link_ups, is_transient = 0, False, 0, 0, False
        passes = 0
        while True:
            up_since, refusal, least_s = math.inf, None, 0.0
            connection = make_connection(self._dial_options(passes), self._on_packet, tasks)
            try:
                await connection.connect()
                up_since = anyio.current_time()
                await self._serve(connection)
            except Refused as exc:
                refusals = 1 if self._link_ups != link_ups else refusals + 1
                link_ups = self._link_ups
                is_transient = refusals < len(self._nodes) * (REFUSALS_AFTER_UP if link_ups else 1)
                if not (self._waits_if_refused or is_transient):
                    self.down_reason = str(exc)
                    _log.info("%s", self.down_reason)  # the consumer gets the error
                    self._received.fail(exc)
                    return
                refusal = exc
                if self.down_reason != str(exc):
                    _log.warning("%s; it waits and tries again", exc)
                self.down_reason = str(exc)
            except Disconnected as exc:
                self._report_down(f"cannot connect: {exc}")
            finally:
                connection.abort()
            self._node = (self._node + 1) % len(self._nodes)
            is_stable = anyio.current_time() - up_since > STABLE_S
            is_refused = refusal is not None and not (is_transient and len(self._nodes) > 1)
            if refusal is not None and self._on_refused is not None:
                least_s = await self._on_refused(refusal)
            retry = 0 if is_stable or is_refused != was_refused else retry + 1
            was_refused = is_refused
            passes, node = divmod(retry, len(self._nodes))
            # No growing wait between two nodes of a pass: the next one may be ready.
            retry_s = self._retry_s(0 if node else max(passes - 1, 0), is_refused=is_refused)
            await anyio.sleep(max(retry_s, least_s))

    def _dial_options(self, passes: int) -> ConnectOptions:
        """Return the options of the next connection, after some passes over all nodes."""
        options = self._options
        if len(self._nodes) == 1:
            return options
        limit_s = min(options.connect_timeout_s, NODE_DIAL_S * 2.0 ** min(passes, 8))
        ping_s = min(options.ping_timeout_s, NODE_PING_S)
        return replace(options, dial_timeout_s=limit_s, ping_timeout_s=ping_s)

    def _retry_s(self, retry: int, *, is_refused: bool) -> float:
        if self._backoff is not None:
            return self._backoff(retry)
        if is_refused:
            return backoff_s(retry, self._random.random(), REFUSED_BASE_S, REFUSED_CAP_S)
        return backoff_s(retry, self._random.random())

    async def _serve(self, connection: Connection) -> None:
        """Report the link as up, then as down when it is lost; disconnect cleanly if cancelled."""
        self._before_link_up = []
        is_lost = False
        try:
            reason = await self._restore(connection)
            if reason is None:
                self._announce(connection)
                reason = await connection.lost()
                self._received.put(LinkDown(reason))
            is_lost = True
            self._report_down(reason)
        finally:
            self._connection = None
            if not is_lost:
                with anyio.move_on_after(DISCONNECT_TIMEOUT_S, shield=True):
                    await connection.disconnect()

    def _announce(self, connection: Connection) -> None:
        self._link_ups += 1
        self.down_reason = None
        self._connection = connection
        self._received.put(LinkUp(self._link_ups))
        for packet, qos in self._before_link_up:
            self._on_packet(packet, qos)
        self._before_link_up = []
        _log.info("%s: %s is up (%d)", self._options.url, self.client_id, self._link_ups)

    async def _restore(self, connection: Connection) -> str | None:
        """Restore all subscriptions, including changes made meanwhile.

        Returns:
            The reason if the link was lost; None otherwise.
        """
        restored: dict[str, int] = {}
        try:
            with anyio.fail_after(self._options.connect_timeout_s):
                while restored != (target := self._subscriptions.qos):
                    added = {name: q for name, q in target.items() if restored.get(name) != q}
                    removed = [name for name in restored if name not in target]
                    await self._subscribe_again(connection, added)
                    if removed:
                        await connection.unsubscribe(removed)
                    restored = {
                        name: q for name, q in (restored | added).items() if name not in removed
                    }
        except TimeoutError:
            return "no answer to subscribe"
        except Disconnected:
            return await connection.lost()
        return None

    async def _subscribe_again(self, connection: Connection, filters: dict[str, int]) -> None:
        """Subscribe; at a cluster, repeat what is refused some times."""
        for _ in range(SUBSCRIBES_TO_CLUSTER if len(self._nodes) > 1 else 1):
            try:
                return await connection.subscribe(filters)
            except Refused as exc:
                refusal = exc
        raise refusal

    def _on_packet(self, packet: Packet, qos: int) -> bool:
        """Queue a packet; return False when the queue is full and the link was closed."""
        if self._connection is None:
            self._before_link_up.append((packet, qos))
            return True
        if self._subscriptions.qos_of(packet.topic) is None:
            self.unexpected_packets += 1  # late after unsubscribe, or never subscribed (amqtt 0.12)
            return True
        if self._received.put(packet, qos):
            return True
        self._connection.fail("the receive queue is full of unread control messages")
        self._connection = None
        return False

    def _report_down(self, reason: str) -> None:
        if reason != self.down_reason:
            _log.warning("%s: %s is down: %s", self._options.url, self.client_id, reason)
        self.down_reason = reason
