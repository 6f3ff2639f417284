"""MQTT 3.1.1 spoken by aiomqtt, the library formerly known as asyncio-mqtt.

The only module that imports it. A packet takes one step from paho's reader to `take`: aiomqtt's
queue is replaced by a sink (`queue_type`).
"""

import asyncio
import logging
import math
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import aiomqtt
import anyio
from anyio.abc import TaskGroup

from fairbed.wire.errors import Disconnected, Refused
from fairbed.wire.transport.base import Packet, Settled
from fairbed.wire.transport.inbox import Sink
from fairbed.wire.transport.link import Dial, Take, advice_on, batches, not_allowed, reason_of


class AiomqttConnection:
    """One connection, from CONNECT to its end (`wire.transport.link.Link`)."""

    def __init__(self, dial: Dial, take: Take, tasks: TaskGroup) -> None:
        self._dial = dial
        self._tasks = tasks
        self._client = _Client(dial, take)
        self._client.timeout = dial.connect_timeout_s
        self._reason: str | None = None
        """Why the connection is lost; None while it is not."""
        self._waiting: set[anyio.CancelScope] = set()
        self._watching: anyio.CancelScope | None = None
        self._queued_bytes = 0

    async def connect(self) -> None:
        """Connect, once.

        Raises:
            Disconnected: The broker is not there, does not answer, or is not ready; says why.
            Refused: It said no for good.
        """
        try:
            await self._client.__aenter__()
            if self._client.is_lost:  # aiomqtt forgets what happens before `__aenter__` returns
                raise aiomqtt.MqttError("connection lost")
        except (aiomqtt.MqttError, OSError) as exc:
            reason, advice = reason_of(exc), advice_on(exc)
            if advice is None:
                raise Disconnected(reason) from exc
            url, client_id = self._dial.url, self._dial.client_id
            raise Refused(f"{url}: refused {client_id!r}, {reason}; {advice}") from exc

    def post(
        self, topic: str, payload: bytes | memoryview, qos: int, retain: bool, settled: Settled
    ) -> None:
        """Send by a task of its own; `settled` is called once.

        Raises:
            Disconnected: The link is down; `settled` is not called.
        """
        self._check("publish")
        self._tasks.start_soon(self._post, topic, payload, qos, retain, settled)

    async def publish(
        self, topic: str, payload: bytes | memoryview, qos: int, retain: bool
    ) -> None:
        """Send; at QoS 1 return when the broker has it, at QoS 0 when the kernel has it.

        Raises:
            Disconnected: The link is down or was lost before that.
        """
        body = bytes(payload)  # a bytes object is passed through without a copy
        self._queued_bytes += len(body)
        patience_s = self._dial.patience_s(self._queued_bytes)
        call = partial(self._client.publish, topic, body, qos, retain, timeout=math.inf)
        try:
            await self._while_up("publish", patience_s, call)
        finally:
            self._queued_bytes -= len(body)
        await asyncio.sleep(0)  # what the kernel took at once never waited: let others have a turn

    async def subscribe(self, filters: Mapping[str, int]) -> None:
        """Subscribe to each filter at its QoS.

        Raises:
            Disconnected: The link is down or was lost meanwhile.
            Refused: The broker does not allow one of them.
        """
        call = partial(self._client.subscribe_all, filters)
        await self._while_up("subscribe", self._dial.publish_timeout_s, call)

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe.

        Raises:
            Disconnected: The link is down or was lost meanwhile.
        """
        call = partial(self._client.unsubscribe, list(filters), timeout=math.inf)
        await self._while_up("unsubscribe", self._dial.publish_timeout_s, call)

    async def lost(self) -> str:
        """Return, once the connection is lost, why."""
        with anyio.CancelScope() as self._watching:
            try:
                if self._reason is None:
                    await anext(self._client.messages)  # never yields: packets go to `take`
            except aiomqtt.MqttError as exc:
                self._lose(reason_of(exc))
        return self._reason or "connection lost"

    def cut(self, reason: str) -> None:
        """Give the connection up, as if it had been lost."""
        self._lose(reason)
        if self._watching is not None:
            self._watching.cancel()

    async def leave(self) -> None:
        """Say goodbye, so that the broker publishes no will; the caller limits the time."""
        self._lose("left")
        with suppress(aiomqtt.MqttError):
            await self._client.__aexit__(None, None, None)

    def abandon(self) -> None:
        """Close the socket without a goodbye, also one that a thread is just opening."""
        self._lose("left")
        self._client.abandon()

    async def _post(
        self,
        topic: str,
        payload: bytes | memoryview,
        qos: int,
        retain: bool,
        settled: Settled,
    ) -> None:
        try:
            with suppress(Disconnected):
                await self.publish(topic, payload, qos, retain)
        finally:
            settled()

    async def _while_up(
        self, action: str, patience_s: float, call: Callable[[], Awaitable[object]]
    ) -> None:
        """Await `call()`, but not longer than the link lasts.

        aiomqtt leaves a pending call waiting when the connection is lost.
        """
        self._check(action)
        with anyio.CancelScope(deadline=anyio.current_time() + patience_s) as scope:
            self._waiting.add(scope)
            try:
                await call()
                return
            except aiomqtt.MqttError as exc:
                raise Disconnected(f"{self._dial.url}: cannot {action} ({exc})") from exc
            finally:
                self._waiting.discard(scope)
        if self._reason is None:
            self.cut(f"{action} took longer than {patience_s:.0f} s")
        raise Disconnected(f"{self._dial.url}: link lost during {action} ({self._reason})")

    def _check(self, action: str) -> None:
        if self._reason is not None:
            raise Disconnected(f"{self._dial.url}: cannot {action} ({self._reason})")

    def _lose(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            for scope in self._waiting:
                scope.cancel()


class _Client(aiomqtt.Client):
    """aiomqtt's client for one connection, with packets handed straight to `take`.

    It overrides some private methods of aiomqtt 2.5, the end of that line (`aiomqtt<3`); the
    transport suite would tell if one of them went away.
    """

    def __init__(self, dial: Dial, take: Take) -> None:
        self.is_lost = self._is_abandoned = False
        self._loop_thread, self._opening = threading.get_ident(), threading.Lock()
        will = dial.will

        def hand_on(message: aiomqtt.Message) -> None:
            take(Packet(message.topic.value, message.payload, message.retain), message.qos)

        super().__init__(
            dial.address.host,
            dial.address.port,
            username=dial.address.username,
            password=dial.address.password,
            identifier=dial.client_id,
            protocol=aiomqtt.ProtocolVersion.V311,
            clean_session=True,
            keepalive=dial.keepalive_s,
            will=aiomqtt.Will(will.topic, will.payload, 1, True) if will else None,
            queue_type=cast("type[asyncio.Queue[aiomqtt.Message]]", partial(Sink, hand_on)),
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            tls_context=dial.tls,
            logger=logging.getLogger(f"{__name__}.paho"),
        )
        self.pending_calls_threshold = 1 << 16

    async def subscribe_all(self, filters: Mapping[str, int]) -> None:
        """Subscribe to each filter at its QoS.

        Raises:
            MqttError: The link failed.
            Refused: The broker does not allow one of them.
        """
        for batch in batches(filters):
            granted = await self.subscribe(list(batch.items()), timeout=math.inf)
            codes = [code if isinstance(code, int) else code.value for code in granted]
            for name, code in zip(batch, codes, strict=True):
                if code >= 128:
                    raise Refused(not_allowed(name))

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
