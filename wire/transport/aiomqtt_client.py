"""An MQTT 3.1.1 connection of the library aiomqtt, formerly asyncio-mqtt.

No other module imports the library. Its message queue is replaced (`queue_type`), so that paho's
reader passes each packet directly to `on_packet`.
"""

import asyncio
import logging
import math
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import aiomqtt
import anyio
from anyio.abc import TaskGroup

from fairbed.wire.errors import Disconnected, Refused
from fairbed.wire.transport.base import OnComplete, Packet
from fairbed.wire.transport.link import (
    LOST,
    ConnectOptions,
    PacketHandler,
    advice_for,
    closed_unanswered,
    failure_reason,
    oversized,
    subscribe_batches,
    subscription_refused,
)
from fairbed.wire.transport.protocol.packets import MAX_PAYLOAD_BYTES

_log = logging.getLogger(__name__)


class AiomqttConnection:
    """One connection, from CONNECT to its end (`wire.transport.link.Connection`)."""

    def __init__(self, options: ConnectOptions, on_packet: PacketHandler, tasks: TaskGroup) -> None:
        self._options = options
        self._tasks = tasks
        self._client = _AiomqttClient(options, on_packet)
        self._client.timeout = options.connect_timeout_s
        self._reason: str | None = None
        """Why the connection is lost; None while it is up."""
        self._operations: set[anyio.CancelScope] = set()
        self._lost_wait: anyio.CancelScope | None = None
        self._queued_bytes = 0

    @property
    def large_bytes(self) -> int:
        """Unknown: the library shows complete messages only."""
        return 0

    @property
    def silent_s(self) -> float:
        """Unknown: the library hides its pings."""
        return 0.0

    async def connect(self) -> None:
        """Connect, once.

        Raises:
            Disconnected: The broker cannot be reached, does not answer, or is not ready.
            Refused: The broker refused the connection for good.
        """
        try:
            await self._client.__aenter__()
            if self._client.is_lost:  # aiomqtt ignores a loss before `__aenter__` returns
                raise aiomqtt.MqttError(LOST)
        except (aiomqtt.MqttError, OSError) as exc:
            reason, advice = failure_reason(exc), advice_for(exc)
            if reason == LOST:
                reason = closed_unanswered(is_tls=self._options.tls is not None)
            if advice is None:
                raise Disconnected(reason) from exc
            url, client_id = self._options.url, self._options.client_id
            raise Refused(f"{url}: refused {client_id!r}, {reason}; {advice}") from exc

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | memoryview,
        qos: int,
        retain: bool,
        on_complete: OnComplete,
    ) -> None:
        """Publish in a task of its own; `on_complete` is called once.

        Raises:
            Disconnected: The link is down; `on_complete` is not called.
        """
        self._check_up("publish")
        self._tasks.start_soon(
            self._publish_in_background, topic, payload, qos, retain, on_complete
        )

    async def publish(
        self, topic: str, payload: bytes | memoryview, qos: int, retain: bool
    ) -> None:
        """Publish; return when acknowledged (QoS 1), or accepted by the link (QoS 0).

        Raises:
            Disconnected: The link is down, or was lost before that.
        """
        body = bytes(payload)  # copies a memoryview only
        self._queued_bytes += len(body)
        timeout_s = self._options.timeout_s(self._queued_bytes)
        call = partial(self._client.publish, topic, body, qos, retain, timeout=math.inf)
        try:
            await self._run_while_up("publish", timeout_s, call)
        finally:
            self._queued_bytes -= len(body)
        await asyncio.sleep(0)  # perhaps nothing was awaited so far: let other tasks run

    async def subscribe(self, filters: Mapping[str, int]) -> None:
        """Subscribe to each filter at its QoS.

        Raises:
            Disconnected: The link is down, or was lost meanwhile.
            Refused: The broker does not allow one of the filters.
        """
        call = partial(self._client.subscribe_all, filters)
        await self._run_while_up("subscribe", self._options.publish_timeout_s, call)

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe.

        Raises:
            Disconnected: The link is down, or was lost meanwhile.
        """
        call = partial(self._client.unsubscribe, list(filters), timeout=math.inf)
        await self._run_while_up("unsubscribe", self._options.publish_timeout_s, call)

    async def lost(self) -> str:
        """Wait until the connection is lost; return the reason."""
        with anyio.CancelScope() as self._lost_wait:
            try:
                if self._reason is None:
                    await anext(self._client.messages)  # never yields: packets go to `on_packet`
            except aiomqtt.MqttError as exc:
                self._mark_lost(failure_reason(exc))
        return self._reason or "connection lost"

    def fail(self, reason: str) -> None:
        """End the connection, as if it had been lost."""
        self._mark_lost(reason)
        if self._lost_wait is not None:
            self._lost_wait.cancel()

    async def disconnect(self) -> None:
        """Send DISCONNECT, so that the broker publishes no will; the caller limits the time."""
        self._mark_lost("left")
        with suppress(aiomqtt.MqttError):
            await self._client.__aexit__(None, None, None)

    def abort(self) -> None:
        """Close the socket without DISCONNECT, also one that a thread is opening."""
        self._mark_lost("left")
        self._client.abort()

    async def _publish_in_background(
        self,
        topic: str,
        payload: bytes | memoryview,
        qos: int,
        retain: bool,
        on_complete: OnComplete,
    ) -> None:
        try:
            with suppress(Disconnected):
                await self.publish(topic, payload, qos, retain)
        finally:
            on_complete()

    async def _run_while_up(
        self, action: str, timeout_s: float, call: Callable[[], Awaitable[object]]
    ) -> None:
        """Await `call()` while the link is up.

        aiomqtt does not end a pending call when the connection is lost.
        """
        self._check_up(action)
        with anyio.CancelScope(deadline=anyio.current_time() + timeout_s) as scope:
            self._operations.add(scope)
            try:
                await call()
                return
            except aiomqtt.MqttError as exc:
                raise Disconnected(f"{self._options.url}: cannot {action} ({exc})") from exc
            finally:
                self._operations.discard(scope)
        if self._reason is None:
            self.fail(f"{action} took longer than {timeout_s:.0f} s")
        raise Disconnected(f"{self._options.url}: link lost during {action} ({self._reason})")

    def _check_up(self, action: str) -> None:
        if self._reason is not None:
            raise Disconnected(f"{self._options.url}: cannot {action} ({self._reason})")

    def _mark_lost(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            for scope in self._operations:
                scope.cancel()


ItemT = TypeVar("ItemT")


class _CallbackQueue(asyncio.Queue[ItemT]):
    """Replaces aiomqtt's message queue; passes each item to a callback at once."""

    def __init__(self, on_item: Callable[[ItemT], None], maxsize: int) -> None:
        super().__init__()
        self._on_item = on_item

    def put_nowait(self, item: ItemT) -> None:
        """Pass an item to the callback."""
        self._on_item(item)


class _AiomqttClient(aiomqtt.Client):
    """aiomqtt's client for one connection; passes packets directly to `on_packet`.

    It overrides private methods of aiomqtt 2.5, the last release before 3 (`aiomqtt<3`); the
    transport tests fail if one of them disappears.
    """

    def __init__(self, options: ConnectOptions, on_packet: PacketHandler) -> None:
        self.is_lost = self._is_aborted = False
        self._has_dropped = False
        """An oversized message was dropped; reported once."""
        self._loop_thread, self._opening = threading.get_ident(), threading.Lock()
        will = options.will

        def on_message(message: aiomqtt.Message) -> None:
            if len(message.payload) > MAX_PAYLOAD_BYTES:  # the library has acknowledged it
                if not self._has_dropped:
                    self._has_dropped = True
                    text = oversized(options.url, message.topic.value, len(message.payload))
                    _log.warning("%s", text)
                return
            on_packet(Packet(message.topic.value, message.payload, message.retain), message.qos)

        super().__init__(
            options.address.host,
            options.address.port,
            username=options.address.username,
            password=options.address.password,
            identifier=options.client_id,
            protocol=aiomqtt.ProtocolVersion.V311,
            clean_session=True,
            keepalive=options.keepalive_s,
            will=aiomqtt.Will(will.topic, will.payload, 1, True) if will else None,
            queue_type=cast(
                "type[asyncio.Queue[aiomqtt.Message]]", partial(_CallbackQueue, on_message)
            ),
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            tls_context=options.tls,
            logger=logging.getLogger(f"{__name__}.paho"),
        )
        self.pending_calls_threshold = 1 << 16
        self._client.connect_timeout = options.dial_timeout_s

    async def subscribe_all(self, filters: Mapping[str, int]) -> None:
        """Subscribe to each filter at its QoS.

        Raises:
            MqttError: The link failed.
            Refused: The broker does not allow one of the filters.
        """
        for batch in subscribe_batches(filters):
            granted = await self.subscribe(list(batch.items()), timeout=math.inf)
            codes = [code if isinstance(code, int) else code.value for code in granted]
            for name, code in zip(batch, codes, strict=True):
                if code >= 128:
                    raise Refused(subscription_refused(name))

    def abort(self) -> None:
        """Close the socket without DISCONNECT, also one that a thread is opening.

        The socket is closed after the callbacks that this thread has scheduled on the loop.
        Otherwise a new socket could get the same file descriptor, and the loop would watch it for
        the wrong client.
        """
        with self._opening:
            self._is_aborted = True
        self._loop.call_soon(self._client._sock_close)
        for future in (self._connected, self._disconnected):
            if not future.cancel() and not future.cancelled():
                future.exception()  # asyncio logs exceptions that were never retrieved

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        with self._opening:
            if self._is_aborted:
                sock.close()
                raise ConnectionAbortedError("the transport was left while it was connecting")
            super()._on_socket_open(client, userdata, sock)

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        """Write at once as much as the kernel takes; aiomqtt would wake the loop per packet."""
        if threading.get_ident() == self._loop_thread:
            client.loop_write()
            if client.socket() is not None and client.want_write():
                self._loop.add_writer(sock.fileno(), client.loop_write)
            return
        with self._opening:
            if not self._is_aborted:
                super()._on_socket_register_write(client, userdata, sock)

    def _on_disconnect(
        self, client: Any, userdata: Any, flags: Any, code: Any, properties: Any = None
    ) -> None:
        self.is_lost = True
        if self._connected.done():
            super()._on_disconnect(client, userdata, flags, code, properties)
            if self._disconnected.done() and not self._disconnected.cancelled():
                self._disconnected.exception()  # retrieved here, as `__aenter__` may discard it
        else:  # before the answer to CONNECT: aiomqtt would wait for its timeout
            self._connected.set_exception(aiomqtt.MqttCodeError(code))
