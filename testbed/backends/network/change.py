"""From one condition of a link to the next: which lines bring it about.

Pure: a trace of a hundred devices becomes one batch for `tc`, and seldom one for `ip`.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from testbed.backends.network.delay import CLEAR, Air
from testbed.backends.network.htb import (
    FRAME_BYTES,
    HOLE_BPS,
    IP_BYTES,
    MIN_BPS,
    Lane,
    down_lane,
    leaf_line,
    rate_line,
    up_lane,
)
from testbed.backends.network.links import plug_line
from testbed.backends.network.orders import AirState
from testbed.emulation.conditions import Outage, Shape

UNLIMITED = Shape()

MAX_DELAY_S = 60.0
"""Longer is an outage."""

DelayedBy: TypeAlias = Literal["netem", "relay"] | None
"""What delays and loses the packets of a link; None is nothing, its packets come at once."""


@dataclass(frozen=True, slots=True)
class Link:
    """The link of one device, as it was made."""

    index: int
    delayed_by: DelayedBy = None

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Towards the device, and away from it."""
        packet_bytes = IP_BYTES if self.delayed_by == "relay" else FRAME_BYTES
        return down_lane(self.index, packet_bytes), up_lane(self.index)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a link is meant to be like at this moment."""

    shape: Shape = UNLIMITED
    outage: Outage | None = None
    widest_bps: tuple[float, float] = (0.0, 0.0)
    """The fastest that it was since it last had no limit, towards the device and away from it:
    its queues have room for that (`after`)."""

    def after(self, before: "Wanted") -> "Wanted":
        """Return the same, following another state: a queue does not shrink with its rate."""
        down, up = (
            0.0 if rate is None else max(rate, widest)
            for rate, widest in zip(self.rates_bps, before.widest_bps, strict=True)
        )
        return replace(self, widest_bps=(down, up))

    @property
    def rooms_bps(self) -> tuple[float | None, float | None]:
        """The rates that queues are for; None is without a limit."""
        down, up = (
            None if rate is None else max(rate, widest)
            for rate, widest in zip(self.rates_bps, self.widest_bps, strict=True)
        )
        return down, up

    @property
    def is_plugged(self) -> bool:
        """The device is not in airplane mode."""
        return self.outage != "unplugged"

    @property
    def air(self) -> Air:
        """What happens to packets."""
        shape = self.shape
        return Air(delay_s=shape.delay_s, jitter_s=shape.jitter_s, loss_ratio=shape.loss_ratio)

    @property
    def rates_bps(self) -> tuple[float | None, float | None]:
        """Towards the device, and away from it; `HOLE_BPS` where nothing passes."""
        return self._rate_bps(self.shape.down_bps), self._rate_bps(self.shape.up_bps)

    def _rate_bps(self, goodput_bps: float | None) -> float | None:
        if self.outage == "coverage":
            return HOLE_BPS
        return HOLE_BPS if goodput_bps is not None and goodput_bps < MIN_BPS else goodput_bps


AS_MADE = Wanted()
"""A link that nothing has been told yet: without limits."""


@dataclass(slots=True)
class Changes:
    """What has to be done, in one go for all devices."""

    tc: list[str] = field(default_factory=list)
    ip: list[str] = field(default_factory=list)
    air: dict[str, AirState] = field(default_factory=dict)
    """For relays, by device."""


def add_change(changes: Changes, name: str, link: Link, before: Wanted, after: Wanted) -> None:
    """Add what brings one link from one state to another; nothing where nothing changes."""
    old, new = _lanes(link, before), _lanes(link, after)
    for lane, (old_bps, old_leaf), (new_bps, new_leaf) in zip(link.lanes, old, new, strict=True):
        if new_bps not in (old_bps, HOLE_BPS):
            changes.tc.append(rate_line(lane, new_bps))
        if new_leaf != old_leaf:
            changes.tc.append(leaf_line(lane, *new_leaf))
    if link.delayed_by == "relay":
        if (after.air, after.is_plugged) != (before.air, before.is_plugged):
            changes.air[name] = AirState(air=after.air, is_plugged=after.is_plugged)
    elif after.is_plugged != before.is_plugged:
        changes.ip.append(plug_line(link.index, is_plugged=after.is_plugged))


def _lanes(link: Link, wanted: Wanted) -> list[tuple[float | None, tuple[float | None, Air]]]:
    """Return of each lane its rate, and of its leaf the rate it is for and the air."""
    air = wanted.air if link.delayed_by == "netem" else CLEAR
    return [
        (rate, (HOLE_BPS if rate == HOLE_BPS else room, air))
        for rate, room in zip(wanted.rates_bps, wanted.rooms_bps, strict=True)
    ]


def check(link: Link, wanted: Wanted) -> None:
    """Refuse what a link cannot be.

    Raises:
        ValueError: It cannot; the message does not name the device.
    """
    shape = wanted.shape
    for name, rate in (("down_bps", shape.down_bps), ("up_bps", shape.up_bps)):
        if rate is not None and not 0.0 <= rate < math.inf:
            raise ValueError(f"{name} must be >= 0 bit/s or None, got {rate:g}; see profiles")
    for name, time in (("delay_s", shape.delay_s), ("jitter_s", shape.jitter_s)):
        if not 0.0 <= time <= MAX_DELAY_S:
            raise ValueError(f"{name} must be 0 to {MAX_DELAY_S:g} s, got {time:g}; see profiles")
    if not 0.0 <= shape.loss_ratio <= 1.0:
        raise ValueError(f"loss_ratio must be 0 to 1, got {shape.loss_ratio:g}; see profiles")
    if wanted.air != CLEAR and link.delayed_by is None:
        raise ValueError(
            f"a link that was opened without delay and loss cannot have any, got {wanted.air}; "
            "name the device in `delayed` when the network is opened"
        )
