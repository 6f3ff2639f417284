"""The store of a replay: rows of each round, and checkpoints to go on from."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.fairness import jain, rate_slack
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.records.rows import fleet_rows
from fairbed.coordinator.store import Checkpoint, Store
from fairbed.coordinator.store.schema import Columns
from fairbed.coordinator.store.tables import FleetStatsRow, Record, SelectionRow
from fairbed.testbed.replay.engine.engine import ReplayedRound, ReplayEngine
from fairbed.testbed.replay.engine.rows import chosen_rows, exchange_rows, round_row, score_rows

CHECKPOINT_S = 30.0
"""A replay that is killed loses at most so many seconds of work (design.md, section 3)."""

LISTED = 1_000
"""Fleets of up to so many devices have a row for each of them in every round; of larger ones only
the cohort has (`RunRow.selection_rows`), and all have one in the last round, unless there are
statistics instead (`FleetStatsRow`)."""


Told: TypeAlias = Callable[[int], Sequence[Record]]
"""Returns the records of the device of a row."""


class FleetStats:
    """Selection counts of a large fleet, stored as one row per round.

    Args:
        devices: N.
        told: Called once for each device, at its first selection.
    """

    def __init__(self, devices: int, told: Told) -> None:
        self._told = told
        self._selected: Ints = np.zeros(devices, dtype=np.int64)
        self._merged: Ints = np.zeros(devices, dtype=np.int64)

    def count(self, played: ReplayedRound, decisions: Decisions) -> list[Record]:
        """Return the rows of devices selected for the first time, and of the fleet."""
        rows = played.choice.rows
        new = rows[self._selected[rows] == 0]
        self._selected[rows] += 1
        self._merged[played.merged] += 1
        n, round_id = len(self._selected), played.choice.round
        settings = decisions.config.selection
        counted = self._selected if settings.queue_counts == "selected" else self._merged
        slack = rate_slack(counted, round_id, settings.beta, decisions.selector.queues(n))
        evenness = jain(self._selected)
        crowd = FleetStatsRow(
            round=round_id,
            devices=n,
            selected=int(np.count_nonzero(self._selected)),
            min_selection_rate=float(self._selected.min()) / round_id,
            min_aggregation_rate=float(self._merged.min()) / round_id,
            jain=None if np.isnan(evenness) else evenness,
            slack=float(slack.min()),
        )
        return [*(record for row in new.tolist() for record in self._told(row)), crowd]

    def to_state(self) -> dict[str, Any]:
        """Return the counts."""
        return {"selected": self._selected.tobytes(), "merged": self._merged.tobytes()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over counts that `to_state` returned."""
        self._selected = np.frombuffer(state["selected"], dtype=np.int64).copy()
        self._merged = np.frombuffer(state["merged"], dtype=np.int64).copy()


class Checkpointer:
    """Writes rounds into a store, and at intervals the state of the whole replay.

    Args:
        store: Open, of this replay.
        names: Of the devices, by row.
        engine: Its state is what a checkpoint holds, with that of the census.
        checkpoint_s: Between two checkpoints, seconds of this machine.
        told: Of a large fleet, the records of a device that is selected for the first time.
    """

    def __init__(
        self,
        store: Store,
        names: Sequence[str],
        engine: ReplayEngine,
        checkpoint_s: float = CHECKPOINT_S,
        told: Told | None = None,
    ) -> None:
        self._store, self._engine = store, engine
        self._checkpoint_s = checkpoint_s
        self._lists_all = len(names) <= LISTED
        self._names = list(names) if self._lists_all else names
        self._census = None if told is None else FleetStats(len(names), told)
        self._began = self._saved = time.perf_counter()
        self._spent_s = 0.0
        """By earlier lives of this replay, until the checkpoint that this one goes on from."""
        self._latest: ReplayedRound | None = None

    def restore(self) -> None:
        """Give the engine the state of the last checkpoint, if there is one.

        Raises:
            StoreError: It is of a version of Fairbed that kept other things.
        """
        kept = self._store.last_checkpoint()
        if kept is not None:
            with self._store.restoring():
                self._restore(kept)

    def _restore(self, kept: Checkpoint) -> None:
        state = msgspec.msgpack.decode(kept.state)
        self._engine.load_state(kept.round, kept.model, state)
        if self._census is not None:
            self._census.load_state(state["census"])
        self._spent_s = state["spent_s"]

    def keep(self, played: ReplayedRound) -> None:
        """Write a round down.

        Raises:
            StoreError: The disk fails or does not keep up.
        """
        store, cohort, self._latest = self._store, self._engine.cohort, played
        for score in score_rows(played, 0.0 if cohort is None else cohort.evaluate_s):
            store.add(score)
        if self._lists_all:
            for fleet_row in fleet_rows(played.choice):
                store.add(fleet_row)
        if played.queried is not None:
            for ask_row in played.queried.named(self._names):
                store.add(ask_row)
        if self._census is not None:
            for record in self._census.count(played, self._engine.decisions):
                store.add(record)
        if time.perf_counter() - self._saved >= self._checkpoint_s:
            self._save(played)
        else:
            store.add(round_row(played, self._engine.decisions, self._names))
            store.add_all(self._chosen(played))
            store.add_all(exchange_rows(played, self._names))

    def finish(self) -> None:
        """Write down what only the last round tells, and how long all took."""
        played = self._latest
        if played is None:
            return
        if self._engine.cohort is not None:
            self._save(played)
        if not self._lists_all and self._census is None:
            self._store.add_all(
                chosen_rows(played, self._engine.decisions, self._names, everybody=True)
            )
        self._store.set_dilation(self._wall_s() / played.after.now)

    def _wall_s(self) -> float:
        return self._spent_s + time.perf_counter() - self._began

    def _chosen(self, played: ReplayedRound) -> Columns[SelectionRow]:
        decisions = self._engine.decisions
        return chosen_rows(played, decisions, self._names, everybody=self._lists_all)

    def _save(self, played: ReplayedRound) -> None:
        state = self._engine.to_state() | {
            "census": {} if self._census is None else self._census.to_state(),
            "spent_s": self._wall_s(),
        }
        cohort = self._engine.cohort
        self._store.close_round(
            round_row(played, self._engine.decisions, self._names),
            self._chosen(played),
            exchange_rows(played, self._names),
            msgspec.msgpack.encode(state),
            np.zeros(0, dtype=np.float32) if cohort is None else cohort.vector,
        )
        self._saved = time.perf_counter()
