"""Errors of the wire, sorted by who is to blame.

WireError
├── EncodeError        ours: this side tried to send something it must not
├── DecodeError        theirs: the peer sent something that breaks the protocol
│   └── VersionError   theirs: the peer speaks another protocol version
└── TransportError     nobody's: the link failed
    ├── Disconnected   the link went down while we were using it
    └── Refused        the broker answered and said no (credentials, protocol)
"""


class WireError(Exception):
    """Base of every error that this package raises."""


class EncodeError(WireError):
    """This side tried to send something that breaks the protocol."""


class DecodeError(WireError):
    """The peer sent something that breaks the protocol."""


class VersionError(DecodeError):
    """The peer speaks a protocol version that this side does not."""


class TransportError(WireError):
    """The link failed; neither side broke a rule."""


class Disconnected(TransportError):
    """The link went down, or was down, while an operation needed it."""


class Refused(TransportError):
    """The broker answered and refused us, so trying again will not help."""
