"""Traffic counters of each link, read with `tc` in the hub."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fairbed.testbed.backends.network.plan.htb import Lane
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


async def read_counters(
    hub: str, devices: Mapping[str, tuple[Lane, Lane]]
) -> dict[str, LinkCounters]:
    """Return the counters of all links, by two or three calls of `tc`.

    Args:
        hub: Name of the hub's namespace.
        devices: Lanes of each device, towards it and away from it.

    Raises:
        BackendError: `tc` fails.
    """
    show = ["tc", "-netns", hub, "-statistics"]
    qdiscs = await run_program([*show, "-json", "qdisc", "show"])
    shared = {HUB_LINK} | {down.link for down, _ in devices.values() if down.cell_id is not None}
    classes = {
        link: (await run_program([*show, "class", "show", "dev", link])).decode()
        for link in sorted(shared)
    }
    return parse_counters(qdiscs, classes, devices)


def parse_counters(
    qdiscs: bytes, classes: Mapping[str, str], devices: Mapping[str, tuple[Lane, Lane]]
) -> dict[str, LinkCounters]:
    """Parse the output of `tc -s -j qdisc show`, and of `tc -s class show` by link."""
    down = {
        qdisc.dev: qdisc
        for qdisc in msgspec.json.decode(qdiscs, type=list[_Qdisc])
        if qdisc.root and qdisc.kind == "htb"
    }
    by_class = {
        (link, class_id): (int(sent), int(lost))
        for link, text in classes.items()
        for class_id, sent, lost in _CLASS.findall(text)
    }

    def of_class(lane: Lane) -> tuple[int, int]:
        return by_class[lane.link, f"1:{lane.class_id:x}"]

    found = {}
    for name, (towards, away) in devices.items():
        if towards.cell_id is None:
            received, dropped = down[towards.link].bytes, down[towards.link].drops
        else:
            received, dropped = of_class(towards)
        sent, lost = of_class(away)
        found[name] = LinkCounters(
            down_bytes=received, up_bytes=sent, dropped_packets=dropped + lost
        )
    return found
