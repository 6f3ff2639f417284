"""Every message is decoded as encoded, by the decoder of the receiving side."""

from collections.abc import Iterator
from typing import get_args

import pytest
from msgspec import NODEFAULT
from msgspec.structs import fields

from fairbed.wire.codec import (
    decode,
    decode_answer,
    decode_command,
    decode_from_coordinator,
    decode_from_device,
    decode_intent,
    decode_rows_part,
    decode_rows_request,
    decode_to_device,
    encode,
)
from fairbed.wire.messages import (
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
from tests.wire.messages import MESSAGES

NAMED = pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())


def test_the_list_holds_every_message_type() -> None:
    assert {type(message) for message in MESSAGES.values()} == set(get_args(AnyMessage))


def test_every_optional_field_is_given_and_left_out() -> None:
    parts = [part for message in MESSAGES.values() for part in _with_parts(message)]
    for kind in {type(part) for part in parts}:
        for field in fields(kind):
            default = field.default if field.default_factory is NODEFAULT else {}
            given = {getattr(p, field.name) != default for p in parts if type(p) is kind}
            assert field.required or given == {True, False}, f"{kind.__name__}.{field.name}"


@NAMED
def test_a_decoded_message_equals_the_encoded_one(message: AnyMessage) -> None:
    assert decode(encode(message)) == message


@NAMED
def test_the_receiving_side_decodes_it(message: AnyMessage) -> None:
    payload = encode(message)
    if isinstance(message, FromDevice):
        assert decode_from_device(payload) == message
    if isinstance(message, ToDevice):
        assert decode_to_device(payload) == message
    if isinstance(message, ToDevice | Signed):
        assert decode_from_coordinator(payload) == message
    if isinstance(message, Intent):
        assert decode_intent(payload) == message
    if isinstance(message, OperatorCommand):
        assert decode_command(payload) == message
    if isinstance(message, OperatorAnswer):
        assert decode_answer(payload) == message
    if isinstance(message, RowsRequest):
        assert decode_rows_request(payload) == message
    if isinstance(message, RowsPart):
        assert decode_rows_part(payload) == message


@NAMED
def test_has_one_encoding(message: AnyMessage) -> None:
    assert encode(decode(encode(message))) == encode(message)


def _with_parts(message: Message) -> Iterator[Message]:
    yield message
    for name in message.__struct_fields__:
        if isinstance(part := getattr(message, name), Message):
            yield from _with_parts(part)
