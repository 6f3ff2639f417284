"""Publishes the coordinator's typed messages, to one device or to all."""

import logging
from collections import Counter
from functools import partial

from fairbed.coordinator.messaging.signatures import FleetSignatures
from fairbed.wire.codec import encode
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import CoordinatorStatus, OperatorAnswer, ToDevice
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Transport

_LOG = logging.getLogger(__name__)

MAX_PENDING = 16
"""Most messages to one device that wait for the broker; an exchange needs about six."""


def _ignore() -> None:
    """An answer was delivered or lost; its operator sends the command again."""


class Publisher:
    """Publishes messages; a lost one is repeated after the device's next hello or request."""

    def __init__(
        self, transport: Transport, topics: Topics, signatures: FleetSignatures | None = None
    ) -> None:
        self.dropped = 0
        """Messages dropped because `MAX_PENDING` others to that device were waiting."""
        self._transport = transport
        self._topics = topics
        self._pending: Counter[str] = Counter()
        self._signatures = signatures or FleetSignatures()

    def publish(
        self, device: str, message: ToDevice, *, qos: int = 1, is_plain: bool = False
    ) -> None:
        """Publish to one device without waiting; the message is lost if the link is down.

        Args:
            device: Name of the device.
            message: It is signed if the device has a session.
            qos: Quality of service.
            is_plain: It is not signed: an answer to a hello that is not valid.
        """
        if self._pending[device] >= MAX_PENDING:
            self.dropped += 1
            return
        self._pending[device] += 1
        topic, on_complete = self._topics.control(device), partial(self._on_complete, device)
        try:
            body = encode(message if is_plain else self._signatures.signed(device, message))
            self._transport.publish_nowait(topic, body, qos=qos, on_complete=on_complete)
        except Disconnected as exc:
            _LOG.info("not sent to %s: %s", topic, exc)
            on_complete()

    def answer(self, operator: str, answer: OperatorAnswer) -> None:
        """Publish an answer to an operator without waiting; it is lost if the link is down."""
        topic = self._topics.answer(operator)
        try:
            self._transport.publish_nowait(topic, encode(answer), qos=1, on_complete=_ignore)
        except Disconnected as exc:
            _LOG.info("not sent to %s: %s", topic, exc)

    async def broadcast(self, message: ToDevice) -> bool:
        """Publish to every device; return whether the broker has received it.

        No key signs for all: a device that takes signed messages only gets one of its own before.
        """
        for device in self._signatures.devices:
            self.publish(device, message)
        return await self._publish_and_wait(self._topics.control_all, encode(message), qos=1)

    async def publish_status(self, status: CoordinatorStatus) -> bool:
        """Publish the coordinator's retained status; return whether the broker has received it."""
        return await self._publish_and_wait(
            self._topics.coordinator, encode(status), qos=1, retain=True
        )

    def _on_complete(self, device: str) -> None:
        self._pending[device] -= 1
        if not self._pending[device]:
            del self._pending[device]

    async def _publish_and_wait(
        self, topic: str, body: bytes, *, qos: int, retain: bool = False
    ) -> bool:
        try:
            await self._transport.publish(topic, body, qos=qos, retain=retain)
        except Disconnected as exc:
            _LOG.info("not sent to %s: %s", topic, exc)
            return False
        return True
