"""Everything that a device sends: messages, subscriptions, chunks.

`publish` does not wait. At most `MAX_PENDING` of its messages wait for the broker at a time; beyond
that the newest is dropped and counted, and the sender repeats it after its own timeout, as after
any other loss.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from anyio.abc import TaskGroup

from fairbed.wire.codec import encode
from fairbed.wire.errors import Disconnected, Refused
from fairbed.wire.messages import Context, FromDevice, Status
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Transport

_log = logging.getLogger(__name__)

MAX_PENDING = 64
"""Sends in the background; a round needs about ten."""


class DevicePublisher:
    """The outgoing side of one device."""

    def __init__(self, transport: Transport, topics: Topics, name: str, group: TaskGroup) -> None:
        self.dropped = 0
        """Background sends that found `MAX_PENDING` others waiting."""
        self._transport = transport
        self._topics = topics
        self._name = name
        self._group = group
        self._pending = 0

    def publish(self, message: FromDevice, qos: int = 1) -> None:
        """Send a message without waiting; it is lost if the link is down."""
        if not self._may_start(type(message).__name__):
            return
        try:
            self._transport.publish_nowait(
                self._topic(message),
                encode(message),
                qos=qos,
                retain=isinstance(message, Status),
                on_complete=self._on_sent,
            )
        except Disconnected:
            self._on_sent()

    async def send(self, message: FromDevice, qos: int = 1) -> bool:
        """Send a message; tell whether the broker has it (QoS 1) or it is on its way (QoS 0)."""
        try:
            await self._transport.publish(
                self._topic(message), encode(message), qos=qos, retain=isinstance(message, Status)
            )
        except Disconnected:
            return False
        return True

    async def send_chunk(self, frame: bytes) -> None:
        """Send one chunk of an update, QoS 0; return when it is on its way.

        Raises:
            Disconnected: The link is down.
        """
        await self._transport.publish(self._topics.upload(self._name), frame, qos=0)

    def subscribe(self, *filters: str, qos: int = 0) -> None:
        """Subscribe in the background."""

        async def send() -> None:
            await self._transport.subscribe(*filters, qos=qos)

        self._start("subscribe", send)

    def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe in the background."""

        async def send() -> None:
            await self._transport.unsubscribe(*filters)

        self._start("unsubscribe", send)

    def _topic(self, message: FromDevice) -> str:
        match message:
            case Status():
                return self._topics.status(self._name)
            case Context():
                return self._topics.telemetry(self._name)
            case _:
                return self._topics.up(self._name)

    def _start(self, what: str, send: Callable[[], Awaitable[None]]) -> None:
        if not self._may_start(what):
            return

        async def quietly() -> None:
            try:
                with suppress(Disconnected):
                    await send()
            except Refused as exc:
                _log.error("%s: %s: %s", self._name, what, exc)
            finally:
                self._on_sent()

        self._group.start_soon(quietly, name=f"agent[{self._name}].{what}")

    def _may_start(self, what: str) -> bool:
        """Count one more that waits; False when there are too many."""
        if self._pending >= MAX_PENDING:
            self.dropped += 1
            _log.warning("%s: %s not sent, %d sends wait already", self._name, what, self._pending)
            return False
        self._pending += 1
        return True

    def _on_sent(self) -> None:
        self._pending -= 1
