"""Malicious devices of a replay send and report what malicious agents do, bit for bit."""

from pathlib import Path

import pytest

from fairbed.coordinator.policy.config import AggregationConfig, ExchangeConfig, SelectionConfig
from fairbed.testbed.emulation.malicious import Attack
from tests.coordinator.lab import PATIENT, WHOLE_FLEET, make_config
from tests.testbed.replay.as_live import (
    QueryStory,
    Story,
    replay_query_story,
    replay_story,
    run_live,
)

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

AT_ONCE_S = (0.01, 0.01, 0.01)
FLOAT32, INT8 = ExchangeConfig(), ExchangeConfig(up="int8")


def ends(story: Story) -> list[tuple[object, ...]]:
    """Return the ends of all exchanges; a busy machine gives a merged one a reason, too."""
    return [
        (at, device, outcome, "" if outcome == "done" else reason, *rest)
        for at, device, outcome, reason, *rest in story.exchanges
    ]


@pytest.mark.parametrize(
    ("kind", "exchange"),
    [
        pytest.param("random-update", FLOAT32, marks=pytest.mark.full),
        ("random-update", INT8),
        pytest.param("model-replacement", FLOAT32, marks=pytest.mark.full),
        pytest.param("free-rider", FLOAT32, marks=pytest.mark.full),
        ("replayed-update", FLOAT32),
        ("nan", FLOAT32),
    ],
)
async def test_a_malicious_update_is_that_of_a_malicious_agent(
    tmp_path: Path, kind: str, exchange: ExchangeConfig
) -> None:
    attacks = {1: Attack(kind=kind, scale=3.0)}  # type: ignore[arg-type]
    config = make_config(4, selection=WHOLE_FLEET, round=PATIENT, exchange=exchange)
    place = await run_live(tmp_path / "live", config, AT_ONCE_S, attacks)
    with place.reader() as reader:
        live = Story(reader.rounds(), reader.exchanges(0), reader.releases())
    virtual = replay_story(tmp_path / "replay", config, AT_ONCE_S, attacks)
    assert ends(virtual) == ends(live)
    assert virtual.rounds == live.rounds
    assert virtual.models == live.models, "bit for bit"
    honest = replay_story(tmp_path / "honest", config, AT_ONCE_S)
    assert virtual.models[1] != honest.models[1]
    outcomes = {outcome for _, device, outcome, *_ in live.exchanges if device == "pi-1"}
    assert outcomes == ({"rejected"} if kind == "nan" else {"done"})


async def test_a_false_loss_is_that_of_a_lying_agent(tmp_path: Path) -> None:
    attacks = {2: Attack(kind="lying-loss", loss=7.5)}
    selection = SelectionConfig(
        policy="power-of-choice", variant="pow-d", per_round=2, candidates=3
    )
    config = make_config(
        4,
        selection=selection,
        round=PATIENT,
        aggregation=AggregationConfig(rule="q-fedavg", q=1.0),
    )
    place = await run_live(tmp_path / "live", config, AT_ONCE_S, attacks)
    with place.reader() as reader:
        chosen = [(x.round, x.device) for x in reader.exchanges(0)]
        reported = {x.loss_before for x in reader.exchanges(0) if x.device == "pi-2"}
        models = [row.model_sha256 for row in reader.rounds()]
        live = QueryStory(reader.loss_queries(), chosen, models)
    virtual = replay_query_story(tmp_path / "replay", config, AT_ONCE_S, attacks)
    assert reported == {7.5}
    assert {loss for (_, device), (_, loss) in live.losses.items() if device == "pi-2"} == {7.5}
    assert virtual.losses == live.losses
    assert virtual.chosen == live.chosen
    assert virtual.models == live.models, "bit for bit"
