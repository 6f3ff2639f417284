"""A poll as a table: every reply once, late ones late, and no limit while our own link is down."""

import numpy as np
import pytest

from fairbed.coordinator.policy.choice import LossDemand
from fairbed.coordinator.records.rows import answers_of, ask_rows
from fairbed.coordinator.state.loss_query import LossQuery, QueryOutcome, fault_in, pulled_in
from fairbed.wire.chunks import manifest_of
from fairbed.wire.messages import Coding, EvaluateReply, EvaluateRequest, Packed
from tests.coordinator.builders import MODEL

PACKED = manifest_of(b"\1" * 100, "model")
ASK = EvaluateRequest(round=3, model=MODEL, seed=1, limit_s=10.0)
CODED = EvaluateRequest(
    round=3,
    model=MODEL,
    seed=1,
    limit_s=10.0,
    coding=Coding(model=Packed(manifest=PACKED, codec="int8")),
)


def answer(loss: float = 1.5, **changes: object) -> EvaluateReply:
    fields: dict[str, object] = {
        "round": 3,
        "n": 40,
        "was_cold": True,
        "download_s": 0.5,
        "decode_s": 0.0,
        "load_s": 0.25,
        "evaluate_s": 0.125,
    }
    return EvaluateReply(loss=loss, **(fields | changes))  # type: ignore[arg-type]


def poll(*devices: str) -> LossQuery:
    game = LossQuery(3, 0, limit_s=10.0)
    for device in devices:
        game.ask(device, now=100.0)
    return game


def test_everybody_answers() -> None:
    game = poll("a", "b")
    game.answered("a", answer(1.0), None, 101.0)
    assert (game.open_devices(), game.is_over) == (["b"], False)
    game.answered("b", answer(2.0), None, 104.0)
    assert game.is_over
    assert [x.took_s for x in game.asked.values()] == [1.0, 4.0]


def test_an_answer_that_comes_twice_or_from_a_stranger_changes_nothing() -> None:
    game = poll("a", "b")
    game.answered("a", answer(1.0), None, 101.0)
    game.answered("a", answer(9.0), None, 102.0)
    game.answered("stranger", answer(9.0), None, 102.0)
    told = game.asked["a"].answer
    assert told is not None
    assert told.loss == 1.0
    assert set(game.asked) == {"a", "b"}


def test_who_has_not_answered_at_the_limit_is_late_and_stays_late() -> None:
    game = poll("a", "b")
    game.answered("a", answer(), None, 101.0)
    assert game.wake_at() == 110.0
    assert game.pass_limit(109.9) == []
    assert game.pass_limit(110.0) == ["b"]
    assert game.pass_limit(111.0) == []
    game.answered("b", answer(), None, 112.0)
    assert game.asked["b"].reply is QueryOutcome.LATE
    assert game.asked["b"].why == "no answer within 10 s"
    assert game.is_over


def test_no_limit_passes_while_our_own_link_is_down() -> None:
    game = poll("a")
    game.hold(105.0)
    game.hold(107.0)
    assert game.wake_at() is None
    assert game.pass_limit(1000.0) == []
    game.go_on(205.0)
    game.go_on(206.0)
    assert game.wake_at() == 210.0
    assert game.pass_limit(210.0) == ["a"]


@pytest.mark.parametrize("reply", [QueryOutcome.FAILED, QueryOutcome.LOST])
def test_one_that_is_over_is_over(reply: QueryOutcome) -> None:
    game = poll("a", "b")
    game.ended("a", reply, "gone")
    game.answered("a", answer(), None, 101.0)
    game.answered("b", answer(), None, 101.0)
    game.ended("b", reply, "gone")
    game.ended("stranger", reply, "gone")
    assert [x.reply for x in game.asked.values()] == [reply, QueryOutcome.ANSWERED]


def test_an_answer_that_cannot_be_is_no_answer() -> None:
    game = poll("a")
    game.answered("a", answer(), "it lies", 101.0)
    assert (game.asked["a"].reply, game.asked["a"].answer) == (QueryOutcome.REFUSED, None)
    assert game.is_over


def test_the_model_must_have_come_in_a_blob_that_was_announced() -> None:
    assert pulled_in(answer(), ASK) == MODEL
    assert pulled_in(answer(pulled=MODEL.id), ASK) == MODEL
    assert pulled_in(answer(pulled=PACKED.id), CODED) == PACKED
    assert fault_in(answer(), ASK) is None
    for ask in (ASK, CODED):
        assert "a blob that was announced" in (fault_in(answer(pulled=bytes(16)), ask) or "")
    assert "at least 1 example" in (fault_in(answer(n=0), ASK) or "")


def test_rows_and_answers_say_the_same() -> None:
    game = poll("c", "a")
    game.answered("a", answer(0.75), None, 101.5)
    game.ended("c", QueryOutcome.FAILED, "no memory")
    told = answers_of(LossDemand(3, np.array([0, 2]), "all"), game, ["a", "b", "c"])
    np.testing.assert_array_equal(told.loss, [0.75, np.nan])
    rows = {row.device: row for row in ask_rows(game, {"a": ASK, "c": ASK})}
    assert (rows["a"].outcome, rows["a"].loss, rows["a"].duration_s) == ("answered", 0.75, 1.5)
    assert (rows["a"].bytes_down, rows["a"].was_cold) == (MODEL.size_bytes, True)
    assert (rows["c"].outcome, rows["c"].reason, rows["c"].loss) == ("failed", "no memory", None)
    assert rows["c"].bytes_down == 0
