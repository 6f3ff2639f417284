"""The cohorts of another replay, imposed on this one at the instants of their dispatch.

Two arms that select by times part as soon as their times differ, and then differ in their cohorts,
too. With the cohorts, the links and the availability of one recorded replay, the arms differ in
nothing but their rules. The clock of a replay stays its own: it adds up its own durations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import (
    Candidates,
    Outcomes,
    Selector,
    TwoStepSelector,
)
from fairbed.coordinator.policy.decisions import Decisions
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.replay.checkpointer import MAX_LISTED
from fairbed.testbed.replay.world.shared_air import Carried
from fairbed.testbed.replay.world.world import (
    Exchanges,
    FleetSnapshot,
    LastRound,
    ReplayedExchange,
    SharingWorld,
    World,
)


@dataclass(frozen=True, slots=True)
class RecordedRound:
    """One round of the recorded replay."""

    rows: Ints
    """Its cohort, ascending, shape (K,); empty if no device was available."""
    at_s: float
    """Instant of the dispatch, on the clock of the recorded replay."""


class ImposedCohorts:
    """Selects recorded cohorts; queues and learning are those of the policy."""

    def __init__(self, policy: Selector, cohorts: Mapping[int, Ints]) -> None:
        self._policy, self._cohorts = policy, cohorts

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        """Return the rows of the round's recorded cohort, whether available or not."""
        cohort: Ints = self._cohorts[candidates.round].copy()
        return cohort

    def observe(self, outcomes: Outcomes) -> None:
        """Pass the outcomes to the policy, as in the recorded run."""
        self._policy.observe(outcomes)

    def queues(self, n: int) -> Floats:
        """Return the virtual queues of the policy, shape (n,)."""
        return self._policy.queues(n)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the policy."""
        return self._policy.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state of the policy."""
        self._policy.load_state(state)


class ImposedInstants:
    """A world whose rounds take place at instants of another clock.

    Args:
        world: The devices.
        instant_s: Returns the instant on the other clock, from the round and the replay's own
            clock, seconds.
    """

    def __init__(self, world: World, instant_s: Callable[[int, float], float]) -> None:
        self.world, self._instant_s = world, instant_s
        self.slots = world.slots
        self.air = world.air if isinstance(world, SharingWorld) else None

    def __len__(self) -> int:
        return len(self.world)

    @property
    def transfer_bits(self) -> tuple[float | Floats, float | Floats]:
        """Sizes of an exchange down and up, bits."""
        return self.world.transfer_bits

    def observe(self, round_id: int, now: float, last: LastRound) -> FleetSnapshot:
        """Return the fleet at the imposed instant of a selection."""
        return self.world.observe(round_id, self._instant_s(round_id, now), last)

    def available_from_s(self, round_id: int, now: float) -> float:
        """Return an instant on the replay's clock before which no device is available."""
        at_s = self._instant_s(round_id, now)
        return now + self.world.available_from_s(round_id, at_s) - at_s

    def exchange(self, round_id: int, now: float, rows: Ints) -> Exchanges:
        """Return the exchanges of a cohort that is dispatched at the imposed instant."""
        return self.world.exchange(round_id, self._instant_s(round_id, now), rows)

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the duration of an upload that is granted `granted_s` after the dispatch."""
        return self.world.upload_s(exchange, granted_s)

    def begin_transfer(self, exchange: ReplayedExchange, granted_s: float | None) -> None:
        """Begin a transfer in a cell of the world."""
        assert isinstance(self.world, SharingWorld)
        self.world.begin_transfer(exchange, granted_s)

    def on_carried(self, exchange: ReplayedExchange, carried: Carried) -> None:
        """Set the phases of an exchange whose transfer in a cell has ended."""
        assert isinstance(self.world, SharingWorld)
        self.world.on_carried(exchange, carried)

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Note the devices that have the model."""
        self.world.on_pulled(exchanges)

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Note the exchanges that have ended."""
        self.world.on_over(exchanges)

    def on_version(self, rows: Ints, versions: Ints, version: int) -> None:
        """Note the model version that the next round trains."""
        self.world.on_version(rows, versions, version)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the world."""
        return self.world.to_state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state of the world."""
        self.world.load_state(state)


def impose_cohorts(
    decisions: Decisions, world: World, names: Sequence[str], rounds: int, folder: Path
) -> ImposedInstants:
    """Make decisions select the cohorts of another replay; return a world at its instants.

    The audit sample, if there is one, is part of the recorded cohorts: nothing is drawn again.

    Args:
        decisions: The decisions, which are changed.
        world: The devices.
        names: Name of each device, by row.
        rounds: Number of rounds that are needed.
        folder: Folder of the other replay.

    Raises:
        ExperimentError: That run has no cohorts for each round of this fleet, or these decisions
            cannot have imposed cohorts.
    """
    config = decisions.config
    if config.round.is_buffered or config.round.merges_late_updates:
        raise ExperimentError(
            "replay.cohorts_from: must not be set where exchanges outlive their round, got "
            f'{str(folder)!r}; use round.mode = "sync" and round.late = "drop"'
        )
    if isinstance(decisions.selector, TwoStepSelector):
        raise ExperimentError(
            f"replay.cohorts_from: must not be set with {config.selection.policy!r}, whose loss "
            f"queries belong to its own cohorts, got {str(folder)!r}; use another policy"
        )
    recorded = _recorded(names, rounds, folder)
    cohorts = {round_id: one.rows for round_id, one in recorded.items()}
    decisions.selector = ImposedCohorts(decisions.selector, cohorts)
    settings = msgspec.structs.replace(config.selection, audit=0.0)
    decisions.config = msgspec.structs.replace(config, selection=settings)
    return ImposedInstants(world, lambda round_id, _: recorded[round_id].at_s)


def _recorded(names: Sequence[str], needed: int, folder: Path) -> dict[int, RecordedRound]:
    """Return the rounds of a finished replay by number.

    Raises:
        ExperimentError: It is no finished replay of these devices with as many rounds.
    """
    row_of = {name: row for row, name in enumerate(names)}
    problem = ""
    cohorts, at_s = dict[int, list[int]](), dict[int, float]()
    try:
        with RunReader(folder) as reader:
            run = reader.run()
            if run.row.clock != "virtual" or run.status != "done":
                problem = f"a run on a {run.row.clock} clock that is {run.status}"
            known = [device.name for device in reader.devices()]
            if len(names) <= MAX_LISTED and known != list(names):
                problem = f"a run of {len(known)} devices, which are not the {len(names)} of this"
            for row in reader.rounds():
                at_s[row.round], cohorts[row.round] = row.dispatched_at_s, []
            for x in reader.exchanges():
                if x.device not in row_of:
                    problem = f"a run with a device {x.device!r}, which is not in this fleet"
                    break
                cohorts[x.round].append(row_of[x.device])
    except StoreError as exc:
        problem = str(exc)
    rounds = sum(bool(cohort) for cohort in cohorts.values())
    if not problem and rounds < needed:
        problem = f"a run of {rounds} rounds with a cohort, where {needed} are needed"
    if problem:
        raise ExperimentError(
            "replay.cohorts_from: must be the folder of a finished replay of this fleet, got "
            f"{str(folder)!r}: {problem}; replay it first, without cohorts_from"
        )
    return {
        round_id: RecordedRound(np.array(sorted(rows), dtype=np.int64), at_s[round_id])
        for round_id, rows in cohorts.items()
    }
