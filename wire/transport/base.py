"""The transport interface: one client's link to an MQTT broker.

A transport reconnects by itself, with jitter, and reports that in its stream of events. An
operation on a lost link fails at once.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Packet:
    """A message on a subscribed topic."""

    topic: str
    payload: bytes | memoryview
    """A memoryview for a large message, to avoid a copy."""
    retained: bool = False
    """The broker kept this message from before the subscription."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link is up, and all subscriptions are restored.

    The session is always clean: messages sent while the link was down are lost.
    """

    count: int
    """Connections so far: 1, then one more for each reconnect."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link is down; operations raise `Disconnected` until the next `LinkUp`."""

    reason: str


Incoming: TypeAlias = Packet | LinkUp | LinkDown


KEEPALIVE_S = 15
"""The broker declares a silent client lost after 1.5 times this, seconds."""


@dataclass(frozen=True, slots=True)
class Will:
    """The last will: the broker publishes it, retained at QoS 1, if this client is lost."""

    topic: str
    payload: bytes


OnComplete: TypeAlias = Callable[[], None]
"""Called once, when a message has been delivered or lost with the link."""


class Transport(Protocol):
    """One client's link. Use it as `async with transport:`; the exit disconnects cleanly."""

    async def __aenter__(self) -> "Transport":
        """Start connecting; return at once.

        `events()` yields `LinkUp` when the link is up.
        """
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect without firing the will, in bounded time."""
        ...

    @property
    def large_bytes(self) -> int:
        """Number that changes with each part of a message above 8 KiB; 0 if unknown.

        A chunk on a slow link arrives for seconds. This shows that it does, before `events()`
        yields it.
        """
        return 0

    @property
    def silent_s(self) -> float:
        """Seconds since the broker last sent anything while the link is up; 0 if unknown.

        An idle link carries a ping every `KEEPALIVE_S` / 2: a longer silence means that the link
        may be down.
        """
        return 0.0

    @property
    def node_count(self) -> int:
        """Nodes of the broker's address; more than 1 is a cluster."""
        return 1

    def events(self) -> AsyncIterator[Incoming]:
        """Yield packets and link changes in order, to a single consumer.

        Raises:
            Refused: The broker refused this client for good.
        """
        ...

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | memoryview,
        *,
        qos: int = 0,
        retain: bool = False,
        on_complete: OnComplete,
    ) -> None:
        """Publish without waiting; the caller bounds the messages in progress.

        `on_complete` is called once, possibly before this returns: when the broker has
        acknowledged the message (QoS 1), when the link has accepted it (QoS 0), or when it is
        lost with the link.

        Raises:
            Disconnected: The link is down; `on_complete` is not called.
        """
        ...

    async def publish(
        self, topic: str, payload: bytes | memoryview, *, qos: int = 0, retain: bool = False
    ) -> None:
        """Publish; return when acknowledged (QoS 1), or accepted by the link (QoS 0).

        An empty payload with `retain` clears the topic.

        Raises:
            Disconnected: The link is down, or went down before that.
        """
        ...

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        """Subscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters take effect after the reconnect.
        """
        ...

    async def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters are not restored after the reconnect.
        """
        ...
