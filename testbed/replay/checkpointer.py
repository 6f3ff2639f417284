"""Writes a replay into its store: rows of each round, and checkpoints to resume from."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.fairness import jain, rate_slack
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.records.rows import fleet_rows
from fairbed.coordinator.store import Checkpoint, Store
from fairbed.coordinator.store.event_log import Level
from fairbed.coordinator.store.schema import Columns
from fairbed.coordinator.store.tables import (
    INTERNAL_ERROR,
    AlertRow,
    EventRow,
    ExchangeRow,
    FleetStatsRow,
    MetricRow,
    Record,
    SelectionRow,
)
from fairbed.testbed.emulation.power import PhasePower
from fairbed.testbed.replay.engine.engine import ReplayedRound, ReplayEngine
from fairbed.testbed.replay.engine.rows import (
    exchange_rows,
    personal_rows,
    release_rows,
    round_row,
    score_rows,
    selection_rows,
)

if TYPE_CHECKING:
    from fairbed.coordinator.records.named_metrics import NamedMetrics
    from fairbed.coordinator.state.alerts import Alerts

CHECKPOINT_S = 30.0
"""A replay that is killed loses at most this many seconds of work (design.md, section 3)."""

MAX_LISTED = 1_000
"""Fleets of up to this many devices have a selection row per device in every round. Larger fleets
have rows of the cohort only (`RunRow.selection_rows`), and rows of all devices in the last round;
a vector fleet has statistics instead (`FleetStatsRow`)."""


REPORT_IT = "please report it with the experiment and this line; --debug prints the traceback"

_LOG = logging.getLogger(__name__)

DeviceRecords: TypeAlias = Callable[[int], Sequence[Record]]
"""Returns the records of the device of a row."""


class FleetStats:
    """Selection counts of a large fleet, stored as one row per round.

    Args:
        devices: N.
        device_records: Called once per device, at its first selection.
    """

    def __init__(self, devices: int, device_records: DeviceRecords) -> None:
        self._device_records = device_records
        self._selected: Ints = np.zeros(devices, dtype=np.int64)
        self._aggregated: Ints = np.zeros(devices, dtype=np.int64)

    def count(self, replayed: ReplayedRound, decisions: Decisions) -> list[Record]:
        """Count a round; return the records of newly selected devices, and those of the fleet."""
        rows = replayed.choice.rows
        new = rows[self._selected[rows] == 0]
        self._selected[rows] += 1
        self._aggregated[replayed.merged] += 1
        n, round_id = len(self._selected), replayed.choice.round
        settings = decisions.config.selection
        counted = self._selected if settings.queue_counts == "selected" else self._aggregated
        slack = rate_slack(counted, round_id, settings.beta, decisions.selector.queues(n))
        evenness = jain(self._selected)
        stats = FleetStatsRow(
            round=round_id,
            devices=n,
            selected=int(np.count_nonzero(self._selected)),
            min_selection_rate=float(self._selected.min()) / round_id,
            min_aggregation_rate=float(self._aggregated.min()) / round_id,
            jain=None if np.isnan(evenness) else evenness,
            slack=float(slack.min()),
        )
        return [*(record for row in new.tolist() for record in self._device_records(row)), stats]

    def to_state(self) -> dict[str, Any]:
        """Return the counts."""
        return {"selected": self._selected.tobytes(), "merged": self._aggregated.tobytes()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over counts that `to_state` returned."""
        self._selected = np.frombuffer(state["selected"], dtype=np.int64).copy()
        self._aggregated = np.frombuffer(state["merged"], dtype=np.int64).copy()


class Checkpointer:
    """Writes rounds into a store, and at intervals the state of the whole replay.

    Args:
        store: Open store of this replay.
        names: Names of the devices, by row.
        engine: The engine whose state a checkpoint holds, with the fleet statistics.
        checkpoint_s: Interval of checkpoints, seconds of this machine.
        device_records: For a vector fleet, the records of the device of a row.
        powers: Power of each device, by row; empty if it is unknown.
        named: Makes the rows of metrics by name; None: there are none.
    """

    def __init__(
        self,
        store: Store,
        names: Sequence[str],
        engine: ReplayEngine,
        checkpoint_s: float = CHECKPOINT_S,
        device_records: DeviceRecords | None = None,
        powers: Sequence[PhasePower] = (),
        named: "NamedMetrics | None" = None,
    ) -> None:
        self._named = named
        self._store, self._engine, self._powers = store, engine, powers
        self._checkpoint_s = checkpoint_s
        self._lists_all = len(names) <= MAX_LISTED
        self._names = list(names) if self._lists_all else names
        self._fleet_stats = (
            None if device_records is None else FleetStats(len(names), device_records)
        )
        self._began = self._saved = time.perf_counter()
        self._spent_s = 0.0
        """Time that this replay took before the checkpoint from which it resumed."""
        self._latest: ReplayedRound | None = None
        self._alerts: Alerts | None = None
        if engine.decisions.config.operator.alerts:
            from fairbed.coordinator.state import alerts

            self._alerts = alerts.Alerts()
            self._loss = alerts.LossGrowth(store.task, store.earlier_losses())

    def restore(self) -> None:
        """Restore the state of the last checkpoint, if there is one.

        Raises:
            StoreError: Another version of Fairbed, with another state, has written it.
        """
        checkpoint = self._store.last_checkpoint()
        if checkpoint is not None:
            with self._store.restoring():
                self._restore(checkpoint)

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = msgspec.msgpack.decode(checkpoint.state)
        self._engine.load_state(checkpoint.round, checkpoint.model, state)
        if self._fleet_stats is not None:
            self._fleet_stats.load_state(state["census"])
        self._spent_s = state["spent_s"]

    def write(self, replayed: ReplayedRound) -> None:
        """Write the rows of a round, and a checkpoint if one is due.

        Raises:
            StoreError: The disk fails or does not keep up.
        """
        store, cohort, self._latest = self._store, self._engine.cohort, replayed
        took_s = 0.0 if cohort is None else cohort.evaluate_s
        for score in score_rows(replayed, took_s, self._named):
            store.add(score)
            if isinstance(score, MetricRow):
                self._watch(replayed, score)
        if cohort is not None:
            store.add_all(personal_rows(cohort.personal_scores, self._names))
            if self._named is not None:
                for one in cohort.personal_scores:
                    name, of = self._names[one.row], one.score
                    store.add_all(self._named.of_personal(one.round, name, of.n, of.quality))
        if self._lists_all:
            for fleet_row in fleet_rows(replayed.choice):
                store.add(fleet_row)
        if replayed.queried is not None:
            for query_row in replayed.queried.rows(self._names):
                store.add(query_row)
        for row, text in replayed.reached_limits:
            store.add(self._warning(replayed, "misses", text, self._names[row]))
        for fault in replayed.faults:
            _LOG.debug("%s: %s\n%s", self._names[fault.row], fault.reason, fault.trace)
            text = f"{fault.reason}; {REPORT_IT}"
            store.add(
                self._warning(replayed, INTERNAL_ERROR, text, self._names[fault.row], "error")
            )
        for change in replayed.context_changes:
            device, text = self._names[change.row], change.text()
            store.add(self._warning(replayed, "context check", text, device))
        for note in () if cohort is None else cohort.notes:
            store.add(self._warning(replayed, note.kind, note.about(self._names)))
        if self._fleet_stats is not None:
            for record in self._fleet_stats.count(replayed, self._engine.decisions):
                store.add(record)
        if self._engine.decisions.config.privacy.is_on:
            store.add_all(release_rows(replayed, self._names))
        if time.perf_counter() - self._saved >= self._checkpoint_s:
            self._save(replayed)
        else:
            store.add_all(self._selections(replayed))
            store.add_all(self._exchanges(replayed))
            # Last, so that a reader never sees a closed round without its exchanges.
            store.add(round_row(replayed, self._engine.decisions, self._names))

    def _watch(self, replayed: ReplayedRound, metric: MetricRow) -> None:
        """Begin or end the alert about a global model that diverges."""
        if self._alerts is None:
            return
        self._loss.add(metric.round, metric.loss_mean)
        for change in self._alerts.update({"diverged": self._loss.text}, metric.at_s):
            row = AlertRow(
                kind=change.kind, begin_s=change.begin_s, end_s=change.end_s, text=change.text
            )
            self._store.add(row)
            if change.is_new:
                self._store.add(self._warning(replayed, change.kind, change.text))

    def finish(self) -> None:
        """Write the rows of the last round, and the duration of the replay."""
        replayed = self._latest
        if replayed is None:
            return
        if self._engine.cohort is not None:
            self._save(replayed)
        if not self._lists_all and self._fleet_stats is None:
            self._store.add_all(
                selection_rows(replayed, self._engine.decisions, self._names, all_devices=True)
            )
        self._store.set_dilation(self._wall_s() / replayed.after.now)

    def _wall_s(self) -> float:
        return self._spent_s + time.perf_counter() - self._began

    def _exchanges(self, replayed: ReplayedRound) -> Columns[ExchangeRow]:
        needs_loss = self._engine.decisions.aggregator.needs_loss
        return exchange_rows(replayed, self._names, needs_loss=needs_loss, powers=self._powers)

    def _selections(self, replayed: ReplayedRound) -> Columns[SelectionRow]:
        decisions = self._engine.decisions
        return selection_rows(replayed, decisions, self._names, all_devices=self._lists_all)

    def _warning(
        self,
        replayed: ReplayedRound,
        kind: str,
        text: str,
        device: str | None = None,
        level: Level = "warning",
    ) -> EventRow:
        return EventRow(
            at_s=replayed.after.now,
            wall=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            level=level,
            kind=kind,
            round=replayed.choice.round,
            device=device,
            text=text,
        )

    def _save(self, replayed: ReplayedRound) -> None:
        state = self._engine.to_state() | {
            "census": {} if self._fleet_stats is None else self._fleet_stats.to_state(),
            "spent_s": self._wall_s(),
        }
        cohort = self._engine.cohort
        self._store.close_round(
            round_row(replayed, self._engine.decisions, self._names),
            self._selections(replayed),
            self._exchanges(replayed),
            msgspec.msgpack.encode(state),
            np.zeros(0, dtype=np.float32) if cohort is None else cohort.vector,
        )
        self._saved = time.perf_counter()
