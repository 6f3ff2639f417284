"""How the parts of a run's network are called.

    fairbed.RUN.TAG           the hub's namespace
    fairbed.RUN.TAG.DEVICE    the namespace of a device
    fbTAG                     the one link in the host's namespace
    hub0, dN                  links inside the hub: to the host, to device N
    eth0                      a device's one link

RUN is for the reader. TAG is random, so that two runs of one name, or one that is resumed while
its predecessor is swept, never meet.

Which addresses a run uses: one block of private ones that nobody else on this machine does.

    block + 1       the host, on its end of the hub link
    block + 2       the hub, on all of its links
    block + 4 + i   device i

Everything is a link between two, so the addresses of a block have no further order.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

POOLS = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
"""Private ranges (RFC 1918), the largest first."""

FIRST_DEVICE = 4
"""The four addresses before it are the /30 of the hub link."""

MAX_DEVICES = 10_000
"""Of one run: far above what one machine can run as processes."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one run."""

    block: IPv4Network

    @property
    def host(self) -> IPv4Address:
        """Where devices find this machine."""
        return self.block[1]

    @property
    def hub(self) -> IPv4Address:
        """Where the host and the devices find the hub."""
        return self.block[2]

    def device(self, index: int) -> IPv4Address:
        """Return the address of the device of this number."""
        return self.block[FIRST_DEVICE + index]


def choose_addresses(n_devices: int, taken: Iterable[IPv4Network], start: int) -> Addresses | None:
    """Choose a block for a run; None if there is no room.

    Args:
        n_devices: How many the run has, at most `MAX_DEVICES`.
        taken: Ranges that this machine uses or can reach by a route of its own. Not the default
            route.
        start: Where to begin to look, any number: runs with different ones seldom look at the
            same block.
    """
    used = list(taken)
    length = 32 - (FIRST_DEVICE + n_devices - 1).bit_length()
    for pool in POOLS:
        if any(pool.subnet_of(net) for net in used):
            continue
        near = [net for net in used if net.overlaps(pool)]
        step, count = 1 << (32 - length), 1 << (length - pool.prefixlen)
        for turn in range(count):
            first = pool.network_address + (start + turn) % count * step
            block = IPv4Network((first, length))
            if not any(block.overlaps(net) for net in near):
                return Addresses(block)
    return None


PREFIX = "fairbed"
HUB_LINK = "hub0"
DEVICE_LINK = "eth0"

TAG_BYTES = 4
"""Of randomness in a tag. An interface name has room for 15 characters."""

MAX_RUN_CHARACTERS = 64
"""Of the run's name that go into names: a file name has room for 255."""

_STRANGE = re.compile(r"[^A-Za-z0-9_-]")
_STEM = re.compile(rf"({PREFIX}\.[A-Za-z0-9_-]*\.[0-9a-f]{{{2 * TAG_BYTES}}})(\..+)?")


@dataclass(frozen=True, slots=True)
class NetworkNames:
    """The names that belong to one run."""

    stem: str
    """`fairbed.RUN.TAG`"""

    @property
    def hub(self) -> str:
        """Namespace of the hub."""
        return self.stem

    def device(self, name: str) -> str:
        """Namespace of a device."""
        return f"{self.stem}.{name}"

    @property
    def host_link(self) -> str:
        """Our link in the host's namespace."""
        return "fb" + self.stem.rpartition(".")[2]


def make_names(run_id: str, tag: bytes) -> NetworkNames:
    """Return the names of a run.

    Args:
        run_id: Whatever the run is called.
        tag: `TAG_BYTES` random bytes.
    """
    run = _STRANGE.sub("-", run_id)[:MAX_RUN_CHARACTERS]
    return NetworkNames(f"{PREFIX}.{run}.{tag.hex()}")


def owner_of(namespace: str) -> NetworkNames | None:
    """Return the names of the run that a namespace belongs to; None if it is not ours."""
    match = _STEM.fullmatch(namespace)
    return None if match is None else NetworkNames(match[1])


def hub_side(index: int) -> str:
    """Return the hub's link to the device of this number."""
    return f"d{index}"
