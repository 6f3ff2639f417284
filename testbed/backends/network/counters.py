"""What has passed each link, as `tc` counts it in the hub."""

import re
from dataclasses import dataclass

import msgspec

from fairbed.testbed.backends.network.plan.htb import down_lane, up_lane
from fairbed.testbed.backends.network.plan.names import HUB_LINK
from fairbed.testbed.backends.network.programs import run_program


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """What one device's link has carried since it was made."""

    down_bytes: int
    """Towards the device, packets with their headers."""
    up_bytes: int
    """Away from the device, packets with their headers."""
    dropped_packets: int
    """In both directions: by a full queue, in an outage, or by loss on purpose."""


class _Qdisc(msgspec.Struct, frozen=True):
    dev: str = ""
    kind: str = ""
    root: bool = False
    bytes: int = 0
    drops: int = 0


_CLASS = re.compile(r"class htb (\S+) .*\n Sent (\d+) bytes \d+ pkt \(dropped (\d+),")
"""Of a class `tc` prints text also where JSON is asked for (iproute2 6.1)."""


async def read_counters(hub: str, devices: dict[str, int]) -> dict[str, LinkCounters]:
    """Return the counters of all links, by two calls of `tc`.

    Args:
        hub: Name of the hub's namespace.
        devices: Number of each device.

    Raises:
        BackendError: `tc` fails.
    """
    show = ["tc", "-netns", hub, "-statistics"]
    qdiscs = await run_program([*show, "-json", "qdisc", "show"])
    classes = await run_program([*show, "class", "show", "dev", HUB_LINK])
    return parse_counters(qdiscs, classes.decode(), devices)


def parse_counters(qdiscs: bytes, classes: str, devices: dict[str, int]) -> dict[str, LinkCounters]:
    """Read what `tc -s -j qdisc show` and `tc -s class show` print."""
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
