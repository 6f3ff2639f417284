"""The interface of a replayed fleet: availability, contexts and durations of exchanges.

A world has columns with one row per device instead of objects: N may be a million. Instants are
seconds on the virtual clock; phases of an exchange are durations.
"""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import COLD, CONTEXT, DOWN, INVERSE_MU, UP
from fairbed.coordinator.records.rows import KnownAtSelection
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.registry import transfer_times
from fairbed.testbed.replay.world.shared_air import Carried, SharedAir
from fairbed.wire.messages import DEVICE_PHASES


@dataclass(frozen=True, slots=True)
class ModelFault:
    """An internal error in a model of one device: its exchange fails, and the replay goes on."""

    raises: ClassVar[bool] = False
    """The error is raised instead, as in the tests of Fairbed."""

    row: int
    """Row of the device."""
    during: str
    """Work of the model: an exchange, an upload, a loss query or a link probe."""
    error: str
    """One line: the error, and the line of code that raised it."""
    trace: str
    """The whole traceback."""

    @classmethod
    def of(cls, row: int, during: str, error: Exception) -> "ModelFault":
        """Return the fault of an error that was caught; raise it where errors are raised."""
        if cls.raises:
            raise error
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{'/'.join(last.filename.split('/')[-3:])}:{last.lineno}"
        line = " ".join(f"{type(error).__name__}: {error}".split())
        trace = "".join(traceback.format_exception(error))
        return cls(row, during, f"{line} ({where})", trace)

    @property
    def reason(self) -> str:
        """Why the exchange has failed."""
        return f"internal error in the model of the {self.during}: {self.error}"


@dataclass(frozen=True, slots=True)
class LastRound:
    """Participation in the previous round, columns of shape (N,)."""

    is_selected: Bools
    has_trained: Bools
    """The device completed local training, as far as the coordinator knows."""

    @classmethod
    def before_first(cls, n: int) -> "LastRound":
        """Return the participation before the first round: none."""
        return cls(np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_))

    @property
    def is_cold(self) -> Bools:
        """Devices that did not complete training: s = 1, shape (N,)."""
        cold: Bools = ~self.has_trained
        return cold

    def cold_start(self, coding: str) -> Bools:
        """Return s by a `ColdStartCoding`, shape (N,)."""
        return self.is_selected if coding == "literal_seed" else self.is_cold


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """A fleet at the instant of a selection; satisfies `coordinator.policy.selection.Roster`.

    Every column has shape (N,). Columns hold reported values unless they are marked as true.
    """

    is_available: Bools
    """I_{t,n}."""
    inverse_mu: Floats
    """1 / free cores."""
    training_cores: Floats
    """Cores that a training may use; `inf` if unknown."""
    down_bps: Floats
    """NaN for a rate that was never measured; `inf` for a transfer that takes no time."""
    up_bps: Floats
    link_age_s: Floats | None
    """None if rates have no age."""
    context_age_s: Floats | None
    """None if contexts have no age."""
    examples: Ints
    true_tau_s: Floats
    """True expected exchange time under the conditions of this instant, seconds."""
    last: LastRound
    faults: Sequence[ModelFault] = ()
    """Link probes since the last snapshot whose model had an internal error."""

    def contexts(self, down_bits: float | Floats, up_bits: float | Floats, coding: str) -> Floats:
        """Return c = [1/mu, s, M_down/B_down, M_up/B_up] of each device, shape (N, 4)."""
        rates_bps = np.stack([self.down_bps, self.up_bps], axis=1)
        context = np.empty((len(self.is_available), CONTEXT))
        context[:, INVERSE_MU] = self.inverse_mu
        context[:, COLD] = self.last.cold_start(coding)
        context[:, [DOWN, UP]] = transfer_times(down_bits, up_bits, rates_bps)
        return context

    def cores(self) -> Floats:
        """Return the cores that a training of each device may use, shape (N,); `inf`: unknown."""
        return self.training_cores

    def available(self, now: float) -> Bools:
        """Return I_{t,n}, shape (N,)."""
        return self.is_available

    def n_k(self) -> Ints:
        """Return the training examples of each device, shape (N,)."""
        return self.examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """Planned exchanges of one dispatch; every column has shape (K,), seconds.

    The phases are those of a live exchange, in their order (design.md, section 2).
    """

    started_s: float
    """Instant of the dispatch on the clock of the world."""
    signal_s: Floats
    """Delays of the control messages, both ways."""
    download_s: Floats
    decode_s: Floats
    load_s: Floats
    evaluate_s: Floats
    train_s: Floats
    personal_s: Floats
    encode_s: Floats
    upload_s: Floats
    """Duration for an update that is granted as soon as it is offered."""
    is_upload_seen: bool
    """Whether the coordinator sees the offer; if not, it sees only the arrival."""
    was_cold: Bools
    """Session and data must be loaded."""
    bytes_down: Ints
    bytes_up: Ints
    chunk_bytes: Ints
    """Chunk size of the updates."""
    codec_down: tuple[str, ...]
    codec_up: str
    gone_s: Floats | None = None
    """When each device counts as lost, after the dispatch; `inf` or None is never."""
    steps: Ints
    """Mini-batches."""
    in_cell: Bools | None = None
    """Devices whose transfers share a cell: download and upload are `inf` until they have ended.
    None is no device."""
    measured: Mapping[str, Floats | Ints] = field(default_factory=dict)
    """Further numbers of each exchange, by column of the store (`Exchange.measured`); NaN is not
    measured."""
    faults: Mapping[int, ModelFault] = field(default_factory=dict)
    """Internal errors of models, by position; these exchanges have no durations."""

    @property
    def until_gone_s(self) -> Floats:
        """When each device counts as lost, after the dispatch, shape (K,); `inf` is never."""
        return np.full(len(self.was_cold), np.inf) if self.gone_s is None else self.gone_s

    @property
    def ready_s(self) -> Floats:
        """When each device offers its update, after the dispatch, shape (K,)."""
        return sum((getattr(self, f"{phase}_s") for phase in DEVICE_PHASES), self.signal_s)


_device_phases_s: Callable[[object], tuple[float, ...]] = attrgetter(
    *(f"{phase}_s" for phase in DEVICE_PHASES)
)


@dataclass(slots=True, kw_only=True)
class ReplayedExchange:
    """One exchange of a replay: its durations, and its entry in the coordinator's table.

    Durations are seconds. All fields but the entry are plain values, which a checkpoint holds.
    """

    row: int
    """Row of the device."""
    round: int
    """Round of the dispatch."""
    dispatched_at_s: float
    """Instant of the dispatch on the virtual clock of the run."""
    started_s: float
    """Instant of the dispatch on the clock of the world."""
    signal_s: float
    download_s: float
    decode_s: float
    load_s: float
    evaluate_s: float
    train_s: float
    personal_s: float
    encode_s: float
    upload_s: float
    """Duration from the grant on; before the grant, that of an update granted at once."""
    is_upload_seen: bool
    was_cold: bool
    bytes_down: int
    bytes_up: int
    chunk_bytes: int
    codec_down: str
    codec_up: str
    gone_s: float
    """When the device counts as lost, after the dispatch; `inf` is never."""
    steps: int
    n_k: int
    known: KnownAtSelection
    """Values known of the device at its selection, for the row of the exchange."""
    context: tuple[float, ...]
    """Context of the estimator: 1/mu, cold, seconds down, seconds up."""
    loss: float
    """Reported training loss, nats; NaN if there is none."""
    entry: Exchange
    in_cell: bool = False
    """Its transfers share a cell with others; they are `inf` until they have ended."""
    fault: str = ""
    """Why it fails, if its model had an internal error."""

    @property
    def ready_s(self) -> float:
        """From the dispatch to the offer; `inf` is never."""
        return sum(_device_phases_s(self), self.signal_s)

    @property
    def pulled_s(self) -> float:
        """From the dispatch until the device has the model."""
        return self.signal_s / 2.0 + self.download_s

    @property
    def loaded_s(self) -> float:
        """From the dispatch until session and data are in memory."""
        return self.pulled_s + self.decode_s + self.load_s

    @property
    def computed_s(self) -> float:
        """From the dispatch until the processor is idle again."""
        return self.loaded_s + self.evaluate_s + self.train_s + self.personal_s + self.encode_s

    @property
    def queued_s(self) -> float:
        """From the offer to the grant; 0 before the grant."""
        x = self.entry
        return 0.0 if x.granted is None or x.offered is None else x.granted - x.offered

    @property
    def tau_s(self) -> float:
        """The exchange time, also for an update that did not arrive or was cancelled."""
        return self.ready_s + self.upload_s

    @property
    def tau_wall_s(self) -> float:
        """The exchange time including the wait for a grant."""
        return self.ready_s + self.queued_s + self.upload_s

    @property
    def over_s(self) -> float:
        """From the dispatch to the end; the exchange must be over."""
        x = self.entry
        return self.tau_wall_s if x.ended is None else x.ended - x.dispatched

    @property
    def busy_s(self) -> float:
        """Device-seconds until the update arrived or was abandoned; NaN while it is open."""
        if self.is_done:
            return self.tau_s
        at_least_s = self.entry.at_least_s
        return math.nan if at_least_s is None else at_least_s

    @property
    def is_done(self) -> bool:
        """Whether the update arrived in time and is merged."""
        return self.entry.state is ExchangeState.DONE

    @property
    def has_offered(self) -> bool:
        """Whether the device has offered its update; false if training diverged."""
        return self.entry.offer is not None

    @property
    def has_trained(self) -> bool:
        """Whether the coordinator knows that local training was completed."""
        return self.has_offered if self.is_upload_seen else self.is_done

    @property
    def outcome(self) -> str:
        """done, late, lost, cancelled or failed; a late exchange may go on."""
        x = self.entry
        return ExchangeState.LATE.value if x.is_open_late else x.state.value


@runtime_checkable
class SharingWorld(Protocol):
    """A world with transfers that share cells; its exchanges are planned piece by piece."""

    @property
    def air(self) -> SharedAir | None:
        """All transfers in cells, on the virtual clock of the run; None without cells."""
        ...

    def begin_transfer(self, exchange: ReplayedExchange, granted_s: float | None) -> None:
        """Begin the download of an exchange, or its upload `granted_s` after the dispatch."""
        ...

    def on_carried(self, exchange: ReplayedExchange, carried: Carried) -> None:
        """Set the phases of an exchange that are known when a transfer has ended."""
        ...


class World(Protocol):
    """A fleet on the virtual clock.

    Random numbers depend on the round and the device, not on the selection, so that policies are
    compared with the same random numbers.
    """

    slots: int | None
    """Concurrent uploads that the coordinator grants; None is no limit."""

    def __len__(self) -> int:
        """Return the number of devices, N."""
        ...

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """Sizes of an exchange down and up at this instant, bits, each (N,) or one for all."""
        ...

    def observe(self, round_id: int, now: float, last: LastRound) -> FleetSnapshot:
        """Return the fleet at a selection.

        Args:
            round_id: The round, 1 for the first.
            now: Seconds on the virtual clock; never decreases.
            last: Participation in the round before.
        """
        ...

    def available_from_s(self, round_id: int, now: float) -> float:
        """Return an instant before which no device is available, seconds on the virtual clock.

        It is `now` if that is not known to be later, and `inf` if no device ever is available.
        """
        ...

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return the exchanges of devices that are dispatched after `observe`, rows (K,)."""
        ...

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the duration of an upload that is granted `granted_s` after the dispatch."""
        ...

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Take note of devices that have the model; called before the next `observe`."""
        ...

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Take note of exchanges that are over; called before the next `observe`."""
        ...

    def on_version(self, rows: Ints, versions: Ints, version: int) -> None:
        """Take note of the model version that the next round trains.

        Args:
            rows: Devices that completed training in the round that is over, shape (K,).
            versions: Version that each of them trained, shape (K,).
            version: Number of the next one.
        """
        ...

    def to_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        ...
