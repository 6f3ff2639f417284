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
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, cast

import aiomqtt
import anyio
from aiomqtt.exceptions import MqttConnectError
from anyio.abc import TaskGroup

from wire.errors import Disconnected, Refused
from wire.transport.address import Address, parse_url, redact
from wire.transport.base import Incoming, LinkDown, LinkUp, Packet, Transport, Will
from wire.transport.filters import Filters
from wire.transport.inbox import Inbox

__all__ = ["MqttTransport", "full_jitter", "parse_url", "redact"]

LEAVE_S = 2.0
"""A clean goodbye may take this long; then the socket is closed without one."""

STABLE_S = 5.0
"""A link that lasted this long starts the backoff afresh."""

FLOOR_BPS = 100e3
"""What a link must carry, bit/s, before a waiting publish counts as failed."""

FILTERS_PER_SUBSCRIBE = 8
"""The most that AWS IoT Core takes in one packet."""

_FINAL_CODES = {132, 133, 134, 135, 138}
"""Protocol version, client id, user or password, authorisation, ban: no use in trying again.
The other one of MQTT 3.1.1, server unavailable (136), passes."""

_log = logging.getLogger(__name__)


def full_jitter(
    rng: random.Random, base_s: float = 0.1, cap_s: float = 5.0
) -> Callable[[int], float]:
    """Return a backoff: seconds to wait before the n-th retry in a row, n from 0.

    The wait is uniform between half of `base_s` and `base_s` x 2^(n + 1), at most `cap_s`, so a
    fleet that lost its broker comes back spread out, and a single hiccup costs 50 to 200 ms.
    """

    def backoff(retry: int) -> float:
        return rng.uniform(base_s / 2, min(cap_s, base_s * 2.0 ** min(retry + 1, 30)))

    return backoff


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
        ValueError: The URL is not a broker's address.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        *,
        will: Will | None = None,
        keepalive_s: int = 15,
        connect_timeout_s: float = 10.0,
        publish_timeout_s: float = 60.0,
        backoff: Callable[[int], float] | None = None,
    ) -> None:
        self.url = redact(url)
        self.client_id = client_id
        self.trouble: str | None = "not connected yet"
        """Why the link is down; None while it is up."""
        self.strays = 0
        """Packets on topics that we have not subscribed to, or not any more; ignored."""
        self._address = parse_url(url)
        self._will = will
        self._keepalive_s = keepalive_s
        self._connect_timeout_s = connect_timeout_s
        self._publish_timeout_s = publish_timeout_s
        self._backoff = backoff or full_jitter(random.Random())
        self._inbox = Inbox()
        self._filters = Filters()
        self._link: _Client | None = None
        self._ups = 0
        self._queued_bytes = 0
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

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        """Subscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters are remembered all the same.
            Refused: The broker does not allow it.
        """
        self._filters.add(filters, qos)
        wanted = dict.fromkeys(filters, qos)
        await self._while_up(
            "subscribe", self._publish_timeout_s, lambda link: link.subscribe_all(wanted)
        )

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
                _log.error("%s", exc)
                self._inbox.fail(exc)
                return
            except (aiomqtt.MqttError, OSError) as exc:
                self._say(f"cannot connect: {exc}")
            retry = 0 if anyio.current_time() - up_since > STABLE_S else retry + 1
            await anyio.sleep(self._backoff(retry - 1 if retry else 0))

    async def _connect(self) -> "_Client":
        """Return a connected client.

        Raises:
            Refused: The broker said no.
            MqttError: It did not answer, or is not ready.
        """
        link = _Client(self._address, self.client_id, self._will, self._keepalive_s, self._take)
        link.timeout = self._connect_timeout_s
        try:
            await link.__aenter__()
        except MqttConnectError as exc:
            link.abandon()
            if getattr(exc.rc, "value", exc.rc) in _FINAL_CODES:
                raise Refused(
                    f"{self.url}: the broker refused {self.client_id!r}, {exc}; "
                    "check user, password and client id"
                ) from exc
            raise
        except aiomqtt.MqttError as exc:
            link.abandon()
            if "CERTIFICATE_VERIFY_FAILED" in str(exc):
                raise Refused(f"{self.url}: {exc}; check ?cafile=") from exc
            raise
        except BaseException:
            link.abandon()
            raise
        return link

    async def _serve(self, link: "_Client") -> None:
        """Announce the link, wait until it is lost, and say so; leave it cleanly otherwise."""
        is_up = is_lost = False
        try:
            with anyio.CancelScope() as self._serving:
                with anyio.fail_after(self._connect_timeout_s):
                    await self._restore(link)
                self._ups += 1
                self.trouble = None
                self._link = link
                is_up = True
                self._inbox.put(LinkUp(self._ups))
                link.release()
                _log.info("%s: %s is up (%d)", self.url, self.client_id, self._ups)
                await anext(link.messages)  # never yields: packets go to the inbox
            is_lost = True  # the scope was cancelled by `_cut`
        except (aiomqtt.MqttError, TimeoutError) as exc:
            is_lost = True
            self._say(_reason(exc))
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
        packet = Packet(message.topic.value, message.payload, message.retain)
        if self._filters.qos_of(packet.topic) is None:
            # Came too late, or was never asked for: amqtt (0.12.1) greets a new client with what
            # is retained under the subscriptions of all others.
            self.strays += 1
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


def _reason(error: Exception) -> str:
    """Return why a link was lost, for people."""
    if isinstance(error, TimeoutError):
        return "no answer to subscribe"
    code = getattr(error.__cause__, "rc", None)
    text = str(code or error.__cause__ or error)
    return "connection lost" if text == "Unspecified error" else text


class _Client(aiomqtt.Client):
    """aiomqtt's client for one connection, with packets handed straight to `take`."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        will: Will | None,
        keepalive_s: int,
        take: Callable[[aiomqtt.Message], None],
    ) -> None:
        self._take = take
        self._early: list[aiomqtt.Message] | None = []
        self._is_abandoned = False
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
            queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", self._queue_to_inbox),
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            tls_context=ssl.create_default_context(cafile=address.cafile)
            if address.is_tls
            else None,
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

    def release(self) -> None:
        """Hand over what came before the link counted as up, then everything at once."""
        early, self._early = self._early, None
        for message in early or ():
            self._take(message)

    def abandon(self) -> None:
        """Close the socket without a goodbye, also one that a thread is just opening."""
        self._is_abandoned = True
        self._client._sock_close()
        for future in (self._connected, self._disconnected):
            if not future.cancel() and not future.cancelled():
                future.exception()  # seen: asyncio complains about errors that nobody looks at

    def _queue_to_inbox(self, maxsize: int) -> "_Sink":
        return _Sink(self)

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        if self._is_abandoned:
            sock.close()
            raise ConnectionAbortedError("the transport was left while it was connecting")
        super()._on_socket_open(client, userdata, sock)

    def _on_disconnect(self, client: Any, userdata: Any, *details: Any) -> None:
        if self._connected.done():
            super()._on_disconnect(client, userdata, *details)
        else:  # aiomqtt would wait for its time-out
            self._connected.set_exception(aiomqtt.MqttError("closed before it answered"))

    def on_packet(self, message: aiomqtt.Message) -> None:
        """Take a packet from paho."""
        if self._early is None:
            self._take(message)
        else:
            self._early.append(message)


class _Sink(asyncio.Queue[aiomqtt.Message]):
    """Stands where aiomqtt keeps its queue; nothing ever waits in it."""

    def __init__(self, client: _Client) -> None:
        super().__init__()
        self._owner = client

    def put_nowait(self, item: aiomqtt.Message) -> None:
        self._owner.on_packet(item)
