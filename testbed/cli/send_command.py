"""Sends operator commands to a live run, over the wire."""

import secrets
from typing import Literal, TypeAlias

import anyio

from fairbed.testbed.run_folder import Endpoint
from fairbed.wire.codec import encode
from fairbed.wire.errors import TransportError
from fairbed.wire.messages import OperatorCommand
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp
from fairbed.wire.transport.client import MqttTransport

Action: TypeAlias = Literal["pause", "resume", "stop", "exclude", "include"]

CONNECT_S = 5.0
"""A live run's broker answers within milliseconds."""


def make_command(action: Action, device: str | None = None) -> OperatorCommand:
    """Return a new command; a repeated one acts once."""
    return OperatorCommand(id=secrets.token_bytes(16), action=action, device=device)


async def send_command(endpoint: Endpoint, command: OperatorCommand) -> None:
    """Publish a command to the run's broker; the coordinator records it when it acts on it.

    Raises:
        TransportError: The broker cannot be reached.
    """
    transport = MqttTransport(endpoint.url, f"operator-{secrets.token_hex(6)}")
    try:
        with anyio.fail_after(CONNECT_S):
            async with transport:
                async for event in transport.events():
                    if isinstance(event, LinkUp):
                        break
                await transport.publish(Topics(endpoint.tenant).command, encode(command), qos=1)
    except TimeoutError as exc:
        raise TransportError(
            f"{transport.url}: no answer within {CONNECT_S:g} s ({transport.down_reason})"
        ) from exc
