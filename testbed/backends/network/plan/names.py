"""Names and addresses of a run's network.

    fairbed.RUN.TAG           the hub's namespace
    fairbed.RUN.TAG.DEVICE    the namespace of a device
    fbTAG                     the one link in the host's namespace
    hub0, dN                  links inside the hub: to the host, to device N
    cells                     a link in the hub that packets towards devices in cells pass
    eth0                      a device's one link

RUN is for readers. TAG is random, so that two runs with the same name do not collide, nor does a
resumed run with the leftovers of its predecessor.

The addresses of a run are one private block that is not used on this machine:

    block + 1       the host, on its end of the hub link
    block + 2       the hub, on all of its links
    block + 4 + i   device i

All links are point-to-point, so a block needs no subnets.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

POOLS = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
"""Private ranges (RFC 1918), the largest first."""

FIRST_DEVICE = 4
"""Offset of device 0; the four addresses before it are the /30 of the hub link."""

MAX_DEVICES = 10_000
"""Devices of one run: far more than one machine can run as processes."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one run."""

    block: IPv4Network

    @property
    def host(self) -> IPv4Address:
        """Address of this machine for the devices."""
        return self.block[1]

    @property
    def hub(self) -> IPv4Address:
        """Address of the hub for the host and the devices."""
        return self.block[2]

    def device(self, index: int) -> IPv4Address:
        """Return the address of the device with this index."""
        return self.block[FIRST_DEVICE + index]


def choose_addresses(n_devices: int, taken: Iterable[IPv4Network], start: int) -> Addresses | None:
    """Choose a free block for a run; None if there is none.

    Args:
        n_devices: Number of devices, at most `MAX_DEVICES`.
        taken: Ranges that this machine uses or has a route to, except the default route.
        start: Where the search begins, any number; runs with different numbers rarely try the same
            block.
    """
    used = list(taken)
    length = 32 - (FIRST_DEVICE + n_devices - 1).bit_length()
    for pool in POOLS:
        if any(pool.subnet_of(net) for net in used):
            continue
        near = [net for net in used if net.overlaps(pool)]
        step, count = 1 << (32 - length), 1 << (length - pool.prefixlen)
        for attempt in range(count):
            first = pool.network_address + (start + attempt) % count * step
            block = IPv4Network((first, length))
            if not any(block.overlaps(net) for net in near):
                return Addresses(block)
    return None


PREFIX = "fairbed"
HUB_LINK = "hub0"
DEVICE_LINK = "eth0"
CELL_LINK = "cells"
"""All packets towards devices in cells pass this link (IFB) of the hub."""

TAG_BYTES = 4
"""Random bytes of a tag; an interface name has at most 15 characters."""

MAX_RUN_CHARACTERS = 64
"""Characters of the run's name in names; a file name has at most 255."""

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
        """Return the namespace of a device."""
        return f"{self.stem}.{name}"

    @property
    def host_link(self) -> str:
        """Link of the run in the host's namespace."""
        return "fb" + self.stem.rpartition(".")[2]


def make_names(run_id: str, tag: bytes) -> NetworkNames:
    """Return the names of a run.

    Args:
        run_id: Name of the run.
        tag: `TAG_BYTES` random bytes.
    """
    run = _STRANGE.sub("-", run_id)[:MAX_RUN_CHARACTERS]
    return NetworkNames(f"{PREFIX}.{run}.{tag.hex()}")


def owner_of(namespace: str) -> NetworkNames | None:
    """Return the names of the run that a namespace belongs to; None if it belongs to no run."""
    match = _STEM.fullmatch(namespace)
    return None if match is None else NetworkNames(match[1])


def hub_side(index: int) -> str:
    """Return the hub's link to the device with this index."""
    return f"d{index}"
