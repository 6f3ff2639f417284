"""A replay does what the live coordinator does with real agents: the same rounds and models."""

from pathlib import Path

import pytest

from coordinator.config import RoundConfig
from tests.coordinator.lab import EVERYBODY, NAMES, make_config
from tests.testbed.replay.as_live import Story, played_live, replayed

pytestmark = pytest.mark.anyio

# Instants at which the order of things decides are at least 0.3 s apart.
LATE_S = (0.8, 0.8, 3.2)
"""Of training: the third device misses a deadline of 2 s, and comes two rounds later."""

STAGGERED_S = (1.05, 1.43, 3.3)
"""The third device takes as long as three versions."""


def joining(**settings: object) -> RoundConfig:
    return RoundConfig(min_devices=len(NAMES), join_timeout_s=30.0, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rounds", "settings", "train_s"),
    [
        (4, {"late": "merge", "deadline_s": 2.0}, LATE_S),
        (4, {"late": "merge", "deadline_s": 2.0, "max_staleness": 1}, LATE_S),
        (4, {"mode": "async", "buffer": 2, "concurrency": 3}, STAGGERED_S),
    ],
    ids=["late", "too late", "asynchronous"],
)
async def test_rounds_that_do_not_end_their_exchanges_are_the_live_ones(
    tmp_path: Path, rounds: int, settings: dict[str, object], train_s: tuple[float, ...]
) -> None:
    config = make_config(rounds=rounds, selection=EVERYBODY, round=joining(**settings))
    place = await played_live(tmp_path / "live", config, train_s)
    with place.reader() as reader:
        live = Story(reader.rounds(), reader.exchanges(0))
    virtual = replayed(tmp_path / "replay", config, train_s)
    assert virtual.rounds == live.rounds
    assert virtual.exchanges == live.exchanges
    assert virtual.models == live.models, "bit for bit"
    assert len(set(virtual.models)) == rounds
