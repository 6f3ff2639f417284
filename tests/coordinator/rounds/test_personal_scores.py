"""Runs with personal models: real agents train and score them, the store has the scores."""

from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs

from fairbed.coordinator.policy.config import (
    CoordinatorConfig,
    EvaluationConfig,
    PersonalisationConfig,
    TrainingConfig,
)
from fairbed.coordinator.rounds.personal_scores import PersonalScores
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import PersonalScoreRow
from fairbed.device_agent.stored_vector import PERSONAL, file_of
from fairbed.wire.evaluation import Predicted
from fairbed.wire.messages import PersonalScore, Train
from tests.coordinator.lab import NAMES, PATIENT, WHOLE_FLEET, Lab, lab, make_config
from tests.idle_time import LoopClock
from tests.wire.messages import MESSAGES

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

FILE = file_of(PERSONAL)
DITTO = PersonalisationConfig(method="ditto")
HELD_OUT = 12


def ditto(rounds: int = 3, **sections: object) -> CoordinatorConfig:
    sections = {"selection": WHOLE_FLEET, "round": PATIENT, "personalisation": DITTO} | sections
    return make_config(rounds, len(NAMES), **sections)


def prepared(place: Lab) -> Lab:
    """Give the devices held-out examples, and shards that do not depend on who joins first."""
    place.shards.held_out, place.shards.given = HELD_OUT, list(NAMES)
    place.device_names = NAMES
    return place


def scores_of(place: Lab) -> list[PersonalScoreRow]:
    with place.reader() as reader:
        return reader.personal_scores()


def models_of(place: Lab) -> list[bytes]:
    """Return the content of the file of each device's personal model."""
    return [(place.folder / f"{name}-state" / FILE).read_bytes() for name in NAMES]


async def test_every_device_trains_and_scores_a_personal_model(tmp_path: Path) -> None:
    async with lab(tmp_path) as place:
        assert await prepared(place).run(ditto()) == "done"
    with place.reader() as reader:
        exchanges = reader.exchanges()
        scores = [reader.columns(PersonalScoreRow, ("round", "device", "n"))]
        model_bytes = {x.bytes_up for x in exchanges}
    assert sorted(scores[0]) == [(r, name, HELD_OUT) for r in (1, 2, 3) for name in NAMES]
    assert all(x.personal_s is not None and x.personal_s > 0.0 for x in exchanges)
    assert model_bytes == {4 * place.artifact.spec.layout.n_values}, "v_k is never sent"
    assert [row.round for row in scores_of(place)] == [3, 3, 3]


async def test_every_training_is_scored_so_that_the_latest_score_is_current(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path) as place:
        config = ditto(rounds=3, evaluation=EvaluationConfig(every=0))
        assert await prepared(place).run(config) == "done"
    with place.reader() as reader:
        rounds = sorted(row[0] for row in reader.columns(PersonalScoreRow, ("round",)))
    assert rounds == [1, 1, 1, 2, 2, 2, 3, 3, 3]


async def test_the_global_model_does_not_depend_on_personal_models(tmp_path: Path) -> None:
    models = []
    for name, method in (("with", DITTO), ("without", PersonalisationConfig())):
        async with lab(tmp_path / name) as place:
            assert await prepared(place).run(ditto(personalisation=method)) == "done"
        with place.reader() as reader:
            models.append([row.model_sha256 for row in reader.rounds()])
    assert models[0] == models[1]
    assert scores_of(place) == []


async def test_a_resumed_run_has_the_personal_models_of_an_uninterrupted_one(
    tmp_path: Path,
) -> None:
    config = ditto(rounds=5)
    async with lab(tmp_path / "whole") as whole:
        assert await prepared(whole).run(config) == "done"
    async with lab(tmp_path / "parts") as parts:
        store = prepared(parts).open_store()
        first = parts.coordinator(config, store)
        parts.on_progress = lambda p: first.stop() if p.round.round == 2 else None
        assert await first.run() == "stopped"
        store.close()
        parts.on_progress = lambda p: None
        assert await parts.run(config) == "done"
    assert models_of(parts) == models_of(whole)
    assert scores_of(parts) == scores_of(whole)


async def test_a_restarted_agent_continues_with_its_personal_model(tmp_path: Path) -> None:
    def restart(place: Lab, round_id: int) -> None:
        if round_id == 2:
            place.kill_agent("pi-1")
            place.start_agent("pi-1")

    async with lab(tmp_path) as place:
        prepared(place).on_progress = lambda p: restart(place, p.round.round)
        config = ditto(rounds=20, training=TrainingConfig(learning_rate=0.02))
        assert await place.run(config) == "done"
    with place.reader() as reader:
        of_pi_1 = [x for x in reader.exchanges() if x.device == "pi-1" and x.outcome == "done"]
    (row,) = [row for row in scores_of(place) if row.device == "pi-1"]
    assert row.round == max(x.round for x in of_pi_1)


@pytest.mark.parametrize(
    ("method", "later"),
    [("ditto", "global model of round 3"), ("local-only", "model before round 1")],
)
async def test_a_lost_personal_model_begins_at_the_global_one_only_with_ditto(
    method: Literal["ditto", "local-only"],
    later: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    def lose(place: Lab, round_id: int) -> None:
        if round_id == 2:
            (place.folder / "pi-1-state" / FILE).unlink()

    async with lab(tmp_path) as place:
        prepared(place).on_progress = lambda p: lose(place, p.round.round)
        config = ditto(personalisation=PersonalisationConfig(method=method))
        assert await place.run(config) == "done"
    begins = [line for line in caplog.messages if line.startswith("personal model: begins")]
    assert begins == [
        *["personal model: begins at the model before round 1"] * len(NAMES),
        f"personal model: begins at the {later}",
    ]


def _raise(error: StoreError) -> None:
    raise error


def train(round_id: int, attempt: int = 0) -> Train:
    personal = MESSAGES["train-personal"]
    assert isinstance(personal, Train)
    return structs.replace(personal, round=round_id, attempt=attempt)


async def test_scores_of_regression_are_errors(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        store = place.open_store()
        scores = PersonalScores(EventLog(store, LoopClock().now, _raise), Predicted("regression"))
        scores.expect({"a": train(1), "b": train(1)})
        scores.on_message("a", PersonalScore(round=1, n=4, loss=2.0, mae=1.5, r2=0.5))
        scores.on_message("b", PersonalScore(round=1, n=4, correct=3, loss=2.0))  # not of the task
        assert scores.open_devices() == []
        store.close()
        assert scores_of(place) == [
            PersonalScoreRow(round=1, device="a", n=4, accuracy=None, loss=2.0, rmse=2.0, mae=1.5)
        ]


async def test_a_device_that_sends_no_score_is_waited_for_three_times(tmp_path: Path) -> None:
    """Each wait costs a whole deadline (issue #20); one score makes up for it."""
    async with lab(tmp_path, agents=0) as place:
        store, clock = place.open_store(), LoopClock()
        scores = PersonalScores(EventLog(store, clock.now, _raise))

        async def waited_s(number: int, *, is_lost: bool = False) -> float:
            began = clock.now()
            scores.expect({"a": train(number)})
            if is_lost:
                scores.mark_lost("a", "gone")
            await scores.wait(["a"], 10.0)
            return clock.now() - began

        found = [round(await waited_s(number, is_lost=number == 2)) for number in range(1, 6)]
        assert found == [10, 0, 10, 0, 0]
        scores.on_message("a", PersonalScore(round=5, n=4, correct=1))
        assert round(await waited_s(6)) == 10
        store.close()
    with place.reader() as reader:
        texts = [e.text for _, e in reader.events() if e.device == "a"]
    assert texts == [
        "its personal score was missing 3 times in a row, so no round waits for it until it sends "
        "one; see its log"
    ]


async def test_only_requested_scores_are_recorded_and_waited_for(tmp_path: Path) -> None:
    async with lab(tmp_path, agents=0) as place:
        store = place.open_store()
        log = EventLog(store, LoopClock().now, _raise)
        scores = PersonalScores(log)
        scores.expect({"a": train(1), "b": train(1), "c": structs.replace(train(1), personal=None)})
        assert scores.open_devices() == ["a", "b"]
        scores.on_message("a", PersonalScore(round=1, attempt=1, n=4, correct=1))
        scores.on_message("stranger", PersonalScore(round=1, n=4, correct=1))
        assert scores.open_devices() == ["a", "b"]
        scores.on_message("a", PersonalScore(round=1, n=4, correct=1, loss=2.0))
        scores.on_message("a", PersonalScore(round=1, n=4, correct=4, loss=0.0))
        scores.mark_lost("b", "gone")
        await scores.wait(["a", "b", "c"], 30.0)
        scores.expect({"a": train(2), "b": train(2)})
        scores.on_message("b", PersonalScore(round=2, n=0))
        await scores.wait(["a", "b"], 2.5)
        store.close()
        assert scores_of(place) == [
            PersonalScoreRow(round=1, device="a", n=4, accuracy=0.25, loss=2.0)
        ]
        with place.reader() as reader:
            (event,) = [e for _, e in reader.events() if e.kind == "not evaluated"]
    assert event.text == "no personal score of a within 2.5 s"
