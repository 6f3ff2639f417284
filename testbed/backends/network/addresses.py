"""Which addresses a run uses: one block of private ones that nobody else on this machine does.

    block + 1       the host, on its end of the hub link
    block + 2       the hub, on all of its links
    block + 4 + i   device i

Everything is a link between two, so the addresses of a block have no further order.
"""

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
