"""Links that share a cell while data is on them: one direction of all cells of a proxy.

A link takes part from its first piece until its last bit is sent. Whenever one begins or ends, or
its own rate changes, the rates of all are computed anew (`testbed.emulation.cell`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from fairbed.testbed.emulation.cell import Cell, Direction, Sharer, alone_bps, shared_rates
from fairbed.testbed.emulation.link import LinkDirection


@dataclass(slots=True)
class _Member:
    """One device: its link, and its part of the cell."""

    link: LinkDirection
    sharer: Sharer
    delay_s: float = 0.0
    jitter_s: float = 0.0
    is_sending: bool = False
    rate_bps: float = 0.0
    """While it sends, its share."""
    lost_s: float = 0.0


class SharedLinks:
    """One direction of the links of devices that share cells.

    Args:
        cells: All cells, by name.
        direction: The direction of the links.
    """

    def __init__(self, cells: Mapping[str, Cell], direction: Direction) -> None:
        self._cells, self._direction = cells, direction
        self._members: dict[str, _Member] = {}
        self._now = 0.0

    def add(self, name: str, link: LinkDirection, sharer: Sharer) -> None:
        """Add a device, or give it a new link after its connections were closed."""
        before = self._members.get(name)
        self._members[name] = _Member(link, sharer, link.delay_s, link.jitter_s)
        link.rate_bps = alone_bps(sharer, self._cells, self._direction)
        if before is not None:
            self._members[name].lost_s = before.lost_s

    def on_sent(self, name: str, now: float) -> set[str]:
        """Note that data was sent over a link; return the devices whose links have changed."""
        member = self._members[name]
        if member.is_sending or member.link.free_at <= now:
            return set()
        member.is_sending, member.rate_bps = True, -1.0
        return self.update(now)

    def change(
        self, name: str, now: float, own_bps: float | None, delay_s: float, jitter_s: float
    ) -> set[str]:
        """Change the own link of a device; return the devices whose links have changed."""
        member = self._members[name]
        self._count(now)
        own = inf if own_bps is None else own_bps
        member.sharer = member.sharer._replace(own_bps=own)
        member.delay_s, member.jitter_s = delay_s, jitter_s
        idle_bps = alone_bps(member.sharer, self._cells, self._direction)
        member.link.change(now, idle_bps, delay_s, jitter_s)
        member.rate_bps = -1.0  # its pieces were placed at another rate than its share
        return self.update(now) | {name}

    def update(self, now: float) -> set[str]:
        """Compute the shares of all links with data; return the devices whose links changed."""
        self._count(now)
        sending = list[tuple[str, _Member]]()
        for name, member in self._members.items():
            member.is_sending = member.is_sending and member.link.free_at > now
            if member.is_sending:
                sending.append((name, member))
        sharers = [member.sharer for _, member in sending]
        rates = shared_rates(sharers, self._cells, self._direction)
        changed = set[str]()
        for (name, member), rate_bps in zip(sending, rates, strict=True):
            if rate_bps != member.rate_bps:
                member.rate_bps = rate_bps
                member.link.change(now, rate_bps, member.delay_s, member.jitter_s)
                changed.add(name)
        return changed

    @property
    def next_at(self) -> float:
        """When `update` must be called next, unless data is sent before; `inf` is never."""
        sending = (member.link.free_at for member in self._members.values() if member.is_sending)
        return min(sending, default=inf)

    def lost_s(self, name: str) -> float:
        """Return the time that a device lost to the others of its cell, up to the last event."""
        return self._members[name].lost_s

    def _count(self, now: float) -> None:
        """Count the time that devices lost since the last event."""
        elapsed_s, self._now = now - self._now, now
        for member in self._members.values():
            if not member.is_sending or member.rate_bps < 0.0:
                continue
            alone = alone_bps(member.sharer, self._cells, self._direction)
            if alone > 0.0:
                member.lost_s += elapsed_s * (1.0 - member.rate_bps / alone)
