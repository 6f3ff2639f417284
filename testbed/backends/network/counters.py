"""Traffic counters of each link, read with `tc` in the hub."""

import re
from dataclasses import dataclass

import msgspec

from fairbed.testbed.backends.network.plan.htb import down_lane, up_lane
from fairbed.testbed.backends.network.plan.names import HUB_LINK
from fairbed.testbed.backends.network.programs import run_program


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Traffic of one device's link since it was made."""

    down_bytes: int
    """Towards the device, including packet headers."""
    up_bytes: int
    """Away from the device, including packet headers."""
    dropped_packets: int
    """In both directions: by a full queue, in an outage, or as emulated loss."""


class _Qdisc(msgspec.Struct, frozen=True):
    dev: str = ""
    kind: str = ""
    root: bool = False
    bytes: int = 0
    drops: int = 0


_CLASS = re.compile(r"class htb (\S+) .*\n Sent (\d+) bytes \d+ pkt \(dropped (\d+),")
"""`tc` prints classes as text even with `-json` (iproute2 6.1)."""


async def read_counters(hub: str, devices: dict[str, int]) -> dict[str, LinkCounters]:
    """Return the counters of all links, by two calls of `tc`.

    Args:
        hub: Name of the hub's namespace.
        devices: Index of each device.

    Raises:
        BackendError: `tc` fails.
    """
    show = ["tc", "-netns", hub, "-statistics"]
    qdiscs = await run_program([*show, "-json", "qdisc", "show"])
    classes = await run_program([*show, "class", "show", "dev", HUB_LINK])
    return parse_counters(qdiscs, classes.decode(), devices)


def parse_counters(qdiscs: bytes, classes: str, devices: dict[str, int]) -> dict[str, LinkCounters]:
    """Parse the output of `tc -s -j qdisc show` and `tc -s class show`."""
    down = {
        qdisc.dev: qdisc
        for qdisc in msgspec.json.decode(qdiscs, type=list[_Qdisc])
        if qdisc.root and qdisc.kind == "htb"
    }
    up = {class_id: (int(sent), int(lost)) for class_id, sent, lost in _CLASS.findall(classes)}
    found = {}
    for name, index in devices.items():
        towards = down[down_lane(index).link]
        sent, lost = up[f"1:{up_lane(index).class_id:x}"]
        found[name] = LinkCounters(
            down_bytes=towards.bytes, up_bytes=sent, dropped_packets=towards.drops + lost
        )
    return found
