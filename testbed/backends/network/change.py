"""From one condition of a link to the next: which lines bring it about.

Pure: a trace of a hundred devices becomes one batch for `tc`, and seldom one for `ip`.
"""

import math
from dataclasses import dataclass, field

from testbed.backends.base import Outage
from testbed.backends.network.htb import (
    FRAME_BYTES,
    IP_BYTES,
    MIN_BPS,
    Lane,
    class_line,
    down_lane,
    leaf_line,
    outage_line,
    up_lane,
)
from testbed.backends.network.links import plug_line
from testbed.backends.shape import Shape

MAX_DELAY_S = 60.0
"""Longer is an outage."""


@dataclass(frozen=True, slots=True)
class Link:
    """The link of one device, as it was made."""

    index: int
    is_relayed: bool
    """Its packets pass our relay, which delays and loses them."""

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Towards the device, and away from it."""
        packet_bytes = IP_BYTES if self.is_relayed else FRAME_BYTES
        return down_lane(self.index, packet_bytes), up_lane(self.index)


@dataclass(frozen=True, slots=True)
class LinkState:
    """What a link is meant to be like at this moment."""

    shape: Shape
    outage: Outage | None = None


@dataclass(slots=True)
class Changes:
    """What has to be done, in one go for all devices."""

    tc: list[str] = field(default_factory=list)
    ip: list[str] = field(default_factory=list)


def add_change(changes: Changes, link: Link, before: LinkState, after: LinkState) -> None:
    """Add what brings one link from one state to another; nothing where nothing changes."""
    is_dark, was_dark = after.outage == "coverage", before.outage == "coverage"
    rates = (
        (before.shape.down_bps, after.shape.down_bps),
        (before.shape.up_bps, after.shape.up_bps),
    )
    for lane, (old_bps, new_bps) in zip(link.lanes, rates, strict=True):
        if new_bps != old_bps:
            changes.tc.append(class_line("change", lane, new_bps))
        if is_dark and not was_dark:
            changes.tc.append(outage_line(lane))
        elif not is_dark and (was_dark or new_bps != old_bps):
            changes.tc.append(leaf_line(lane, new_bps))
    is_pulled, was_pulled = after.outage == "unplugged", before.outage == "unplugged"
    if is_pulled != was_pulled and not link.is_relayed:
        changes.ip.append(plug_line(link.index, is_plugged=not is_pulled))


def needs_relay(shape: Shape) -> bool:
    """Tell whether a shape asks for more than a rate."""
    return shape.delay_s > 0.0 or shape.jitter_s > 0.0 or shape.loss_ratio > 0.0


def check_shape(shape: Shape) -> None:
    """Refuse a shape that no link can have.

    Raises:
        ValueError: It cannot be; the message has no name in front.
    """
    for name, rate in (("down_bps", shape.down_bps), ("up_bps", shape.up_bps)):
        if rate is not None and not MIN_BPS <= rate < math.inf:
            raise ValueError(
                f"{name} must be >= {MIN_BPS:g} bit/s or None, got {rate:g}; "
                "use an outage for a link that is gone"
            )
    for name, time in (("delay_s", shape.delay_s), ("jitter_s", shape.jitter_s)):
        if not 0.0 <= time <= MAX_DELAY_S:
            raise ValueError(f"{name} must be 0 to {MAX_DELAY_S:g} s, got {time:g}; see profiles")
    if not 0.0 <= shape.loss_ratio <= 1.0:
        raise ValueError(f"loss_ratio must be 0 to 1, got {shape.loss_ratio:g}; see profiles")
