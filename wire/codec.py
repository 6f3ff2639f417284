"""Encoding and decoding of messages: one version byte, then msgpack.

Every fault in received bytes becomes one `DecodeError` with a message of one line.
"""

from typing import TypeAlias, TypeVar

import msgspec

from fairbed.wire.errors import DecodeError, EncodeError, VersionError
from fairbed.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    FromDevice,
    Intent,
    Message,
    OperatorAnswer,
    OperatorCommand,
    RowsPart,
    RowsRequest,
    Signed,
    ToDevice,
)
from fairbed.wire.printable import printable

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_MESSAGE_BYTES = 1_000_000
"""Largest message: the smallest default payload limit among brokers."""

_MAX_REASON = 200
"""Characters of a decoding error: received bytes must not flood a log."""

_ENCODER = msgspec.msgpack.Encoder()
_FROM_DEVICE: msgspec.msgpack.Decoder[FromDevice] = msgspec.msgpack.Decoder(FromDevice)
_TO_DEVICE: msgspec.msgpack.Decoder[ToDevice] = msgspec.msgpack.Decoder(ToDevice)
_FROM_AGENT: msgspec.msgpack.Decoder[FromDevice | Signed] = msgspec.msgpack.Decoder(
    FromDevice | Signed
)
_FROM_COORDINATOR: msgspec.msgpack.Decoder[ToDevice | Signed] = msgspec.msgpack.Decoder(
    ToDevice | Signed
)
_INTENT = msgspec.msgpack.Decoder(Intent)
_COMMAND = msgspec.msgpack.Decoder(OperatorCommand)
_ANSWER = msgspec.msgpack.Decoder(OperatorAnswer)
_ROWS_REQUEST = msgspec.msgpack.Decoder(RowsRequest)
_ROWS_PART = msgspec.msgpack.Decoder(RowsPart)
_ANY: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """Return the bytes of `message`.

    Raises:
        EncodeError: The message cannot be encoded, or is larger than `MAX_MESSAGE_BYTES`.
    """
    try:
        body = bytes([PROTOCOL_VERSION]) + _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise EncodeError(f"{type(message).__name__}: must be encodable, got {exc}") from exc
    if len(body) > MAX_MESSAGE_BYTES:
        raise EncodeError(
            f"{type(message).__name__}: a message must stay below {MAX_MESSAGE_BYTES} bytes, "
            f"got {len(body)}; send it as chunks"
        )
    return body


def decode_from_device(payload: Buffer) -> FromDevice:
    """Return the message that a device sent.

    Raises:
        DecodeError: The bytes are not a valid message of a device.
    """
    return _decode_message(_FROM_DEVICE, payload)


def decode_to_device(payload: Buffer) -> ToDevice:
    """Return the message that the coordinator sent.

    Raises:
        DecodeError: The bytes are not a valid message of a coordinator.
    """
    return _decode_message(_TO_DEVICE, payload)


def decode_from_agent(payload: Buffer) -> FromDevice | Signed:
    """Return the message that a device sent, signed or not.

    Raises:
        DecodeError: The bytes are not a valid message of a device.
    """
    return _decode_message(_FROM_AGENT, payload)


def decode_from_coordinator(payload: Buffer) -> ToDevice | Signed:
    """Return the message that the coordinator sent, signed or not.

    Raises:
        DecodeError: The bytes are not a valid message of a coordinator.
    """
    return _decode_message(_FROM_COORDINATOR, payload)


def decode_intent(payload: Buffer) -> Intent:
    """Return the intent record.

    Raises:
        DecodeError: The bytes are not a valid intent.
    """
    return _decode_message(_INTENT, payload)


def decode_command(payload: Buffer) -> OperatorCommand:
    """Return the command that an operator sent to a run.

    Raises:
        DecodeError: The bytes are not a valid command.
    """
    return _decode_message(_COMMAND, payload)


def decode_answer(payload: Buffer) -> OperatorAnswer:
    """Return the answer of a run to a command.

    Raises:
        DecodeError: The bytes are not a valid answer.
    """
    return _decode_message(_ANSWER, payload)


def decode_rows_request(payload: Buffer) -> RowsRequest:
    """Return the request of a viewer for rows.

    Raises:
        DecodeError: The bytes are not a valid request.
    """
    return _decode_message(_ROWS_REQUEST, payload)


def decode_rows_part(payload: Buffer) -> RowsPart:
    """Return a part of the rows that a viewer requested.

    Raises:
        DecodeError: The bytes are not a valid part.
    """
    return _decode_message(_ROWS_PART, payload)


def decode(payload: Buffer) -> AnyMessage:
    """Return any message (for tools and tests; peers use the narrower functions).

    Raises:
        DecodeError: The bytes are not a valid message.
    """
    return _decode_message(_ANY, payload)


def unpack(decoder: msgspec.msgpack.Decoder[T], data: Buffer, name: str) -> T:
    """Return the decoded value; `name` names it in errors.

    Raises:
        DecodeError: The bytes are not valid; the reason is one short printable line.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        reason = printable(str(exc)[:_MAX_REASON])
        raise DecodeError(f"{name}: {reason}") from exc


def check_version(version: int, name: str) -> None:
    """Check the protocol version of received bytes; `name` names them in the error.

    Raises:
        VersionError: The peer uses an older or a newer version.
    """
    if version != PROTOCOL_VERSION:
        side = "this side" if version > PROTOCOL_VERSION else "the sender"
        raise VersionError(
            f"{name}: must be of protocol {PROTOCOL_VERSION}, got {version}; "
            f"update fairbed on {side}"
        )


def _decode_message(decoder: msgspec.msgpack.Decoder[T], payload: Buffer) -> T:
    if not 0 < len(payload) <= MAX_MESSAGE_BYTES:
        raise DecodeError(f"message: must hold 1 to {MAX_MESSAGE_BYTES} bytes, got {len(payload)}")
    check_version(payload[0], "message")
    return unpack(decoder, memoryview(payload)[1:], "message")
