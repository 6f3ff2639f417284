"""What measures are computed from: the facts of one run, read from its store when asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.fairness import jain, rate_slack
from fairbed.coordinator.algorithms.selection.feasibility import highest_rate
from fairbed.coordinator.policy.live_settings import accepted_changes, mean_beta
from fairbed.coordinator.records.rows import ENERGY_PHASES
from fairbed.coordinator.report.summary_schema import Fairness
from fairbed.coordinator.store.reader import (
    LIVE,
    ExperimentExcerpt,
    RunInfo,
    RunReader,
    SelectionCounts,
)
from fairbed.coordinator.store.tables import (
    DeviceMetricRow,
    ExchangeRow,
    FleetStatsRow,
    MetricRow,
    PersonalScoreRow,
    RoundRow,
    SelectionRow,
)

if TYPE_CHECKING:
    from fairbed.coordinator.report.served import ServedModels
    from fairbed.coordinator.report.summary_schema import RunSummary

EXACT = 1e-9
"""Tolerance of the fairness bound for rounding in a sum of T terms."""
MAX_ENTRIES = 50_000_000
"""Maximum of rounds x devices for which queues are computed from the selection history."""

TEXTS = ("device", "outcome", "codec_down", "codec_up")
BASE = ("device", "outcome", "is_valid", "tau_s")
"""Columns of the exchanges from which it follows which are timed."""
COLUMNS = (
    *BASE,
    "round",
    "is_contended",
    "unaccounted_s",
    "cell_wait_s",
    "tau_hat_s",
    "train_s",
    "steps",
    "personal_s",
    "encode_s",
    "decode_s",
    "coordinator_decode_s",
    "bytes_down",
    "bytes_up",
    "codec_down",
    "codec_up",
    "staleness",
    "aggregated_round",
    "weight_share",
    "n_share",
    "defence_scale",
    "energy_j",
    *(f"{phase}_j" for phase in ENERGY_PHASES),
)
"""Those that the summary has statistics of."""


class _Numbers(dict[str, Floats]):
    """Numeric columns of all exchanges; one that is asked for later is read then."""

    def __init__(self, reader: RunReader) -> None:
        super().__init__()
        self._reader = reader

    def __missing__(self, name: str) -> Floats:
        cells = self._reader.columns(ExchangeRow, (name,), "ORDER BY rowid")
        self[name] = np.array([cell for (cell,) in cells], dtype=np.float64)
        return self[name]


class ExchangeTable:
    """Columns of all exchanges as arrays; unknown numbers are NaN. Read it inside a snapshot.

    Args:
        reader: Reads the run.
        columns: Columns to read at once, `BASE` among them; other numbers are read when needed.
    """

    def __init__(self, reader: RunReader, columns: Sequence[str] = BASE) -> None:
        rows = reader.columns(ExchangeRow, columns, "ORDER BY rowid")
        cells = list(zip(*rows, strict=True)) or [()] * len(columns)
        by_name = dict(zip(columns, cells, strict=True))
        self.device, self.outcome, self.codec_down, self.codec_up = (
            np.array(by_name.get(name, ()), dtype=object) for name in TEXTS
        )
        self.numbers = _Numbers(reader)
        for name, values in by_name.items():
            if name not in TEXTS:
                self.numbers[name] = np.array(values, dtype=np.float64)
        self.tau_s = self.numbers["tau_s"]
        self.done = self.outcome == "done"
        self.valid = self.done & (self.numbers["is_valid"] == 1.0) & (self.tau_s > 0.0)

    @cached_property
    def timed_tau_s(self) -> Floats:
        """The times of timed exchanges, NaN of others, shape (M,)."""
        return self.timed("tau_s")

    @cached_property
    def timed_train_s(self) -> Floats:
        """The times of local training in timed exchanges, NaN in others, shape (M,)."""
        return self.timed("train_s")

    def by_device(self) -> dict[str, Ints]:
        """Return the positions of the exchanges of each device."""
        names, group = np.unique(self.device.astype(str), return_inverse=True)
        order = np.argsort(group, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(group, minlength=len(names)))[:-1])
        return dict(zip(names.tolist(), parts, strict=True)) if len(names) else {}

    def timed(self, name: str) -> Floats:
        """Return a column with NaN in exchanges that are not timed, shape (M,)."""
        return np.where(self.valid, self.numbers[name], np.nan)


@dataclass(frozen=True, slots=True)
class VirtualQueues:
    """Queues Z over all devices after each round, each of shape (T,)."""

    total: Floats
    largest: Floats


class RunFacts:
    """The facts of a run that measures need, of one state of its store; each is read once.

    Use it inside a snapshot of the reader.

    Args:
        reader: Reads the run.
        summary: The summary, where there is one.
        columns: Columns of the exchanges to read at once.
        known: Facts that need not be read, by name.
    """

    def __init__(
        self,
        reader: RunReader,
        summary: "RunSummary | None" = None,
        columns: Sequence[str] = BASE,
        **known: Any,
    ) -> None:
        self.reader, self.summary, self._columns = reader, summary, columns
        vars(self).update(known)

    @cached_property
    def info(self) -> RunInfo:
        """The run."""
        return self.reader.run()

    @cached_property
    def rounds(self) -> list[RoundRow]:
        """All closed rounds."""
        return self.reader.rounds()

    @cached_property
    def newest(self) -> RoundRow | None:
        """The newest closed round; None before the first."""
        newest = self.reader.newest_round()
        return next(iter(self.reader.rounds(newest - 1, newest)), None) if newest else None

    @cached_property
    def metric(self) -> MetricRow | None:
        """The newest evaluation; None before the first."""
        return self.reader.newest_metric()

    @cached_property
    def device_metrics(self) -> dict[str, DeviceMetricRow]:
        """The newest evaluation of each device."""
        return {row.device: row for row in self.reader.device_metrics()}

    @cached_property
    def personal_scores(self) -> dict[str, PersonalScoreRow]:
        """The latest score of the personal model of each device that has one."""
        return {row.device: row for row in self.reader.personal_scores()}

    @cached_property
    def malicious(self) -> dict[str, str]:
        """The kind of each malicious device, by name; of a live run, which hides it, none."""
        return {} if self.info.status in LIVE else self.reader.malicious()

    @cached_property
    def served(self) -> "ServedModels":
        """The scores of the model that each device serves."""
        from fairbed.coordinator.report.served import served_models

        return served_models(self)

    @cached_property
    def counts(self) -> dict[str, SelectionCounts]:
        """How often each device was selected."""
        return {count.device: count for count in self.reader.selection_counts()}

    @cached_property
    def fairness(self) -> Fairness:
        """The fairness of the selection."""
        return fairness_of(self.reader, self.counts)

    @cached_property
    def exchanges(self) -> ExchangeTable:
        """All exchanges that have ended."""
        return ExchangeTable(self.reader, self._columns)

    @cached_property
    def queues(self) -> VirtualQueues | None:
        """The queues of the policy; those of the selection history if it has none.

        So all policies can be compared by one guarantee. None without a round, and if the history
        lacks devices that were not selected or is too large.
        """
        plan = self.reader.plan
        if not self.rounds:
            return None
        if plan.beta is None and plan.selection.beta is not None:
            if not self.reader.lists_all_selections:
                return None
            rounds = [row.round for row in self.rounds]
            counts = list(self.counts.values())
            return virtual_queues_of(self.reader, rounds, counts, plan.selection.beta)
        return VirtualQueues(
            np.array([row.queue_total for row in self.rounds]),
            np.array([row.queue_max for row in self.rounds]),
        )


def fairness_of(reader: RunReader, counts: Mapping[str, SelectionCounts] | None = None) -> Fairness:
    """Return the fairness of the selection in a run; call it inside a snapshot.

    Args:
        reader: Reads the run.
        counts: How often each device was selected, by name; None: read it.
    """
    fleet_stats = reader.fleet_stats()
    if fleet_stats is not None:
        return _fairness_of(fleet_stats, reader.plan)
    changes = accepted_changes(reader.commands())
    if counts is None:
        counts = {count.device: count for count in reader.selection_counts()}
    newest = reader.newest_round()
    queues = {row.device: row.queue for row in reader.selections(newest)}
    # Each closed round has a row of every device that is in the fleet.
    left = sorted(counts.keys() - queues.keys()) if reader.lists_all_selections and queues else []
    counts = {name: count for name, count in counts.items() if name not in left}
    planned, queue_counts = reader.plan.beta, reader.plan.selection.queue_counts
    last = max((count.rounds for count in counts.values()), default=1)

    def beta_since(joined: int) -> float:
        return 0.0 if planned is None else mean_beta(planned, changes, joined, last)

    beta = None if planned is None else beta_since(1)
    if not counts:
        return Fairness(
            beta=beta,
            min_selection_rate=None,
            min_aggregation_rate=None,
            highest_rate=None,
            jain=None,
            invariant_holds=None,
            queue_counts=queue_counts,
            left=left,
        )
    selected = np.array([count.selected for count in counts.values()], dtype=np.int64)
    aggregated = np.array([count.aggregated for count in counts.values()], dtype=np.int64)
    counted = selected if queue_counts == "selected" else aggregated
    rounds = np.array([count.rounds for count in counts.values()], dtype=np.int64)
    available = np.array([count.available for count in counts.values()], dtype=np.int64)
    z = np.array([queues.get(name, 0.0) for name in counts], dtype=np.float64)
    index = jain(selected)
    betas = np.array([beta_since(last + 1 - own) for own in rounds.tolist()])
    return Fairness(
        beta=beta,
        min_selection_rate=float((selected / rounds).min()),
        min_aggregation_rate=float((aggregated / rounds).min()),
        highest_rate=None
        if beta is None
        else highest_rate(available / rounds, max(1, reader.largest_cohort())),
        queue_counts=queue_counts,
        left=left,
        jain=None if np.isnan(index) else index,
        invariant_holds=None
        if beta is None or not queues.keys() >= counts.keys()
        else bool((rate_slack(counted, rounds, betas, z) >= -EXACT).all()),
    )


def _fairness_of(fleet_stats: FleetStatsRow, plan: ExperimentExcerpt) -> Fairness:
    """Return the fairness of a fleet that is stored as statistics, without a row per device."""
    return Fairness(
        beta=plan.beta,
        min_selection_rate=fleet_stats.min_selection_rate,
        min_aggregation_rate=fleet_stats.min_aggregation_rate,
        highest_rate=None,
        queue_counts=plan.selection.queue_counts,
        jain=fleet_stats.jain,
        invariant_holds=None if plan.beta is None else fleet_stats.slack >= -EXACT,
    )


def virtual_queues(counted: Bools, first: Ints, beta: float) -> VirtualQueues:
    """Return the virtual queues of a selection history.

        Z_n <- max(Z_n + beta - x_n, 0)   in each round since n joined

    Unlike those of rbcs-f, no queue is capped or frozen.

    Args:
        counted: x, shape (T, N).
        first: Index of each device's first round, shape (N,).
        beta: Guaranteed rate.

    Source:
        Huang et al., TPDS 2021 (arXiv:2011.01783), equation 8.
    """
    queues: Floats = np.zeros(counted.shape[1])
    total, largest = np.zeros(len(counted)), np.zeros(len(counted))
    for t, x in enumerate(counted):
        queues = np.where(first <= t, np.maximum(queues + beta - x, 0.0), 0.0)
        total[t], largest[t] = queues.sum(), queues.max(initial=0.0)
    return VirtualQueues(total, largest)


def virtual_queues_of(
    reader: RunReader, rounds: Sequence[int], counts: Sequence[SelectionCounts], beta: float
) -> VirtualQueues | None:
    """Return the queues of a run's selection history; None if it is too large.

    Args:
        reader: Reads the run.
        rounds: Its closed rounds, shape (T,).
        counts: Counts of all devices, over all rounds.
        beta: Guaranteed rate.
    """
    if not counts or len(rounds) * len(counts) > MAX_ENTRIES:
        return None
    at_round = {round_id: t for t, round_id in enumerate(rounds)}
    at_device = {count.device: n for n, count in enumerate(counts)}
    counted: Bools = np.zeros((len(rounds), len(counts)), dtype=np.bool_)
    column = f"is_{reader.plan.selection.queue_counts}"
    for round_id, device in reader.columns(SelectionRow, ("round", "device"), f"WHERE {column}"):
        counted[at_round[round_id], at_device[device]] = True
    first = np.array([len(rounds) - count.rounds for count in counts], dtype=np.int64)
    return virtual_queues(counted, first, beta)
