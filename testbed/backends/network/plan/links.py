"""Links, addresses and routes of a run, as lines for `ip -batch`.

    device namespace            hub namespace                        host's namespace
      eth0 ------------------ d0 \
      eth0 ------------------ d1  +-- routes --- hub0 --------------- fbTAG
      eth0 (TUN) == relay === d2 /

Every link joins two ends that share one fixed hardware address and never ask for one (`arp off`):
nothing has to be resolved, waits in a queue of a slow link, or is forgotten in an outage. The hub
knows the host's one address and the devices, and no way to anywhere else.

One packet is one frame (`gso_max_segs 1`): the kernel would else hand over up to 64 KiB at once,
and a shaper or a loss would take them whole.

`congctl cubic` pins congestion control by route, in both directions: as a setting of a namespace
the kernel refuses it where the machine's default is another (bbr), and the machine's own setting
is not ours.
"""

from collections.abc import Sequence

from fairbed.testbed.backends.network.plan.names import (
    DEVICE_LINK,
    FIRST_DEVICE,
    HUB_LINK,
    Addresses,
    NetworkNames,
    hub_side,
)

CONGESTION_CONTROL = "cubic"
"""The default of Linux, so of the devices that are emulated."""

TUN_QUEUE_PACKETS = 5000
"""60 ms of a gigabit, 0.6 s of 100 Mbit/s."""

_PLAIN = "arp off gso_max_segs 1"


def make_lines(names: NetworkNames, devices: Sequence[str], host_pid: int) -> list[str]:
    """Return what makes the namespaces of devices and the hub link; to be run inside the hub.

    All links are made down: settings of their namespaces come first.

    Args:
        names: Of the run.
        devices: Names of all.
        host_pid: Of a process in the host's namespace.
    """
    own = f"address {_hardware_address(0)} {_PLAIN}"
    peer = f"name {names.host_link} netns {host_pid} {own}"
    return [
        *(f"netns add {names.device(name)}" for name in devices),
        f"link add {HUB_LINK} {own} type veth peer {peer}",
    ]


def hub_up_lines(addresses: Addresses) -> list[str]:
    """Return what the hub's own end of the hub link gets; to be run inside the hub."""
    return [
        "link set lo up",
        f"addr add {addresses.hub}/30 dev {HUB_LINK}",
        f"link set {HUB_LINK} up",
    ]


def host_lines(names: NetworkNames, addresses: Addresses) -> list[str]:
    """Return what the host's namespace gets; each line names our own link and nothing else."""
    link = names.host_link
    return [
        f"link set {link} addrgenmode none alias {names.stem}",
        f"addr add {addresses.host}/30 dev {link}",
        f"link set {link} up arp off",
        f"route add {addresses.block} via {addresses.hub} dev {link} congctl {CONGESTION_CONTROL}",
    ]


def wire_line(names: NetworkNames, index: int, name: str) -> str:
    """Return what joins a device to the hub by a plain wire; to be run inside the hub."""
    own = f"address {_hardware_address(FIRST_DEVICE + index)} {_PLAIN}"
    peer = f"name {DEVICE_LINK} netns {names.device(name)} {own}"
    return f"link add {hub_side(index)} {own} type veth peer {peer}"


def hub_side_lines(addresses: Addresses, index: int, *, is_relayed: bool) -> list[str]:
    """Return what the hub's end of a device's link gets; to be run inside the hub.

    The route comes with the address, so that it comes back with a link that was down.
    """
    link = hub_side(index)
    return [
        *([room_line(link)] if is_relayed else []),
        f"addr add {addresses.hub} peer {addresses.device(index)} dev {link}",
        f"link set {link} up",
    ]


def device_side_lines(addresses: Addresses, index: int, *, is_relayed: bool) -> list[str]:
    """Return what a device's own end gets; to be run inside its namespace."""
    own = addresses.device(index)
    return [
        *([room_line(DEVICE_LINK)] if is_relayed else []),
        "link set lo up",
        f"addr add {own}/32 dev {DEVICE_LINK}",
        f"link set {DEVICE_LINK} up arp off",
        f"route add {addresses.host}/32 dev {DEVICE_LINK} src {own} congctl {CONGESTION_CONTROL}",
    ]


def room_line(link: str) -> str:
    """Return what gives a TUN link room for packets while its relay is busy."""
    return f"link set {link} txqueuelen {TUN_QUEUE_PACKETS}"


def plug_line(index: int, *, is_plugged: bool) -> str:
    """Return what pulls or puts back a device's plug; to be run inside the hub."""
    return f"link set {hub_side(index)} {'up' if is_plugged else 'down'}"


def _hardware_address(number: int) -> str:
    """Return a locally administered address that belongs to a number."""
    return "02:fb:" + ":".join(f"{byte:02x}" for byte in number.to_bytes(4, "big"))
