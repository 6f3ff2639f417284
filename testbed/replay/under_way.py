"""All exchanges that are under way, whichever round they began in.

The table of the live coordinator says what may happen to them (`coordinator.state.round.Round`), a
heap when it happens. Nothing here ends with a round: the next one takes the table over.
"""

import heapq
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Ints
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.rounds.async_dispatch import ReleasedDevices, first_table
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.round import (
    Abandon,
    Accept,
    Arrived,
    Check,
    Checked,
    Event,
    GrantUpload,
    Offered,
    Order,
    Round,
    Tick,
    Vanished,
)
from fairbed.testbed.replay.errand import Errand
from fairbed.testbed.replay.settle import GONE
from fairbed.testbed.replay.world import World
from fairbed.wire.messages import Offer

ROOM = 1 << 30
"""Slots for uploads where nobody has to wait for one."""

What: TypeAlias = Literal["pulled", "offered", "gone", "arrived"]
"""Happens to an exchange."""

_REBUILT = frozenset({"offer", "starved", "settled"})
"""Fields of an exchange that follow from its errand, or that only a live one has."""


@runtime_checkable
class Lasting(World, Protocol):
    """A world whose exchanges may outlive their rounds: it hears of each by itself."""

    def upload_s(self, errand: Errand, granted_s: float) -> float:
        """Return how long an update is on its way that is granted so long after the order."""
        ...

    def on_pulled(self, errand: Errand) -> None:
        """Take note that a device has the model."""
        ...

    def on_over(self, errand: Errand, at: float, upload_s: float | None) -> None:
        """Take note that an exchange is over.

        Args:
            errand: What the device was on.
            at: When, seconds on the virtual clock.
            upload_s: How long its update was on the way; None if none arrived.
        """
        ...

    def on_version(self, rows: Ints, versions: Ints, version: int) -> None:
        """Take note of the version that is trained from now on.

        Args:
            rows: Who has completed training in the round before, shape (K,).
            versions: What each of them has trained, shape (K,).
            version: Number of the one of now.
        """
        ...


class UnderWay:
    """The exchanges that are under way.

    Args:
        config: Says when a round is over, and who goes on.
        world: The devices.
    """

    def __init__(self, config: CoordinatorConfig, world: Lasting) -> None:
        self._config, self.world = config, world
        self.now = 0.0
        """Seconds on the virtual clock."""
        self.table = self._first(1)
        """Of the round that is open; devices are their rows, as text."""
        self._errands: dict[tuple[str, int], Errand] = {}
        """Of everybody in the table, by device and round."""
        self._releases = ReleasedDevices(self.table)
        self._released: set[str] = set()
        """Who is through with an earlier version than that of the round."""
        self._heap: list[tuple[float, int, str, int, What]] = []
        """When, which of equally early ones, device, round, and what happens to it."""
        self._pushed = 0

    def errand(self, x: Exchange) -> Errand:
        """Return what the device of an exchange is on."""
        return self._errands[x.device, x.round]

    def has_trained(self, x: Exchange) -> bool:
        """Tell whether the coordinator knows that a device has completed training."""
        return x.offer is not None if self.errand(x).is_seen else x.stage is ExchangeState.DONE

    def busy(self, n: int) -> Bools:
        """Return who of `n` devices cannot be asked: at work, or through with this version."""
        busy = np.zeros(n, dtype=np.bool_)
        carried = [x.device for x in self.table.carried.values() if x.device not in self._released]
        busy[[int(device) for device in (*carried, *self.table.exchanges)]] = True
        return busy

    def take_over(self) -> None:
        """Begin a round: give up what would be merged too late."""
        self._releases = ReleasedDevices(self.table)
        self._carry_out(self.table.drop_stale(self.now))

    def ask(self, errands: Sequence[Errand]) -> None:
        """Send devices on their errands, now."""
        for errand in errands:
            device = str(errand.row)
            self._errands[device, errand.round] = errand
            self.table.dispatch(device, self.now)
            if np.isfinite(errand.signal_s):
                self.table.exchanges[device].signal_s = errand.signal_s
            self._push(errand.pulled_at, errand, "pulled")
            self._push(errand.offered_at, errand, "offered")
            self._push(errand.gone_at, errand, "gone")

    def step(self, until: float) -> bool:
        """Go on to the next thing that happens; tell whether one did by `until`."""
        while True:
            wake_at, at = self.table.wake_at(), self._next_at()
            wake_at = np.inf if wake_at is None else wake_at
            if min(wake_at, at) > until:
                self.now = until
                return False
            event: Event = Tick()
            if at <= wake_at:
                assert at < np.inf, "an open exchange has a deadline or an event to come"
                self.now, _, device, round_id, what = heapq.heappop(self._heap)
                errand = self._errands[device, round_id]
                if what == "pulled":
                    self.world.on_pulled(errand)
                    continue
                event = self._event(what, device, errand)
            else:
                self.now = max(self.now, wake_at)
            self._carry_out(self.table.on(event, self.now))
            return True

    def release(self) -> list[Exchange]:
        """Let who is through with an earlier version be asked again; return those exchanges."""
        through = self._releases.take(lambda x: x.is_over)
        self._released.update(x.device for x in through)
        return through

    def give_up(self, why: str) -> None:
        """End whatever is under way."""
        self._carry_out(self.table.give_up(why, self.now))

    def over(self) -> list[Exchange]:
        """Return the exchanges that have come to their end in this round."""
        return [x for x in self.table.everybody() if x.is_over]

    def hand_over(self, over: Sequence[Exchange], version: int) -> None:
        """Open the table of the next round.

        Args:
            over: Nobody asks for these again.
            version: Number of the version that it trains.
        """
        for x in over:
            del self._errands[x.device, x.round]
        self._released.clear()
        self.table = self.table.successor(version)

    def to_state(self) -> dict[str, Any]:
        """Return all that is under way, between two rounds, as plain numbers and lists."""
        self._next_at()
        alive = [entry for entry in sorted(self._heap) if self._is_open(entry[2], entry[3])]
        open_ = list(self.table.carried.values())
        return {
            "round": self.table.id,
            "version": self.table.version,
            "errands": [msgspec.to_builtins(self.errand(x)) for x in open_],
            "exchanges": [_kept(x) for x in open_],
            "heap": [list(entry) for entry in alive],
            "pushed": self._pushed,
        }

    def load_state(self, state: dict[str, Any], now: float) -> None:
        """Take over a state that `to_state` returned at `now`."""
        errands = [msgspec.convert(errand, Errand) for errand in state["errands"]]
        self._errands = {(str(errand.row), errand.round): errand for errand in errands}
        carried, queued = dict[str, Exchange](), list[Exchange]()
        for kept in state["exchanges"]:
            x = Exchange(**{**kept, "stage": ExchangeState(kept["stage"])})
            if x.stage in (ExchangeState.QUEUED, ExchangeState.GRANTED):
                x.offer = self._offer(self.errand(x))
            if x.stage is ExchangeState.QUEUED:
                queued.append(x)
                x.stage = ExchangeState.ASKED
            carried[x.device] = x
        first = self._first(state["round"])
        self.table = replace(first, version=state["version"], carried=carried)
        self._heap = [(at, n, device, of, what) for at, n, device, of, what in state["heap"]]
        self._pushed, self.now = state["pushed"], now
        for x in sorted(queued, key=lambda x: x.offered or 0.0):
            # They line up again, each at its own instant: nothing else is left of that.
            assert x.offered is not None, "queued without an offer"
            offer = self._offer(self.errand(x))
            assert not self.table.on(Offered(x.device, offer), x.offered), "there was no room"

    def _first(self, round_id: int) -> Round:
        slots = ROOM if self.world.slots is None else self.world.slots
        return first_table(self._config, round_id, 0, slots)

    def _next_at(self) -> float:
        """Return when the next thing happens to somebody who is still under way."""
        while self._heap and not self._is_open(*self._heap[0][2:4]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else np.inf

    def _is_open(self, device: str, round_id: int) -> bool:
        x = self.table.find(device)
        return x is not None and x.round == round_id and x.stage.is_open

    def _event(self, what: What, device: str, errand: Errand) -> Event:
        match what:
            case "offered":
                return Offered(device, self._offer(errand))
            case "arrived":
                return Arrived(device, at=self.now, bytes_up=errand.bytes_up, duplicates=0)
            case _:
                return Vanished(device, GONE)

    def _offer(self, errand: Errand) -> Offer:
        return errand.offer(takes_room=self.world.slots is not None)

    def _carry_out(self, orders: Sequence[Order]) -> None:
        for order in orders:
            x = self.table.find(order.device)
            assert x is not None, "an order is about an exchange"
            errand = self.errand(x)
            match order:
                case GrantUpload():
                    self._push(self.now + self._upload_s(x, errand), errand, "arrived")
                case Check(device=device):
                    self._carry_out(self.table.on(Checked(device, None), self.now))
                case Accept() | Abandon():
                    self.world.on_over(errand, self.now, x.upload_s)

    def _upload_s(self, x: Exchange, errand: Errand) -> float:
        if not errand.is_seen or x.granted == x.offered:
            return errand.upload_s
        return self.world.upload_s(errand, self.now - errand.started_s)

    def _push(self, at: float, errand: Errand, what: What) -> None:
        if at < np.inf:
            entry = at, self._pushed, str(errand.row), errand.round, what
            heapq.heappush(self._heap, entry)
            self._pushed += 1


def _kept(x: Exchange) -> dict[str, Any]:
    """Return an exchange as plain numbers."""
    kept = {field.name: getattr(x, field.name) for field in fields(x)}
    return {name: value for name, value in kept.items() if name not in _REBUILT} | {
        "stage": x.stage.value
    }
