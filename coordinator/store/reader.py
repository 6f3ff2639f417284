"""Reads a live or finished run beside its writer, in short transactions.

`since` arguments are exclusive and make reading incremental: a caller keeps the highest round
or id that it has read. When `RunRow.resumes` grows, rows of open rounds became void, and a caller
reads everything again.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from shlex import quote
from statistics import median
from types import TracebackType
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.state.alerts import ALERT_KINDS, Divergence, divergence
from fairbed.coordinator.store.connection import (
    CONFIG,
    DATABASE,
    closed_on_error,
    complete_abandoned,
    is_locked,
    open_readonly,
    transaction,
    translated,
)
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.model_files import load_model
from fairbed.coordinator.store.schema import check_format, table_of
from fairbed.coordinator.store.tables import (
    AlertRow,
    CheckpointRow,
    ClientMetricRow,
    CommandRow,
    ConditionRow,
    DeviceLogRow,
    DeviceMetricRow,
    DeviceRow,
    EarlierRow,
    EventRow,
    ExchangeRow,
    FleetContextRow,
    FleetStatsRow,
    LossQueryRow,
    MetricRow,
    PersonalScoreRow,
    Record,
    RoundRow,
    RunRow,
    SelectionRow,
    TelemetryRow,
    TruthRow,
)
from fairbed.wire.messages import DEVICE_PHASES
from fairbed.wire.printable import printable_values
from fairbed.wire.text import toml_of

GUARANTEEING = ("rbcs-f", "rbcs-f-known")
"""Policies that guarantee a selection rate."""


class PlannedSelection(Struct, frozen=True, kw_only=True):
    """The part of `[selection]` that is shown; None where the file does not set it."""

    policy: str | None = None
    per_round: int | None = None
    beta: float | None = None
    queue_counts: str = "selected"
    estimator: str | None = None
    ridge_lambda: float | None = None
    discount: float | None = None
    alpha: float | str | None = None
    cold_start_coding: str | None = None


class PlannedAggregation(Struct, frozen=True, kw_only=True):
    """The part of `[aggregation]` that is shown."""

    by: str = "rule"
    rule: str | None = None
    weights: str | None = None
    defence: str = "none"
    pseudo_gradient: str = "average"
    server: str = "plain"
    step: str = "as-published"
    M: float = 3.0
    """Upper bound of losses, nats, from which utilities are counted."""

    @property
    def steps(self) -> str:
        """Rule, and the other steps that are not FedAvg's, as in `aaggff-d, fednova, adam`."""
        if self.by == "app":
            return "app"
        steps = (self.rule, self.defence, self.pseudo_gradient, self.server, self.step)
        usual = (None, "none", "average", "plain", "as-published")
        return ", ".join(step for step in steps if step not in usual)


class PlannedModel(Struct, frozen=True, kw_only=True):
    """The part of `[model]` that is shown."""

    batch_norm: str = "merged"
    personal: tuple[str, ...] = ()


class PlannedTraining(Struct, frozen=True, kw_only=True):
    """The part of `[training]` that is shown."""

    rule: str = "sgd"
    client: str | None = None
    optimiser: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    optimiser_state: str = "reset"
    weight_decay: float = 0.0
    schedule: str = "step"
    schedule_by: str = "round"
    learning_rate_decay: float = 1.0
    warm_up: int = 0
    personal_epochs: int = 0

    @property
    def descent(self) -> str:
        """How a local step differs from that of plain SGD with one rate; empty if it does not."""
        parts = []
        if self.optimiser != "sgd":
            parts.append(self.optimiser)
        elif self.momentum:
            nesterov = "Nesterov's " if self.nesterov else ""
            parts.append(f"sgd with {nesterov}momentum {self.momentum:g}")
        if self.optimiser_state == "kept":
            parts.append("state kept between rounds")
        if self.weight_decay:
            parts.append(f"weight decay {self.weight_decay:g}")
        if self.schedule != "step" or self.learning_rate_decay != 1.0 or self.warm_up:
            warm = f" after a warm-up of {self.warm_up}" if self.warm_up else ""
            parts.append(f"{self.schedule} schedule by {self.schedule_by}{warm}")
        return ", ".join(parts)


class PlannedPrivacy(Struct, frozen=True, kw_only=True):
    """`[privacy]`."""

    clip: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    scores: bool = False


class PlannedPersonalisation(Struct, frozen=True, kw_only=True):
    """The part of `[personalisation]` that is shown."""

    method: str = "none"


class PlannedAttack(Struct, frozen=True, kw_only=True):
    """The part of a `[fleet.malicious]` that is shown."""

    kind: str = ""


class PlannedFleet(Struct, frozen=True, kw_only=True):
    """The part of a `[[fleet]]` that is shown."""

    physical: tuple[str, ...] = ()
    malicious: PlannedAttack | None = None


class PlannedReplay(Struct, frozen=True, kw_only=True):
    """The part of `[replay]` that is shown."""

    costs_from: str | None = None
    training: bool | None = None


class PlannedBroker(Struct, frozen=True, kw_only=True):
    """The part of `[broker]` that is shown."""

    url: str = "embedded"


class PlannedData(Struct, frozen=True, kw_only=True):
    """The part of `[data]` that is shown."""

    evaluated: str = "test"


class PlannedEvaluation(Struct, frozen=True, kw_only=True):
    """`[evaluation]`."""

    worst: str = "accuracy"


class ExperimentExcerpt(Struct, frozen=True, kw_only=True):
    """The part of an experiment that is shown beside its results."""

    rounds: int | None = None
    selection: PlannedSelection = PlannedSelection()
    model: PlannedModel = PlannedModel()
    training: PlannedTraining = PlannedTraining()
    aggregation: PlannedAggregation = PlannedAggregation()
    privacy: PlannedPrivacy = PlannedPrivacy()
    personalisation: PlannedPersonalisation = PlannedPersonalisation()
    replay: PlannedReplay = PlannedReplay()
    broker: PlannedBroker = PlannedBroker()
    data: PlannedData = PlannedData()
    evaluation: PlannedEvaluation = PlannedEvaluation()
    fleet: tuple[PlannedFleet, ...] = ()

    @property
    def steps(self) -> str:
        """Local rule and steps of the aggregation, as in `scaffold:Scaffold, fedavg, adam`."""
        local = self.training.client or ("" if self.training.rule == "sgd" else self.training.rule)
        return ", ".join(filter(None, (local, self.aggregation.steps)))

    @property
    def can_be_replayed(self) -> bool:
        """Whether the run can be replayed; one with a client, or with an app, cannot."""
        return self.training.client is None

    @property
    def beta(self) -> float | None:
        """Guaranteed selection rate; None when the policy guarantees none."""
        return self.selection.beta if self.selection.policy in GUARANTEEING else None


def read_settings(experiment_toml: str) -> dict[str, Any]:
    """Return the keys of an experiment's file, whose texts are printable lines.

    A damaged file has none, so that its results can still be read.
    """
    try:
        settings: dict[str, Any] = printable_values(toml_of(experiment_toml))
    except ValueError:
        return {}
    return settings


def read_excerpt(experiment_toml: str) -> ExperimentExcerpt:
    """Return the excerpt; empty for a damaged file."""
    try:
        return convert(read_settings(experiment_toml), ExperimentExcerpt)
    except ValidationError:
        return ExperimentExcerpt()


def profile_of(device: DeviceRow, truth: TruthRow | None) -> str:
    """Return the emulated profile, or else the board that the device reported."""
    if truth is not None:
        return truth.profile
    try:
        capabilities = json.loads(device.capabilities)
        return str(capabilities.get("model") or capabilities.get("machine") or "")
    except (ValueError, AttributeError):
        return ""


R = TypeVar("R", bound=Record)

STRAGGLER_ROUNDS = 1_000
"""Rounds in which an exchange that was open at a round's end is looked for."""

_DEVICE_S = """
SELECT
    (SELECT ifnull(sum(busy_s), 0) FROM exchange WHERE round > ?1 AND round <= ?2)
    + (SELECT ifnull(sum(busy_s), 0) FROM exchange
        WHERE round > ?1 - ?3 AND round <= ?1 AND dispatched_at_s + queued_s + busy_s
            > 1e-6 + (SELECT closed_at_s FROM round WHERE round = ?1))
    + (SELECT ifnull(sum(ifnull(
            loss_query.duration_s, CASE outcome WHEN 'late' THEN loss_query_s ELSE 0 END)), 0)
        FROM loss_query JOIN round USING (round) WHERE round > ?1 AND round <= ?2)
"""
"""Exchanges of new rounds, those of earlier rounds that ended later, and loss queries."""

_COUNTS = """
SELECT device, count(*), sum(is_available), sum(is_selected), sum(is_aggregated)
FROM selection WHERE round > ?1 AND round <= ?2 GROUP BY device
"""
_SPARSE_COUNTS = """
SELECT device.name, (SELECT count(*) FROM round WHERE round > ?1 AND round <= ?2),
    ifnull(sum(is_available), 0), ifnull(sum(is_selected), 0), ifnull(sum(is_aggregated), 0)
FROM device LEFT JOIN selection ON selection.device = device.name
    AND selection.round > ?1 AND selection.round <= ?2
GROUP BY device.name
"""
"""For stores with selection rows of the cohort only: every device counts in every round."""

_MERGED = """(
    SELECT {columns} FROM exchange
        WHERE round > ?1 AND round <= ?2 AND ifnull(aggregated_round, round) <= ?2
    UNION ALL
    SELECT {columns} FROM exchange
        WHERE aggregated_round > round
        AND aggregated_round > ?1 AND aggregated_round <= ?2 AND round <= ?1
)"""
"""Exchanges of some rounds; one that was merged late is of the round of its merge. The second part
needs the index `exchange_late`."""

_MEASURED = """
SELECT name, (
    SELECT tau_s FROM exchange
    WHERE device = name AND rowid <= ?3 AND round <= ?1 AND tau_s IS NOT NULL
        AND dispatched_at_s + tau_wall_s <= ?2
    ORDER BY rowid DESC LIMIT 1)
FROM device
"""
"""The subquery walks back through the exchanges of one device, in the index."""

CONNECTION = "connection"
"""Kind of the alert of a replica that gets no rows; a run itself has none of this kind."""

NEWEST = 2**62
"""A round after every other."""

_IS_TIMED = "(outcome = 'done' AND is_valid AND ifnull(tau_s, 0) > 0)"
"""The exchange is done, with a time that is valid."""

MAX_SUMMED = 200_000
"""Exchanges that are summed for a list of runs."""

ROUNDING_S = 1e-6
"""Sums of the phases of an exchange may exceed the instant of its round's end by this."""

KEPT_EXCHANGES = """
    round <= ?1 AND (ifnull(aggregated_round, 0) > ?1 OR rowid IN
        (SELECT max(rowid) FROM exchange WHERE tau_s IS NOT NULL GROUP BY device))
"""
"""Exchanges up to a round that a replica has although it has totals of those rounds: the newest of
each device, and those that were aggregated later. Totals leave them out."""

_TOTALS = f"""
SELECT device, sum(rounds), sum(available), sum(selected), sum(aggregated), sum(done),
    sum(invalid), sum(contended), sum(device_s), sum(energy_j), sum(weight_share), sum(n_share),
    sum(released)
FROM (
    SELECT device, count(*) AS rounds, sum(is_available) AS available,
        sum(is_selected) AS selected, sum(is_aggregated) AS aggregated, 0 AS done, 0 AS invalid,
        0 AS contended, 0.0 AS device_s, NULL AS energy_j, 0.0 AS weight_share, 0.0 AS n_share,
        0 AS released
    FROM selection WHERE round <= ?1 GROUP BY device
    UNION ALL SELECT device, 0, 0, 0, 0, sum(outcome = 'done'),
        sum(outcome = 'done' AND NOT is_valid), sum(outcome = 'done' AND is_contended),
        ifnull(sum(busy_s), 0),
        sum(CASE WHEN outcome = 'done' OR busy_s IS NOT NULL THEN energy_j END),
        ifnull(sum(weight_share), 0), ifnull(sum(n_share), 0), 0
    FROM exchange
    WHERE round <= ?1 AND rowid NOT IN (SELECT rowid FROM exchange WHERE {KEPT_EXCHANGES})
    GROUP BY device
    UNION ALL SELECT device, 0, 0, 0, 0, 0, 0, 0, ifnull(sum(ifnull(
        loss_query.duration_s, CASE outcome WHEN 'late' THEN loss_query_s ELSE 0 END)), 0),
        NULL, 0, 0, 0
    FROM loss_query JOIN round USING (round) WHERE round <= ?1 GROUP BY device
    UNION ALL SELECT device, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, sum(is_released)
    FROM release WHERE round <= ?1 GROUP BY device
    %s
) GROUP BY device ORDER BY device
"""

_CONTEXT_MEANS = """
WITH contexts AS (SELECT * FROM telemetry WHERE device = ?1 AND at_s <= ?2),
    ends AS (SELECT min(at_s) AS first_s, max(at_s) AS last_s FROM contexts)
SELECT avg(at_s), avg(mu_cores), avg(clock_ratio), avg(temperature_celsius), avg(downlink_bps),
    avg(uplink_bps)
FROM contexts, ends
GROUP BY CAST((at_s - first_s) * ?3 / max(last_s - first_s, 1e-3) AS INTEGER)
ORDER BY 1
"""

LIVE = frozenset({"created", "running", "paused"})
"""Statuses that require a live process."""


_IS_EMPTY = "status = 'void' AND selected = 0 AND loss_query_s = 0.0"
"""`RoundRow.is_empty` in SQL."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Status and progress of a run."""

    folder: Path
    row: RunRow
    plan: ExperimentExcerpt
    status: str
    """As recorded, or `interrupted` for a live status without a live process."""
    is_alive: bool
    """A process owns the run."""
    rounds_completed: int
    """Closed rounds, void ones included."""
    rounds_empty: int
    """Those of them that do not count towards `rounds` of the experiment."""
    devices: int
    elapsed_s: float
    """Run clock at the last closed round or event."""
    accuracy_mean: float | None
    """Latest; None before the first evaluation, and for regression."""
    rmse_mean: float | None = None
    """Latest root mean squared error, mean over devices; only for regression."""
    has_fleet: bool = True
    """The run has or names devices of its own, or has no devices yet."""
    alerts: tuple[AlertRow, ...] = ()
    """Those that stand, the most important first; none if the run is not live."""

    is_replica: bool = False
    """The run is on another machine."""
    oldest_round: int = 1
    """First round with all rows; in a replica earlier ones may have totals only."""

    @property
    def waiting(self) -> str:
        """Devices that the live run waits for, in a few words; empty while it goes on."""
        return self.row.waiting if self.is_alive and self.status != "paused" else ""

    @property
    def shown_status(self) -> str:
        """The status, or what the live run waits for."""
        return f"waiting for {self.waiting}" if self.waiting else self.status

    @property
    def last_round(self) -> int | None:
        """Number of the last round, if no further one is empty; None if it is not planned."""
        return self.plan.rounds and self.plan.rounds + self.rounds_empty

    @property
    def quality(self) -> float | None:
        """Latest accuracy, or for regression the error, mean over devices."""
        return self.rmse_mean if self.row.task == "regression" else self.accuracy_mean

    @property
    def enrol_command(self) -> str:
        """Command that prints what starts another device; empty if all devices are emulated."""
        fleet = self.plan.fleet
        if fleet and not any(part.physical for part in fleet):
            return ""
        of_run = "" if self.plan.broker.url == "lab" else f" --run {quote(str(self.folder))}"
        return f"fairbed enroll NAME{of_run}"

    @property
    def resume_command(self) -> str:
        """Command that continues the run; empty for a live or done one, or on another machine."""
        if self.is_alive or self.is_replica or self.status == "done":
            return ""
        if self.row.clock == "virtual":
            return f"fairbed replay {quote(str(self.folder))}"
        return f"fairbed {'run' if self.has_fleet else 'coordinator'} {quote(str(self.folder))}"

    @property
    def run_id(self) -> str:
        """Name of the run, unique in its root."""
        return self.row.run_id


@dataclass(frozen=True, slots=True)
class SelectionCounts:
    """How often a device was available, selected and aggregated over some rounds."""

    device: str
    rounds: int = 0
    """Rounds since it joined."""
    available: int = 0
    """In a large replay only a lower bound: how often it was selected."""
    selected: int = 0
    aggregated: int = 0

    def __add__(self, earlier: EarlierRow) -> "SelectionCounts":
        """Return the counts, those of earlier rounds included."""
        return SelectionCounts(
            self.device,
            self.rounds + earlier.rounds,
            self.available + earlier.available,
            self.selected + earlier.selected,
            self.aggregated + earlier.aggregated,
        )


@dataclass(frozen=True, slots=True)
class ContextMeans:
    """Means of the contexts of a device over a span of time; None where none was reported."""

    at_s: float
    mu_cores: float
    clock_ratio: float | None
    temperature_celsius: float | None
    downlink_bps: float | None
    uplink_bps: float | None


TIMED_PHASES = (*DEVICE_PHASES, "upload")
"""The phases of an exchange time."""


@dataclass(frozen=True, slots=True)
class KnownEnergy:
    """Energy of the exchanges of a run whose power is known."""

    total_j: float
    known: int
    """These exchanges."""
    exchanges: int
    """All of the run."""


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Exchange times of one device."""

    device: str
    tau_s: float | None
    """Median of its timed exchanges; None without one."""
    timed: int
    """Exchanges that are done, with a valid time."""
    exchanges: int
    """All its exchanges."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Counts of done exchanges over some rounds, and of invalid ones among them."""

    done: int = 0
    invalid: int = 0
    """Done, but the estimator must not learn from them."""
    contended: int = 0
    """Invalid because of contention on the host."""

    def __add__(self, other: "Quality") -> "Quality":
        """Return the counts of both."""
        return Quality(
            self.done + other.done, self.invalid + other.invalid, self.contended + other.contended
        )

    def __sub__(self, other: "Quality") -> "Quality":
        """Return the counts without those of a part of the rounds."""
        return Quality(
            self.done - other.done, self.invalid - other.invalid, self.contended - other.contended
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of rows of the large tables."""

    rounds: int
    exchanges: int
    devices: int
    events: int
    telemetry: int


class RunReader:
    """Reads one run; thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Open the run in `folder`.

        Raises:
            RunNotFoundError: The folder holds no run.
            StoreVersionError: The store has another version.
            StoreError: The store is damaged or unreadable.
        """
        self.folder = folder
        self._path = folder / DATABASE
        self._lock = threading.RLock()
        self._connection = open_readonly(self._path)
        with closed_on_error(self._connection), translated(self._path):
            check_format(str(self._path), self._connection)
        tables = "SELECT count(*) FROM sqlite_master WHERE name = 'earlier'"
        self.is_replica = bool(self._number(tables))
        """A replica of a run on another machine: early rounds may have totals only."""
        self.experiment_toml = _read_config(folder)
        self.plan = read_excerpt(self.experiment_toml)

    def __enter__(self) -> "RunReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and complete it if no process owns the run and no other reader it."""
        with self._lock:
            self._connection.close()
        complete_abandoned(self._path)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Give all reads inside the same state; keep it short, it delays WAL checkpoints.

        A snapshot inside another one has the state of that one.
        """
        with self._lock, translated(self._path):
            if self._connection.in_transaction:
                yield
                return
            with transaction(self._connection, "DEFERRED"):
                yield

    def data_version(self) -> int:
        """Return a number that changes when the writer has committed."""
        return int(self._query("PRAGMA data_version")[0][0])

    def is_alive(self) -> bool:
        """Return whether a live process owns the run."""
        return is_locked(self.folder)

    def run(self) -> RunInfo:
        """Return status and progress of the run."""
        is_alive = self.is_alive()  # before the status: a run may end in between
        row = self._select(RunRow)[0]
        status = row.status if is_alive or row.status not in LIVE else "interrupted"
        sql = "SELECT accuracy_mean, rmse_mean FROM metric ORDER BY round DESC LIMIT 1"
        accuracy, rmse = (*self._query(sql), (None, None))[0]
        devices = self._number("SELECT count(*) FROM device")
        last_event = "SELECT at_s FROM event ORDER BY id DESC LIMIT 1"
        return RunInfo(
            folder=self.folder,
            row=row,
            plan=self.plan,
            status=status,
            is_alive=is_alive,
            rounds_completed=self._number(
                f"SELECT {'max(round)' if self.is_replica else 'count(*)'} FROM round"
            ),
            rounds_empty=self._number("SELECT max(rounds_empty) FROM round"),
            devices=int(devices),
            has_fleet=not devices
            or any(part.physical for part in self.plan.fleet)
            or bool(self._number("SELECT count(*) FROM truth")),
            elapsed_s=max(
                self._number("SELECT max(closed_at_s) FROM round"),
                self._number(f"SELECT max(at_s) FROM ({last_event})"),
            ),
            accuracy_mean=accuracy,
            rmse_mean=rmse,
            alerts=tuple(
                row for row in self.standing_alerts() if is_alive or row.kind == CONNECTION
            ),
            is_replica=self.is_replica,
            oldest_round=self._oldest_round() if self.is_replica else 1,
        )

    def _oldest_round(self) -> int:
        return (
            self._number(
                "SELECT min(round) FROM selection WHERE 1 <= (SELECT count(*) FROM earlier)"
            )
            or 1
        )

    def devices(self) -> list[DeviceRow]:
        """Return all devices that ever joined, in row order."""
        return self._select(DeviceRow, 'ORDER BY "row"')

    def malicious(self) -> dict[str, str]:
        """Return the kind of malicious behaviour of each malicious device, by name."""
        found = self.columns(TruthRow, ("name", "malicious"), "WHERE malicious IS NOT NULL")
        return dict(found)

    def truths(self) -> list[TruthRow]:
        """Return the configuration of each device by the testbed, sorted by name."""
        return self._select(TruthRow, "ORDER BY name")

    def truth_of(self, device: str) -> TruthRow | None:
        """Return the configuration of a device by the testbed; None if there is none."""
        found = self._select(TruthRow, "WHERE name = ?", (device,))
        return found[0] if found else None

    def rounds(self, since: int = 0, until_round: int | None = None) -> list[RoundRow]:
        """Return the closed rounds after round `since`, up to `until_round`."""
        tail = "WHERE round > ? AND round <= ? ORDER BY round"
        return self._select(RoundRow, tail, (since, _until(until_round)))

    def newest_round(self, until_s: float = inf) -> int:
        """Return the last round closed until an instant of the run clock; 0 before the first."""
        sql = "SELECT max(round) FROM round WHERE closed_at_s <= ?"
        return int(self._number(sql, until_s))

    def exchange_counts(self, since: int, until_round: int) -> list[int]:
        """Return the number of exchanges of each closed round after `since`, in order."""
        counted = (
            "SELECT (SELECT count(*) FROM exchange AS x "
            "WHERE x.round = closed.round AND x.attempt = closed.attempt) "
            "FROM round AS closed WHERE round > ? AND round <= ? ORDER BY round"
        )
        return [count for (count,) in self._query(counted, (since, until_round))]

    def straggler_counts(self, until_round: int) -> tuple[int, int, int]:
        """Return the numbers of late updates, dropped and cancelled exchanges up to a round."""
        columns = ("aggregated_late", "dropped_late", "cancelled")
        sums = ", ".join(f"ifnull(sum({column}), 0)" for column in columns)
        row = self._query(f"SELECT {sums} FROM round WHERE round <= ?", (until_round,))[0]
        return row[0], row[1], row[2]

    def closings_s(self, until_round: int, limit: int) -> tuple[float, ...]:
        """Return the ends of the newest rounds up to one that were not empty, oldest first."""
        tail = f"WHERE round <= ? AND NOT ({_IS_EMPTY}) ORDER BY round DESC LIMIT ?"
        rows = self.columns(RoundRow, ("closed_at_s",), tail, (until_round, limit))
        return tuple(instant for (instant,) in reversed(rows))

    def largest_cohort(self) -> int:
        """Return the largest number of devices that were selected for a round."""
        return int(self._number("SELECT max(selected) FROM round"))

    def exchanges(self, since_round: int = 0, until_round: int | None = None) -> list[ExchangeRow]:
        """Return the exchanges of rounds after `since_round`, by round and dispatch."""
        tail = "WHERE round > ? AND round <= ? ORDER BY round, attempt, dispatched_at_s, device"
        return self._select(ExchangeRow, tail, (since_round, _until(until_round)))

    def exchanges_of(
        self, device: str, limit: int = 200, until_round: int | None = None
    ) -> list[ExchangeRow]:
        """Return the newest `limit` exchanges of a device up to `until_round`, oldest first."""
        tail = "WHERE device = ? AND round <= ? ORDER BY round DESC, attempt DESC LIMIT ?"
        return self._select(ExchangeRow, tail, (device, _until(until_round), limit))[::-1]

    def closing_times(
        self, until_round: int | None = None, limit: int = 5_000
    ) -> list[tuple[int, float]]:
        """Return numbers and ends of the newest `limit` rounds up to `until_round`, in order."""
        tail = "WHERE round <= ? ORDER BY round DESC LIMIT ?"
        values = (_until(until_round), limit)
        return self.columns(RoundRow, ("round", "closed_at_s"), tail, values)[::-1]

    def measured_times(self, until_round: int | None = None) -> dict[str, float]:
        """Return the newest measured exchange time of each device, seconds.

        With `until_round`, exchanges of later rounds do not count, nor those that ended after it.
        """
        newest, until_s = NEWEST, inf
        if until_round is not None:
            newest = self._number("SELECT max(rowid) FROM exchange WHERE round <= ?", until_round)
            until_s = self._closed_at_s(until_round) + ROUNDING_S
        rows = self._query(_MEASURED, (_until(until_round), until_s, newest))
        return {device: tau_s for device, tau_s in rows if tau_s is not None}

    def columns(
        self, record: type[Record], names: Sequence[str], tail: str = "", values: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return some columns of a table, NULL as None; much faster than records for many rows."""
        listed = ", ".join(f'"{name}"' for name in names)
        return self._query(f"SELECT {listed} FROM {table_of(record).name} {tail}", values)

    def chunks(
        self,
        record: type[Record],
        names: Sequence[str],
        tail: str,
        values: Sequence[Any],
        size: int,
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield what `columns` returns in lists of at most `size` rows, all of one state."""
        listed = ", ".join(f'"{name}"' for name in names)
        sql = f"SELECT {listed} FROM {table_of(record).name} {tail}"
        with self._lock, translated(self._path):
            cursor = self._connection.execute(sql, values)
        with closing(cursor):
            while rows := self._next(cursor, size):
                yield rows

    def row_count(self, record: type[Record]) -> int:
        """Return the number of rows of a table."""
        return int(self._number(f"SELECT count(*) FROM {table_of(record).name}"))

    def backup(
        self, target: sqlite3.Connection, pages: int, progress: Callable[[int, int, int], object]
    ) -> None:
        """Copy the database into `target`, of one state if it is called inside `snapshot`.

        Args:
            target: An empty database.
            pages: Pages that are copied at once.
            progress: Called after them with the status of SQLite, the pages left and all pages.

        Raises:
            sqlite3.Error: The target cannot be written, or the run cannot be read.
        """
        with self._lock:
            self._connection.backup(target, pages=pages, progress=progress)

    def _next(self, cursor: sqlite3.Cursor, size: int) -> list[tuple[Any, ...]]:
        with self._lock, translated(self._path):
            return cursor.fetchmany(size)

    def latest_selections(self, until_round: int) -> list[SelectionRow]:
        """Return the newest selection row of each device up to a round, by device.

        They are those of the round itself, except in a large replay, which stores the cohort only.
        """
        if self.lists_all_selections:
            return self.selections(until_round)
        newest = (
            "SELECT (SELECT max(rowid) FROM selection WHERE device = name AND round <= ?) "
            "FROM device"
        )
        return self._select(SelectionRow, f"WHERE rowid IN ({newest})", (until_round,))

    def selections(self, round_id: int) -> list[SelectionRow]:
        """Return the selection rows of one round, by device."""
        return self._select(SelectionRow, "WHERE round = ? ORDER BY device", (round_id,))

    def fleet_contexts(self) -> list[FleetContextRow]:
        """Return the contexts of all devices at each selection, by round."""
        return self._select(FleetContextRow, "ORDER BY round")

    def loss_queries(self) -> list[LossQueryRow]:
        """Return the loss queries, by round and device."""
        return self._select(LossQueryRow, "ORDER BY round, device")

    def audits(self) -> set[tuple[int, str]]:
        """Return round and device of each audit selection."""
        return set(self.columns(SelectionRow, ("round", "device"), "WHERE is_audit"))

    def fleet_stats(self) -> FleetStatsRow | None:
        """Return the latest statistics of a fleet without a row per device; None for others."""
        rows = self._select(FleetStatsRow, "ORDER BY round DESC LIMIT 1")
        return rows[0] if rows else None

    def selection_counts(
        self, since_round: int = 0, until_round: int | None = None
    ) -> list[SelectionCounts]:
        """Return the counts of each device over the rounds after `since_round`."""
        sql = _COUNTS if self.lists_all_selections else _SPARSE_COUNTS
        rows = self._query(sql, (since_round, _until(until_round)))
        found = {row[0]: SelectionCounts(*row) for row in rows}
        for row in self._earlier(since_round):
            found[row.device] = found.get(row.device, SelectionCounts(row.device)) + row
        return list(found.values())

    def quality(self, since_round: int = 0, until_round: int | None = None) -> Quality:
        """Return the quality of the exchanges whose updates came after round `since_round`."""
        return sum(self.quality_by_device(since_round, until_round).values(), Quality())

    def quality_by_device(
        self, since_round: int = 0, until_round: int | None = None
    ) -> dict[str, Quality]:
        """Return what `quality` returns, for each device with a done exchange."""
        merged = _MERGED.format(columns="device, outcome, is_valid, is_contended")
        rows = self._query(
            "SELECT device, count(*), ifnull(sum(NOT is_valid), 0), ifnull(sum(is_contended), 0) "
            f"FROM {merged} WHERE outcome = 'done' GROUP BY device",
            (since_round, _until(until_round)),
        )
        found = {device: Quality(*counts) for device, *counts in rows}
        for row in self._earlier(since_round):
            if row.done:
                earlier = Quality(row.done, row.invalid, row.contended)
                found[row.device] = found.get(row.device, Quality()) + earlier
        return found

    def device_s(self, since_round: int, until_round: int) -> float:
        """Return the device-seconds of the rounds after `since_round`, up to `until_round`.

        They add up to `coordinator.report.device_time`. A device that ends its exchange more than
        `STRAGGLER_ROUNDS` rounds late does not count here.
        """
        rows = self._query(_DEVICE_S, (since_round, until_round, STRAGGLER_ROUNDS))
        return float(rows[0][0]) + sum(row.device_s for row in self._earlier(since_round))

    def energy_j(self, since_round: int, until_round: int) -> dict[str, float]:
        """Return the known energy of exchanges in rounds after `since_round`, joules, by device.

        Exchanges up to round `until_round` count, those that were merged late in the round of their
        merge. One that is abandoned in a later round than its own does not count here.
        """
        merged = _MERGED.format(columns="device, energy_j, outcome, busy_s")
        found: dict[str, float] = dict(
            self._query(
                f"SELECT device, sum(energy_j) FROM {merged} WHERE energy_j IS NOT NULL "
                "AND (outcome = 'done' OR busy_s IS NOT NULL) GROUP BY device",
                (since_round, until_round),
            )
        )
        for row in self._earlier(since_round):
            if row.energy_j is not None:
                found[row.device] = found.get(row.device, 0.0) + row.energy_j
        return found

    def totals(self, before: int) -> list[EarlierRow]:
        """Return the totals of each device up to round `before`, for replicas.

        They leave out the exchanges that a replica keeps (`KEPT_EXCHANGES`).
        """
        table = table_of(EarlierRow)
        earlier = f"UNION ALL SELECT {table.names} FROM earlier" if self.is_replica else ""
        return [table.decode(row) for row in self._query(_TOTALS % earlier, (before,))]

    def _earlier(self, since_round: int = 0) -> list[EarlierRow]:
        """Return the totals of rounds without rows; none if only later rounds are asked for."""
        return self._select(EarlierRow) if self.is_replica and not since_round else []

    def merged_weights(self, until_round: int) -> dict[str, tuple[float, float]]:
        """Return the sums of weights and of shares of examples, by device.

        Both are shares of a merge; those of the merges up to round `until_round` count.
        """
        rows = self._query(
            "SELECT device, sum(weight_share), sum(n_share) FROM exchange "
            "WHERE weight_share IS NOT NULL AND n_share IS NOT NULL "
            "AND ifnull(aggregated_round, round) <= ? GROUP BY device",
            (until_round,),
        )
        found = {device: (weight, share) for device, weight, share in rows}
        for row in self._earlier():
            if row.weight_share:
                weight, share = found.get(row.device, (0.0, 0.0))
                found[row.device] = (weight + row.weight_share, share + row.n_share)
        return found

    def known_energy(self) -> KnownEnergy | None:
        """Return the known energy of all exchanges.

        None if it is unknown, or of more than `MAX_SUMMED` exchanges, which would take long.
        """
        if self._number("SELECT max(rowid) FROM exchange") > MAX_SUMMED:
            return None
        known = "energy_j IS NOT NULL AND (outcome = 'done' OR busy_s IS NOT NULL)"
        joules, exchanges = self._query(
            f"SELECT sum(energy_j), count(*) FROM exchange WHERE {known}"
        )[0]
        every = self._number("SELECT count(*) FROM exchange")
        return None if joules is None else KnownEnergy(joules, exchanges, int(every))

    def releases(self, until_round: int | None = None) -> dict[str, int]:
        """Return how many updates with local noise may have left each device that was selected."""
        sql = "SELECT device, sum(is_released) FROM release WHERE round <= ? GROUP BY device"
        found = {device: int(n) for device, n in self._query(sql, (_until(until_round),))}
        for row in self._earlier():
            if row.released:
                found[row.device] = found.get(row.device, 0) + row.released
        return found

    def metrics(self, since: int = 0) -> list[MetricRow]:
        """Return the evaluations after round `since`."""
        return self._select(MetricRow, "WHERE round > ? ORDER BY round", (since,))

    def newest_metric(self) -> MetricRow | None:
        """Return the latest evaluation; None before the first."""
        rows = self._select(MetricRow, "ORDER BY round DESC LIMIT 1")
        return rows[0] if rows else None

    def device_times(self) -> list[DeviceTimes]:
        """Return the exchange times of all devices that had an exchange, by name."""
        rows = self._query(
            "SELECT device, tau_s, timed, exchanges FROM (SELECT device, sum(is_timed) AS timed, "
            f"count(*) AS exchanges FROM (SELECT device, {_IS_TIMED} AS is_timed FROM exchange) "
            "GROUP BY device) LEFT JOIN (SELECT device, avg(tau_s) AS tau_s FROM (SELECT device, "
            "tau_s, row_number() OVER (PARTITION BY device ORDER BY tau_s) AS place, "
            f"count(*) OVER (PARTITION BY device) AS n FROM exchange WHERE {_IS_TIMED}) "
            "WHERE place IN ((n + 1) / 2, (n + 2) / 2) GROUP BY device) USING (device) "
            "ORDER BY device"
        )
        return [DeviceTimes(*row) for row in rows]

    def phase_medians(self, device: str) -> dict[str, float]:
        """Return the median of each phase over the timed exchanges of a device, seconds."""
        columns = ", ".join(f"ifnull({phase}_s, 0)" for phase in TIMED_PHASES)
        rows = self._query(
            f"SELECT {columns} FROM exchange WHERE device = ? AND {_IS_TIMED}", (device,)
        )
        by_phase = zip(TIMED_PHASES, zip(*rows, strict=True), strict=True) if rows else ()
        return {phase: median(times) for phase, times in by_phase}

    def device_metrics(self, round_id: int | None = None) -> list[DeviceMetricRow]:
        """Return the evaluation of each device in a round; None for the latest."""
        if round_id is None:
            round_id = self._number("SELECT max(round) FROM device_metric")
        return self._select(DeviceMetricRow, "WHERE round = ? ORDER BY device", (round_id,))

    def scores_of(
        self, device: str, until_round: int | None = None, limit: int = 1_000
    ) -> list[tuple[int, float, float]]:
        """Return round, quality and loss of a device in the newest `limit` evaluations, in order.

        The quality is the accuracy, for regression the root mean squared error. Those of rounds up
        to `until_round`.
        """
        sql = (  # the order of the join makes it look up one row per evaluation
            "SELECT one.round, ifnull(one.accuracy, one.rmse), one.loss "
            "FROM metric CROSS JOIN device_metric AS one "
            "ON one.round = metric.round AND one.device = ? WHERE metric.round <= ? "
            "ORDER BY metric.round DESC LIMIT ?"
        )
        return self._query(sql, (device, _until(until_round), limit))[::-1]

    def test_bytes(self) -> int:
        """Return the bytes that devices with own data downloaded for tests after rounds."""
        found = self._number("SELECT ifnull(sum(bytes_down), 0) FROM device_metric")
        return int(found)

    def final_model(self) -> tuple[int, Vector] | None:
        """Return the newest stored model, shape (n_values,), and its round; None without one.

        Raises:
            StoreError: The file is missing or damaged.
        """
        found = self._newest_model()
        return None if found is None else (found[0], found[1][0])

    def model_at(self, round_id: int) -> Vector | None:
        """Return the stored model after a round, shape (n_values,); None if it is not stored.

        Raises:
            StoreError: The file is missing or damaged.
        """
        where = "WHERE round = ?"
        rows = self.columns(CheckpointRow, ("model_file", "model_sha256"), where, (round_id,))
        return load_model(self.folder, *rows[0])[0] if rows else None

    def stored_rounds(self) -> list[int]:
        """Return the rounds whose models are stored, ascending."""
        return [row[0] for row in self.columns(CheckpointRow, ("round",), "ORDER BY round")]

    def final_raw(self) -> bytes:
        """Return the raw part of the newest stored model, which only a client reads.

        No bytes without one. `wire.records` decodes it.

        Raises:
            StoreError: The file is missing or damaged.
        """
        found = self._newest_model()
        return b"" if found is None else found[1][1]

    def _newest_model(self) -> tuple[int, tuple[Vector, bytes]] | None:
        newest = "ORDER BY round DESC LIMIT 1"
        rows = self.columns(CheckpointRow, ("round", "model_file", "model_sha256"), newest)
        return (rows[0][0], load_model(self.folder, *rows[0][1:])) if rows else None

    def client_metric_names(self) -> list[tuple[str, str]]:
        """Return phases and names of the metrics of the client in the newest round with any."""
        sql = (
            "SELECT DISTINCT phase, name FROM client_metric "
            "WHERE round = (SELECT max(round) FROM client_metric) ORDER BY phase DESC, name"
        )
        return self._query(sql, ())

    def client_metrics(
        self, since: int = -1, until_round: int | None = None, device: str | None = None
    ) -> list[ClientMetricRow]:
        """Return the metrics of the client after round `since`, in the order of rounds.

        Args:
            since: Rounds up to this one are left out.
            until_round: Later rounds are left out; None: none.
            device: Of this device only; empty: of the strategy of an app; None: of all.
        """
        of_device = "" if device is None else "AND device = ? "
        tail = f"WHERE round > ? AND round <= ? {of_device}ORDER BY round, device, phase DESC, name"
        values = (since, _until(until_round), *(() if device is None else (device,)))
        return self._select(ClientMetricRow, tail, values)

    def latest_client_metrics(
        self, until_round: int | None = None, device: str | None = None
    ) -> list[ClientMetricRow]:
        """Return the newest value of each metric of the client: of all devices in its last round.

        With `device`, those of the last round in which this device reported the metric.
        """
        of_device = "" if device is None else "AND device = ?2 "
        last = (
            "SELECT phase, name, max(round) FROM client_metric WHERE round <= ?1 "
            f"{of_device}GROUP BY phase, name"
        )
        tail = (
            f"WHERE (phase, name, round) IN ({last}) {of_device}ORDER BY phase DESC, name, device"
        )
        values = (_until(until_round), *(() if device is None else (device,)))
        return self._select(ClientMetricRow, tail, values)

    def personal_scores(
        self, since: int = 0, until_round: int | None = None
    ) -> list[PersonalScoreRow]:
        """Return the latest score of each personal model that was trained after round `since`."""
        latest = (
            "SELECT device, max(round) FROM personal_score WHERE round > ? AND round <= ? "
            "GROUP BY device"
        )
        tail = f"WHERE (device, round) IN ({latest}) ORDER BY device"
        return self._select(PersonalScoreRow, tail, (since, _until(until_round)))

    def events(
        self, since_id: int = 0, limit: int = 500, until_s: float | None = None
    ) -> list[tuple[int, EventRow]]:
        """Return the newest `limit` events after `since_id` with their ids, oldest first.

        With `until_s`, later events on the run clock do not count.
        """
        newest = NEWEST if until_s is None else self._last_id("event", until_s)
        tail = "WHERE id > ? AND id <= ? ORDER BY id DESC LIMIT ?"
        return self._numbered(EventRow, tail, (since_id, newest, limit))[::-1]

    def events_between(
        self, since_id: int, until_id: int, limit: int, *, from_end: bool
    ) -> list[tuple[int, EventRow]]:
        """Return `limit` events after `since_id` up to `until_id` with their ids, oldest first.

        Args:
            since_id: Id of an earlier event.
            until_id: Id of the last event.
            limit: Most events.
            from_end: Return the last ones, not the first ones.
        """
        order = "DESC" if from_end else "ASC"
        tail = f"WHERE id > ? AND id <= ? ORDER BY id {order} LIMIT ?"
        rows = self._numbered(EventRow, tail, (since_id, until_id, limit))
        return rows[::-1] if from_end else rows

    def warnings(self) -> dict[str, tuple[int, str]]:
        """Return number and first text of the warnings and errors about no device, by kind."""
        found = self._query(
            "SELECT kind, count(*), text, min(id) FROM event "
            "WHERE level != 'info' AND device IS NULL GROUP BY kind ORDER BY kind"
        )
        return {str(kind): (int(count), str(text)) for kind, count, text, _ in found}

    def alerts(self, limit: int = 100) -> list[AlertRow]:
        """Return the newest `limit` alerts, oldest first."""
        return self._select(AlertRow, "ORDER BY begin_s DESC LIMIT ?", (limit,))[::-1]

    def divergence(self) -> Divergence | None:
        """Return how far the global model has diverged, by its evaluations; None if it has not."""
        task = str(self._query("SELECT task FROM run")[0][0])
        return divergence(task, self.columns(MetricRow, ("round", "loss_mean"), "ORDER BY round"))

    def standing_alerts(self, at_s: float | None = None) -> list[AlertRow]:
        """Return the alerts that have begun and are not over, the most important first.

        Args:
            at_s: Instant on the run's clock; None: the newest. A run that has ended keeps those
                with which it ended.
        """
        last_s = at_s if at_s is not None else float("inf")
        tail = "WHERE begin_s <= ?1 AND (end_s IS NULL OR end_s > ?1)"
        rows = self._select(AlertRow, tail, (last_s,))
        order: dict[str, int] = {kind: rank for rank, kind in enumerate(ALERT_KINDS)}
        return sorted(rows, key=lambda row: (order.get(row.kind, -1), row.begin_s))

    def conditions(self, device: str) -> list[ConditionRow]:
        """Return the configured conditions of a device, oldest first."""
        return self._select(ConditionRow, "WHERE device = ? ORDER BY id", (device,))

    def telemetry_latest(self, since_id: int = 0) -> list[tuple[int, TelemetryRow]]:
        """Return the latest context of each device that sent one after `since_id`, with ids."""
        tail = "WHERE id IN (SELECT max(id) FROM telemetry WHERE id > ? GROUP BY device)"
        return self._numbered(TelemetryRow, f"{tail} ORDER BY id", (since_id,))

    def telemetry_at(self, at_s: float) -> list[tuple[int, TelemetryRow]]:
        """Return the latest context of each device at an instant of the run clock, with ids.

        Only the newest contexts of a run are retained: earlier ones are unknown.
        """
        latest = (
            "SELECT (SELECT max(id) FROM telemetry WHERE device = name AND id <= ?) FROM device"
        )
        tail = f"WHERE id IN ({latest}) ORDER BY id"
        return self._numbered(TelemetryRow, tail, (self._last_id("telemetry", at_s),))

    def has_all_contexts(self) -> bool:
        """Return whether no context of the run has been deleted."""
        return bool(self._number("SELECT ifnull(min(id), 1) = 1 FROM telemetry"))

    def telemetry_of(self, device: str) -> list[TelemetryRow]:
        """Return all retained contexts of a device, oldest first."""
        return self._select(TelemetryRow, "WHERE device = ? ORDER BY id", (device,))

    def context_means(
        self, device: str, until_s: float = inf, points: int = 400
    ) -> list[ContextMeans]:
        """Return means of the retained contexts of a device, over at most about `points` spans."""
        rows = self._query(_CONTEXT_MEANS, (device, until_s, points))
        return [ContextMeans(*row) for row in rows]

    def events_of(
        self, device: str, since_id: int = 0, limit: int = 200
    ) -> list[tuple[int, EventRow]]:
        """Return the newest `limit` events of a device after `since_id` with ids, oldest first."""
        tail = "WHERE device = ? AND id > ? ORDER BY id DESC LIMIT ?"
        return self._numbered(EventRow, tail, (device, since_id, limit))[::-1]

    def problems_of(self, device: str, until_s: float = inf) -> tuple[int, EventRow | None]:
        """Return the number of warnings and errors about a device, and the newest one."""
        where = "WHERE device = ? AND level != 'info' AND at_s <= ?"
        newest = self._select(EventRow, f"{where} ORDER BY id DESC LIMIT 1", (device, until_s))
        count = self._number(f"SELECT count(*) FROM event {where}", device, until_s)
        return int(count), newest[0] if newest else None

    def event_count(self, kind: str) -> int:
        """Return the number of events of a kind."""
        return int(self._number("SELECT count(*) FROM event WHERE kind = ?", kind))

    def device_log(
        self, device: str, since_id: int = 0, limit: int = 200, until_s: float = inf
    ) -> list[tuple[int, DeviceLogRow]]:
        """Return the newest `limit` log lines of a device after `since_id` with ids, by arrival.

        Only those until an instant of the run clock.
        """
        tail = "WHERE device = ? AND id > ? AND at_s <= ? ORDER BY id DESC LIMIT ?"
        return self._numbered(DeviceLogRow, tail, (device, since_id, until_s, limit))[::-1]

    def commands(self, until_s: float = inf) -> list[CommandRow]:
        """Return the operator commands until an instant of the run clock, oldest first."""
        return self._select(CommandRow, "WHERE at_s <= ? ORDER BY at_s", (until_s,))

    def counts(self) -> Counts:
        """Return the number of rows of the large tables."""
        tables = ("round", "exchange", "device", "event", "telemetry")
        return Counts(*(self._number(f"SELECT count(*) FROM {table}") for table in tables))

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, translated(self._path):
            return self._connection.execute(sql, values).fetchall()

    def _number(self, sql: str, *values: Any) -> Any:
        return self._query(sql, values)[0][0] or 0

    @property
    def lists_all_selections(self) -> bool:
        """Whether each round has a selection row of every device that is in the fleet."""
        return bool(self._number("SELECT selection_rows = 'all' FROM run"))

    def _closed_at_s(self, round_id: int) -> float:
        return float(self._number("SELECT closed_at_s FROM round WHERE round = ?", round_id))

    def _last_id(self, table: str, until_s: float) -> int:
        """Return the id of the last row until an instant, by bisection; 0 without one.

        Rows are written in the order of their time, and ids have few gaps.
        """
        high = self._number(f"SELECT max(id) FROM {table}")
        low = self._number(f"SELECT min(id) FROM {table}") - 1 if high else 0
        while low < high:
            middle = (low + high + 1) // 2
            found = self._query(
                f"SELECT id, at_s FROM {table} WHERE id <= ? ORDER BY id DESC LIMIT 1", (middle,)
            )
            if found[0][1] <= until_s:
                low = middle
            else:
                high = found[0][0] - 1
        return int(low)

    def _select(self, record: type[R], tail: str = "", values: Sequence[Any] = ()) -> list[R]:
        table = table_of(record)
        return [table.decode(row) for row in self._query(table.select(tail), values)]

    def _numbered(self, record: type[R], tail: str, values: Sequence[Any]) -> list[tuple[int, R]]:
        table = table_of(record)
        sql = f"SELECT id, {table.names} FROM {table.name} {tail}"
        return [(row[0], table.decode(row[1:])) for row in self._query(sql, values)]


def _until(round_id: int | None) -> int:
    """Return the last round that counts; None means all."""
    return NEWEST if round_id is None else round_id


def _read_config(folder: Path) -> str:
    try:
        return (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "no text in UTF-8"
        raise StoreError(f"{folder / CONFIG}: must be readable, got: {why}") from exc
