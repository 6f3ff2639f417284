"""Signatures of messages: by which key, for which session, over which bytes."""

import hmac

import pytest
from msgspec import structs

from fairbed.wire.codec import encode
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Hello, Ping, Refuse, Signed
from fairbed.wire.signature import Binding, is_signed_by, opened, session_keys, sign, task_key
from tests.wire.messages import CAPABILITIES

SECRET = "secret of the lab"
BINDING = Binding("run-1", 3, bytes(range(32)))
HELLO = Hello(boot=7, nonce=11, capabilities=CAPABILITIES)
KEYS = session_keys(task_key(SECRET, "pi"), BINDING, HELLO)
KEY = KEYS.to_device
PING = Ping(seq=3)

TASK_KEY = "ae90908689f826812ba773922956189552d3ae63d04fe98889165bbd230c385e"
SESSION_KEYS = (
    "b6395826cfc0ddce8f6b7b28bfe76558c0d6d2807bd343781fbbc489b2a97a08",
    "8d16d142b0bbfebc325785acf10b9cd33c7dffb127452be9ef43ef0668052234",
)
SIGNATURE = "bbaf2aed9df3c6555d41faf74ceb9aa31e9be6c015bd815192c8bce2e1390c3e"


def test_the_signed_message_is_returned() -> None:
    assert opened(sign(PING, KEY), KEY) == encode(PING)


def test_the_bytes_are_those_of_other_implementations_of_hmac_and_sha256() -> None:
    """By `openssl dgst -sha256 -mac HMAC`, four times, with the data of this test."""
    assert task_key(SECRET, "pi") == TASK_KEY
    assert tuple(key.hex() for key in KEYS) == SESSION_KEYS
    assert sign(PING, KEY).signature.hex() == SIGNATURE


OTHERS = {
    "another agent process": (SECRET, "pi", BINDING, structs.replace(HELLO, boot=8)),
    "another session": (SECRET, "pi", BINDING, structs.replace(HELLO, nonce=12)),
    "another device": (SECRET, "nano", BINDING, HELLO),
    "another lab": ("another secret", "pi", BINDING, HELLO),
    "another run": (SECRET, "pi", BINDING._replace(run="run-2"), HELLO),
    "another start of the coordinator": (SECRET, "pi", BINDING._replace(boot=4), HELLO),
    "another task": (SECRET, "pi", BINDING._replace(task=bytes(32)), HELLO),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_key_opens_nothing(name: str) -> None:
    secret, device, binding, hello = OTHERS[name]
    others = session_keys(task_key(secret, device), binding, hello)
    for key, other in zip(KEYS, others, strict=True):
        with pytest.raises(DecodeError, match="signature: must be made with the task key"):
            opened(sign(PING, key), other)


def test_a_message_does_not_come_back_from_the_other_side() -> None:
    assert not is_signed_by(sign(PING, KEYS.from_device), KEYS.to_device)
    assert not is_signed_by(sign(PING, KEYS.to_device), KEYS.from_device)


def test_no_two_sessions_have_the_same_data() -> None:
    """The run is last, so that its length moves no other part."""
    runs = {
        session_keys("key", Binding(run, 1, task), HELLO)
        for run in ("", "a", "aa")
        for task in (bytes(32), b"a" + bytes(31))
    }
    assert len(runs) == 6


def test_a_signature_covers_every_bit_of_the_message() -> None:
    signed = sign(PING, KEY)
    for bit in range(8 * len(signed.body)):
        changed = bytearray(signed.body)
        changed[bit // 8] ^= 1 << bit % 8
        assert not is_signed_by(Signed(body=bytes(changed), signature=signed.signature), KEY)


def test_a_signature_does_not_fit_another_message() -> None:
    body = encode(Refuse(reason="no", is_final=True))
    assert not is_signed_by(Signed(body=body, signature=sign(PING, KEY).signature), KEY)


def test_the_bytes_are_returned_before_they_are_decoded() -> None:
    body = b"\x01\xc1"
    garbage = Signed(body=body, signature=hmac.digest(KEY, body, "sha256"))
    assert opened(garbage, KEY) == body
