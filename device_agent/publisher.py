"""The outgoing side of a device: messages, subscriptions, chunks.

`publish` does not wait. At most `MAX_PENDING` messages wait for the broker at a time; a further one
is dropped and counted, and its sender repeats it after a timeout, as after any other loss.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from anyio.abc import TaskGroup

from fairbed.device_agent.host import Behaviour, Honest
from fairbed.wire.codec import encode
from fairbed.wire.errors import Disconnected, Refused
from fairbed.wire.messages import Context, FromDevice, Message, Status
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Transport

_log = logging.getLogger(__name__)

MAX_PENDING = 64
"""Background sends in progress; a round needs about ten."""


class DevicePublisher:
    """Publishes and subscribes for one device; `behaviour` may change its messages.

    `signed` returns a message as it is sent.
    """

    def __init__(
        self,
        transport: Transport,
        topics: Topics,
        name: str,
        group: TaskGroup,
        behaviour: Behaviour | None = None,
        signed: Callable[[FromDevice], Message] = lambda message: message,
    ) -> None:
        self.dropped = 0
        """Background sends dropped because `MAX_PENDING` others were in progress."""
        self._transport = transport
        self._topics = topics
        self._name = name
        self._group = group
        self._behaviour = behaviour or Honest()
        self._signed = signed
        self._pending = 0

    @property
    def data_topic(self) -> str:
        """Topic of private chunks for this device."""
        return self._topics.data(self._name)

    @property
    def large_bytes(self) -> int:
        """Number that changes with each part of a large message (`Transport`)."""
        return self._transport.large_bytes

    def publish(self, message: FromDevice, qos: int = 1) -> None:
        """Send a message without waiting; it is lost if the link is down."""
        if not self._begin(type(message).__name__):
            return
        message = self._behaviour.message(message)
        try:
            self._transport.publish_nowait(
                self._topic(message),
                encode(self._signed(message)),
                qos=qos,
                retain=isinstance(message, Status),
                on_complete=self._on_sent,
            )
        except Disconnected:
            self._on_sent()

    async def send(self, message: FromDevice, qos: int = 1) -> bool:
        """Send a message; return whether it was acknowledged (QoS 1) or accepted (QoS 0)."""
        message = self._behaviour.message(message)
        try:
            await self._transport.publish(
                self._topic(message),
                encode(self._signed(message)),
                qos=qos,
                retain=isinstance(message, Status),
            )
        except Disconnected:
            return False
        return True

    async def send_chunk(self, frame: bytes) -> None:
        """Send one chunk of an update, QoS 0; return when the link has accepted it.

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

    def nudge(self) -> None:
        """Let the broker send what waits for this device, by a subscription that changes nothing.

        mosquitto 2.0 holds back the retained messages of a subscription that it handles while the
        socket of the device is full. It sends them with the next message or subscription, even if
        the socket has long been empty.
        """
        self.subscribe(self.data_topic)

    def _topic(self, message: FromDevice) -> str:
        match message:
            case Status():
                return self._topics.status(self._name)
            case Context():
                return self._topics.telemetry(self._name)
            case _:
                return self._topics.up(self._name)

    def _start(self, action: str, send: Callable[[], Awaitable[None]]) -> None:
        if not self._begin(action):
            return

        async def run() -> None:
            try:
                with suppress(Disconnected):
                    await send()
            except Refused as exc:
                _log.error("%s: %s: %s", self._name, action, exc)
            finally:
                self._on_sent()

        self._group.start_soon(run, name=f"agent[{self._name}].{action}")

    def _begin(self, action: str) -> bool:
        """Count a new send; return False if too many are in progress."""
        if self._pending >= MAX_PENDING:
            self.dropped += 1
            _log.warning(
                "%s: %s dropped, %d sends are in progress", self._name, action, self._pending
            )
            return False
        self._pending += 1
        return True

    def _on_sent(self) -> None:
        self._pending -= 1
