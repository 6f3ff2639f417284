"""A device that joins late has an equal share, live and replayed, under all rules with a state."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairbed.coordinator.algorithms.arrays import Bools
from fairbed.coordinator.policy.config import AggregationConfig, CoordinatorConfig, RoundConfig
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.world.linear import LinearWorld
from fairbed.testbed.replay.world.world import FleetSnapshot, LastRound
from tests.coordinator import lab as live
from tests.coordinator.lab import NAMES, WHOLE_FLEET, make_config
from tests.coordinator.stragglers import SlowTraining
from tests.testbed.replay.as_live import a_learning, a_world, hash_of, names_and_shards

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

ROUNDS, TRAIN_S = 10, 0.5
EARLY, LATE = NAMES[:2], NAMES[2]
RULES = {
    "afl": AggregationConfig(rule="afl", gamma=0.003),
    "aaggff-s": AggregationConfig(rule="aaggff-s"),
    "aaggff-d": AggregationConfig(rule="aaggff-d"),
    "n/pi": AggregationConfig(rule="fedavg", weights="n_over_pi"),
}


class Shares:
    """Shares of the updates of a run by round and device, and the model after each round."""

    def __init__(self) -> None:
        self.of: dict[tuple[int, str], float] = {}
        self.models: list[str] = []

    @property
    def joined(self) -> int:
        """First round of the late device."""
        return min(t for t, device in self.of if device == LATE)


async def run_live(folder: Path, config: CoordinatorConfig, expected: tuple[str, ...]) -> Shares:
    """Run with agents; the late one starts after round 3, whether it is expected or not."""
    host = replace(SlowTraining(TRAIN_S).host())
    async with live.lab(folder, agents=0) as place:
        place.device_names, place.shards = expected, names_and_shards()
        for name in EARLY:
            place.start_agent(name, host=host)

        def on_progress(progress: RoundProgress) -> None:
            if progress.round.round == 3:
                place.start_agent(LATE, host=host)

        place.on_progress = on_progress
        assert await place.run(config) == "done"
    found = Shares()
    with place.reader() as reader:
        for x in reader.exchanges(0):
            assert x.weight_share is not None
            found.of[x.round, x.device] = x.weight_share
        found.models = [row.model_sha256 for row in reader.rounds()]
    return found


class LateWorld:
    """A world whose last device is not available before a round."""

    def __init__(self, world: LinearWorld, first_round: int) -> None:
        self._world, self._first_round = world, first_round

    def observe(self, round_id: int, now: float, last: LastRound) -> FleetSnapshot:
        snapshot = self._world.observe(round_id, now, last)
        if round_id >= self._first_round:
            return snapshot
        is_available: Bools = snapshot.is_available.copy()
        is_available[-1] = False
        return replace(snapshot, is_available=is_available)

    def __len__(self) -> int:
        return len(self._world)

    def __getattr__(self, name: str) -> object:
        return getattr(self._world, name)


def replayed(folder: Path, config: CoordinatorConfig, first_round: int) -> Shares:
    decisions, found = make_decisions(config), Shares()
    learning = a_learning(decisions, folder)
    world = LateWorld(a_world([TRAIN_S] * len(NAMES)), first_round)
    engine = ReplayEngine(decisions, world, cohort=learning)  # type: ignore[arg-type]
    for one in engine.replay(config.rounds):
        for x in one.exchanges:
            found.of[one.choice.round, NAMES[x.row]] = x.entry.measured["weight_share"]
        found.models.append(hash_of(learning.vector))
    return found


@pytest.mark.parametrize("expected", [NAMES, NAMES[:-1]], ids=["expected", "unexpected"])
@pytest.mark.parametrize("rule", RULES)
async def test_a_late_joiner_has_the_share_of_the_others_live_and_replayed(
    tmp_path: Path, rule: str, expected: tuple[str, ...]
) -> None:
    """An expected device has a row from the start, in a run and in a replay; others have not.

    The first two are always expected: which of them joins first would decide their rows.
    """
    config = make_config(
        ROUNDS,
        selection=WHOLE_FLEET,
        aggregation=RULES[rule],
        round=RoundConfig(min_devices=2, deadline_s=30.0, join_timeout_s=30.0),
    )
    ran = await run_live(tmp_path / "live", config, expected)
    again = replayed(tmp_path / "replay", config, ran.joined)
    assert 3 < ran.joined < ROUNDS
    assert again.of == pytest.approx(ran.of)
    assert again.models == ran.models
    assert ran.of[ran.joined, LATE] == pytest.approx(1.0 / 3.0, rel=0.1)
