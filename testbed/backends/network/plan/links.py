"""Links, addresses and routes of a run, as lines for `ip -batch`.

    device namespace            hub namespace                        host's namespace
      eth0 ------------------ d0 \
      eth0 ------------------ d1  +-- routes --- hub0 --------------- fbTAG
      eth0 (TUN) == relay === d2 /

The two ends of a link share one fixed hardware address and do not use ARP (`arp off`), so that no
ARP packet waits in the queue of a slow link and no entry expires in an outage. The hub has routes
to the host's address on its link and to the devices, and to nothing else.

Packets towards devices in cells pass one more link of the hub, because a cell is one HTB class
above those of its devices, and so all of them must leave by one link. It is an intermediate
functional block: what arrives from the host for such a device is redirected to it, and goes on as
if it had just arrived.

    hub0 ------- cells (IFB) ------- routes ------- d0, d1

One packet is one frame (`gso_max_segs 1`): otherwise the kernel passes up to 64 KiB at once, which
a shaper or a loss treats as one unit.

`congctl` sets the congestion control per route: that of a device's route for its uploads, that of
the host's route for the downloads. As a setting of a namespace the kernel refuses it where the
machine's default is another (bbr), and the setting of the machine must not change.
"""

from collections.abc import Sequence

from fairbed.testbed.backends.network.plan.names import (
    CELL_LINK,
    DEVICE_LINK,
    FIRST_DEVICE,
    HUB_LINK,
    Addresses,
    NetworkNames,
    hub_side,
)
from fairbed.testbed.emulation.conditions import Congestion

TUN_QUEUE_PACKETS = 5000
"""Queue of a TUN link: 60 ms at 1 Gbit/s, 0.6 s at 100 Mbit/s."""

_PLAIN = "arp off gso_max_segs 1"


def make_lines(names: NetworkNames, devices: Sequence[str], host_pid: int) -> list[str]:
    """Return the lines that make the devices' namespaces and the hub link; run them in the hub.

    New links are down, because their namespaces are set up first.

    Args:
        names: Names of the run.
        devices: Names of all devices.
        host_pid: Id of a process in the host's namespace.
    """
    own = f"address {_hardware_address(0)} {_PLAIN}"
    peer = f"name {names.host_link} netns {host_pid} {own}"
    return [
        *(f"netns add {names.device(name)}" for name in devices),
        f"link add {HUB_LINK} {own} type veth peer {peer}",
    ]


def hub_up_lines(addresses: Addresses) -> list[str]:
    """Return the lines that set up the hub's end of the hub link; run them in the hub."""
    return [
        "link set lo up",
        f"addr add {addresses.hub}/30 dev {HUB_LINK}",
        f"link set {HUB_LINK} up",
    ]


def cell_lines() -> list[str]:
    """Return the lines that make the link for packets towards devices in cells; run in the hub."""
    return [f"link add {CELL_LINK} type ifb", f"link set {CELL_LINK} up"]


def host_lines(
    names: NetworkNames,
    addresses: Addresses,
    congestion: Congestion = "cubic",
    *,
    has_ipv6: bool = True,
) -> list[str]:
    """Return the lines for the host's namespace; each line names only the link of the run.

    Args:
        names: Names of the run.
        addresses: Addresses of the run.
        congestion: Congestion control of this machine towards the devices.
        has_ipv6: Whether the kernel has IPv6; the link then gets no address of it.
    """
    link = names.host_link
    return [
        f"link set {link} {'addrgenmode none ' if has_ipv6 else ''}alias {names.stem}",
        f"addr add {addresses.host}/30 dev {link}",
        f"link set {link} up arp off",
        f"route add {addresses.block} via {addresses.hub} dev {link} congctl {congestion}",
    ]


def wire_line(names: NetworkNames, index: int, name: str) -> str:
    """Return the line that connects a device to the hub by a veth pair; run it in the hub."""
    own = f"address {_hardware_address(FIRST_DEVICE + index)} {_PLAIN}"
    peer = f"name {DEVICE_LINK} netns {names.device(name)} {own}"
    return f"link add {hub_side(index)} {own} type veth peer {peer}"


def hub_side_lines(addresses: Addresses, index: int, *, is_relayed: bool) -> list[str]:
    """Return the lines that set up the hub's end of a device's link; run them in the hub.

    The route belongs to the address, so that it returns when the link is up again.
    """
    link = hub_side(index)
    return [
        *([tun_queue_line(link)] if is_relayed else []),
        f"addr add {addresses.hub} peer {addresses.device(index)} dev {link}",
        f"link set {link} up",
    ]


def device_side_lines(
    addresses: Addresses, index: int, *, is_relayed: bool, congestion: Congestion = "cubic"
) -> list[str]:
    """Return the lines that set up a device's end of its link; run them in its namespace."""
    own = addresses.device(index)
    return [
        *([tun_queue_line(DEVICE_LINK)] if is_relayed else []),
        "link set lo up",
        f"addr add {own}/32 dev {DEVICE_LINK}",
        f"link set {DEVICE_LINK} up arp off",
        f"route add {addresses.host}/32 dev {DEVICE_LINK} src {own} congctl {congestion}",
    ]


def tun_queue_line(link: str) -> str:
    """Return the line that sets the queue of a TUN link, for packets that wait for the relay."""
    return f"link set {link} txqueuelen {TUN_QUEUE_PACKETS}"


def plug_line(index: int, *, is_plugged: bool) -> str:
    """Return the line that connects or disconnects a device; run it in the hub."""
    return f"link set {hub_side(index)} {'up' if is_plugged else 'down'}"


def _hardware_address(number: int) -> str:
    """Return the locally administered hardware address of a number."""
    return "02:fb:" + ":".join(f"{byte:02x}" for byte in number.to_bytes(4, "big"))
