"""The exchanges in flight: the coordinator's own table, driven by a heap of events.

`coordinator.state.round.Round` decides what may happen to an exchange, the heap when it happens. An
exchange may outlive its round: the next table takes it over. If all exchanges end with their round,
the clock of the table starts at 0 in each round, so that a duration has the same bits however late
in a run it is measured.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools
from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.policy.selection import Selection
from fairbed.coordinator.records.rows import KnownAtSelection
from fairbed.coordinator.script.round import first_table
from fairbed.coordinator.state.exchange import (
    MAX_IN_FLIGHT_BYTES,
    Exchange,
    ExchangeState,
    in_flight_bytes,
)
from fairbed.coordinator.state.round import (
    Action,
    Arrived,
    Checked,
    DeviceFailed,
    DeviceLost,
    Event,
    GrantUpload,
    Offered,
    Round,
    Tick,
    VerifyUpdate,
)
from fairbed.testbed.replay.world.phases import PHASES
from fairbed.testbed.replay.world.world import (
    Exchanges,
    FleetSnapshot,
    ModelFault,
    ReplayedExchange,
    SharingWorld,
    World,
)
from fairbed.wire.messages import Manifest, Offer, Phases

GONE = "the device was gone for too long"
"""Why an exchange is lost."""

ENOUGH = "enough updates had arrived"
"""Why an exchange is cancelled."""

NO_LIMIT = 1 << 30
"""Upload slots of a world that does not limit concurrent uploads."""

EventName: TypeAlias = Literal["offered", "gone", "arrived", "failed"]
"""Event of an exchange."""

_PLANNED = (*PHASES, "was_cold", "bytes_down", "bytes_up", "chunk_bytes", "steps")
"""Columns of `Exchanges` that are fields of a `ReplayedExchange` with the same names."""

_LIVE_ONLY = frozenset({"offer", "contention", "steady"})
"""Fields of a table entry that its exchange determines, or that only a live run has."""


class InFlight:
    """Dispatches exchanges and processes their events in order.

    Args:
        config: Deadline, and the rule for exchanges that miss it.
        world: The devices.
    """

    def __init__(self, config: CoordinatorConfig, world: World) -> None:
        self._config, self._world = config, world
        self._rounds_overlap = config.round.merges_late_updates
        self._origin = self.clock = 0.0
        """Origin of the table's clock on the virtual clock, and seconds since then."""
        self.table = self._first(1)
        """Table of the open round; the name of a device is its row."""
        self._exchanges: dict[tuple[str, int], ReplayedExchange] = {}
        """Exchanges of the table, by device and round of the dispatch."""
        self._released: set[str] = set()
        """Devices that may train the current version, after an exchange of an earlier one."""
        self._heap: list[tuple[float, int, str, int, EventName]] = []
        """Instant, tie-break, device, round of the dispatch, and event."""
        self._pushed = 0
        self._needs_no_events = False
        """The round has a closed form."""
        self._pulling: list[ReplayedExchange] = []
        """Exchanges whose download the world has not been notified of."""
        self._notified = 0
        """Number of the table's ended exchanges that the world has been notified of."""
        self._sharing = world if isinstance(world, SharingWorld) else None
        self._stopped = 0
        """Number of the table's ended exchanges whose transfers in cells were stopped."""
        self._faults: list[ModelFault] = []

    @property
    def now(self) -> float:
        """Seconds on the virtual clock."""
        return self._origin + self.clock

    def begin_round(self) -> None:
        """Begin the round of the table: end exchanges that would be too stale to merge."""
        self._restart_clock()
        self._carry_out(self.table.drop_stale(self.clock))

    def dispatch(self, planned: Exchanges, choice: Selection, snapshot: FleetSnapshot) -> None:
        """Dispatch the devices of a choice now, each with its planned exchange."""
        self._restart_clock()
        table, names = self.table, [str(row) for row in choice.rows.tolist()]
        self._needs_no_events = not self._rounds_overlap and needs_no_events(
            planned, table.deadline_s, self._world.slots
        )
        for name in names:
            if self._needs_no_events:
                table.exchanges[name] = Exchange(name, 0.0, round=table.id, version=table.version)
            else:
                table.dispatch(name, self.clock)
        entries = [table.exchanges[name] for name in names]
        dispatched = _exchanges_of(planned, choice, snapshot, entries, self.now)
        self._pulling += dispatched
        for x in dispatched:
            self._exchanges[x.entry.device, x.round] = x
        if self._needs_no_events:
            return
        self._faults += planned.faults.values()
        for x in dispatched:
            if x.fault:
                self._push(self.clock + self._config.round.void_wait_s, x.entry, "failed")
                continue
            if self._sharing is not None and x.in_cell and x.download_s == np.inf:
                try:
                    self._sharing.begin_transfer(x, None)
                except Exception as exc:  # a bug of a model ends one exchange, and not the replay
                    self._fail(x, ModelFault.of(x.row, "download", exc))
            else:
                self._push(self.clock + x.ready_s, x.entry, "offered")
            self._push(self.clock + x.gone_s, x.entry, "gone")

    def run_round(self) -> None:
        """Process a synchronous round up to its end."""
        if self._needs_no_events:
            self.clock = resolve_at_once(self.dispatched, self.table)
        while not self.table.is_over:
            self.step()

    def step(self, until: float = np.inf) -> bool:
        """Process the next event.

        Args:
            until: Latest instant of the event, on the clock of the table.

        Returns:
            Whether there was an event; if not, the clock is at `until`.
        """
        wake_at, at = self._next_times()
        while (air_at := self._air_at()) <= min(wake_at, at, until) and air_at < np.inf:
            self._step_air(air_at)
            wake_at, at = self._next_times()
        if min(wake_at, at) > until:
            self.clock = until
            return False
        event: Event = Tick()
        if at <= wake_at:
            assert at < np.inf, "an open exchange has a deadline or an event to come"
            self.clock, _, device, round_id, name = heapq.heappop(self._heap)
            event = self._event(name, self._exchanges[device, round_id])
        else:
            self.clock = max(self.clock, wake_at)
        self._carry_out(self.table.on(event, self.clock))
        return True

    def notify_world(self) -> None:
        """Notify the world of downloads and exchanges that ended since the last call."""
        pulling, pulled = list[ReplayedExchange](), list[ReplayedExchange]()
        for x in self._pulling:
            elapsed_s = x.over_s if x.entry.is_over else self.clock - x.entry.dispatched
            if x.pulled_s <= elapsed_s:
                pulled.append(x)
            elif not x.entry.is_over:
                pulling.append(x)
        self._pulling = pulling
        over = [self.of(entry) for entry in self.table.ended[self._notified :]]
        self._notified = len(self.table.ended)
        if pulled:
            self._world.on_pulled(pulled)
        if over:
            self._world.on_over(over)

    def take_faults(self) -> Sequence[ModelFault]:
        """Return the internal errors in models of exchanges since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def busy(self, n: int) -> Bools:
        """Return which of `n` devices have an exchange that is open or of this version, (n,)."""
        busy = np.zeros(n, dtype=np.bool_)
        carried = [x.device for x in self.table.carried.values() if x.device not in self._released]
        busy[[int(device) for device in (*carried, *self.table.exchanges)]] = True
        return busy

    def release(self, devices: Iterable[str]) -> None:
        """Let devices train the current version, whose exchange of an earlier one is over."""
        self._released.update(devices)

    def give_up(self, why: str) -> None:
        """End all exchanges that are open."""
        self._carry_out(self.table.end_all(why, self.clock))

    def of(self, entry: Exchange) -> ReplayedExchange:
        """Return the exchange of an entry of the table."""
        return self._exchanges[entry.device, entry.round]

    @property
    def dispatched(self) -> list[ReplayedExchange]:
        """Exchanges of this round, in the order of dispatch."""
        return [self.of(entry) for entry in self.table.exchanges.values()]

    @property
    def over(self) -> list[ReplayedExchange]:
        """Exchanges that ended in this round, in the order of dispatch."""
        return [self.of(entry) for entry in self.table.all_exchanges() if entry.is_over]

    def open(self, table: Round, over: Sequence[ReplayedExchange]) -> None:
        """Open the table of the next round; exchanges that are `over` are removed."""
        for x in over:
            del self._exchanges[x.entry.device, x.round]
        self._released.clear()
        self._notified = self._stopped = 0
        self.table = table

    def to_state(self) -> dict[str, Any]:
        """Return the exchanges in flight between two rounds, as plain numbers and lists."""
        self._next_at()
        alive = [entry for entry in sorted(self._heap) if self._is_open(entry[2], entry[3])]
        open_ = [self.of(entry) for entry in self.table.carried.values()]
        pulling = [[x.entry.device, x.round] for x in self._pulling]
        return {
            "round": self.table.id,
            "version": self.table.version,
            "exchanges": [_plan_to_state(x) for x in open_],
            "entries": [_entry_to_state(x.entry) for x in open_],
            "pulling": pulling,
            "heap": [list(entry) for entry in alive],
            "pushed": self._pushed,
        }

    def load_state(self, state: dict[str, Any], now: float) -> None:
        """Take over a state that `to_state` returned at `now`."""
        self._origin, self.clock = (0.0, now) if self._rounds_overlap else (now, 0.0)
        carried, queued = dict[str, Exchange](), list[ReplayedExchange]()
        self._exchanges = {}
        for plan, kept in zip(state["exchanges"], state["entries"], strict=True):
            entry = Exchange(**{**kept, "state": ExchangeState(kept["state"])})
            known = KnownAtSelection(**plan.pop("known"))
            x = ReplayedExchange(
                **plan | {"known": known, "context": tuple(plan["context"]), "entry": entry}
            )
            if entry.state in (ExchangeState.QUEUED, ExchangeState.GRANTED):
                entry.offer = self._offer(x)
            if entry.state is ExchangeState.QUEUED:
                queued.append(x)
                entry.state = ExchangeState.DISPATCHED
            carried[entry.device] = entry
            self._exchanges[entry.device, x.round] = x
        first = self._first(state["round"])
        self.table = replace(first, version=state["version"], carried=carried)
        self._heap = [(at, n, device, of, name) for at, n, device, of, name in state["heap"]]
        self._pulling = [self._exchanges[device, of] for device, of in state["pulling"]]
        self._pushed = state["pushed"]
        for x in sorted(queued, key=lambda x: x.entry.offered or 0.0):
            # The same offers at the same instants rebuild the queue of the table.
            assert x.entry.offered is not None, "queued without an offer"
            offered = Offered(x.entry.device, self._offer(x))
            assert not self.table.on(offered, x.entry.offered), "there was no slot"

    def _restart_clock(self) -> None:
        if not self._rounds_overlap:
            self._origin, self.clock = self.now, 0.0

    def _first(self, round_id: int) -> Round:
        slots = NO_LIMIT if self._world.slots is None else self._world.slots
        return first_table(self._config, round_id, 0, slots)

    def _next_at(self) -> float:
        """Return the instant of the next event of an open exchange."""
        while self._heap and not self._is_open(*self._heap[0][2:4]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else np.inf

    def _is_open(self, device: str, round_id: int) -> bool:
        x = self.table.find(device)
        return x is not None and x.round == round_id and x.state.is_open

    def _next_times(self) -> tuple[float, float]:
        """Return when the table wants to wake, and the next event of an open exchange."""
        wake_at = self.table.wake_at()
        return np.inf if wake_at is None else wake_at, self._next_at()

    def _air_at(self) -> float:
        """Return the instant of the next event in a cell."""
        if self._sharing is None or self._sharing.air is None:
            return np.inf
        return max(self._sharing.air.next_at - self._origin, self.clock)

    def _step_air(self, at: float) -> None:
        """Process the next event in a cell: a transfer that ended lets its exchange go on."""
        assert self._sharing is not None
        assert self._sharing.air is not None
        self.clock = at
        for carried in self._sharing.air.step():
            x = self._exchanges[str(carried.key.row), carried.key.round]
            try:
                self._sharing.on_carried(x, carried)
            except Exception as exc:  # a bug of a model ends one exchange, and not the replay
                during = "download" if carried.direction == "down" else "upload"
                self._fail(x, ModelFault.of(x.row, during, exc))
                continue
            if carried.direction == "down":
                self._push(max(x.entry.dispatched + x.ready_s, at), x.entry, "offered")
            else:
                assert x.entry.granted is not None, "an upload was granted"
                self._push(max(x.entry.granted + x.upload_s, at), x.entry, "arrived")

    def _stop_transfers(self) -> None:
        """Stop the transfers of exchanges that have ended."""
        if self._sharing is None or self._sharing.air is None:
            return
        ended, self._stopped = self.table.ended[self._stopped :], len(self.table.ended)
        for x in map(self.of, ended):
            if x.in_cell:
                x.entry.measured["cell_wait_s"] += self._sharing.air.drop(x.row, x.round, self.now)

    def _event(self, name: EventName, x: ReplayedExchange) -> Event:
        device = x.entry.device
        match name:
            case "offered":
                return Offered(device, self._offer(x))
            case "arrived":
                return Arrived(device, at=self.clock, bytes_up=x.bytes_up, duplicates=0)
            case "gone":
                return DeviceLost(device, GONE)
            case "failed":
                return DeviceFailed(device, x.fault)

    def _offer(self, x: ReplayedExchange) -> Offer:
        return _offer(0 if self._world.slots is None else x.bytes_up, x.chunk_bytes)

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case GrantUpload(device=device):
                    self._upload(device)
                case VerifyUpdate(device=device):
                    self._carry_out(self.table.on(Checked(device, None), self.clock))
                case _:
                    pass  # `profile_world.Draining` models a cancelled device
        self._stop_transfers()

    def _upload(self, device: str) -> None:
        entry = self.table.find(device)
        assert entry is not None, "an action belongs to an exchange"
        x = self.of(entry)
        try:
            if self._sharing is not None and x.in_cell:
                self._sharing.begin_transfer(x, self.clock - entry.dispatched)
                return
            if x.is_upload_seen and entry.granted != entry.offered:
                x.upload_s = self._world.upload_s(x, self.clock - entry.dispatched)
        except Exception as exc:  # a bug of a model ends one exchange, and not the replay
            self._fail(x, ModelFault.of(x.row, "upload", exc))
        else:
            self._push(self.clock + x.upload_s, entry, "arrived")

    def _fail(self, x: ReplayedExchange, fault: ModelFault) -> None:
        """Let an exchange fail at the next check for devices, so that time passes until then."""
        self._faults.append(fault)
        x.fault = fault.reason
        self._push(self.clock + self._config.round.void_wait_s, x.entry, "failed")

    def _push(self, at: float, entry: Exchange, name: EventName) -> None:
        if at < np.inf:
            heapq.heappush(self._heap, (at, self._pushed, entry.device, entry.round, name))
            self._pushed += 1


def needs_no_events(planned: Exchanges, deadline_s: float, slots: int | None) -> bool:
    """Return whether a synchronous round of these exchanges has a closed form.

    It has one if every upload is granted at once, no device is lost or fails, and none shares a
    cell. A
    round with an event at exactly the deadline is left to the table.
    """
    if planned.faults or np.isfinite(planned.until_gone_s).any():
        return False
    if planned.in_cell is not None:
        return False
    ready_s = planned.ready_s
    if (ready_s == deadline_s).any() or (ready_s + planned.upload_s == deadline_s).any():
        return False
    if slots is None:
        return True
    sizes = zip(planned.bytes_up.tolist(), planned.chunk_bytes.tolist(), strict=True)
    in_flight = sum(in_flight_bytes(_offer(*size).manifest) for size in sizes)
    return len(ready_s) <= slots and in_flight <= MAX_IN_FLIGHT_BYTES


def resolve_at_once(exchanges: Sequence[ReplayedExchange], table: Round) -> float:
    """End a round by its closed form, with the result that its events would have.

    An update arrives at ready + upload. The round ends with the last wanted arrival, or with the
    last of all exchanges, or at the deadline.

    The closed form is for speed. By events, 8 of 40 linear devices replay 474 instead of 597 rounds
    per second of processor, and 1,000 of 100,000 phones 5.4 instead of 8.3: 33 % and 47 % less than
    a replay without any events reached.

    Args:
        exchanges: At least one, dispatched at 0 on the clock of the table.
        table: Table of a synchronous round that no exchange outlives.

    Returns:
        The duration of the round, seconds.
    """
    order = sorted(range(len(exchanges)), key=lambda at: _arrival(exchanges[at]))
    in_time = [at for at in order if exchanges[at].tau_s < table.deadline_s]
    done = in_time[: table.target_updates]
    is_short = len(done) < min(table.target_updates, len(exchanges))
    end = table.deadline_s if is_short else exchanges[done[-1]].tau_s
    state, why = ExchangeState.CANCELLED, ENOUGH
    if is_short:
        state, why = ExchangeState.LATE, f"no update within {table.deadline_s:g} s"
    for at in done:
        x, entry = exchanges[at], exchanges[at].entry
        entry.state, entry.arrived, entry.bytes_up = ExchangeState.DONE, x.tau_s, x.bytes_up
        entry.staleness, entry.aggregated_round = 0, table.id
    for x in exchanges:
        entry, ready_s = x.entry, x.ready_s
        if ready_s <= end:
            entry.offer = _offer(x.bytes_up, x.chunk_bytes)
            entry.offered = entry.granted = ready_s
        if entry.state is not ExchangeState.DONE:
            entry.state, entry.reason, entry.ended = state, why, end
        table.ended.append(entry)
    return end


def _arrival(x: ReplayedExchange) -> tuple[float, float]:
    """Return the sort key of arrivals: instant of arrival, then instant of the offer."""
    return x.tau_s, x.ready_s


def _exchanges_of(
    planned: Exchanges,
    choice: Selection,
    snapshot: FleetSnapshot,
    entries: Sequence[Exchange],
    now: float,
) -> list[ReplayedExchange]:
    """Return the exchanges of devices that are dispatched `now`, in the order of the choice."""
    rows, k = choice.rows, len(choice.rows)
    columns = {name: getattr(planned, name).tolist() for name in _PLANNED}
    columns |= {
        "row": rows.tolist(),
        "codec_down": planned.codec_down,
        "gone_s": planned.until_gone_s.tolist(),
        "in_cell": [False] * k if planned.in_cell is None else planned.in_cell.tolist(),
        "n_k": snapshot.examples[rows].tolist(),
        "known": _known_before(choice, snapshot),
        "fault": [planned.faults[at].reason if at in planned.faults else "" for at in range(k)],
        "context": [tuple(context) for context in choice.context[rows].tolist()],
        "entry": entries,
    }
    for name, values in planned.measured.items():
        for entry, value in zip(entries, values.tolist(), strict=True):
            if value == value:
                entry.measured[name] = value
    names = tuple(columns)
    return [
        ReplayedExchange(
            round=choice.round,
            dispatched_at_s=now,
            started_s=planned.started_s,
            is_upload_seen=planned.is_upload_seen,
            codec_up=planned.codec_up,
            loss=np.nan,
            **dict(zip(names, values, strict=True)),
        )
        for values in zip(*columns.values(), strict=True)
    ]


def _known_before(choice: Selection, snapshot: FleetSnapshot) -> list[KnownAtSelection]:
    """Return the values known of each selected device before its selection."""
    rows = choice.rows
    k = len(rows)
    link_age_s = np.full(k, np.nan) if snapshot.link_age_s is None else snapshot.link_age_s[rows]
    context_age_s = np.zeros(k) if snapshot.context_age_s is None else snapshot.context_age_s[rows]
    columns = {
        "mu_cores": 1.0 / snapshot.inverse_mu[rows],
        "downlink_bps": snapshot.down_bps[rows],
        "uplink_bps": snapshot.up_bps[rows],
        "link_age_s": link_age_s,
        "context_age_s": context_age_s,
        "s_not_previous": (~snapshot.last.has_trained[rows]).astype(np.int64),
        "s_literal_seed": snapshot.last.is_selected[rows].astype(np.int64),
        "tau_hat_s": choice.prediction.tau_hat_s[rows],
        "width_s": choice.prediction.width_s[rows],
    }
    names, lists = tuple(columns), (column.tolist() for column in columns.values())
    return [
        KnownAtSelection(**dict(zip(names, known, strict=True)))
        for known in zip(*lists, strict=True)
    ]


@lru_cache(maxsize=64)
def _offer(size_bytes: int, chunk_bytes: int) -> Offer:
    """Return an offer of an update; the table only reads its sizes."""
    return Offer(
        round=1,
        manifest=Manifest(
            id=bytes(16), kind="update", size_bytes=size_bytes, chunk_bytes=chunk_bytes
        ),
        model=bytes(32),
        phases=Phases(
            download_s=0.0, load_s=0.0, evaluate_s=0.0, train_s=0.0, train_cpu_s=0.0, encode_s=0.0
        ),
        n_k=1,
        steps=0,
        was_cold=False,
    )


def _plan_to_state(x: ReplayedExchange) -> dict[str, Any]:
    plan = {one.name: getattr(x, one.name) for one in fields(x) if one.name != "entry"}
    return plan | {"known": msgspec.to_builtins(x.known)}


def _entry_to_state(x: Exchange) -> dict[str, Any]:
    kept = {one.name: getattr(x, one.name) for one in fields(x) if one.name not in _LIVE_ONLY}
    return kept | {"state": x.state.value}
