"""An MQTT 3.1.1 client on an asyncio connection; `protocol.packets` encodes and decodes.

All packets of one iteration of the event loop are sent in one write. The next write waits until the
kernel has taken the previous one, and publishers wait, too: the send queue stays below
`QUEUE_BYTES` plus one packet for each waiting publisher.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import anyio

from fairbed.wire.errors import DecodeError, Disconnected, EncodeError, Refused
from fairbed.wire.transport.base import OnComplete, Packet
from fairbed.wire.transport.link import (
    CONNACK_REASONS,
    NOT_MQTT,
    ConnectOptions,
    PacketHandler,
    advice_for,
    closed_unanswered,
    connack_advice,
    oversized,
    subscribe_batches,
    subscription_refused,
)
from fairbed.wire.transport.protocol import packets
from fairbed.wire.transport.protocol.packets import (
    Connack,
    Inbound,
    Oversized,
    Pingresp,
    Puback,
    Publish,
    Reader,
    Suback,
    Unsuback,
)
from fairbed.wire.transport.protocol.pending import (
    Answer,
    OnEnd,
    PendingOperation,
    PendingOperations,
)

QUEUE_BYTES = 16 * 1024
"""A longer queue is written at once; publishers then wait until the kernel has taken it."""

LARGE_PART_BYTES = 64 * 1024
"""A larger part of a packet is written by itself: joining it to others would copy it."""

_log = logging.getLogger(__name__)

_AnswerFuture: TypeAlias = "asyncio.Future[Answer]"


class OwnConnection(asyncio.BufferedProtocol):
    """One connection, from CONNECT to its end (`wire.transport.link.Connection`)."""

    def __init__(self, options: ConnectOptions, on_packet: PacketHandler) -> None:
        self._options = options
        self._on_packet = on_packet
        self._loop = asyncio.get_running_loop()
        self._reader = Reader()
        self._pending = PendingOperations()
        self._transport: asyncio.Transport | None = None
        self._connect_packet = b""
        self._connack: asyncio.Future[int] = self._loop.create_future()
        """Return code of the CONNACK."""
        self._lost: asyncio.Future[str] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._queue: list[bytes | memoryview] = []
        self._queued_bytes = 0
        self._is_flush_scheduled = self._is_paused = False
        self._received_at = self._sent_at = self._loop.time()
        self._pinged_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = float("inf")
        self._has_skipped = False
        """An oversized message was dropped; reported once."""

    @property
    def large_bytes(self) -> int:
        """Received bytes of messages above 8 KiB, also of an incomplete one."""
        return self._reader.large_bytes

    @property
    def silent_s(self) -> float:
        """Seconds since the broker last sent anything."""
        return self._loop.time() - self._received_at

    async def connect(self) -> None:
        """Connect, once.

        Raises:
            Disconnected: The broker cannot be reached, does not answer, or is not ready.
            Refused: The broker refused the connection for good.
        """
        options, address = self._options, self._options.address
        try:
            self._connect_packet = packets.connect(
                options.client_id,
                keepalive_s=options.keepalive_s,
                will=options.will,
                username=address.username,
                password=address.password,
            )
            with anyio.fail_after(options.dial_timeout_s):
                await self._loop.create_connection(
                    lambda: self,
                    address.host,
                    address.port,
                    ssl=options.tls,
                    server_hostname=address.server_name if options.tls else None,
                )
            with anyio.fail_after(options.connect_timeout_s):
                code = await self._connack
        except TimeoutError as exc:
            raise Disconnected("no answer") from exc
        except OSError as exc:
            advice = advice_for(exc)
            if advice is not None:
                raise self._refusal(str(exc), advice) from exc
            raise Disconnected(_system_message(exc)) from exc
        except DecodeError as exc:
            raise Refused(
                f"{options.url}: must be an MQTT 3.1.1 broker, got another protocol ({exc}); "
                f"{NOT_MQTT}"
            ) from exc
        except EncodeError as exc:
            raise Refused(f"{options.url}: {exc}") from exc
        if code:
            reason = CONNACK_REASONS.get(code, f"code {code}")
            advice = connack_advice(code)
            if advice is not None:
                raise self._refusal(reason, advice)
            raise Disconnected(reason)
        self._set_timer(self._loop.time() + options.keepalive_s / 2)

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | memoryview,
        qos: int,
        retain: bool,
        on_complete: OnComplete,
    ) -> None:
        """Publish without waiting; `on_complete` is called once.

        Raises:
            Disconnected: The link is down; `on_complete` is not called.
            EncodeError: The topic or the payload breaks a rule of MQTT.
        """
        self._check_up("publish")

        def on_end(answer: Answer) -> None:
            on_complete()

        if qos:
            self._publish(topic, payload, retain, on_end)
            return
        self._send(packets.publish_head(topic, len(payload), retain=retain), payload)
        if self._is_paused:
            self._wait(self._pending.new_key(), "publish", type(None), on_end)
        else:
            on_complete()

    async def publish(
        self, topic: str, payload: bytes | memoryview, qos: int, retain: bool
    ) -> None:
        """Publish; return when acknowledged (QoS 1), or accepted by the link (QoS 0).

        Raises:
            Disconnected: The link is down, or was lost before that.
            EncodeError: The topic or the payload breaks a rule of MQTT.
        """
        self._check_up("publish")
        if qos:
            future = self._new_future()
            self._publish(topic, payload, retain, _resolve(future))
            await self._answer(future, "publish")
            return
        self._send(packets.publish_head(topic, len(payload), retain=retain), payload)
        if self._is_paused:
            future = self._new_future()
            self._wait(self._pending.new_key(), "publish", type(None), _resolve(future))
            await self._answer(future, "publish")
        else:
            await asyncio.sleep(0)  # nothing was awaited so far: let other tasks run

    async def subscribe(self, filters: Mapping[str, int]) -> None:
        """Subscribe to each filter at its QoS.

        Raises:
            Disconnected: The link is down, or was lost meanwhile.
            Refused: The broker does not allow one of the filters.
        """
        for batch in subscribe_batches(filters):
            future, packet_id = self._expect("subscribe", Suback)
            self._send(packets.subscribe(packet_id, batch))
            answer = cast("Suback", await self._answer(future, "subscribe"))
            for name, code in zip(batch, answer.codes, strict=False):
                if code == packets.FAILURE:
                    raise Refused(subscription_refused(name))

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe.

        Raises:
            Disconnected: The link is down, or was lost meanwhile.
        """
        future, packet_id = self._expect("unsubscribe", Unsuback)
        self._send(packets.unsubscribe(packet_id, filters))
        await self._answer(future, "unsubscribe")

    async def lost(self) -> str:
        """Wait until the connection is lost; return the reason."""
        return await asyncio.shield(self._lost)

    def fail(self, reason: str) -> None:
        """End the connection at once."""
        self._mark_lost(reason)
        self.abort()

    async def disconnect(self) -> None:
        """Send DISCONNECT and wait until it is written; the caller limits the time."""
        if self._transport is not None and not self._lost.done():
            self._transport.write(b"".join([*self._queue, packets.DISCONNECT]))
            self._mark_lost("left")
            self._transport.close()
            await self._closed

    def abort(self) -> None:
        """Close the socket without DISCONNECT."""
        self._mark_lost("left")
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open: send CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        # Not 0: asyncio's TLS pauses at the limit, not above it, and would never resume.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._transport.write(self._connect_packet)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        answered = self._connack.done()
        is_tls = self._options.tls is not None
        self._mark_lost("connection lost" if answered else closed_unanswered(is_tls=is_tls))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The kernel did not take the last write in full."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The kernel has taken all bytes."""
        self._is_paused = False
        self._flush()
        if not self._is_paused:
            self._pending.on_written()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the complete packets."""
        if self._lost.done():
            return
        self._received_at, self._pinged_at = self._loop.time(), None
        try:
            for packet in self._reader.buffer_updated(nbytes):
                self._handle(packet)
        except DecodeError as exc:
            self._fail_connect(exc)
            self.fail(str(exc))

    def _handle(self, packet: Inbound) -> None:
        match packet:
            case Publish(topic=topic, payload=payload, qos=qos, retain=retain):
                if not self._connack.done():
                    raise DecodeError("mqtt: CONNACK must come first, got PUBLISH")
                if self._lost.done() or not self._on_packet(Packet(topic, payload, retain), qos):
                    return
                if qos:
                    self._send(packets.puback(packet.packet_id))
            case Oversized(topic=topic, n_bytes=n_bytes, qos=qos):
                if not self._connack.done():
                    raise DecodeError("mqtt: CONNACK must come first, got PUBLISH")
                if not self._has_skipped:
                    self._has_skipped = True
                    _log.warning("%s", oversized(self._options.url, topic, n_bytes))
                if qos and not self._lost.done():
                    self._send(packets.puback(packet.packet_id))
            case Puback() | Suback() | Unsuback():
                self._pending.on_answer(packet)
            case Connack(code=code):
                if self._connack.done():
                    raise DecodeError("mqtt: CONNACK must come once, got another")
                self._connack.set_result(code)
            case Pingresp():
                pass

    def _publish(
        self, topic: str, payload: bytes | memoryview, retain: bool, on_end: OnEnd
    ) -> None:
        """Publish at QoS 1."""
        packet_id, n_bytes = self._new_id(), len(payload)
        head = packets.publish_head(topic, n_bytes, qos=1, retain=retain, packet_id=packet_id)
        self._wait(packet_id, "publish", Puback, on_end, n_bytes)
        self._send(head, payload)

    def _send(self, *parts: bytes | memoryview) -> None:
        """Queue a packet: written in the next iteration of the loop, or at once if it is large."""
        for part in parts:
            self._queue.append(part)
            self._queued_bytes += len(part)
        if self._queued_bytes >= QUEUE_BYTES:
            self._flush()
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._is_flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self._is_paused or not self._queue or self._transport is None:
            return
        queue, self._queue = self._queue, []
        self._queued_bytes = 0
        self._sent_at = self._loop.time()
        small = list[bytes | memoryview]()
        for part in queue:
            if len(part) < LARGE_PART_BYTES:
                small.append(part)
                continue
            if small:
                self._transport.write(b"".join(small))
                small.clear()
            self._transport.write(memoryview(part))  # asyncio copies the unsent rest of bytes twice
        if small:
            self._transport.write(b"".join(small))

    def _new_future(self) -> _AnswerFuture:
        return self._loop.create_future()

    def _expect(self, action: str, answer_type: type) -> tuple[_AnswerFuture, int]:
        self._check_up(action)
        future, packet_id = self._new_future(), self._new_id()
        self._wait(packet_id, action, answer_type, _resolve(future))
        return future, packet_id

    async def _answer(self, future: _AnswerFuture, action: str) -> Answer:
        answer = await future
        if answer is None and self._lost.done():
            url, reason = self._options.url, self._lost.result()
            raise Disconnected(f"{url}: link lost during {action} ({reason})")
        return answer

    def _wait(
        self, key: int, action: str, answer_type: type, on_end: OnEnd, n_bytes: int = 0
    ) -> None:
        before = self._pending.n_bytes + self._queued_bytes
        timeout_s = self._options.timeout_s(before + n_bytes)
        due_at = self._loop.time() + timeout_s
        self._pending.add(
            key, PendingOperation(action, timeout_s, due_at, n_bytes, answer_type, on_end)
        )
        if due_at < self._wake_at:
            self._set_timer(due_at)

    def _new_id(self) -> int:
        packet_id = self._pending.new_id()
        if packet_id is None:
            raise Disconnected(f"{self._options.url}: too many messages wait for the broker")
        return packet_id

    def _check_up(self, action: str) -> None:
        if self._lost.done():
            raise Disconnected(f"{self._options.url}: cannot {action} ({self._lost.result()})")

    def _mark_lost(self, reason: str) -> None:
        if self._lost.done():
            return
        self._lost.set_result(reason)
        self._fail_connect(ConnectionError(reason))
        self._queue.clear()
        self._pending.on_lost()

    def _fail_connect(self, error: Exception) -> None:
        """End `connect` with an error, if it is still waiting."""
        if not self._connack.done():
            self._connack.set_exception(error)
            self._connack.exception()  # asyncio logs exceptions that were never retrieved

    def _set_timer(self, instant: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = instant
        self._timer = self._loop.call_at(instant, self._tick)

    def _tick(self) -> None:
        """End the link if an operation is overdue, and send PINGREQ if the link is idle."""
        now, keepalive_s = self._loop.time(), float(self._options.keepalive_s)
        ping_timeout_s = self._options.ping_timeout_s
        late = self._pending.overdue(now)
        if late is not None:
            self.fail(f"{late.action} took longer than {late.timeout_s:.0f} s")
        elif self._pinged_at is not None and now - self._pinged_at >= ping_timeout_s:
            self.fail(f"the broker has been silent for {now - self._received_at:.0f} s")
        if self._lost.done():
            return
        if (
            self._pinged_at is None
            and now - min(self._received_at, self._sent_at) >= keepalive_s / 2
        ):
            self._pinged_at = now
            self._send(packets.PINGREQ)
        if self._pinged_at is None:
            wake_at = min(self._received_at, self._sent_at) + keepalive_s / 2
        else:
            wake_at = min(self._pinged_at + ping_timeout_s, now + keepalive_s / 2)
        due_at = self._pending.wake_at()
        self._set_timer(wake_at if due_at is None else min(due_at, wake_at))

    def _refusal(self, reason: str, advice: str) -> Refused:
        return Refused(
            f"{self._options.url}: refused {self._options.client_id!r}, {reason}; {advice}"
        )


def _resolve(future: _AnswerFuture) -> OnEnd:
    def on_end(answer: Answer) -> None:
        if not future.done():
            future.set_result(answer)

    return on_end


def _system_message(error: OSError) -> str:
    """Return the message of the operating system, which asyncio's own message hides."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
