"""MQTT 3.1.1 over aiomqtt: one link that comes back by itself.

Every connection is a new aiomqtt client with a clean session, so nothing of an old link leaks
into a new one. A packet takes one step from paho's reader to the consumer: aiomqtt's queue is
replaced by our inbox (`queue_type`).
"""

import asyncio
import logging
import math
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import aiomqtt
import anyio
from anyio.abc import TaskGroup

from wire.errors import Disconnected, Refused
from wire.transport.address import Address, parse_url, redact
from wire.transport.backoff import full_jitter
from wire.transport.base import KEEPALIVE_S, Incoming, LinkDown, LinkUp, Packet, Transport, Will
from wire.transport.filters import Filters
from wire.transport.inbox import Inbox, Sink
from wire.transport.reasons import advice_on, reason_of

__all__ = ["MqttTransport", "full_jitter", "parse_url", "redact"]

LEAVE_S = 2.0
"""A clean goodbye may take this long; then the socket is closed without one."""

STABLE_S = 5.0
"""A link that lasted this long starts the backoff afresh."""

FLOOR_BPS = 100e3
"""What a link must carry, bit/s, before a waiting publish counts as failed."""

FILTERS_PER_SUBSCRIBE = 8
"""The most that AWS IoT Core takes in one packet."""

_log = logging.getLogger(__name__)


class MqttTransport(Transport):
    """One client's link to an MQTT broker.

    Args:
        url: `mqtt://user:password@host:port`, or `mqtts://...?cafile=FILE`.
        client_id: Unique at the broker; a second client of the same id throws the first one out.
        will: Published, retained, by the broker if this client vanishes.
        keepalive_s: The broker misses a silent client after 1.5 times this.
        connect_timeout_s: For the broker's answer; the TCP connection before it has 5 s.
        publish_timeout_s: For one operation, beside the time that its bytes and those queued
            before it take at 100 kbit/s; then the link is given up and made anew. A dead link is
            noticed sooner, by the keepalive.
        backoff: Seconds before the n-th retry in a row.

    Raises:
        ValueError: The URL is not a broker's address, or its certificates cannot be read.
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
    ) -> None:
        self.url, self.client_id = redact(url), client_id
        self.trouble: str | None = "not connected yet"
        """Why the link is down; None while it is up."""
        self.strays = 0
        """Packets on topics that we have not subscribed to, or not any more; ignored."""
        self._address = parse_url(url)
        self._tls = self._address.tls_context()
        self._will = will
        self._keepalive_s, self._connect_timeout_s = keepalive_s, connect_timeout_s
        self._publish_timeout_s = publish_timeout_s
        self._backoff = backoff or full_jitter(random.Random())
        self._inbox, self._filters = Inbox(), Filters()
        self._link: _Client | None = None
        self._early: list[aiomqtt.Message] = []
        """What came before the link counted as up: `LinkUp` goes first."""
        self._ups = self._queued_bytes = 0
        self._waiting: set[anyio.CancelScope] = set()
        self._serving: anyio.CancelScope | None = None
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> "MqttTransport":
        """Start connecting; return at once."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run, name=f"mqtt[{self.client_id}].link")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Say goodbye, in bounded time; the broker does not publish the will."""
        assert self._tasks is not None, "leaving a transport that was not entered"
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._inbox.close()

    def events(self) -> AsyncIterator[Incoming]:
        """Yield packets and link changes in order, to a single consumer; waits may be cancelled.

        Raises:
            Refused: The broker said no; there is no point in trying again.
        """
        return self._inbox

    @property
    def dropped(self) -> int:
        """Packets of QoS 0 that found the incoming queue full."""
        return self._inbox.dropped

    async def publish(
        self, topic: str, payload: bytes | memoryview, *, qos: int = 0, retain: bool = False
    ) -> None:
        """Send; at QoS 1 return when the broker has it, at QoS 0 when the kernel has it.

        Raises:
            Disconnected: The link is down, or went down before that.
        """
        body = bytes(payload)  # a bytes object is passed through without a copy
        self._queued_bytes += len(body)
        timeout_s = self._publish_timeout_s + 8.0 * self._queued_bytes / FLOOR_BPS
        try:
            await self._while_up(
                "publish",
                timeout_s,
                lambda link: link.publish(topic, body, qos, retain, timeout=math.inf),
            )
        finally:
            self._queued_bytes -= len(body)
        await asyncio.sleep(0)  # what the kernel took at once never waited: let others have a turn

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        """Subscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters are remembered all the same.
            Refused: The broker does not allow it.
        """
        self._filters.add(filters, qos)
        wanted, timeout_s = dict.fromkeys(filters, qos), self._publish_timeout_s
        await self._while_up("subscribe", timeout_s, lambda link: link.subscribe_all(wanted))

    async def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe and forget.

        Raises:
            Disconnected: The link is down; the filters are forgotten all the same.
        """
        self._filters.discard(filters)
        await self._while_up(
            "unsubscribe",
            self._publish_timeout_s,
            lambda link: link.unsubscribe(list(filters), timeout=math.inf),
        )

    async def _while_up(
        self, action: str, timeout_s: float, call: "Callable[[_Client], Any]"
    ) -> None:
        """Await `call(link)`, but not longer than the link lasts.

        aiomqtt leaves a pending call waiting when the connection is lost.
        """
        link = self._link
        if link is None:
            raise Disconnected(f"{self.url}: cannot {action} while down ({self.trouble})")
        with anyio.CancelScope(deadline=anyio.current_time() + timeout_s) as scope:
            self._waiting.add(scope)
            try:
                await call(link)
                return
            except aiomqtt.MqttError as exc:
                raise Disconnected(f"{self.url}: cannot {action} ({exc})") from exc
            finally:
                self._waiting.discard(scope)
        if self._link is link:
            self._cut(f"{action} took longer than {timeout_s:.0f} s")
        raise Disconnected(f"{self.url}: link lost during {action} ({self.trouble})")

    async def _run(self) -> None:
        """Keep the link up until cancelled or refused."""
        retry = 0
        while True:
            up_since = math.inf
            try:
                link = await self._connect()
                up_since = anyio.current_time()
                await self._serve(link)
            except Refused as exc:
                self.trouble = str(exc)
                _log.error("%s", self.trouble)
                self._inbox.fail(exc)
                return
            except (aiomqtt.MqttError, OSError) as exc:
                self._say(f"cannot connect: {reason_of(exc)}")
            retry = 0 if anyio.current_time() - up_since > STABLE_S else retry + 1
            await anyio.sleep(self._backoff(retry - 1 if retry else 0))

    async def _connect(self) -> "_Client":
        """Return a connected client.

        Raises:
            Refused: The broker said no.
            MqttError: It did not answer, or is not ready.
        """
        link = _Client(
            self._address, self.client_id, self._will, self._keepalive_s, self._tls, self._take
        )
        link.timeout = self._connect_timeout_s
        try:
            await link.__aenter__()
            if link.is_lost:  # aiomqtt forgets what happens before `__aenter__` returns
                raise aiomqtt.MqttError("connection lost")
        except BaseException as exc:
            link.abandon()
            advice = advice_on(exc)
            if advice is not None:
                raise Refused(
                    f"{self.url}: refused {self.client_id!r}, {reason_of(exc)}; {advice}"
                ) from exc
            raise
        return link

    async def _serve(self, link: "_Client") -> None:
        """Announce the link, wait until it is lost, and say so; leave it cleanly otherwise."""
        is_up = is_lost = False
        self._early = []
        try:
            with anyio.CancelScope() as self._serving:
                with anyio.fail_after(self._connect_timeout_s):
                    await self._restore(link)
                self._ups += 1
                self.trouble = None
                self._link = link
                is_up = True
                self._inbox.put(LinkUp(self._ups))
                for message in self._early:
                    self._take(message)
                _log.info("%s: %s is up (%d)", self.url, self.client_id, self._ups)
                await anext(link.messages)  # never yields: packets go to the inbox
            is_lost = True  # the scope was cancelled by `_cut`
        except (aiomqtt.MqttError, TimeoutError) as exc:
            is_lost = True
            self._say(reason_of(exc))
        finally:
            self._link = self._serving = None
            for scope in self._waiting:
                scope.cancel()
            if is_lost and is_up:
                self._inbox.put(LinkDown(self.trouble or "lost"))
            if not is_lost:
                with anyio.move_on_after(LEAVE_S, shield=True), suppress(aiomqtt.MqttError):
                    await link.__aexit__(None, None, None)
            link.abandon()

    async def _restore(self, link: "_Client") -> None:
        """Subscribe to all remembered filters, also those that come and go meanwhile."""
        done: dict[str, int] = {}
        while done != (wanted := self._filters.qos):
            todo = {name: q for name, q in wanted.items() if done.get(name) != q}
            gone = [name for name in done if name not in wanted]
            await link.subscribe_all(todo)
            if gone:
                await link.unsubscribe(gone, timeout=math.inf)
            done = {name: q for name, q in (done | todo).items() if name not in gone}

    def _take(self, message: aiomqtt.Message) -> None:
        """Queue a packet; paho's reader calls this."""
        if self._link is None:
            self._early.append(message)
            return
        packet = Packet(message.topic.value, message.payload, message.retain)
        if self._filters.qos_of(packet.topic) is None:
            self.strays += 1  # too late, or never asked for, as amqtt 0.12 may send it
            return
        if not self._inbox.put(packet, message.qos):
            self._cut("the incoming queue is full of unread control messages")

    def _cut(self, reason: str) -> None:
        """Give the link up, as if it had been lost."""
        self._say(reason)
        self._link = None
        if self._serving is not None:
            self._serving.cancel()

    def _say(self, reason: str) -> None:
        if reason != self.trouble:
            _log.warning("%s: %s is down: %s", self.url, self.client_id, reason)
        self.trouble = reason


class _Client(aiomqtt.Client):
    """aiomqtt's client for one connection, with packets handed straight to `take`.

    It overrides some private methods of aiomqtt 2.5, the end of that line (`aiomqtt<3`); the
    transport suite would tell if one of them went away.
    """

    def __init__(
        self,
        address: Address,
        client_id: str,
        will: Will | None,
        keepalive_s: int,
        tls: ssl.SSLContext | None,
        take: Callable[[aiomqtt.Message], None],
    ) -> None:
        self.is_lost = self._is_abandoned = False
        self._loop_thread, self._opening = threading.get_ident(), threading.Lock()
        super().__init__(
            address.host,
            address.port,
            username=address.username,
            password=address.password,
            identifier=client_id,
            protocol=aiomqtt.ProtocolVersion.V311,
            clean_session=True,
            keepalive=keepalive_s,
            will=aiomqtt.Will(will.topic, will.payload, 1, True) if will else None,
            queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", partial(Sink, take)),
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            tls_context=tls,
            logger=logging.getLogger(f"{__name__}.paho"),
        )
        self.pending_calls_threshold = 1 << 16

    async def subscribe_all(self, filters: dict[str, int]) -> None:
        """Subscribe to each filter at its QoS.

        Raises:
            MqttError: The link failed.
            Refused: The broker does not allow one of them.
        """
        pairs = list(filters.items())
        for start in range(0, len(pairs), FILTERS_PER_SUBSCRIBE):
            batch = pairs[start : start + FILTERS_PER_SUBSCRIBE]
            granted = await self.subscribe(batch, timeout=math.inf)
            codes = [code if isinstance(code, int) else code.value for code in granted]
            for (name, _), code in zip(batch, codes, strict=True):
                if code >= 128:
                    raise Refused(f"broker: subscribing to {name} is not allowed; check its ACL")

    def abandon(self) -> None:
        """Close the socket without a goodbye, also one that a thread is just opening.

        It is closed after what that thread has asked of the loop: by then its number might be
        another socket's, which the loop would watch for the wrong client.
        """
        with self._opening:
            self._is_abandoned = True
        self._loop.call_soon(self._client._sock_close)
        for future in (self._connected, self._disconnected):
            if not future.cancel() and not future.cancelled():
                future.exception()  # seen: asyncio complains about errors that nobody looks at

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        with self._opening:
            if self._is_abandoned:
                sock.close()
                raise ConnectionAbortedError("the transport was left while it was connecting")
            super()._on_socket_open(client, userdata, sock)

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        """Write at once what the kernel takes; aiomqtt would wake the loop for each packet."""
        if threading.get_ident() == self._loop_thread:
            client.loop_write()
            if client.socket() is not None and client.want_write():
                self._loop.add_writer(sock.fileno(), client.loop_write)
            return
        with self._opening:
            if not self._is_abandoned:
                super()._on_socket_register_write(client, userdata, sock)

    def _on_disconnect(
        self, client: Any, userdata: Any, flags: Any, code: Any, properties: Any = None
    ) -> None:
        self.is_lost = True
        if self._connected.done():
            super()._on_disconnect(client, userdata, flags, code, properties)
            if self._disconnected.done() and not self._disconnected.cancelled():
                self._disconnected.exception()  # seen, even if `__aenter__` throws it away
        else:  # before the answer to CONNECT: aiomqtt would wait for its time-out
            self._connected.set_exception(aiomqtt.MqttCodeError(code))
