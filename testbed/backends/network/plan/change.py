"""The `tc` and `ip` lines that change a link from one condition to the next.

The changes of many devices become one batch for `tc`, and rarely one for `ip`.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from fairbed.profiles import LinkQueue
from fairbed.testbed.backends.network.plan.delay import NO_IMPAIRMENT, Impairment
from fairbed.testbed.backends.network.plan.htb import (
    IP_BYTES,
    MIN_BPS,
    OUTAGE_BPS,
    Lane,
    Leaf,
    cell_lanes,
    down_lane,
    leaf_lines,
    rate_line,
    up_lane,
)
from fairbed.testbed.backends.network.plan.links import plug_line
from fairbed.testbed.backends.network.plan.relay_protocol import RelayedLinkState
from fairbed.testbed.emulation.conditions import Conditions, Congestion, Shape
from fairbed.testbed.emulation.queues import FRAME_BYTES, depth_bytes

UNLIMITED = Shape()


def within_cell(shape: Shape, cell: "LinkCell | None") -> Shape:
    """Return a link that is at most as fast as its cell: so its queue fits the cell's rate."""
    if cell is None:
        return shape
    down_bps, up_bps = shape.down_bps, shape.up_bps
    return structs.replace(
        shape,
        down_bps=cell.down_bps if down_bps is None else min(down_bps, cell.down_bps),
        up_bps=cell.up_bps if up_bps is None else min(up_bps, cell.up_bps),
    )


MAX_DELAY_S = 60.0
"""Longest delay and jitter, seconds; use an outage for more."""

DelayedBy: TypeAlias = Literal["netem", "relay"] | None
"""How packets of a link are delayed and dropped; None is a link without delay and loss."""


@dataclass(frozen=True)
class LinkCell:
    """The cell of a link."""

    number: int
    """Number of the cell in the network."""
    down_bps: float
    """Rate towards a device that is alone in the cell, bit/s."""
    up_bps: float
    """Rate away from a device that is alone in the cell, bit/s."""
    priority: int = 0


@dataclass(frozen=True)
class NetworkLink:
    """The link of one device, as it was made."""

    index: int
    delayed_by: DelayedBy = None
    cell: LinkCell | None = None
    congestion: Congestion = "cubic"
    """Congestion control of the device."""
    has_codel: bool = False
    """Whether its queues may be fq_codel."""

    @cached_property
    def lanes(self) -> tuple[Lane, Lane]:
        """The lanes towards the device and away from it."""
        if self.cell is not None:
            return cell_lanes(self.index, self.cell.number, self.cell.priority)
        packet_bytes = IP_BYTES if self.delayed_by == "relay" else FRAME_BYTES
        return down_lane(self.index, packet_bytes), up_lane(self.index)


class LaneState(Struct, frozen=True):
    """The state of one direction of a link; None is not limited."""

    rate_bps: float | None = None
    """`OUTAGE_BPS` in an outage."""
    fastest_bps: float | None = None
    """Fastest rate since the lane last had no limit; determines the size of a queue that its link
    does not state."""
    leaf: Leaf | None = Leaf()
    """None in an outage."""


class State(Struct, frozen=True):
    """The state of a link."""

    lanes: tuple[LaneState, LaneState] = (LaneState(), LaneState())
    """Towards the device, and away from it."""
    impairment: Impairment = NO_IMPAIRMENT
    """Delay, jitter and loss."""
    is_plugged: bool = True


INITIAL_STATE = State()
"""The state of a new link: without limits."""


def next_state(before: State, wanted: Conditions) -> State:
    """Return the state of a link after a change to these conditions."""
    (down, up), shape = before.lanes, wanted.shape or UNLIMITED
    is_outage, target_s = wanted.outage == "coverage", shape.codel_target_s
    return State(
        lanes=(
            _next_lane_state(
                down, shape.down_bps, shape.down_queue_bytes, target_s, is_outage=is_outage
            ),
            _next_lane_state(up, shape.up_bps, shape.up_queue_bytes, target_s, is_outage=is_outage),
        ),
        impairment=impairment_of(shape),
        is_plugged=wanted.outage != "unplugged",
    )


def _next_lane_state(
    before: LaneState,
    goodput_bps: float | None,
    queue_bytes: int | None,
    codel_target_s: float | None,
    *,
    is_outage: bool,
) -> LaneState:
    fastest_bps = before.fastest_bps or 0.0
    if is_outage or (goodput_bps is not None and goodput_bps < MIN_BPS):
        return LaneState(OUTAGE_BPS, fastest_bps, None)
    if goodput_bps is None:
        return LaneState()
    fastest_bps = max(fastest_bps, goodput_bps)
    if queue_bytes is None:
        queue_bytes = depth_bytes(LinkQueue(), fastest_bps)
    return LaneState(goodput_bps, fastest_bps, Leaf(queue_bytes, fastest_bps, codel_target_s))


def impairment_of(shape: Shape) -> Impairment:
    """Return the delay, jitter and loss of a link."""
    if not shape.is_impaired:
        return NO_IMPAIRMENT
    return Impairment(delay_s=shape.delay_s, jitter_s=shape.jitter_s, loss_ratio=shape.loss_ratio)


@dataclass(slots=True)
class Changes:
    """The commands of one update of several devices."""

    tc: list[str] = field(default_factory=list)
    ip: list[str] = field(default_factory=list)
    impairment: dict[str, RelayedLinkState] = field(default_factory=dict)
    """New states for relays, by device."""


def add_change(changes: Changes, name: str, link: NetworkLink, before: State, after: State) -> None:
    """Add the commands that change one link from one state to another."""
    by_netem = [
        each.impairment if link.delayed_by == "netem" else NO_IMPAIRMENT for each in (before, after)
    ]
    for lane, old, new in zip(link.lanes, before.lanes, after.lanes, strict=True):
        if new.rate_bps != old.rate_bps and new.rate_bps != OUTAGE_BPS:
            changes.tc.append(rate_line(lane, new.rate_bps))
        if new.leaf != old.leaf or by_netem[0] != by_netem[1]:
            lines = leaf_lines(lane, new.leaf, by_netem[1])
            changes.tc += lines if lines != leaf_lines(lane, old.leaf, by_netem[0]) else []
    if link.delayed_by == "relay":
        if (after.impairment, after.is_plugged) != (before.impairment, before.is_plugged):
            changes.impairment[name] = RelayedLinkState(
                impairment=after.impairment, is_plugged=after.is_plugged
            )
    elif after.is_plugged != before.is_plugged:
        changes.ip.append(plug_line(link.index, is_plugged=after.is_plugged))


def check_shape(link: NetworkLink, shape: Shape) -> None:
    """Check that a link can have a shape.

    Raises:
        ValueError: It cannot; the message does not name the device.
    """
    _check_rate("down_bps", shape.down_bps)
    _check_rate("up_bps", shape.up_bps)
    _check_time("delay_s", shape.delay_s)
    _check_time("jitter_s", shape.jitter_s)
    if not 0.0 <= shape.loss_ratio <= 1.0:
        raise ValueError(f"loss_ratio must be 0 to 1, got {shape.loss_ratio:g}; fix the profile")
    if link.delayed_by is None and (impairment := impairment_of(shape)) != NO_IMPAIRMENT:
        raise ValueError(
            f"delay and loss must be 0 on a link that was opened without them, got {impairment}; "
            "name the device in `delayed` when the network is opened"
        )
    if shape.codel_target_s is not None and not link.has_codel:
        raise ValueError(
            "a queue must be drop-tail on a link that was opened with such queues, got fq_codel; "
            "choose another link"
        )


def _check_rate(name: str, rate_bps: float | None) -> None:
    if rate_bps is not None and not 0.0 <= rate_bps < math.inf:
        raise ValueError(f"{name} must be >= 0 bit/s or None, got {rate_bps:g}; fix the profile")


def _check_time(name: str, time_s: float) -> None:
    if not 0.0 <= time_s <= MAX_DELAY_S:
        raise ValueError(f"{name} must be 0 to {MAX_DELAY_S:g} s, got {time_s:g}; fix the profile")
