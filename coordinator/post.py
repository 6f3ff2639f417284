"""The coordinator's outgoing mail: typed messages to one device or to all."""

import logging

from wire.codec import encode
from wire.errors import Disconnected
from wire.messages import CoordinatorStatus, ToDevice
from wire.topics import Topics
from wire.transport.base import Transport

_LOG = logging.getLogger(__name__)


class Post:
    """Sends messages; what is lost with the link is sent again when the device says hello."""

    def __init__(self, transport: Transport, topics: Topics) -> None:
        self._transport = transport
        self._topics = topics
        self.control_bytes = 0

    async def tell(self, device: str, message: ToDevice, *, qos: int = 1) -> bool:
        """Send to one device; tell whether the broker has it (QoS 1) or the link took it."""
        return await self._publish(self._topics.control(device), encode(message), qos=qos)

    async def tell_all(self, message: ToDevice) -> bool:
        """Send to every device."""
        return await self._publish(self._topics.control_all, encode(message), qos=1)

    async def announce(self, status: CoordinatorStatus) -> bool:
        """Publish the coordinator's retained presence."""
        return await self._publish(self._topics.coordinator, encode(status), qos=1, retain=True)

    async def _publish(self, topic: str, body: bytes, *, qos: int, retain: bool = False) -> bool:
        self.control_bytes += len(body)
        try:
            await self._transport.publish(topic, body, qos=qos, retain=retain)
        except Disconnected as exc:
            _LOG.info("not sent to %s: %s", topic, exc)
            return False
        return True
