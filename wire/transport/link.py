"""One connection to a broker: the interface that an MQTT client implements for a transport.

A connection connects once and is lost once; `wire.transport.client` then makes a new one. This
module also describes why a connection failed, and whether a retry can succeed.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fairbed.wire.transport.address import Address
from fairbed.wire.transport.base import OnComplete, Packet, Will
from fairbed.wire.transport.protocol.packets import MAX_PAYLOAD_BYTES

LOST = "connection lost"
"""Reason of a connection that ended without a cause."""

NOT_MQTT = "correct host and port, or start a broker there"

CONNACK_REASONS = {
    1: "it does not speak MQTT 3.1.1",
    2: "it does not take this client id",
    3: "it is not available",
    4: "wrong user or password",
    5: "not authorised",
}
"""Meaning of the return codes of a CONNACK (MQTT 3.1.1, section 3.2.2.3)."""

_ADVICE = {
    1: NOT_MQTT,
    2: "choose another client id",
    4: "check user and password",
    5: "check the password and the permissions of this user",  # mosquitto: a wrong password
}
"""Advice for the permanent codes; code 3 is temporary."""

_PAHO_CODES = {
    130: NOT_MQTT,  # the answer was not MQTT, or a CONNACK with code 1
    133: _ADVICE[2],
    134: _ADVICE[4],
    135: _ADVICE[5],
    138: "contact the operator of the broker",  # banned
}
"""Advice by the codes of paho; server unavailable (136) is temporary."""


_CLOCK = "set the clock of this machine, or renew the certificate"
_NAME = "connect to a name of the broker's certificate"
_CA = (
    "add ?cafile=FILE to the address, with the certificate of the broker's CA: that of a lab is "
    "ca.pem in its folder, and lab-ca.pem beside the configuration of an enrolled device"
)
_CERTIFICATE_ADVICE = {9: _CLOCK, 10: _CLOCK, 62: _NAME, 64: _NAME}
"""Advice by the codes of OpenSSL (X509_V_ERR_*): not yet valid, expired, other name or address."""


def closed_unanswered(*, is_tls: bool) -> str:
    """Return the reason of a connection that ended before the broker's answer to CONNECT."""
    if is_tls:
        return "the broker closed the connection before its answer"
    return (
        "the broker closed the connection before its answer; if this port speaks TLS, as 8883 "
        "does, write mqtts://"
    )


def connack_advice(code: int) -> str | None:
    """Return advice for a permanent CONNACK code; None for a temporary one."""
    return _ADVICE.get(code)


def oversized(url: str, topic: str, n_bytes: int) -> str:
    """Return the line about a message that is too large, of a client that may decide its size."""
    return (
        f"{url}: a message must stay below {MAX_PAYLOAD_BYTES + 1} bytes, got {n_bytes} on "
        f"{topic[:120]}; it is dropped, and so are others without a line; limit messages at the "
        "broker"
    )


def advice_for(error: BaseException) -> str | None:
    """Return advice for an error that a retry cannot solve; None if a retry may succeed."""
    for cause in (error, error.__context__):  # aiomqtt raises another one
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _CERTIFICATE_ADVICE.get(cause.verify_code, _CA)
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return "this port speaks no TLS: write mqtt://, or the port of TLS, such as 8883"
    code = getattr(error, "rc", None)
    return _PAHO_CODES.get(getattr(code, "value", code)) if code is not None else None


def failure_reason(error: BaseException) -> str:
    """Return the reason of an error of aiomqtt, for messages."""
    if isinstance(error, TimeoutError):
        return "no answer"
    source = error.__cause__ if hasattr(error.__cause__, "rc") else error
    code = getattr(source, "rc", None)
    text = str(source) if code is None else str(code)
    return LOST if text == "Unspecified error" else text


DISCONNECT_TIMEOUT_S = 2.0
"""Longest wait for a clean DISCONNECT; after it the socket is closed without one."""

MIN_LINK_BPS = 100e3
"""Slowest link that is supported, bit/s; a publish that takes longer counts as failed."""

FILTERS_PER_SUBSCRIBE = 8
"""Limit of AWS IoT Core for one packet."""

PacketHandler: TypeAlias = Callable[[Packet, int], bool]
"""Receives a packet and its QoS; returns False when the receive queue is full: the link failed."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Address, identity and timeouts of a connection."""

    address: Address
    url: str
    """The address without password, for messages."""
    client_id: str
    will: Will | None
    tls: ssl.SSLContext | None
    keepalive_s: int
    connect_timeout_s: float
    """For the CONNACK, and for the subscriptions of a reconnect."""
    dial_timeout_s: float
    """For the TCP connection, with TLS its handshake."""
    ping_timeout_s: float
    """For any byte of the broker after a ping."""
    publish_timeout_s: float

    def timeout_s(self, queued_bytes: int) -> float:
        """Return the timeout of an operation; `queued_bytes` counts its own bytes, too."""
        return self.publish_timeout_s + 8.0 * queued_bytes / MIN_LINK_BPS


class Connection(Protocol):
    """One connection, from CONNECT to its end."""

    @property
    def large_bytes(self) -> int:
        """Received bytes of messages above 8 KiB, also of an incomplete one; 0 if unknown."""
        ...

    @property
    def silent_s(self) -> float:
        """Seconds since the broker last sent anything; 0 if unknown."""
        ...

    async def connect(self) -> None:
        """Connect, once.

        Raises:
            Disconnected: The broker cannot be reached, does not answer, or is not ready.
            Refused: The broker refused the connection for good.
        """
        ...

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
        """
        ...

    async def publish(
        self, topic: str, payload: bytes | memoryview, qos: int, retain: bool
    ) -> None:
        """Publish; return when acknowledged (QoS 1), or accepted by the link (QoS 0).

        Raises:
            Disconnected: The link is down, or was lost before that.
        """
        ...

    async def subscribe(self, filters: Mapping[str, int]) -> None:
        """Subscribe to each filter at its QoS.

        Raises:
            Disconnected: The link is down, or was lost meanwhile.
            Refused: The broker does not allow one of the filters.
        """
        ...

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe.

        Raises:
            Disconnected: The link is down, or was lost meanwhile.
        """
        ...

    async def lost(self) -> str:
        """Wait until the connection is lost; return the reason."""
        ...

    def fail(self, reason: str) -> None:
        """End the connection at once; `lost` returns `reason`, unless it was lost before."""
        ...

    async def disconnect(self) -> None:
        """Send DISCONNECT, so that the broker publishes no will; the caller limits the time."""
        ...

    def abort(self) -> None:
        """Close the socket without DISCONNECT; always the last call."""
        ...


def subscribe_batches(filters: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the filters of each SUBSCRIBE packet."""
    pairs = list(filters.items())
    for start in range(0, len(pairs), FILTERS_PER_SUBSCRIBE):
        yield dict(pairs[start : start + FILTERS_PER_SUBSCRIBE])


def subscription_refused(name: str) -> str:
    """Return the error message for a filter that the broker refuses."""
    return f"broker: subscribing to {name} is not allowed; check its ACL"
