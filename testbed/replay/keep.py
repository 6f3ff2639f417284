"""What a replay leaves in its store, and how it goes on from there after it was cut off."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.records.rows import fleet_rows
from fairbed.coordinator.store import Checkpoint, Store
from fairbed.coordinator.store.schema import Columns
from fairbed.coordinator.store.tables import SelectionRow
from fairbed.testbed.replay.census import Census, Told
from fairbed.testbed.replay.learned import Cohort
from fairbed.testbed.replay.play import Played, Position
from fairbed.testbed.replay.record import chosen_rows, exchange_rows, round_row, score_rows
from fairbed.testbed.replay.under_way import UnderWay
from fairbed.testbed.replay.world import LastRound, World

CHECKPOINT_S = 30.0
"""A replay that is killed loses at most so many seconds of work (design.md, section 3)."""

LISTED = 1_000
"""Fleets of up to so many devices have a row for each of them in every round; of larger ones only
the cohort has (`RunRow.selections`), and all have one in the last round, unless it is a crowd."""


@dataclass(frozen=True, slots=True)
class Parts:
    """All of a replay that remembers something."""

    decisions: Decisions
    world: World
    cohort: Cohort | None
    under_way: UnderWay | None = None
    """None where every exchange ends with its round."""


class Keeper:
    """Writes rounds into a store, and now and then all that is needed to go on.

    Args:
        store: Open, of this replay.
        names: Of the devices, by row.
        parts: What a checkpoint holds the state of.
        checkpoint_s: Between two checkpoints, seconds of this machine.
        told: Of a crowd, what to write down of a device that is chosen for the first time.
    """

    def __init__(
        self,
        store: Store,
        names: Sequence[str],
        parts: Parts,
        checkpoint_s: float = CHECKPOINT_S,
        told: Told | None = None,
    ) -> None:
        self._store, self._parts = store, parts
        self._checkpoint_s = checkpoint_s
        self._lists_all = len(names) <= LISTED
        self._names = list(names) if self._lists_all else names
        self._census = None if told is None else Census(len(names), told)
        self._began = self._saved = time.perf_counter()
        self._spent_s = 0.0
        """By earlier lives of this replay, until the checkpoint that this one goes on from."""
        self._latest: Played | None = None

    def restore(self) -> Position:
        """Give all parts the state of the last checkpoint; return where it was.

        Raises:
            StoreError: It is of a version of Fairbed that kept other things.
        """
        kept = self._store.last_checkpoint()
        if kept is None:
            return Position.start(len(self._names))
        with self._store.restoring():
            return self._restore(kept)

    def _restore(self, kept: Checkpoint) -> Position:
        parts, state = self._parts, msgspec.msgpack.decode(kept.state)
        parts.decisions.load_state(state["decisions"])
        parts.world.load_state(state["world"])
        if parts.cohort is not None:
            parts.cohort.load_state(kept.model, state["cohort"])
        if parts.under_way is not None:
            parts.under_way.load_state(state["under_way"], state["now"])
        if self._census is not None:
            self._census.load_state(state["census"])
        self._spent_s = state["spent_s"]
        last = LastRound(_bools(state["is_selected"]), _bools(state["has_trained"]))
        return Position(kept.round, state["now"], last)

    def keep(self, played: Played) -> None:
        """Write a round down.

        Raises:
            StoreError: The disk fails or does not keep up.
        """
        store, cohort, self._latest = self._store, self._parts.cohort, played
        for score in score_rows(played, 0.0 if cohort is None else cohort.evaluate_s):
            store.add(score)
        if self._lists_all:
            for fleet_row in fleet_rows(played.choice):
                store.add(fleet_row)
        if played.inquired is not None:
            for ask_row in played.inquired.named(self._names):
                store.add(ask_row)
        if self._census is not None:
            for record in self._census.count(played, self._parts.decisions):
                store.add(record)
        if time.perf_counter() - self._saved >= self._checkpoint_s:
            self._save(played)
        else:
            store.add(round_row(played, self._parts.decisions, self._names))
            store.add_all(self._chosen(played))
            store.add_all(exchange_rows(played, self._names))

    def finish(self) -> None:
        """Write down what only the last round tells, and how long all took."""
        played = self._latest
        if played is None:
            return
        if self._parts.cohort is not None:
            self._save(played)
        if not self._lists_all and self._census is None:
            self._store.add_all(
                chosen_rows(played, self._parts.decisions, self._names, everybody=True)
            )
        self._store.set_dilation(self._wall_s() / played.after.now)

    def _wall_s(self) -> float:
        return self._spent_s + time.perf_counter() - self._began

    def _chosen(self, played: Played) -> Columns[SelectionRow]:
        decisions = self._parts.decisions
        return chosen_rows(played, decisions, self._names, everybody=self._lists_all)

    def _save(self, played: Played) -> None:
        parts, after = self._parts, played.after
        state = {
            "decisions": parts.decisions.to_state(),
            "world": parts.world.to_state(),
            "cohort": {} if parts.cohort is None else parts.cohort.to_state(),
            "now": after.now,
            "is_selected": after.last.is_selected.tobytes(),
            "has_trained": after.last.has_trained.tobytes(),
            "under_way": {} if parts.under_way is None else parts.under_way.to_state(),
            "census": {} if self._census is None else self._census.to_state(),
            "spent_s": self._wall_s(),
        }
        self._store.close_round(
            round_row(played, parts.decisions, self._names),
            self._chosen(played),
            exchange_rows(played, self._names),
            msgspec.msgpack.encode(state),
            np.zeros(0, dtype=np.float32) if parts.cohort is None else parts.cohort.vector,
        )
        self._saved = time.perf_counter()


def _bools(data: bytes) -> Bools:
    column: Bools = np.frombuffer(data, dtype=np.bool_).copy()
    return column
