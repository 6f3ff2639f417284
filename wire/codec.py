"""Messages to bytes and back: one version byte, then msgpack.

Whatever is wrong with the bytes of a peer becomes one `DecodeError` with one line.
"""

from typing import TypeVar

import msgspec

from wire.errors import DecodeError, EncodeError, VersionError
from wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Command,
    FromDevice,
    Intent,
    Message,
    ToDevice,
)

M = TypeVar("M")

MAX_MESSAGE_BYTES = 1_000_000
"""No message is larger than the default payload limit of the strictest broker."""

_ENCODER = msgspec.msgpack.Encoder()
_FROM_DEVICE: msgspec.msgpack.Decoder[FromDevice] = msgspec.msgpack.Decoder(FromDevice)
_TO_DEVICE: msgspec.msgpack.Decoder[ToDevice] = msgspec.msgpack.Decoder(ToDevice)
_INTENT = msgspec.msgpack.Decoder(Intent)
_COMMAND = msgspec.msgpack.Decoder(Command)
_ANY: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """Return the bytes of `message`.

    Raises:
        EncodeError: The result would be larger than any broker takes.
    """
    body = bytes([PROTOCOL_VERSION]) + _ENCODER.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise EncodeError(
            f"{type(message).__name__}: a message must stay below {MAX_MESSAGE_BYTES} bytes, "
            f"got {len(body)}; send it as chunks"
        )
    return body


def decode_from_device(payload: bytes) -> FromDevice:
    """Return the message that a device sent.

    Raises:
        DecodeError: The bytes are not a valid message of a device.
    """
    return _decode(_FROM_DEVICE, payload)


def decode_to_device(payload: bytes) -> ToDevice:
    """Return the message that the coordinator sent.

    Raises:
        DecodeError: The bytes are not a valid message of a coordinator.
    """
    return _decode(_TO_DEVICE, payload)


def decode_intent(payload: bytes) -> Intent:
    """Return the intent record.

    Raises:
        DecodeError: The bytes are not a valid intent.
    """
    return _decode(_INTENT, payload)


def decode_command(payload: bytes) -> Command:
    """Return the order that a person sent to a run.

    Raises:
        DecodeError: The bytes are not a valid command.
    """
    return _decode(_COMMAND, payload)


def decode(payload: bytes) -> AnyMessage:
    """Return any message (for tools and tests; peers use the narrower ones).

    Raises:
        DecodeError: The bytes are not a valid message.
    """
    return _decode(_ANY, payload)


def _decode(decoder: msgspec.msgpack.Decoder[M], payload: bytes) -> M:
    if not payload:
        raise DecodeError("message: must not be empty, got 0 bytes")
    if payload[0] != PROTOCOL_VERSION:
        side = "this side" if payload[0] > PROTOCOL_VERSION else "the sender"
        raise VersionError(
            f"message: speaks protocol {payload[0]}, this side speaks {PROTOCOL_VERSION}; "
            f"update fairbed on {side}"
        )
    try:
        return decoder.decode(memoryview(payload)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise DecodeError(f"message: {exc}") from exc
