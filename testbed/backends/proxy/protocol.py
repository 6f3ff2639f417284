"""What crosses between a backend and the process that shapes links: one line of JSON each.

First a `ProxySpec`, answered by `{name: port}`. Then any number of changes, each `{name:
LinkState}`, answered by one `ChangeReply` when the changes hold.
"""

from msgspec import Struct

from fairbed.testbed.emulation.conditions import Shape

__all__ = ["ChangeReply", "LinkState", "ProxySpec", "Shape"]


class ProxySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of JSON on a proxy's stdin; the answer is one line, `{name: port}`."""

    host: str
    """Of the broker behind the proxies."""
    port: int
    devices: dict[str, Shape]
    seed: int = 0
    """Of the jitter."""


class LinkState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a link is from now on."""

    shape: Shape
    is_covered: bool = True
    """False is a radio hole: bytes stay where they are, connections too."""
    is_plugged: bool = True
    """False is airplane mode: connections are cut, new ones are refused."""


class ChangeReply(Struct, frozen=True, kw_only=True):
    """The changes hold."""

    late_s: float
    """The most that this process was behind its links since the last answer, seconds."""
