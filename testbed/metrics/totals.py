"""Totals of a run, kept up to date by reading only the new rows of its store."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, distinct
from fairbed.coordinator.report.facts import RunFacts, fairness_of
from fairbed.coordinator.report.measures import device_measures, run_measures
from fairbed.coordinator.report.measures.entry import Number
from fairbed.coordinator.report.summary_schema import Fairness
from fairbed.coordinator.store.reader import (
    TIMED_PHASES,
    RunInfo,
    RunReader,
    SelectionCounts,
    profile_of,
)
from fairbed.coordinator.store.tables import (
    DeviceMetricRow,
    EventRow,
    ExchangeRow,
    FleetStatsRow,
    MetricRow,
    RoundRow,
    SelectionRow,
    TelemetryRow,
)
from fairbed.device_agent.state.lifecycle import Phase

MAX_DEVICES = 1_000
"""Largest fleet of which each device has numbers of its own; a larger one has totals only."""

BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0)
"""Upper bounds of the histogram of exchange times: from a LAN to an hour's order."""

CHUNK = 20_000
"""Exchanges that are read at once."""

PHASES = (*TIMED_PHASES, "queued")
"""Parts of an exchange whose duration is summed: its phases, and its wait for an upload grant."""

SILENT_AFTER_S = 3.0
"""A device whose newest context is older than this is silent; it sends one a second."""

SILENT, UNKNOWN = "silent", "unknown"
AGENT_STATES = (*(phase.value for phase in Phase), SILENT, UNKNOWN)
"""States of an agent: what a device may report, silent, and all else that a device reports."""

_NUMBERS = ("tau_s", "tau_hat_s", "busy_s", "energy_j", *(f"{phase}_s" for phase in PHASES))
_COLUMNS = ("rowid", "round", "device", "outcome", "is_valid", "is_contended", *_NUMBERS)

SUMMED = (
    "duration_s",
    "close_s",
    "loss_query_s",
    "bytes_down",
    "bytes_up",
    "selected",
    "aggregated",
    "aggregated_late",
    "dropped_late",
)
"""Columns of the closed rounds that are summed."""

_FLOATS = ("is_valid", "is_contended", *_NUMBERS)


class ExchangeSums:
    """Counts and sums over exchanges that have ended."""

    def __init__(self) -> None:
        self.outcomes = Counter[str]()
        """Exchanges by outcome."""
        self.invalid = 0
        """Done exchanges from which the estimator must not learn."""
        self.contended = 0
        """Those of them that the host's contention made invalid."""
        self.phase_s = dict.fromkeys(PHASES, 0.0)
        """Seconds, summed over timed exchanges: done, with a valid time."""
        self.phase_n = dict.fromkeys(PHASES, 0)
        """Timed exchanges with such a phase."""
        self.tau_s = 0.0
        """Sum of the times of timed exchanges."""
        self.within = np.zeros(len(BUCKETS_S) + 1, dtype=np.int64)
        """Timed exchanges by the first bucket that contains them; the last has no bound."""
        self.error_s = 0.0
        """Sum of predicted minus measured times of timed exchanges with a prediction."""
        self.error_abs_s = 0.0
        """Sum of the sizes of these errors."""
        self.predicted = 0
        """Timed exchanges with a prediction; 0 is that before the first exchange, and none."""
        self.energy_n = 0
        """Exchanges with a known energy."""
        self.busy_s = 0.0
        """Device-seconds."""
        self.energy_j: float | None = None
        """Known energy; None if none is known."""

    def add(self, outcomes: Sequence[str], columns: dict[str, Floats]) -> None:
        """Add exchanges: their outcomes, and equally long columns with NaN for unknown."""
        self.outcomes.update(outcomes)
        is_done = np.array([outcome == "done" for outcome in outcomes], dtype=bool)
        is_valid = is_done & (columns["is_valid"] > 0)
        self.invalid += int((is_done & ~is_valid).sum())
        self.contended += int((is_done & (columns["is_contended"] > 0)).sum())
        is_timed = is_valid & (columns["tau_s"] > 0.0)
        for phase in PHASES:
            known = columns[f"{phase}_s"][is_timed]
            known = known[~np.isnan(known)]
            self.phase_s[phase] += float(known.sum())
            self.phase_n[phase] += len(known)
        tau_s = columns["tau_s"][is_timed]
        self.tau_s += float(tau_s.sum())
        at = np.searchsorted(BUCKETS_S, tau_s)
        self.within += np.bincount(at, minlength=len(BUCKETS_S) + 1)
        is_predicted = is_timed & (columns["tau_hat_s"] > 0.0)
        errors_s = (columns["tau_hat_s"] - columns["tau_s"])[is_predicted]
        self.error_s += float(errors_s.sum())
        self.error_abs_s += float(np.abs(errors_s).sum())
        self.predicted += len(errors_s)
        self.busy_s += float(np.nansum(columns["busy_s"]))
        energy_j = columns["energy_j"]
        if not np.isnan(energy_j).all():
            self.energy_j = (self.energy_j or 0.0) + float(np.nansum(energy_j))
            self.energy_n += int((~np.isnan(energy_j)).sum())


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """One new round, for curves over rounds."""

    row: RoundRow
    exchanges: ExchangeSums
    """Its exchanges, without those that ended after it."""
    min_rate: float | None
    """Lowest selection rate of a device up to this round; None if it was not counted."""


@dataclass(slots=True)
class DeviceTotals:
    """One device."""

    name: str
    profile: str
    kind: str
    selected: int = 0
    aggregated: int = 0
    invalid: int = 0
    """Done exchanges from which the estimator must not learn."""
    is_available: bool | None = None
    """At the newest selection; None before the first."""
    queue: float | None = None
    tau_s: float | None = None
    """Newest exchange time."""
    tau_hat_s: float | None = None
    """Prediction for it."""
    accuracy: float | None = None
    """At the newest evaluation; likewise the next."""
    loss: float | None = None
    temperature_celsius: float | None = None
    rss_bytes: int | None = None
    measures: dict[str, Number] = field(default_factory=dict)
    """Measures of the catalogue without an attribute of their own."""


@dataclass(slots=True)
class _Cursor:
    """The newest rows that the totals contain."""

    round: int = 0
    exchange: int = 0
    event: int = 0
    telemetry: int = 0
    metric: int = 0


@dataclass(slots=True)
class Totals:
    """Totals of one attempt of a run; a run that was resumed since needs new ones.

    Call `refresh`; the other attributes are as of then.
    """

    reader: RunReader
    info: RunInfo = field(init=False)
    fairness: Fairness = field(init=False)
    exchanges: ExchangeSums = field(default_factory=ExchangeSums)
    rounds: Counter[str] = field(default_factory=Counter)
    """Closed rounds by status."""
    newest: RoundRow | None = None
    """None before the first closed round."""
    sums: Counter[str] = field(default_factory=Counter)
    """Of columns of the closed rounds."""
    events: Counter[str] = field(default_factory=Counter)
    """Events by level."""
    states: Counter[str] = field(default_factory=Counter)
    """Devices by the state in their newest context."""
    devices: dict[str, DeviceTotals] = field(default_factory=dict)
    """Empty for a fleet above `MAX_DEVICES`."""
    fleet: int = 0
    """Devices of the fleet: those that have joined, or all of a replay."""
    metric: MetricRow | None = None
    """The newest evaluation."""
    numbers: dict[str, Number] = field(default_factory=dict)
    """The measures of the run that are exported, as of the newest round or evaluation."""
    resumes: int = 0
    """Resumes of the run that these totals belong to."""
    _cursor: _Cursor = field(default_factory=_Cursor)
    _open: set[int] = field(default_factory=set)
    """Late exchanges that had not ended when they were read."""
    _counts: dict[str, SelectionCounts] = field(default_factory=dict)
    _context_of: dict[str, tuple[str, float]] = field(default_factory=dict)
    """State and instant of the newest context of each device."""
    _newest_context: tuple[float, float] = (0.0, 0.0)
    """Instant of the newest context, and the time when it was read."""

    def __post_init__(self) -> None:
        self.info = self.reader.run()
        self.resumes = self.info.row.resumes
        self.fairness = fairness_of(self.reader, {})

    def refresh(self, now_s: float) -> tuple[list[ClosedRound], list[MetricRow]]:
        """Read the new rows, all of one state; return the new rounds and evaluations.

        Args:
            now_s: Seconds on a monotonic clock.

        Raises:
            StoreError: The store cannot be read.
        """
        with self.reader.snapshot():
            self.info = self.reader.run()
            stats = self.reader.fleet_stats()
            self.fleet = self.info.devices if stats is None else stats.devices
            self._read_devices()
            by_round = self._read_exchanges()
            closed = self._read_rounds(by_round)
            self.fairness = fairness_of(self.reader, self._counts)
            self._read_events()
            self._read_contexts(now_s)
            evaluations = self._read_metrics()
            if closed or evaluations or not self.numbers:
                self._read_numbers()
            return closed, evaluations

    @property
    def has_devices(self) -> bool:
        """Each device has numbers of its own."""
        return self.fleet <= MAX_DEVICES

    def _read_devices(self) -> None:
        if not self.has_devices:
            self.devices.clear()
        elif self.info.devices > len(self.devices):
            truths = {row.name: row for row in self.reader.truths()}
            for row in self.reader.devices():
                if row.name not in self.devices:
                    profile = profile_of(row, truths.get(row.name))
                    self.devices[row.name] = DeviceTotals(row.name, profile, row.kind)

    def _read_exchanges(self) -> dict[int, ExchangeSums]:
        """Add exchanges that have ended since; return those of each round."""
        by_round: dict[int, ExchangeSums] = {}
        again = f"OR rowid IN ({', '.join(map(str, self._open))})" if self._open else ""
        tail, values = f"WHERE rowid > ? {again} ORDER BY rowid", (self._cursor.exchange,)
        for chunk in self.reader.chunks(ExchangeRow, _COLUMNS, tail, values, CHUNK):
            rows = dict(zip(_COLUMNS, zip(*chunk, strict=True), strict=True))
            is_open = [
                outcome == "late" and busy_s is None
                for outcome, busy_s in zip(rows["outcome"], rows["busy_s"], strict=True)
            ]
            self._cursor.exchange = max(self._cursor.exchange, rows["rowid"][-1])
            self._open -= set(rows["rowid"])
            self._open |= {n for n, late in zip(rows["rowid"], is_open, strict=True) if late}
            columns = {name: np.array(rows[name], dtype=np.float64) for name in _FLOATS}
            outcomes = np.array(rows["outcome"], dtype=object)
            rounds = np.where(is_open, 0, np.array(rows["round"]))  # 0 counts later
            for number in distinct(rounds[rounds > 0]).tolist():
                at = np.flatnonzero(rounds == number)
                of_round = {name: column[at] for name, column in columns.items()}
                for sums in (self.exchanges, by_round.setdefault(number, ExchangeSums())):
                    sums.add(outcomes[at].tolist(), of_round)
            self._note_times(rows, is_open)
        return by_round

    def _note_times(self, rows: dict[str, Any], is_open: Sequence[bool]) -> None:
        if not self.devices:
            return
        names = ("device", "outcome", "is_valid", "tau_s", "tau_hat_s")
        for name, outcome, is_valid, tau_s, tau_hat_s in zip(
            *(rows[name] for name in names), strict=True
        ):
            device = self.devices.get(name)
            if device is not None and tau_s is not None:
                device.tau_s, device.tau_hat_s = tau_s, tau_hat_s
                device.invalid += outcome == "done" and not is_valid

    def _read_rounds(self, by_round: dict[int, ExchangeSums]) -> list[ClosedRound]:
        rows = self.reader.rounds(self._cursor.round)
        if not rows:
            return []
        stats = dict(self.reader.columns(FleetStatsRow, ("round", "min_selection_rate")))
        closed = []
        for row in rows:
            self.rounds[row.status] += 1
            for name in SUMMED:
                self.sums[name] += getattr(row, name)
            min_rate = stats.get(row.round)
            if not stats and self.has_devices:
                self._count(row.round - 1, row.round)
                rates = [x.selected / x.rounds for x in self._counts.values() if x.rounds]
                min_rate = min(rates, default=None)
            closed.append(ClosedRound(row, by_round.get(row.round, ExchangeSums()), min_rate))
        if not stats and not self.has_devices:
            self._count(self._cursor.round, rows[-1].round)
        self.newest, self._cursor.round = rows[-1], rows[-1].round
        if self.devices:
            self._note_selection(rows[-1].round)
        return closed

    def _count(self, since: int, until: int) -> None:
        for new in self.reader.selection_counts(since, until):
            old = self._counts.get(new.device)
            self._counts[new.device] = (
                new
                if old is None
                else SelectionCounts(
                    new.device,
                    old.rounds + new.rounds,
                    old.available + new.available,
                    old.selected + new.selected,
                    old.aggregated + new.aggregated,
                )
            )

    def _note_selection(self, round_id: int) -> None:
        for name, counts in self._counts.items():
            if (device := self.devices.get(name)) is not None:
                device.selected, device.aggregated = counts.selected, counts.aggregated
        columns = ("device", "is_available", "queue")
        rows = self.reader.columns(SelectionRow, columns, "WHERE round = ?", (round_id,))
        for name, is_available, queue in rows:
            if (device := self.devices.get(name)) is not None:
                device.is_available, device.queue = bool(is_available), queue

    def _read_metrics(self) -> list[MetricRow]:
        rows = self.reader.metrics(self._cursor.metric)
        if rows:
            self.metric, self._cursor.metric = rows[-1], rows[-1].round
            columns = ("device", "accuracy", "loss")
            tail, values = "WHERE round = ?", (rows[-1].round,)
            found = self.reader.columns(DeviceMetricRow, columns, tail, values)
            for name, accuracy, loss in found if self.devices else ():
                if (device := self.devices.get(name)) is not None:
                    device.accuracy, device.loss = accuracy, loss
        return rows

    def _read_numbers(self) -> None:
        """Read the measures; those without a source of their own are known already."""
        facts = RunFacts(
            self.reader,
            info=self.info,
            newest=self.newest,
            metric=self.metric,
            fairness=self.fairness,
        )
        self.numbers = {m.key: m.of(facts) for m in run_measures() if m.prometheus}
        for measure in device_measures() if self.devices else ():
            if measure.prometheus and measure.is_own:
                for name, number in measure.of(facts).items():
                    if (device := self.devices.get(name)) is not None:
                        device.measures[measure.key] = number

    def _read_events(self) -> None:
        tail, values = "WHERE id > ? ORDER BY id", (self._cursor.event,)
        for number, level in self.reader.columns(EventRow, ("id", "level"), tail, values):
            self.events[level] += 1
            self._cursor.event = number

    def _read_contexts(self, now_s: float) -> None:
        """Read the newest context of each device, and count the states."""
        tail = "WHERE id IN (SELECT max(id) FROM telemetry WHERE id > ? GROUP BY device)"
        columns = ("id", "at_s", "device", "phase", "temperature_celsius", "rss_bytes")
        rows = self.reader.columns(TelemetryRow, columns, tail, (self._cursor.telemetry,))
        for number, at_s, name, phase, celsius, rss_bytes in rows:
            self._cursor.telemetry = max(self._cursor.telemetry, number)
            self._context_of[name] = (phase if phase in AGENT_STATES else UNKNOWN, at_s)
            if at_s > self._newest_context[0]:
                self._newest_context = (at_s, now_s)
            if (device := self.devices.get(name)) is not None:
                device.temperature_celsius, device.rss_bytes = celsius, rss_bytes
        newest_s, read_s = self._newest_context
        oldest_s = newest_s + (now_s - read_s) / self.info.row.dilation - SILENT_AFTER_S
        self.states = Counter(
            SILENT if at_s < oldest_s else state for state, at_s in self._context_of.values()
        )


def unix_s(text: str) -> float | None:
    """Return the Unix time of an instant in ISO 8601; None for another text of a foreign run."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
