"""What crosses between a network and its relay: one line of JSON each.

First a `Relayed`, then any number of `RelayOrder`s; each is answered by one `RelayReport` when it
holds.
"""

from msgspec import Struct

from fairbed.testbed.backends.network.plan.delay import CLEAR, Air


class RelayedLink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device behind the relay."""

    namespace: str
    """Path of its namespace."""
    hub_link: str
    """Name of its link in the hub."""
    air: Air


class Relayed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All devices behind one relay."""

    host: str
    """`identity` of the host's namespace, which is refused."""
    hub: str
    """Path of the hub's namespace."""
    seed: int
    """Of loss and jitter."""
    links: dict[str, RelayedLink]


class AirState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a relayed link is from now on."""

    air: Air = CLEAR
    is_plugged: bool = True


class RelayOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes of links by device; an empty one asks how things are."""

    changes: dict[str, AirState] = {}


class RelayReport(Struct, frozen=True, kw_only=True):
    """How things are."""

    lost: dict[str, int]
    """Packets of each device that were lost since it began, on purpose or for want of room."""
    problem: str = ""
    """Why an order does not hold; then nothing else counts."""
