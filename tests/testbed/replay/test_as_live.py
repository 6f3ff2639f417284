"""A replay has the rounds and models of the live coordinator with real agents."""

from pathlib import Path
from typing import Any

import pytest

from fairbed.coordinator.policy.config import (
    ExchangeConfig,
    PrivacyConfig,
    RoundConfig,
    SelectionConfig,
    TrainingConfig,
)
from tests.coordinator.lab import NAMES, WHOLE_FLEET, make_config
from tests.testbed.replay.as_live import (
    QueryStory,
    Story,
    replay_query_story,
    replay_story,
    run_live,
)

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

# Events whose order matters are at least 0.3 s apart.
LATE_S = (0.8, 0.8, 3.2)
"""Training times: the third device misses a deadline of 2 s and finishes two rounds later."""

STAGGERED_S = (1.05, 1.43, 3.3)
"""Training times: the third device takes as long as three versions."""

CODED = ExchangeConfig(up="int8", down="delta")
"""A late update is decoded against the version that it changes."""

NOISE = PrivacyConfig(clip=0.5, noise_multiplier=1.5)
"""Quantised after the noise."""

SLOWDOWNS = (1.0, 2.5, 5.0)
"""Factors of all times: a busy machine may reorder close events, so the test repeats slower."""


def joining(**settings: object) -> RoundConfig:
    return RoundConfig(min_devices=len(NAMES), join_timeout_s=30.0, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exchange", "settings", "train_s", "privacy"),
    [
        (CODED, {"late": "merge", "deadline_s": 2.0}, LATE_S, PrivacyConfig()),
        (
            ExchangeConfig(),
            {"mode": "async", "buffer": 2, "concurrency": 3, "deadline_s": 10.0},
            STAGGERED_S,
            PrivacyConfig(),
        ),
        (CODED, {"late": "merge", "deadline_s": 2.0}, LATE_S, NOISE),
    ],
    ids=["late", "asynchronous", "late with noise"],
)
async def test_overlapping_rounds_equal_the_live_ones(
    tmp_path: Path,
    exchange: ExchangeConfig,
    settings: dict[str, Any],
    train_s: tuple[float, ...],
    privacy: PrivacyConfig,
) -> None:
    for slowdown in SLOWDOWNS:
        slower = settings | {"deadline_s": settings["deadline_s"] * slowdown}
        config = make_config(
            4,
            selection=WHOLE_FLEET,
            round=joining(**slower),
            exchange=exchange,
            privacy=privacy,
        )
        folder, slower_s = tmp_path / str(slowdown), [slowdown * seconds for seconds in train_s]
        place = await run_live(folder / "live", config, slower_s)
        with place.reader() as reader:
            live = Story(reader.rounds(), reader.exchanges(0), reader.releases())
        virtual = replay_story(folder / "replay", config, slower_s)
        if virtual.rounds == live.rounds and virtual.exchanges == live.exchanges:
            break
    assert virtual.rounds == live.rounds
    assert virtual.exchanges == live.exchanges
    assert virtual.models == live.models, "bit for bit"
    assert len(set(virtual.models)) == 4
    if privacy.is_on:
        assert virtual.releases == live.releases
        assert [virtual.releases[name] for name in NAMES] == [4, 4, 1], "late updates were sent"


OWN_WORK = {
    "adam, kept": TrainingConfig(
        learning_rate=0.02,
        batch_size=8,
        epochs=3,
        least_epochs=1,
        optimiser="adamw",
        weight_decay=0.1,
        optimiser_state="kept",
        clip_norm=1.0,
        proximal=0.1,
    ),
    "nesterov, a schedule by step": TrainingConfig(
        batch_size=8,
        epochs=2,
        max_steps=9,
        least_steps=3,
        momentum=0.9,
        nesterov=True,
        schedule="cosine",
        schedule_by="step",
        warm_up=3,
        micro_batch=3,
        augment=({"kind": "noise", "std": 0.1}, {"kind": "mixup"}),
    ),
}
"""Optimisers, and local work that each device draws for a round."""


@pytest.mark.parametrize("name", OWN_WORK)
async def test_what_devices_draw_and_keep_is_that_of_a_live_run(tmp_path: Path, name: str) -> None:
    selection = SelectionConfig(policy="uniform", per_round=2)
    config = make_config(5, selection=selection, round=joining(), training=OWN_WORK[name])
    place = await run_live(tmp_path / "live", config, (0.0, 0.0, 0.0))
    with place.reader() as reader:
        live = Story(reader.rounds(), reader.exchanges(0), reader.releases())
        steps = {x.steps for x in reader.exchanges(0)}
    virtual = replay_story(tmp_path / "replay", config, (0.5, 0.6, 0.7))
    chosen, again = ([x[:3] for x in story.exchanges] for story in (virtual, live))
    assert chosen == again
    assert virtual.models == live.models, "bit for bit"
    assert len(steps) > 1, "devices draw"


async def test_rounds_in_which_all_devices_are_at_work_are_counted_as_live(tmp_path: Path) -> None:
    """They are empty until an update arrives, and do not count towards `rounds`."""
    for slowdown in SLOWDOWNS:
        rules = joining(late="merge", deadline_s=2.0 * slowdown)
        config = make_config(4, selection=WHOLE_FLEET, round=rules)
        folder, train_s = tmp_path / str(slowdown), [slowdown * s for s in (6.5, 7.1, 7.6)]
        place = await run_live(folder / "live", config, train_s)
        with place.reader() as reader:
            live = Story(reader.rounds(), reader.exchanges(0), reader.releases())
        virtual = replay_story(folder / "replay", config, train_s)
        if virtual.rounds == live.rounds:
            break
    assert virtual.rounds == live.rounds
    assert virtual.models == live.models, "bit for bit"
    *_, (last, _, _, _, _, _, empty) = virtual.rounds
    assert (last, empty) == (4 + empty, sum(one[1:4] == ("void", 0, 0) for one in live.rounds))
    assert empty >= 2


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d"])
async def test_queried_losses_equal_those_of_real_agents(tmp_path: Path, variant: str) -> None:
    selection = SelectionConfig(
        policy="power-of-choice",
        variant=variant,  # type: ignore[arg-type]
        per_round=2,
        candidates=3,
    )
    config = make_config(rounds=5, selection=selection, round=joining())
    place = await run_live(tmp_path / "live", config, (0.01, 0.01, 0.01))
    with place.reader() as reader:
        chosen = [(x.round, x.device) for x in reader.exchanges(0)]
        live = QueryStory(
            reader.loss_queries(), chosen, [row.model_sha256 for row in reader.rounds()]
        )
    virtual = replay_query_story(tmp_path / "replay", config, (0.01, 0.01, 0.01))
    assert virtual.losses == live.losses, "bit for bit"
    assert virtual.chosen == live.chosen
    assert virtual.models == live.models
    assert len({device for _, device in virtual.chosen}) == 3, (
        "not always the same devices have the largest loss"
    )
