"""Requests and replies of enrolment: JSON between a device and the enrolment server of a lab.

A device posts an `EnrolRequest` to `/enrol` once, and a `RenewRequest` to `/renew` when the broker
refuses it. Every other answer is a `Problem`. A later version may add fields to the replies, so
that a device reads the reply of a newer lab.
"""

from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import PROTOCOL_VERSION, DeviceName
from fairbed.wire.printable import printable

DEFAULT_PORT = 8884
"""Port of the enrolment server of a lab."""

MAX_REQUEST_BYTES = 4096
"""The largest body of a request; an `EnrolRequest` takes about 300 bytes."""

MAX_REPLY_BYTES = 65536
"""The largest body of a reply to a request."""

SECRET_PATTERN = r"\A[A-Za-z0-9_-]{8,128}\Z"

Secret: TypeAlias = Annotated[str, Meta(pattern=SECRET_PATTERN)]
"""A token or a password, base64 for URLs."""
Fact: TypeAlias = Annotated[str, Meta(max_length=100)]
Role: TypeAlias = Literal["device", "viewer", "operator", "coordinator"]
Standing: TypeAlias = Literal["valid", "renamed", "revoked", "expired"]


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the requests: no text of a device controls what shows it."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, str) and (shown := printable(value)) != value:
                force_setattr(self, field, str(shown))


class EnrolRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Redeem a token: `POST /enrol`."""

    token: Secret
    name: DeviceName | None = None
    """Name that the device asks for; None is that of the token, or else `host_name`."""
    host_name: DeviceName
    agent: Fact
    """Version of the agent's package."""
    protocol: int = PROTOCOL_VERSION
    machine: Fact = ""
    """Processor architecture, as in `uname -m`."""
    python: Fact = ""


class TokenRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask whether a token could be redeemed: `POST /token`, before anything is installed."""

    token: Secret


class TokenReply(Struct, frozen=True, kw_only=True):
    """The token is open."""

    lab: str
    """Name of the lab."""


class EnrolReply(Struct, frozen=True, kw_only=True):
    """The identity of a device, and where the broker is."""

    lab: str
    """Name of the lab."""
    name: DeviceName
    role: Role
    tenant: DeviceName
    user: str
    """MQTT user name."""
    password: Secret
    port: int
    """Port of the broker, at the address of the enrolment server; TLS."""
    expires_s: float | None = None
    """Unix time, UTC; None never."""
    task_key: Secret | None = None
    """Key of a device (`wire.signature`); None for other roles, and at a lab without keys."""


class RenewRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for the standing of an identity: `POST /renew`."""

    name: DeviceName
    """The name that the device knows, which the lab may have changed."""
    password: Secret
    agent: Fact
    protocol: int = PROTOCOL_VERSION


class RenewReply(Struct, frozen=True, kw_only=True):
    """The standing of an identity."""

    standing: Standing
    name: DeviceName
    """The present name."""
    lab: str
    version: str
    """Version of Fairbed on the lab host."""
    protocol: int = PROTOCOL_VERSION
    is_seen: bool = False
    """The broker has had contact with this identity."""
    since_s: float | None = None
    """Unix time of the revocation or expiry; None for a valid identity."""
    task_key: Secret | None = None
    """As in `EnrolReply`; None unless the identity is accepted."""


class Problem(Struct, frozen=True, kw_only=True):
    """Why a request was refused: one line, with what to do."""

    problem: str


_Kind = TypeVar("_Kind", bound=Struct)


def decode_json(data: bytes, kind: type[_Kind]) -> _Kind:
    """Return a request or a reply.

    Raises:
        DecodeError: The bytes are not JSON in UTF-8, or not of this kind.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise DecodeError(printable(" ".join(str(exc).split()))) from exc


def valid_name(host_name: str) -> str:
    """Return a valid device name for the host name of a device: `Pi Kitchen.local` is `pi-kitchen`.

    Returns:
        1 to 32 of a-z, 0-9 and hyphen; `device` if the host name has none of these.
    """
    first = host_name.partition(".")[0].lower()
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in first)
    return kept.strip("-")[:32].strip("-") or "device"
