"""Errors of the wire, by their cause: this side, the peer, or the link.

WireError
├── EncodeError        this side: a message or blob breaks the protocol
├── DecodeError        the peer: received bytes break the protocol
│   └── VersionError   the peer: another protocol version
└── TransportError     the link
    ├── Disconnected   the link went down during an operation
    └── Refused        the broker refused the connection or subscription (credentials, protocol)
"""


class WireError(Exception):
    """Base of every error that this package raises."""


class EncodeError(WireError):
    """This side tried to send something that breaks the protocol."""


class DecodeError(WireError):
    """The peer sent something that breaks the protocol."""


class VersionError(DecodeError):
    """The peer uses another protocol version."""


class TransportError(WireError):
    """The link failed; neither side broke a rule."""


class Disconnected(TransportError):
    """The link was down, or went down during an operation."""


class Refused(TransportError):
    """The broker refused this client; a retry fails until one side is changed."""


def innermost(exc: Exception) -> Exception:
    """Return the first error inside nested exception groups, in which task groups wrap errors."""
    nested = getattr(exc, "exceptions", ())
    return innermost(nested[0]) if nested and isinstance(nested[0], Exception) else exc
