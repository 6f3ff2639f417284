"""Transfers of devices whose packets are lost: each direction has a simulated TCP connection.

A connection keeps its congestion window from one exchange to the next, so the losses of a transfer
slow the next one down. An upload may be computed again when its grant is known: the connection of
the device then starts from the same state, and `begin` makes the last result its state.

The random numbers of a transfer depend on seed, round and device only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from math import inf
from typing import Any

import numpy as np

from fairbed.testbed.emulation.cell import Direction
from fairbed.testbed.emulation.schedule import Schedule
from fairbed.testbed.emulation.tcp import (
    PathState,
    TcpPath,
    TcpSender,
    message_s,
)
from fairbed.testbed.emulation.tcp_transfer import transfer_end
from fairbed.testbed.replay.world.columns import VaryingConditions

_BLOCK = 256
"""Random numbers that are drawn at once."""


class StreamDraws:
    """Random numbers of one transfer, drawn in blocks; `testbed.emulation.tcp.Draws`."""

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._left: list[float] = []

    def random(self) -> float:
        """Return a number from 0 to 1."""
        if not self._left:
            self._left = self._rng.random(_BLOCK).tolist()
        return self._left.pop()

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a normal number."""
        return mu + sigma * float(self._rng.standard_normal())


def path_of(schedule: Schedule, direction: Direction, queue_bytes: float) -> TcpPath:
    """Return one direction of the link of a device."""

    def at(t: float) -> PathState:
        now, change = schedule.conditions(t), schedule.next_change(t)
        until, shape = inf if change is None else change, now.shape
        if now.outage is not None:
            return PathState(0.0, 0.0, 0.0, 0.0, until)
        if shape is None:
            return PathState(inf, 0.0, 0.0, 0.0, until)
        rate_bps = shape.down_bps if direction == "down" else shape.up_bps
        return PathState(
            inf if rate_bps is None else rate_bps,
            shape.delay_s,
            shape.jitter_s,
            shape.loss_ratio,
            until,
        )

    return TcpPath(at=at, queue_bytes=queue_bytes, is_lossy_first=direction == "up")


class TcpLinks:
    """The connections of all devices whose packets are lost.

    Args:
        varying: Conditions of the fleet.
    """

    def __init__(self, varying: VaryingConditions) -> None:
        self._paths: Mapping[tuple[int, Direction], TcpPath] = {
            (row, direction): path_of(varying.links[row], direction, queue_bytes)
            for row, queues in varying.lossy.items()
            for direction, queue_bytes in zip(_DIRECTIONS, queues, strict=True)
        }
        self._senders: dict[tuple[int, Direction], TcpSender] = {}
        self._later: dict[tuple[int, Direction], TcpSender] = {}
        """State of each connection after its latest transfer, which may be computed again."""

    def __contains__(self, row: int) -> bool:
        return (row, "down") in self._paths

    @property
    def rows(self) -> list[int]:
        """Rows of these devices."""
        return [row for row, direction in self._paths if direction == "down"]

    def state(self, row: int, direction: Direction, t: float) -> PathState:
        """Return the path of a device at an instant."""
        return self._paths[row, direction].at(t)

    def begin(self, rows: Iterable[int]) -> None:
        """Begin an exchange: the latest transfers of these devices took place."""
        if not self._later:
            return
        for row in rows:
            for direction in _DIRECTIONS:
                later = self._later.pop((row, direction), None)
                if later is not None:
                    self._senders[row, direction] = later

    def transfer(
        self,
        row: int,
        direction: Direction,
        start: float,
        bits: float,
        draws: StreamDraws,
        give_up_s: float,
    ) -> float:
        """Return when the last byte of a transfer arrives; `inf` is never."""
        if start == inf:
            return inf
        sender = replace(self._senders.get((row, direction), _NEW))
        path = self._paths[row, direction]
        end = transfer_end(path, start, bits, draws, sender, give_up_s=give_up_s)
        self._later[row, direction] = sender
        return end

    def probe(
        self, row: int, direction: Direction, start: float, bits: float, give_up_s: float
    ) -> float:
        """Return when the last byte of a link probe arrives; it leaves the connection as it is."""
        sender = replace(self._senders.get((row, direction), _NEW))
        draws = StreamDraws(row, int(1e3 * start), _DIRECTIONS.index(direction))
        path = self._paths[row, direction]
        return transfer_end(path, start, bits, draws, sender, give_up_s=give_up_s)

    def message(
        self, row: int, direction: Direction, start: float, draws: StreamDraws, give_up_s: float
    ) -> float:
        """Return when a message of one packet arrives; `inf` is never."""
        if start == inf:
            return inf
        return start + message_s(self._paths[row, direction], start, draws, give_up_s=give_up_s)

    def to_state(self) -> dict[str, Any]:
        """Return the state of all connections."""
        return {"now": _listed(self._senders), "later": _listed(self._later)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `to_state` returned."""
        self._senders, self._later = _restored(state["now"]), _restored(state["later"])


_DIRECTIONS: tuple[Direction, Direction] = ("down", "up")

_NEW = TcpSender()


def _listed(senders: Mapping[tuple[int, Direction], TcpSender]) -> list[list[Any]]:
    return [[row, direction, *astuple(sender)] for (row, direction), sender in senders.items()]


def _restored(listed: list[list[Any]]) -> dict[tuple[int, Direction], TcpSender]:
    return {(row, direction): TcpSender(*fields) for row, direction, *fields in listed}
