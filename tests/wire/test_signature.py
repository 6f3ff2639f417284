"""Signatures of messages: by which key, for which agent process, over which bytes."""

import hmac

import pytest

from fairbed.wire.codec import encode
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Ping, Refuse, Signed
from fairbed.wire.signature import open_signed, session_key, sign, task_key

KEY = session_key(task_key("secret of the lab", "pi"), 7)
PING = Ping(seq=3)

TASK_KEY = "ae90908689f826812ba773922956189552d3ae63d04fe98889165bbd230c385e"
SESSION_KEY = "d3c59d9a00e279e6911ce84762ff479685773d002b4298fe04bc1712b0175376"
SIGNATURE = "d80a2bf8ad12ab92299eaacc320a9c78ba448a79155ae6f4a0b1977f2ada04b8"


def test_the_signed_message_is_returned() -> None:
    assert open_signed(sign(PING, KEY), KEY) == PING


def test_the_bytes_are_those_of_other_implementations_of_hmac_and_sha256() -> None:
    """By `openssl dgst -sha256 -mac HMAC`, three times, with the data of this test."""
    assert task_key("secret of the lab", "pi") == TASK_KEY
    assert KEY.hex() == SESSION_KEY
    assert sign(PING, KEY).signature.hex() == SIGNATURE


@pytest.mark.parametrize(
    "key",
    [
        session_key(task_key("secret of the lab", "pi"), 8),
        session_key(task_key("secret of the lab", "nano"), 7),
        session_key(task_key("of another lab", "pi"), 7),
    ],
    ids=["another process", "another device", "another lab"],
)
def test_another_key_opens_nothing(key: bytes) -> None:
    with pytest.raises(DecodeError, match="signature: must be made with the task key"):
        open_signed(sign(PING, KEY), key)


def test_a_signature_covers_every_bit_of_the_message() -> None:
    signed = sign(PING, KEY)
    for bit in range(8 * len(signed.body)):
        changed = bytearray(signed.body)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError, match="signature"):
            open_signed(Signed(body=bytes(changed), signature=signed.signature), KEY)


def test_a_signature_does_not_fit_another_message() -> None:
    other = Signed(
        body=encode(Refuse(reason="no", is_final=True)), signature=sign(PING, KEY).signature
    )
    with pytest.raises(DecodeError, match="signature"):
        open_signed(other, KEY)


def test_signed_garbage_is_refused_as_unsigned_is() -> None:
    body = b"\x01\xc1"
    garbage = Signed(body=body, signature=hmac.digest(KEY, body, "sha256"))
    with pytest.raises(DecodeError, match="message"):
        open_signed(garbage, KEY)
