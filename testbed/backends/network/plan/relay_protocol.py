"""Messages between a network and a relay: one line of JSON each.

The first message is a `RelaySetup`; any number of `RelayRequest`s follow. The reply to each is a
`RelayReply`, when the change is in effect.
"""

from msgspec import Struct

from fairbed.testbed.backends.network.plan.delay import NO_IMPAIRMENT, Impairment


class RelayedLink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The link of one device behind a relay."""

    namespace: str
    """Path of its namespace."""
    hub_link: str
    """Name of its link in the hub."""
    impairment: Impairment


class RelaySetup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All links of one relay."""

    host: str
    """`identity` of the host's namespace, which is refused."""
    hub: str
    """Path of the hub's namespace."""
    seed: int
    """Seed of loss and jitter."""
    links: dict[str, RelayedLink]


class RelayedLinkState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The new state of a relayed link."""

    impairment: Impairment = NO_IMPAIRMENT
    is_plugged: bool = True


class RelayRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes of links by device; an empty request returns the counters."""

    changes: dict[str, RelayedLinkState] = {}


class RelayReply(Struct, frozen=True, kw_only=True):
    """Counters of the links, or the reason why a change failed."""

    lost: dict[str, int]
    """Packets of each device lost since the relay started, on purpose or by full queues."""
    problem: str = ""
    """Why a change failed; the counters are not valid then."""
