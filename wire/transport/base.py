"""The interface between the protocol and whatever carries it.

A transport is one client's link to a broker. It reconnects by itself, with jitter, and says so
in the stream of events; an operation on a lost link fails at once.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Packet:
    """A message on a subscribed topic."""

    topic: str
    payload: bytes | memoryview
    """A view where copying would cost: of what is large."""
    retained: bool = False
    """A retained message from before the subscription."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link is up and all subscriptions are in place again.

    The session is always clean: what was sent while the link was down is lost.
    """

    count: int
    """1 for the first time, then one more for each reconnect."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The link is gone; operations raise `Disconnected` until the next `LinkUp`."""

    reason: str


Incoming: TypeAlias = Packet | LinkUp | LinkDown


KEEPALIVE_S = 15
"""The broker misses a silent client after 1.5 times this, seconds."""


@dataclass(frozen=True, slots=True)
class Will:
    """The last will: published by the broker, retained at QoS 1, if this client vanishes."""

    topic: str
    payload: bytes


Settled: TypeAlias = Callable[[], None]
"""Called once, when a message was delivered or lost with the link."""


class Transport(Protocol):
    """One client's link. Use it as `async with transport:`; leaving disconnects cleanly."""

    async def __aenter__(self) -> "Transport":
        """Start connecting; return at once.

        The first `LinkUp` comes in `events()`.
        """
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect without firing the will, in bounded time."""
        ...

    def events(self) -> AsyncIterator[Incoming]:
        """Yield packets and link changes in order, to a single consumer.

        Raises:
            Refused: The broker said no; there is no point in trying again.
        """
        ...

    def post(
        self,
        topic: str,
        payload: bytes | memoryview,
        *,
        qos: int = 0,
        retain: bool = False,
        settled: Settled,
    ) -> None:
        """Send without waiting, for whoever bounds how much waits at a time.

        `settled` is called once, perhaps before this returns: when the broker has it (QoS 1), when
        it is on its way (QoS 0), or when it is lost with the link.

        Raises:
            Disconnected: The link is down; `settled` is not called.
        """
        ...

    async def publish(
        self, topic: str, payload: bytes | memoryview, *, qos: int = 0, retain: bool = False
    ) -> None:
        """Send; at QoS 1 return when the broker has it, at QoS 0 when it is on its way.

        An empty payload with `retain` clears the topic.

        Raises:
            Disconnected: The link is down or went down before the broker had it (QoS 1).
        """
        ...

    async def subscribe(self, *filters: str, qos: int = 0) -> None:
        """Subscribe, now and after each reconnect.

        Raises:
            Disconnected: The link is down; the filters are remembered all the same.
        """
        ...

    async def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe and forget.

        Raises:
            Disconnected: The link is down; the filters are forgotten all the same.
        """
        ...
