"""An MQTT 3.1.1 client on an asyncio connection; `protocol.packets` encodes and decodes.

All packets of one turn of the loop leave in one write. The next write waits until the kernel has
taken the last one, and publishers wait with it: the queue here stays below `QUEUE_BYTES` plus one
packet for each waiting publisher.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import anyio

from fairbed.wire.errors import DecodeError, Disconnected, EncodeError, Refused
from fairbed.wire.transport.base import Packet, Settled
from fairbed.wire.transport.link import (
    CONNACK_REASONS,
    NOT_MQTT,
    Dial,
    Take,
    advice_on,
    advice_on_connack,
    batches,
    not_allowed,
)
from fairbed.wire.transport.protocol import packets
from fairbed.wire.transport.protocol.packets import (
    Connack,
    Inbound,
    Pingresp,
    Puback,
    Publish,
    Reader,
    Suback,
    Unsuback,
)
from fairbed.wire.transport.protocol.pending import (
    Answer,
    PendingOperation,
    PendingOperations,
    Settle,
)

QUEUE_BYTES = 16 * 1024
"""What is queued above this is written at once, and waited for until the kernel has it."""

_Done: TypeAlias = "asyncio.Future[Answer]"


class OwnConnection(asyncio.BufferedProtocol):
    """One connection, from CONNECT to its end (`wire.transport.link.Connection`)."""

    def __init__(self, dial: Dial, take: Take) -> None:
        self._dial = dial
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._reader = Reader()
        self._waits = PendingOperations()
        self._transport: asyncio.Transport | None = None
        self._hello = b""
        self._entered: asyncio.Future[int] = self._loop.create_future()
        """The code of the CONNACK."""
        self._lost: asyncio.Future[str] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._queue: list[bytes | memoryview] = []
        self._queued_bytes = 0
        self._is_flush_due = self._is_paused = False
        self._heard_at = self._sent_at = self._loop.time()
        self._pinged_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = float("inf")

    async def connect(self) -> None:
        """Connect, once.

        Raises:
            Disconnected: The broker is not there, does not answer, or is not ready; says why.
            Refused: It said no for good.
        """
        dial, who = self._dial, self._dial.address
        try:
            self._hello = packets.connect(
                dial.client_id,
                keepalive_s=dial.keepalive_s,
                will=dial.will,
                username=who.username,
                password=who.password,
            )
            with anyio.fail_after(dial.connect_timeout_s):
                await self._loop.create_connection(lambda: self, who.host, who.port, ssl=dial.tls)
            with anyio.fail_after(dial.connect_timeout_s):
                code = await self._entered
        except TimeoutError as exc:
            raise Disconnected("no answer") from exc
        except OSError as exc:
            advice = advice_on(exc)
            if advice is not None:
                raise self._refusal(str(exc), advice) from exc
            raise Disconnected(_in_words(exc)) from exc
        except DecodeError as exc:
            raise self._refusal(str(exc), NOT_MQTT) from exc
        except EncodeError as exc:
            raise Refused(f"{dial.url}: {exc}") from exc
        if code:
            reason = CONNACK_REASONS.get(code, f"code {code}")
            advice = advice_on_connack(code)
            if advice is not None:
                raise self._refusal(reason, advice)
            raise Disconnected(reason)
        self._sleep_until(self._loop.time() + dial.keepalive_s / 2)

    def post(
        self, topic: str, payload: bytes | memoryview, qos: int, retain: bool, settled: Settled
    ) -> None:
        """Send without waiting; `settled` is called once.

        Raises:
            Disconnected: The link is down; `settled` is not called.
            EncodeError: The topic or the payload breaks a rule of MQTT.
        """
        self._check("publish")

        def settle(answer: Answer) -> None:
            settled()

        if qos:
            self._publish(topic, payload, retain, settle)
            return
        self._send(packets.publish_head(topic, len(payload), retain=retain), payload)
        if self._is_paused:
            self._wait(self._waits.new_key(), "publish", type(None), settle)
        else:
            settled()

    async def publish(
        self, topic: str, payload: bytes | memoryview, qos: int, retain: bool
    ) -> None:
        """Send; at QoS 1 return when the broker has it, at QoS 0 when it is on its way.

        Raises:
            Disconnected: The link is down or was lost before that.
            EncodeError: The topic or the payload breaks a rule of MQTT.
        """
        self._check("publish")
        if qos:
            done = self._done()
            self._publish(topic, payload, retain, _settler(done))
            await self._answer(done, "publish")
            return
        self._send(packets.publish_head(topic, len(payload), retain=retain), payload)
        if self._is_paused:
            done = self._done()
            self._wait(self._waits.new_key(), "publish", type(None), _settler(done))
            await self._answer(done, "publish")
        else:
            await asyncio.sleep(0)  # what the kernel took at once never waited: others have a turn

    async def subscribe(self, filters: Mapping[str, int]) -> None:
        """Subscribe to each filter at its QoS.

        Raises:
            Disconnected: The link is down or was lost meanwhile.
            Refused: The broker does not allow one of them.
        """
        for batch in batches(filters):
            done, packet_id = self._expect("subscribe", Suback)
            self._send(packets.subscribe(packet_id, batch))
            answer = cast("Suback", await self._answer(done, "subscribe"))
            for name, code in zip(batch, answer.codes, strict=False):
                if code == packets.FAILURE:
                    raise Refused(not_allowed(name))

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe.

        Raises:
            Disconnected: The link is down or was lost meanwhile.
        """
        done, packet_id = self._expect("unsubscribe", Unsuback)
        self._send(packets.unsubscribe(packet_id, filters))
        await self._answer(done, "unsubscribe")

    async def lost(self) -> str:
        """Return, once the connection is lost, why."""
        return await asyncio.shield(self._lost)

    def cut(self, reason: str) -> None:
        """Give the connection up at once."""
        self._lose(reason)
        self.abandon()

    async def leave(self) -> None:
        """Say goodbye, and wait until it is out; the caller limits the time."""
        if self._transport is not None and not self._lost.done():
            self._transport.write(b"".join([*self._queue, packets.DISCONNECT]))
            self._lose("left")
            self._transport.close()
            await self._closed

    def abandon(self) -> None:
        """Close the socket as it is."""
        self._lose("left")
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open: send CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        # Not 0: asyncio's TLS takes "at the limit" for "above it", and would pause for ever.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._transport.write(self._hello)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._lose("connection lost")
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """The kernel did not take all of the last write."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The kernel has everything."""
        self._is_paused = False
        self._flush()
        if not self._is_paused:
            self._waits.on_room()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the packets that are complete."""
        if self._lost.done():
            return
        self._heard_at, self._pinged_at = self._loop.time(), None
        try:
            for packet in self._reader.take(nbytes):
                self._on_packet(packet)
        except DecodeError as exc:
            self._stay_out(exc)
            self.cut(str(exc))

    def _on_packet(self, packet: Inbound) -> None:
        match packet:
            case Publish(topic=topic, payload=payload, qos=qos, retain=retain):
                if not self._entered.done():
                    raise DecodeError("mqtt: CONNACK must come first, got PUBLISH")
                if self._lost.done() or not self._take(Packet(topic, payload, retain), qos):
                    return
                if qos:
                    self._send(packets.puback(packet.packet_id))
            case Puback() | Suback() | Unsuback():
                self._waits.on_answer(packet)
            case Connack(code=code):
                if self._entered.done():
                    raise DecodeError("mqtt: CONNACK must come once, got another")
                self._entered.set_result(code)
            case Pingresp():
                pass

    def _publish(
        self, topic: str, payload: bytes | memoryview, retain: bool, settle: Settle
    ) -> None:
        """Send at QoS 1."""
        packet_id, n_bytes = self._new_id(), len(payload)
        head = packets.publish_head(topic, n_bytes, qos=1, retain=retain, packet_id=packet_id)
        self._wait(packet_id, "publish", Puback, settle, n_bytes)
        self._send(head, payload)

    def _send(self, *parts: bytes | memoryview) -> None:
        """Queue a packet, to leave with this turn of the loop, or at once."""
        for part in parts:
            self._queue.append(part)
            self._queued_bytes += len(part)
        if self._queued_bytes >= QUEUE_BYTES:
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_in_turn)

    def _flush_in_turn(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        if self._is_paused or not self._queue or self._transport is None:
            return
        data = b"".join(self._queue) if len(self._queue) > 1 else self._queue[0]
        self._queue.clear()
        self._queued_bytes = 0
        self._sent_at = self._loop.time()
        self._transport.write(data)

    def _done(self) -> _Done:
        return self._loop.create_future()

    def _expect(self, what: str, answer: type) -> tuple[_Done, int]:
        self._check(what)
        done, packet_id = self._done(), self._new_id()
        self._wait(packet_id, what, answer, _settler(done))
        return done, packet_id

    async def _answer(self, done: _Done, what: str) -> Answer:
        answer = await done
        if answer is None and self._lost.done():
            raise Disconnected(f"{self._dial.url}: link lost during {what} ({self._lost.result()})")
        return answer

    def _wait(self, key: int, what: str, answer: type, settle: Settle, n_bytes: int = 0) -> None:
        before = self._waits.n_bytes + self._queued_bytes
        patience_s = self._dial.patience_s(before + n_bytes)
        due_at = self._loop.time() + patience_s
        self._waits.add(key, PendingOperation(what, patience_s, due_at, n_bytes, answer, settle))
        if due_at < self._wake_at:
            self._sleep_until(due_at)

    def _new_id(self) -> int:
        packet_id = self._waits.new_id()
        if packet_id is None:
            raise Disconnected(f"{self._dial.url}: too many messages wait for the broker")
        return packet_id

    def _check(self, what: str) -> None:
        if self._lost.done():
            raise Disconnected(f"{self._dial.url}: cannot {what} ({self._lost.result()})")

    def _lose(self, reason: str) -> None:
        if self._lost.done():
            return
        self._lost.set_result(reason)
        self._stay_out(ConnectionError(reason))
        self._queue.clear()
        self._waits.on_lost()

    def _stay_out(self, why: Exception) -> None:
        """End `connect`, if it still waits."""
        if not self._entered.done():
            self._entered.set_exception(why)
            self._entered.exception()  # seen: asyncio complains about errors that nobody looks at

    def _sleep_until(self, instant: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = instant
        self._timer = self._loop.call_at(instant, self._tick)

    def _tick(self) -> None:
        """Give up on what took too long, and ping when it is quiet."""
        now, keepalive_s = self._loop.time(), float(self._dial.keepalive_s)
        late = self._waits.overdue(now)
        if late is not None:
            self.cut(f"{late.what} took longer than {late.patience_s:.0f} s")
        elif self._pinged_at is not None and now - self._pinged_at >= keepalive_s:
            self.cut(f"the broker has been silent for {now - self._heard_at:.0f} s")
        if self._lost.done():
            return
        if self._pinged_at is None and now - min(self._heard_at, self._sent_at) >= keepalive_s / 2:
            self._pinged_at = now
            self._send(packets.PINGREQ)
        due_at = self._waits.wake_at()
        quiet_at = now + keepalive_s / 2
        self._sleep_until(quiet_at if due_at is None else min(due_at, quiet_at))

    def _refusal(self, reason: str, advice: str) -> Refused:
        return Refused(f"{self._dial.url}: refused {self._dial.client_id!r}, {reason}; {advice}")


def _settler(done: _Done) -> Settle:
    def settle(answer: Answer) -> None:
        if not done.done():
            done.set_result(answer)

    return settle


def _in_words(error: OSError) -> str:
    """Return what the system says; asyncio's own words hide it."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
