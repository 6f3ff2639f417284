"""The coordinator's outgoing mail: typed messages to one device or to all."""

import logging
from collections import Counter
from functools import partial

from fairbed.wire.codec import encode
from fairbed.wire.errors import Disconnected
from fairbed.wire.messages import CoordinatorStatus, ToDevice
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import Transport

_LOG = logging.getLogger(__name__)

MAX_PENDING = 16
"""Messages to one device that wait for the broker at a time; an exchange needs about six."""


class Publisher:
    """Sends messages; what is lost is sent again when the device says hello or asks again."""

    def __init__(self, transport: Transport, topics: Topics) -> None:
        self.dropped = 0
        """Messages to a device for which `MAX_PENDING` others waited already."""
        self._transport = transport
        self._topics = topics
        self._pending: Counter[str] = Counter()

    def say(self, device: str, message: ToDevice, *, qos: int = 1) -> None:
        """Send to one device, and hold nobody up; it is lost if the link is down."""
        if self._pending[device] >= MAX_PENDING:
            self.dropped += 1
            return
        self._pending[device] += 1
        topic, settled = self._topics.control(device), partial(self._settled, device)
        try:
            self._transport.post(topic, encode(message), qos=qos, settled=settled)
        except Disconnected as exc:
            _LOG.info("not sent to %s: %s", topic, exc)
            settled()

    async def tell(self, device: str, message: ToDevice, *, qos: int = 1) -> bool:
        """Send to one device; tell whether the broker has it (QoS 1) or the link took it."""
        return await self._publish(self._topics.control(device), encode(message), qos=qos)

    async def tell_all(self, message: ToDevice) -> bool:
        """Send to every device."""
        return await self._publish(self._topics.control_all, encode(message), qos=1)

    async def announce(self, status: CoordinatorStatus) -> bool:
        """Publish the coordinator's retained presence."""
        return await self._publish(self._topics.coordinator, encode(status), qos=1, retain=True)

    def _settled(self, device: str) -> None:
        self._pending[device] -= 1
        if not self._pending[device]:
            del self._pending[device]

    async def _publish(self, topic: str, body: bytes, *, qos: int, retain: bool = False) -> bool:
        try:
            await self._transport.publish(topic, body, qos=qos, retain=retain)
        except Disconnected as exc:
            _LOG.info("not sent to %s: %s", topic, exc)
            return False
        return True
