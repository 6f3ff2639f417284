"""Rates of devices that share a cell: a radio cell, an access point, or the line of a coordinator.

    equal               x_i = min(r_i, level)              max-min fair: the largest level with
                                                           sum x_i <= C
    proportional-fair   x_i = min(r_i, C) / n              an equal share of the time for each of
                                                           the n devices that transfer
    priority            equal, one priority after the other; 0 takes first, the rest is for 1

r_i is the rate of a device's own link, C the rate of the cell in this direction. Only devices that
transfer now take part, so the rates change whenever a transfer begins or ends, or a link changes.
They have no memory.

A cell may be behind another one, as access points behind one uplink, or all devices behind the line
of the coordinator. Then the devices, not the cells, share the line in front equally:

    max-min fair under    x_i <= r_i,    sum x_i <= C of each cell that i is in or behind

Source:
    Bertsekas and Gallager, Data Networks (1992), section 6.5.2 (max-min fairness by progressive
    filling). Kelly, Maulloo and Tan, J. Oper. Res. Soc. 49 (1998): proportional fairness maximises
    sum log x_i; where devices share time, sum x_i / r_i <= 1, that is x_i = r_i / n. Viswanath, Tse
    and Laroia, IEEE Trans. Inf. Theory 48 (2002): the scheduler of base stations, which reaches it.

Deviates:
    A base station serves a device when its channel is better than usual, and so carries more than
    r_i / n of a rate that varies within its averaging time (some 1 s). The rates of traces are what
    a device received, with that gain; it is not added again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct, structs

from fairbed.profiles import CellShare

Direction: TypeAlias = Literal["down", "up"]

LOWEST_PRIORITY = 7
"""Priorities are 0, the first, to this one: those of the kernel's HTB."""


class Cell(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cell: devices that share a rate in each direction; rates are of TCP payload."""

    name: str
    down_bps: float
    """Towards the devices, all together, bit/s."""
    up_bps: float
    """Away from the devices, all together, bit/s."""
    share: CellShare = "equal"
    behind: str | None = None
    """Name of the cell whose rate this one shares with others; None: no other."""

    def bps(self, direction: Direction) -> float:
        """Return the rate of a direction, bit/s."""
        return self.down_bps if direction == "down" else self.up_bps

    def dilated(self, dilation: float) -> "Cell":
        """Return the cell that this machine must shape under time dilation."""
        return structs.replace(
            self, down_bps=self.down_bps / dilation, up_bps=self.up_bps / dilation
        )


DeviceCells: TypeAlias = Mapping[str, tuple[Sequence[Cell], int]]
"""Of a device, its cell with those in front of it, the nearest first, and its priority."""


class Sharer(NamedTuple):
    """A device that transfers now in one direction."""

    cell: str
    own_bps: float
    """Rate of its own link, bit/s; `inf` is not limited, 0 is an outage."""
    priority: int = 0


@dataclass(slots=True, eq=False)
class _Line:
    """A rate that devices share, while their rates are filled."""

    left_bps: float
    open: int = 0
    """Devices whose rate still grows."""

    @property
    def level_bps(self) -> float:
        """The rate at which the line is full if all open devices have it."""
        return self.left_bps / self.open if self.open else inf


def lines_of(cell: str, cells: Mapping[str, Cell]) -> tuple[str, ...]:
    """Return the names of a cell and of all cells that it is behind, the nearest first."""
    found, at = list[str](), cells.get(cell)
    while at is not None and at.name not in found:
        found.append(at.name)
        at = None if at.behind is None else cells.get(at.behind)
    return tuple(found)


def shared_rates(
    sharers: Sequence[Sharer], cells: Mapping[str, Cell], direction: Direction
) -> list[float]:
    """Return the rate of each device, bit/s, in the order of `sharers`.

    The result does not depend on that order.

    Args:
        sharers: The devices that transfer now in this direction.
        cells: All cells, by name.
        direction: Direction of the transfers.
    """
    lines = {name: _Line(cell.bps(direction)) for name, cell in cells.items()}
    rates = [0.0] * len(sharers)
    by_time, by_priority = list[int](), dict[int, list[int]]()
    for at, one in enumerate(sharers):
        share = cells[one.cell].share
        if share == "proportional-fair":
            by_time.append(at)
        else:
            by_priority.setdefault(one.priority if share == "priority" else 0, []).append(at)
    _share_time(by_time, sharers, cells, direction, rates)
    paths = {name: [lines[one] for one in lines_of(name, cells)] for name in cells}
    for priority in sorted(by_priority):
        _fill(by_priority[priority], sharers, paths, rates)
    return rates


def alone_bps(sharer: Sharer, cells: Mapping[str, Cell], direction: Direction) -> float:
    """Return the rate that a device has while no other transfers, bit/s."""
    lines = lines_of(sharer.cell, cells)
    return min(sharer.own_bps, *(cells[name].bps(direction) for name in lines))


def _share_time(
    chosen: Iterable[int],
    sharers: Sequence[Sharer],
    cells: Mapping[str, Cell],
    direction: Direction,
    rates: list[float],
) -> None:
    """Set the rates of devices that share time."""
    taking = [at for at in chosen if sharers[at].own_bps > 0.0]
    counts = dict[str, int]()
    for at in taking:
        counts[sharers[at].cell] = counts.get(sharers[at].cell, 0) + 1
    for at in taking:
        one = sharers[at]
        rates[at] = min(one.own_bps, cells[one.cell].bps(direction)) / counts[one.cell]


def _fill(
    chosen: Sequence[int],
    sharers: Sequence[Sharer],
    paths: Mapping[str, Sequence[_Line]],
    rates: list[float],
) -> None:
    """Set the rates of devices of one priority by progressive filling; take them from the lines.

    All open devices have one rate, the level. It grows until a device has the rate of its own link
    or a line is full; these devices are closed.
    """
    waiting = sorted(chosen, key=lambda at: sharers[at].own_bps, reverse=True)
    """Open devices, the slowest link last."""
    used = {id(line): line for at in chosen for line in paths[sharers[at].cell]}.values()
    for line in used:
        line.open = sum(line in paths[sharers[at].cell] for at in chosen)
    while waiting:
        own_bps = sharers[waiting[-1]].own_bps
        full = min(used, key=lambda line: line.level_bps)
        if own_bps <= full.level_bps:
            closed, level_bps = [waiting.pop()], own_bps
        else:
            level_bps = max(0.0, full.level_bps)
            closed = [at for at in waiting if full in paths[sharers[at].cell]]
            waiting = [at for at in waiting if full not in paths[sharers[at].cell]]
        for at in closed:
            rates[at] = level_bps
            for line in paths[sharers[at].cell]:
                line.open -= 1
                line.left_bps = max(0.0, line.left_bps - level_bps)
