"""Transfers of devices whose packets are lost: each direction has a simulated TCP connection.

A connection keeps its congestion window from one exchange to the next, so the losses of a transfer
slow the next one down. So do those of the messages beside it: a single packet without successors is
repeated by a probe, which reduces the window, and no window grows while single packets are sent.

    join          the shard that a device downloads, and a link probe, before round 1
    exchange      down  Train, model, Grant       up  chunk request, Offer, update
    beside it     `SINGLES` further packets before each of these, and a context per second up

An upload may be computed again when its grant is known. So the state of a connection is kept after
each of these messages until `begin` makes the last one its state; a message that is computed again
starts from the one before it.

The random numbers of a transfer depend on seed, round and device only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from math import inf
from typing import Any

import numpy as np

from fairbed.testbed.emulation.cell import Direction
from fairbed.testbed.emulation.schedule import Schedule
from fairbed.testbed.emulation.tcp import Draws, PathState, TcpPath, TcpSender
from fairbed.testbed.emulation.tcp_transfer import transfer_end
from fairbed.testbed.replay.world.columns import VaryingConditions

_BLOCK = 256
"""Random numbers that are drawn at once."""

MESSAGE_BITS = 8.0 * 300
"""Size of a message of one packet; those of an exchange have 50 to 650 bytes."""

SINGLES: Mapping[Direction, tuple[int, ...]] = {
    "down": (3, 0, 0, 0, 1, 0),
    "up": (0, 1, 0, 3, 0, 1),
}
"""Packets that a connection sends alone since its message before, for each message of an exchange
in the order of `testbed.replay.world.phases`. Down: before Train the acknowledgement of the last
chunk, UploadResult and a PUBACK; before Grant an UNSUBACK. Up: before the request a PUBACK; before
Offer UNSUBSCRIBE and the contexts of two changes of phase; before the update that of one."""

CONTEXT_S = 1.0
"""Interval of the contexts that a device sends."""

MOST_CONTEXTS = 600
"""Contexts before a message that are simulated: after ten minutes a link probe has come."""

JOIN_S, MOST_JOIN_BITS = 30.0, 8.0 * 4e6
"""Begin of the download of a shard, before the first instant; and its bits, at most: the window
does not depend on older ones."""

PROBE = 6
"""Place of a link probe in the order of messages: after all of an exchange."""


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


class _FirstLost:
    """Random numbers with which the first packet is lost."""

    def __init__(self, draws: Draws) -> None:
        self._draws, self._is_first = draws, True

    def random(self) -> float:
        """Return 0, and then the other numbers."""
        is_first, self._is_first = self._is_first, False
        return 0.0 if is_first else self._draws.random()

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a normal number."""
        return self._draws.gauss(mu, sigma)


class TcpLinks:
    """The connections of all devices whose packets are lost.

    Args:
        varying: Conditions of the fleet.
        seed: Seed of the packets that are lost outside of exchanges.
    """

    def __init__(self, varying: VaryingConditions, seed: int = 0) -> None:
        self._seed = seed
        self._paths: Mapping[tuple[int, Direction], TcpPath] = {
            (row, direction): path_of(varying.links[row], direction, queue_bytes)
            for row, queues in varying.lossy.items()
            for direction, queue_bytes in zip(_DIRECTIONS, queues, strict=True)
        }
        self._senders: dict[tuple[int, Direction], TcpSender] = {}
        self._later: dict[tuple[int, Direction], dict[int, TcpSender]] = {}
        """State of each connection after each message of its exchange, by place; a message may be
        computed again."""

    def __contains__(self, row: int) -> bool:
        return (row, "down") in self._paths

    @property
    def rows(self) -> list[int]:
        """Rows of these devices."""
        return [row for row, direction in self._paths if direction == "down"]

    def state(self, row: int, direction: Direction, t: float) -> PathState:
        """Return the path of a device at an instant."""
        return self._paths[row, direction].at(t)

    def join(self, bits: Mapping[int, float]) -> None:
        """Let devices download once before the first instant.

        Args:
            bits: Of each device, by row.
        """
        for row, wanted in bits.items():
            if wanted > 0.0:
                draws = StreamDraws(self._seed, row)
                size = min(wanted, MOST_JOIN_BITS)
                self._sent(row, "down", -JOIN_S, size, draws, JOIN_S, 0)
                self.begin([row])

    def begin(self, rows: Iterable[int]) -> None:
        """Begin an exchange: the latest messages of these devices took place."""
        if not self._later:
            return
        for row in rows:
            for direction in _DIRECTIONS:
                later = self._later.pop((row, direction), None)
                if later is not None:
                    self._senders[row, direction] = later[max(later)]

    def transfer(
        self,
        row: int,
        direction: Direction,
        start: float,
        bits: float,
        draws: StreamDraws,
        give_up_s: float,
        message: int,
    ) -> float:
        """Return when the last byte of a transfer arrives; `inf` is never.

        Args:
            row: The device.
            direction: As seen from the device.
            start: When its sender has it.
            bits: Its size.
            draws: Random numbers of this transfer.
            give_up_s: Longest transfer.
            message: Its place in the order of messages.
        """
        return self._sent(row, direction, start, bits, draws, give_up_s, message)

    def _sent(
        self,
        row: int,
        direction: Direction,
        start: float,
        bits: float,
        draws: StreamDraws,
        give_up_s: float,
        message: int,
    ) -> float:
        """As `transfer`, for a message of any kind."""
        if start == inf:
            return inf
        path, later = self._paths[row, direction], self._later.setdefault((row, direction), {})
        before = max((place for place in later if place < message), default=None)
        if before is None:
            sender = replace(self._senders.get((row, direction), _NEW))
        else:
            sender = replace(later[before])
        singles = 0 if message == PROBE else SINGLES[direction][message]
        _send_singles(path, sender, start, singles, draws, has_contexts=direction == "up")
        end = transfer_end(path, start, bits, draws, sender, give_up_s=give_up_s, is_dialogue=True)
        later[message] = sender
        return end

    def probe(
        self, row: int, direction: Direction, start: float, bits: float, give_up_s: float
    ) -> float:
        """Return when the last byte of a link probe arrives."""
        way = _DIRECTIONS.index(direction)
        draws = StreamDraws(self._seed, row, int(1e3 * start), way)
        return self._sent(row, direction, start, bits, draws, give_up_s, PROBE)

    def message(
        self,
        row: int,
        direction: Direction,
        start: float,
        draws: StreamDraws,
        give_up_s: float,
        message: int,
    ) -> float:
        """Return when a message of one packet arrives; `inf` is never."""
        return self._sent(row, direction, start, MESSAGE_BITS, draws, give_up_s, message)

    def to_state(self) -> dict[str, Any]:
        """Return the state of all connections."""
        now = [[*key, *astuple(sender)] for key, sender in self._senders.items()]
        later = [
            [*key, place, *astuple(sender)]
            for key, places in self._later.items()
            for place, sender in places.items()
        ]
        return {"now": now, "later": later}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `to_state` returned."""
        self._senders = {
            (row, direction): TcpSender(*fields) for row, direction, *fields in state["now"]
        }
        self._later = {}
        for row, direction, place, *fields in state["later"]:
            self._later.setdefault((row, direction), {})[place] = TcpSender(*fields)


_DIRECTIONS: tuple[Direction, Direction] = ("down", "up")

_NEW = TcpSender()


def _send_singles(
    path: TcpPath,
    sender: TcpSender,
    until: float,
    singles: int,
    draws: Draws,
    *,
    has_contexts: bool,
) -> None:
    """Send single packets since the last packet of a connection; only lost ones change its state.

    Args:
        path: The direction of the link.
        sender: The sender, which is changed; one that has sent nothing has nothing to add.
        until: When the next message is sent.
        singles: Packets between its messages.
        draws: Random numbers.
        has_contexts: It sends a context per `CONTEXT_S`, too.
    """
    since = sender.sent_at
    if not -inf < since < until:
        return
    if has_contexts:
        contexts = int((until - since) / CONTEXT_S)
        since = max(since, until - CONTEXT_S * MOST_CONTEXTS)
        singles += min(contexts, MOST_CONTEXTS)
    for number in range(1, singles + 1):
        t = since + (until - since) * number / (singles + 1)
        state = path.at(t)
        if state.loss_ratio > 0.0 and draws.random() < state.loss_ratio and state.rate_bps > 0.0:
            transfer_end(path, t, MESSAGE_BITS, _FirstLost(draws), sender, give_up_s=until - t)
