"""One connection to a broker: the interface that an MQTT client implements for a transport.

A connection is made once and lost once; `wire.transport.client` then makes a new one. Also here:
the reason of a failed connection in words, and whether another try may help.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fairbed.wire.transport.address import Address
from fairbed.wire.transport.base import Packet, Settled, Will

NOT_MQTT = "does an MQTT 3.1.1 broker listen there?"

CONNACK_REASONS = {
    1: "it does not speak MQTT 3.1.1",
    2: "it does not take this client id",
    3: "it is not available",
    4: "wrong user or password",
    5: "not authorised",
}
"""Meaning of the codes of a CONNACK (MQTT 3.1.1, section 3.2.2.3)."""

_ADVICE = {
    1: NOT_MQTT,
    2: "choose another client id",
    4: "check user and password",
    5: "check what this user may do",
}
"""Advice on the permanent ones; code 3 is temporary."""

_PAHO_CODES = {
    130: NOT_MQTT,  # what came was no MQTT, or a CONNACK of 1
    133: _ADVICE[2],
    134: _ADVICE[4],
    135: _ADVICE[5],
    138: "ask who runs the broker",  # banned
}
"""The same in the codes of paho; server unavailable (136) is temporary."""


def advice_on_connack(code: int) -> str | None:
    """Return advice on a permanent refusal; None for a temporary one."""
    return _ADVICE.get(code)


def advice_on(error: BaseException) -> str | None:
    """Return advice on a connection that can never succeed; None if it may later."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "check ?cafile="
    code = getattr(error, "rc", None)
    return _PAHO_CODES.get(getattr(code, "value", code)) if code is not None else None


def reason_of(error: BaseException) -> str:
    """Return why aiomqtt lost a link, or did not make it."""
    if isinstance(error, TimeoutError):
        return "no answer"
    source = error.__cause__ if hasattr(error.__cause__, "rc") else error
    code = getattr(source, "rc", None)
    text = str(source) if code is None else str(code)
    return "connection lost" if text == "Unspecified error" else text


LEAVE_S = 2.0
"""Longest wait for a clean DISCONNECT; then the socket is closed without one."""

FLOOR_BPS = 100e3
"""What a link must carry, bit/s, before a waiting publish counts as failed."""

FILTERS_PER_SUBSCRIBE = 8
"""The most that AWS IoT Core takes in one packet."""

Take: TypeAlias = Callable[[Packet, int], bool]
"""Takes a packet and its QoS; False refuses it, and the link is cut."""


@dataclass(frozen=True, slots=True)
class Dial:
    """Address, identity and timeouts of a connection."""

    address: Address
    url: str
    """The same for messages, without password."""
    client_id: str
    will: Will | None
    tls: ssl.SSLContext | None
    keepalive_s: int
    connect_timeout_s: float
    publish_timeout_s: float

    def patience_s(self, waiting_bytes: int) -> float:
        """Return how long an operation may take with so many bytes before it, its own included."""
        return self.publish_timeout_s + 8.0 * waiting_bytes / FLOOR_BPS


class Connection(Protocol):
    """One connection, from CONNECT to its end."""

    async def connect(self) -> None:
        """Connect, once.

        Raises:
            Disconnected: The broker is not there, does not answer, or is not ready; says why.
            Refused: It said no for good.
        """
        ...

    def post(
        self, topic: str, payload: bytes | memoryview, qos: int, retain: bool, settled: Settled
    ) -> None:
        """Send without waiting; `settled` is called once.

        Raises:
            Disconnected: The link is down; `settled` is not called.
        """
        ...

    async def publish(
        self, topic: str, payload: bytes | memoryview, qos: int, retain: bool
    ) -> None:
        """Send; at QoS 1 return when the broker has it, at QoS 0 when it is on its way.

        Raises:
            Disconnected: The link is down or was lost before that.
        """
        ...

    async def subscribe(self, filters: Mapping[str, int]) -> None:
        """Subscribe to each filter at its QoS.

        Raises:
            Disconnected: The link is down or was lost meanwhile.
            Refused: The broker does not allow one of them.
        """
        ...

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe.

        Raises:
            Disconnected: The link is down or was lost meanwhile.
        """
        ...

    async def lost(self) -> str:
        """Return, once the connection is lost, why."""
        ...

    def cut(self, reason: str) -> None:
        """Give the connection up at once; `lost` returns `reason`, unless it was lost before."""
        ...

    async def leave(self) -> None:
        """Say goodbye, so that the broker publishes no will; the caller limits the time."""
        ...

    def abandon(self) -> None:
        """Close the socket as it is; the last thing that happens to a link."""
        ...


def batches(filters: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the filters of one SUBSCRIBE after another."""
    pairs = list(filters.items())
    for start in range(0, len(pairs), FILTERS_PER_SUBSCRIBE):
        yield dict(pairs[start : start + FILTERS_PER_SUBSCRIBE])


def not_allowed(name: str) -> str:
    """Return the message about a filter that the broker refuses."""
    return f"broker: subscribing to {name} is not allowed; check its ACL"
