"""Signatures of the messages to one device: HMAC-SHA256 by a key that it shares with its lab.

    session key  = HMAC(task key, b"fairbed messages to one agent" || boot, 8 bytes, big endian)
    signature    = HMAC(session key, the encoded message)

A device with a task key carries out signed messages only, so that no other client of the broker,
and no broker, makes it load a task or train (docs/decisions/0018). `boot` is the random number of
the agent process: the signatures of an earlier process are worthless.
"""

import hashlib
import hmac
import secrets

from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Signed, ToDevice

SIGNED_SKILL = "signed"
"""Named in `Capabilities.skills` by a device that carries out signed messages only."""

KEY_BYTES = 32
"""Random bytes of a secret from which task keys are derived."""

_CONTEXT = b"fairbed messages to one agent"


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


def session_key(key: str, boot: int) -> bytes:
    """Return the key that signs the messages to one agent process, 32 bytes.

    Args:
        key: Task key of the device.
        boot: `Hello.boot`.
    """
    return hmac.digest(key.encode(), _CONTEXT + boot.to_bytes(8, "big"), "sha256")


def sign(message: ToDevice, key: bytes) -> Signed:
    """Return a message with its signature by a session key.

    Raises:
        EncodeError: The message cannot be encoded, or is too large.
    """
    body = encode(message)
    return Signed(body=body, signature=hmac.digest(key, body, "sha256"))


def open_signed(message: Signed, key: bytes) -> ToDevice:
    """Return the message that is signed by a session key.

    Raises:
        DecodeError: The signature is of another key or message, or the message is not valid.
    """
    if not hmac.compare_digest(hmac.digest(key, message.body, "sha256"), message.signature):
        raise DecodeError("signature: must be made with the task key of this device")
    return decode_to_device(message.body)
