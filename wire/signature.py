"""Signatures of the messages between a device and its lab: HMAC-SHA256 by a key that both have.

    session key  = HMAC(task key, direction || agent boot, nonce, coordinator boot || task || run)
    signature    = HMAC(session key, the encoded message)

A device with a task key carries out signed messages only, and its coordinator takes signed messages
only from it (docs/decisions/0018). All that a session key is made from is known to both sides, so
that none of it travels with a message: a message of another run, of another start of the
coordinator, of another task, of an earlier agent process or of the other direction has another key.
The nonce is the device's own random number, a new one for each coordinator process: no session can
be repeated as a whole.
"""

import hashlib
import hmac
import secrets
import struct
from typing import NamedTuple

from fairbed.wire.codec import encode
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import FromDevice, Hello, Signed, ToDevice

KEY_BYTES = 32
"""Random bytes of a secret from which task keys are derived."""

NONCE_BITS = 40
"""Of `Hello.nonce`."""

_TO_DEVICE, _FROM_DEVICE = b"fairbed messages to one agent", b"fairbed messages of one agent"
_NUMBERS = struct.Struct(">QQQ")


class Binding(NamedTuple):
    """What the messages of one coordinator process are bound to."""

    run: str
    """Id of the run."""
    boot: int
    """Random number of the coordinator process."""
    task: bytes
    """SHA-256 of the encoded task."""


class SessionKeys(NamedTuple):
    """The keys between one agent process and one coordinator process, 32 bytes each."""

    to_device: bytes
    from_device: bytes


def new_secret() -> str:
    """Return a random secret from which task keys are derived, base64 for URLs."""
    return secrets.token_urlsafe(KEY_BYTES)


def task_key(secret: str, identity: str) -> str:
    """Return the task key of one device, hexadecimal.

    Args:
        secret: Of the lab.
        identity: Differs between devices, and between two enrolments of one device.
    """
    return hmac.new(secret.encode(), identity.encode(), hashlib.sha256).hexdigest()


def session_keys(key: str, binding: Binding, hello: Hello) -> SessionKeys:
    """Return the keys that sign the messages of one session.

    Args:
        key: Task key of the device.
        binding: Of the coordinator.
        hello: Of the agent; its boot and its nonce count.
    """
    numbers = _NUMBERS.pack(hello.boot, hello.nonce, binding.boot)
    whole = numbers + binding.task + binding.run.encode()
    secret = key.encode()
    return SessionKeys(
        hmac.digest(secret, _TO_DEVICE + whole, "sha256"),
        hmac.digest(secret, _FROM_DEVICE + whole, "sha256"),
    )


def sign(message: ToDevice | FromDevice, key: bytes) -> Signed:
    """Return a message with its signature by a session key.

    Raises:
        EncodeError: The message cannot be encoded, or is too large.
    """
    body = encode(message)
    return Signed(body=body, signature=hmac.digest(key, body, "sha256"))


def is_signed_by(message: Signed, key: bytes) -> bool:
    """Return whether a message is signed by a session key."""
    return hmac.compare_digest(hmac.digest(key, message.body, "sha256"), message.signature)


def opened(message: Signed, key: bytes) -> bytes:
    """Return the encoded message that is signed by a session key.

    Raises:
        DecodeError: The signature is of another key or message.
    """
    if not is_signed_by(message, key):
        raise DecodeError(
            "signature: must be made with the task key of this device, for this run and start of "
            "its coordinator"
        )
    return message.body
