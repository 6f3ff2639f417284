"""A truncated message, or one with trailing bytes, is refused."""

import pytest

from fairbed.wire.chunks import decode_chunk, encode_chunk
from fairbed.wire.codec import decode, encode
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import AnyMessage
from tests.wire.messages import MESSAGES


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_refuses_every_truncated_prefix(message: AnyMessage) -> None:
    payload = encode(message)
    for length in range(len(payload)):
        with pytest.raises(DecodeError):
            decode(payload[:length])


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_refuses_trailing_bytes(message: AnyMessage) -> None:
    with pytest.raises(DecodeError, match=r"trailing"):
        decode(encode(message) + b"\x00")


def test_refuses_every_truncated_prefix_of_a_chunk() -> None:
    frame = encode_chunk(bytes(16), 3, bytes(range(64)))
    for length in range(len(frame)):
        with pytest.raises(DecodeError):
            decode_chunk(frame[:length])
