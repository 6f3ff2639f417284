"""What becomes of the exchanges of a round, and when it is over.

Where nobody waits for a grant the answer is a formula. Where uploads have to take turns the table
of the live coordinator is asked (`coordinator.state.round.Round`), one event after the other in the
order of a heap.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import RoundConfig
from fairbed.coordinator.state.exchange import FLIGHT_BYTES, Exchange, ExchangeState, flight_bytes
from fairbed.coordinator.state.round import (
    Abandon,
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
from fairbed.testbed.replay.world import Ended, Exchanges
from fairbed.wire.messages import Manifest, Offer, Phases

DONE, LATE, LOST = ExchangeState.DONE.value, ExchangeState.LATE.value, ExchangeState.LOST.value
CANCELLED, FAILED = ExchangeState.CANCELLED.value, ExchangeState.FAILED.value

GONE = "the device was gone for too long"
"""Why an exchange is lost."""

DIVERGED = "training diverged; lower learning_rate or set clip_norm"
"""Why an exchange has failed."""

_NO_PHASES = Phases(
    download_s=0.0, load_s=0.0, evaluate_s=0.0, train_s=0.0, train_cpu_s=0.0, encode_s=0.0
)


def settle(exchanges: Exchanges, rules: RoundConfig, wanted: int, slots: int | None) -> Ended:
    """Return how a round ends.

    Args:
        exchanges: Of the cohort.
        rules: Deadline, and the length of a round with nobody in it.
        wanted: Updates after which the round is over.
        slots: Updates that may be on their way at the same time; None is no limit.
    """
    some_go = exchanges.gone_s is not None and np.isfinite(exchanges.gone_s).any()
    if slots is None or (_have_room(exchanges, slots) and not some_go):
        return _at_once(exchanges, rules, wanted)
    return in_turn(exchanges, rules, wanted, slots)


def _have_room(exchanges: Exchanges, slots: int) -> bool:
    """Tell whether all may upload at the same time."""
    if len(exchanges.was_cold) > slots:
        return False
    return sum(flight_bytes(manifest) for manifest in _manifests(exchanges)) <= FLIGHT_BYTES


def _at_once(exchanges: Exchanges, rules: RoundConfig, wanted: int) -> Ended:
    """Settle a round in which every update is granted when it is offered."""
    ready_s = exchanges.ready_s
    tau_s = ready_s + exchanges.upload_s
    outcome, end_s = _outcomes(tau_s, rules, wanted)
    is_done = np.array([word == DONE for word in outcome], dtype=np.bool_)
    return Ended(
        outcome=outcome,
        end_s=end_s,
        queued_s=np.zeros(len(tau_s)),
        upload_s=exchanges.upload_s,
        has_trained=is_done if exchanges.upload is None else is_done | (ready_s <= end_s),
        is_merged=is_done,
    )


def _outcomes(tau_s: Floats, rules: RoundConfig, wanted: int) -> tuple[tuple[str, ...], float]:
    if tau_s.size == 0:
        return (), rules.void_wait_s
    deadline_s = rules.deadline_s
    in_time = np.sort(tau_s[tau_s <= deadline_s])
    if in_time.size >= wanted:
        end_s = float(in_time[wanted - 1])
    elif in_time.size == tau_s.size:
        end_s = float(in_time[-1])
    else:
        end_s = deadline_s
    outcome = tuple(
        DONE if tau <= end_s and tau <= deadline_s else LATE if end_s >= deadline_s else CANCELLED
        for tau in tau_s.tolist()
    )
    return outcome, end_s


def in_turn(exchanges: Exchanges, rules: RoundConfig, wanted: int, slots: int) -> Ended:
    """Settle a round whose uploads may have to wait for each other; see `settle`."""
    turns = _Turns(exchanges, rules, wanted, slots)
    turns.play()
    k = len(exchanges.was_cold)
    members = [turns.table.exchanges[str(at)] for at in range(k)]
    return Ended(
        outcome=tuple(x.stage.value for x in members),
        end_s=turns.now,
        queued_s=np.array([x.queued_s(turns.now) for x in members]),
        upload_s=np.array([turns.upload_s.get(x.device, np.nan) for x in members]),
        has_trained=np.array([x.offer is not None for x in members], dtype=np.bool_),
        is_merged=np.array([x.stage is ExchangeState.DONE for x in members], dtype=np.bool_),
    )


@dataclass(slots=True)
class _Turns:
    """One round in the coordinator's table, on a heap of events; it begins at 0."""

    exchanges: Exchanges
    rules: RoundConfig
    wanted: int
    slots: int
    now: float = 0.0
    upload_s: dict[str, float] = field(default_factory=dict)
    """Of each update that was granted."""
    table: Round = field(init=False)
    _heap: list[tuple[float, int, Event]] = field(default_factory=list)
    _pushed: int = 0
    """Breaks ties of the heap: first in, first out."""

    def __post_init__(self) -> None:
        self.table = Round(
            id=0,
            attempt=0,
            deadline_s=self.rules.deadline_s,
            slots=self.slots,
            wanted=self.wanted,
        )
        ready_s = self.exchanges.ready_s.tolist()
        for at, manifest in enumerate(_manifests(self.exchanges)):
            self.table.dispatch(str(at), 0.0)
            self._push(ready_s[at], Offered(str(at), _offer(manifest)))
        gone_s = self.exchanges.gone_s
        for at, gone in enumerate([] if gone_s is None else gone_s.tolist()):
            self._push(gone, Vanished(str(at), GONE))

    def play(self) -> None:
        """Go from event to event until nothing more can arrive."""
        while not self.table.is_over:
            wake_at = self.table.wake_at()
            if self._heap and (wake_at is None or self._heap[0][0] <= wake_at):
                self.now, _, event = heapq.heappop(self._heap)
            else:
                assert wake_at is not None, "an open exchange has a deadline or an event to come"
                self.now, event = wake_at, Tick()
            self._carry_out(self.table.on(event, self.now))

    def _carry_out(self, orders: Sequence[Order]) -> None:
        for order in orders:
            match order:
                case GrantUpload(device=device):
                    took_s = self._upload_s(self.table.exchanges[device])
                    self.upload_s[device] = took_s
                    arrived = self.now + took_s
                    size = int(self.exchanges.bytes_up[int(device)])
                    self._push(arrived, Arrived(device, at=arrived, bytes_up=size, duplicates=0))
                case Check(device=device):
                    self._carry_out(self.table.on(Checked(device, None), self.now))
                case Abandon():
                    pass  # what it still does arrives too late, and the table knows

    def _upload_s(self, x: Exchange) -> float:
        at = int(x.device)
        if self.exchanges.upload is None or x.granted == x.offered:
            return float(self.exchanges.upload_s[at])
        return self.exchanges.upload(at, self.now)

    def _push(self, at: float, event: Event) -> None:
        if at < np.inf:
            heapq.heappush(self._heap, (at, self._pushed, event))
            self._pushed += 1


def _manifests(exchanges: Exchanges) -> list[Manifest]:
    """Return what the devices would announce: the table asks how much room it takes."""
    sizes = zip(exchanges.bytes_up.tolist(), exchanges.chunk_bytes.tolist(), strict=True)
    return [
        Manifest(id=bytes(16), kind="update", size_bytes=size, chunk_bytes=chunk)
        for size, chunk in sizes
    ]


def _offer(manifest: Manifest) -> Offer:
    return Offer(round=1, manifest=manifest, phases=_NO_PHASES, n_k=1, steps=0, was_cold=False)
