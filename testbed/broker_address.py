"""Whether a broker that is not ours can be used, asked before anything else is started."""

import os
import secrets

import anyio

from testbed.broker import BrokerError
from wire.errors import TransportError
from wire.topics import Topics
from wire.transport.base import LinkUp
from wire.transport.client import MqttTransport
from wire.transport.limit import CHUNK_SIZES, largest_chunk

ANSWER_S = 10.0
"""A broker anywhere on earth answers within this, or a person has to look after it."""


async def await_broker(url: str, within_s: float | None = None) -> None:
    """Return when the broker at `url` has let us in.

    Args:
        url: As `broker.url`; its password stands in no message.
        within_s: Tries go on for this long, seconds; None is `ANSWER_S`.

    Raises:
        BrokerError: It refuses us, or does not answer in time.
    """
    limit_s = ANSWER_S if within_s is None else within_s
    transport = MqttTransport(url, f"fairbed-probe-{os.getpid()}")
    try:
        with anyio.fail_after(limit_s):
            async with transport:
                async for event in transport.events():
                    if isinstance(event, LinkUp):
                        return
    except TransportError as exc:
        raise BrokerError(f"broker.url: {exc}") from exc
    except TimeoutError as exc:
        why = transport.trouble or "nothing"
        raise BrokerError(
            f"broker.url: {transport.url} must answer within {limit_s:g} s, got {why}; start "
            "the broker, correct the address, or leave the key out for an embedded one"
        ) from exc


async def find_chunk_limit(url: str, topics: Topics) -> int:
    """Return the largest chunk that the broker at `url` takes, bytes.

    Raises:
        BrokerError: It takes none, or refuses us.
    """
    probe = secrets.token_hex(8)
    try:
        largest = await largest_chunk(MqttTransport(url, f"limit-{probe}"), topics.limit(probe))
    except TransportError as exc:
        raise BrokerError(f"broker.url: {exc}") from exc
    if not largest:
        raise BrokerError(
            f"broker.url: the broker must take messages of {CHUNK_SIZES[0] // 1024} KiB, got one "
            "that does not pass them on; raise its payload limit"
        )
    return largest
