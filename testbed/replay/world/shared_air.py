"""Transfers that share cells on the virtual clock: a fluid model.

Between two events every transfer has a constant rate: its share of the cell (`emulation.cell`). An
event is the begin or the end of a transfer or of one of its windows in TCP slow start, a change of
the link of a device that transfers, or a transfer that is abandoned. The ends of all transfers are
computed anew at each event, from the bits that are left.

A transfer without others in its cell ends as in `LinkIntegral.transfer`: it sends window after
window until one keeps the line busy. Between two windows the others have its share.

The result does not depend on the order in which transfers are added, and the state is plain
numbers.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import astuple, dataclass
from math import inf
from typing import Any, NamedTuple

from fairbed.testbed.emulation.cell import (
    Cell,
    Direction,
    Sharer,
    alone_bps,
    lines_of,
    shared_rates,
)
from fairbed.testbed.emulation.tcp import FIRST_WINDOW_BITS
from fairbed.testbed.replay.world.integrals import LinkIntegral

DIRECTIONS: tuple[Direction, ...] = ("down", "up")


class TransferKey(NamedTuple):
    """Identifies a transfer among those of its direction."""

    row: int
    round: int
    is_query: bool = False
    """It belongs to a loss query, whose end is planned apart: it only takes its share."""


class Carried(NamedTuple):
    """A transfer that has left the line, or was given up."""

    key: TransferKey
    direction: Direction
    at: float
    """Instant; `inf` if it was given up."""
    lost_s: float
    """Time that it lost to the others of its cell."""


@dataclass(slots=True)
class Transfer:
    """One transfer, as windows; seconds are on the clock of the air."""

    begins_at: float
    """When its window begins, or began."""
    give_up_at: float
    offset_s: float
    """Time on the clock of its device's link minus time on the clock of the air."""
    left_bits: float
    """Of the window."""
    rest_bits: float = 0.0
    """After the window."""
    window_bits: float = FIRST_WINDOW_BITS
    acknowledged_at: float = inf
    """The next window begins then, or, if it is past, at once and with the whole rest."""
    lost_s: float = 0.0
    rate_bps: float = 0.0
    """Its share since the last event."""
    alone_bps: float = 0.0
    """Its rate if no other transferred."""
    ends_at: float = inf
    """When the window has left the line if nothing changes."""

    def begin_window(self, at: float, bits: float, round_trip_s: float) -> None:
        """Begin a window at `at` with `bits` to send in it and after it."""
        self.begins_at = at
        is_last = bits <= self.window_bits
        self.left_bits = bits if is_last else self.window_bits
        self.rest_bits = bits - self.left_bits
        self.acknowledged_at = inf if is_last else at + round_trip_s


class _Medium:
    """One direction of all cells that are connected with each other."""

    def __init__(
        self,
        direction: Direction,
        cells: Mapping[str, Cell],
        sharers: Mapping[int, Sharer],
        links: Mapping[int, LinkIntegral],
    ) -> None:
        self._direction: Direction = direction
        self._cells, self._sharers, self._links = cells, sharers, links
        self._transfers: dict[TransferKey, Transfer] = {}
        self._now = 0.0
        self.next_at = inf
        """The next event."""

    def add(self, key: TransferKey, start: float, bits: float, offset_s: float) -> None:
        link = self._links[key.row]
        transfer = Transfer(start, start + link.give_up_s, offset_s, bits)
        transfer.begin_window(start, bits, 2.0 * link.delay_s(start + offset_s))
        self._transfers[key] = transfer
        self._plan()

    def drop(self, key: TransferKey, at: float) -> float:
        """Abandon a transfer if there is one; return the time that it lost to others."""
        if key not in self._transfers:
            return 0.0
        self._flow(max(at, self._now))  # `at` may be rounded
        lost_s = self._transfers.pop(key).lost_s
        self._plan()
        return lost_s

    def step(self) -> list[Carried]:
        """Process the next event; return the transfers that ended."""
        at = self.next_at
        self._flow(at)
        ended = list[Carried]()
        for key, transfer in self._transfers.items():
            if transfer.give_up_at <= at:
                ended.append(Carried(key, self._direction, inf, transfer.lost_s))
            elif transfer.ends_at <= at and not self._begin_next(key, transfer, at):
                ended.append(Carried(key, self._direction, at, transfer.lost_s))
        for one in ended:
            del self._transfers[one.key]
        self._plan()
        return sorted(ended)

    def copy(self) -> "_Medium":
        other = _Medium(self._direction, self._cells, self._sharers, self._links)
        other._transfers, other._now = deepcopy(self._transfers), self._now
        other.next_at = self.next_at
        return other

    def to_state(self) -> dict[str, Any]:
        transfers = [[list(key), list(astuple(one))] for key, one in self._transfers.items()]
        return {"now": self._now, "transfers": transfers}

    def load_state(self, state: dict[str, Any]) -> None:
        self._now = state["now"]
        self._transfers = {
            TransferKey(*key): Transfer(*values) for key, values in state["transfers"]
        }
        self._plan()

    def _begin_next(self, key: TransferKey, transfer: Transfer, at: float) -> bool:
        """Begin the next window of a transfer; return whether there is one."""
        if transfer.rest_bits <= 0.0:
            return False
        if at >= transfer.acknowledged_at:  # from now on the line is always busy
            transfer.window_bits = inf
            transfer.begin_window(at, transfer.rest_bits, 0.0)
            return True
        begins_at = transfer.acknowledged_at
        transfer.window_bits *= 2.0
        trip_s = 2.0 * self._links[key.row].delay_s(begins_at + transfer.offset_s)
        transfer.begin_window(begins_at, transfer.rest_bits, trip_s)
        return True

    def _flow(self, at: float) -> None:
        """Send at the rates of the last event until `at`."""
        for transfer in self._transfers.values():
            if transfer.begins_at > self._now:
                continue
            elapsed_s = at - self._now
            transfer.left_bits = max(0.0, transfer.left_bits - transfer.rate_bps * elapsed_s)
            if transfer.alone_bps > 0.0:
                transfer.lost_s += elapsed_s * (1.0 - transfer.rate_bps / transfer.alone_bps)
        self._now = at

    def _plan(self) -> None:
        """Compute all rates and ends anew, and the next event."""
        now, sending, self.next_at = self._now, list[tuple[Transfer, Sharer]](), inf
        for key, transfer in self._transfers.items():
            self.next_at = min(self.next_at, transfer.give_up_at)
            transfer.ends_at = inf
            if transfer.begins_at > now:
                self.next_at = min(self.next_at, transfer.begins_at)
                continue
            t = now + transfer.offset_s
            own_bps, until = self._links[key.row].rate_at(t, self._direction)
            sending.append((transfer, self._sharers[key.row]._replace(own_bps=own_bps)))
            if until - transfer.offset_s > now:
                self.next_at = min(self.next_at, until - transfer.offset_s)
        sharers = [sharer for _, sharer in sending]
        rates = shared_rates(sharers, self._cells, self._direction)
        for (transfer, sharer), rate_bps in zip(sending, rates, strict=True):
            transfer.rate_bps = rate_bps
            transfer.alone_bps = alone_bps(sharer, self._cells, self._direction)
            if rate_bps > 0.0:
                transfer.ends_at = now + transfer.left_bits / rate_bps
                self.next_at = min(self.next_at, transfer.ends_at)


class SharedAir:
    """All transfers in cells.

    Args:
        cells: All cells, by name.
        sharers: Cell and priority of each row that shares one; the rate is not used.
        links: Link of each of these rows.
    """

    def __init__(
        self,
        cells: Mapping[str, Cell],
        sharers: Mapping[int, Sharer],
        links: Mapping[int, LinkIntegral],
    ) -> None:
        self.rows = frozenset(sharers)
        self._roots = {row: lines_of(one.cell, cells)[-1] for row, one in sharers.items()}
        self._media = {
            (root, direction): _Medium(direction, cells_of_root(root, cells), sharers, links)
            for root in sorted(set(self._roots.values()))
            for direction in DIRECTIONS
        }

    @property
    def next_at(self) -> float:
        """Instant of the next event; `inf` is none."""
        return min(medium.next_at for medium in self._media.values())

    def add(
        self, key: TransferKey, direction: Direction, start: float, bits: float, offset_s: float
    ) -> None:
        """Add a transfer that begins at `start`, which is not before the last event."""
        if start < inf:
            self._media[self._roots[key.row], direction].add(key, start, bits, offset_s)

    def drop(self, row: int, round_id: int, at: float) -> float:
        """Abandon the transfer of an exchange, if there is one; return the time it lost to others.

        Now is `at`, which is not after the next event.
        """
        key, root = TransferKey(row, round_id), self._roots[row]
        return sum(self._media[root, direction].drop(key, at) for direction in DIRECTIONS)

    def step(self) -> list[Carried]:
        """Process the next event; return the transfers that ended, not those of loss queries."""
        at = self.next_at
        ended = [
            one for medium in self._media.values() if medium.next_at == at for one in medium.step()
        ]
        return sorted(one for one in ended if not one.key.is_query)

    def queried(self, wanted: Mapping[TransferKey, tuple[float, float]]) -> dict[int, float]:
        """Return when downloads of a loss query end, by row, if nothing else begins meanwhile.

        They are added, too: they take their share from the exchanges in flight.

        Args:
            wanted: Start and bits of each download.
        """
        found = dict.fromkeys((key.row for key in wanted), inf)
        for key, (start, bits) in wanted.items():
            self.add(key, "down", start, bits, 0.0)
        for root in {self._roots[key.row] for key in wanted}:
            medium = self._media[root, "down"].copy()
            while medium.next_at < inf:
                for one in medium.step():
                    if one.key in wanted:
                        found[one.key.row] = one.at
        return found

    def to_state(self) -> list[Any]:
        """Return all transfers as plain numbers."""
        return [medium.to_state() for medium in self._media.values()]

    def load_state(self, state: list[Any]) -> None:
        """Take over what `to_state` returned."""
        for medium, kept in zip(self._media.values(), state, strict=True):
            medium.load_state(kept)


def cells_of_root(root: str, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Return a cell that is behind no other, and all cells behind it."""
    return {name: cell for name, cell in cells.items() if lines_of(name, cells)[-1] == root}
