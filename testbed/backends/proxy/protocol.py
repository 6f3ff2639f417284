"""Messages between a backend and a proxy process: one line of JSON each.

The first message is a `ProxySpec`; its reply is `{name: port}`. Any number of changes follow, each
`{name: LinkState}`; the reply to each is a `ChangeReply`, when the changes are in effect.
"""

from msgspec import Struct

from fairbed.testbed.emulation.cell import Cell
from fairbed.testbed.emulation.conditions import Shape

__all__ = ["Cell", "ChangeReply", "LinkState", "Membership", "ProxySpec", "Shape"]


class Membership(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a device in a cell."""

    cell: str
    priority: int = 0


class ProxySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The links of one proxy process."""

    nodes: list[tuple[str, int]]
    """Host and port of the broker, or of each node of its cluster."""
    devices: dict[str, Shape]
    cells: dict[str, Cell] = {}
    """Cells whose rates devices share, by name."""
    members: dict[str, Membership] = {}
    """Cell of each device that has one."""
    waits: str | None = None
    """File of one double per member, in their order, which the process updates: the seconds that
    the device has lost so far to others of its cell. None without members."""
    seed: int = 0
    """Seed of the jitter."""
    listen_host: str = "127.0.0.1"
    """Address of this machine at which devices find their ports."""


class LinkState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The new state of a link."""

    shape: Shape
    is_covered: bool = True
    """False is no radio coverage: connections stay open, and bytes wait."""
    is_plugged: bool = True
    """False is airplane mode: connections are closed, new ones are refused."""


class ChangeReply(Struct, frozen=True, kw_only=True):
    """The changes are in effect."""

    late_s: float
    """Largest lateness of this process since its last reply, seconds."""
