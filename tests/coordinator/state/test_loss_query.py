"""The table of a loss query: each reply once, the limit, and outages of the coordinator."""

import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.records.rows import loss_query_rows
from fairbed.coordinator.state.loss_query import (
    LossQuery,
    QueryOutcome,
    fault_in_reply,
    pulled_manifest,
)
from fairbed.wire.chunks import manifest_of
from fairbed.wire.evaluation import Predicted
from fairbed.wire.messages import Coding, EvaluateReply, EvaluateRequest, Packed
from tests.coordinator.builders import MODEL

PACKED = manifest_of(b"\1" * 100, "model")
REQUEST = EvaluateRequest(round=3, model=MODEL, seed=1, limit_s=10.0)
CODED = EvaluateRequest(
    round=3,
    model=MODEL,
    seed=1,
    limit_s=10.0,
    coding=Coding(model=Packed(manifest=PACKED, codec="int8")),
)


def reply(loss: float = 1.5, **changes: object) -> EvaluateReply:
    fields: dict[str, object] = {
        "round": 3,
        "model": MODEL.sha256,
        "n": 40,
        "was_cold": True,
        "download_s": 0.5,
        "decode_s": 0.0,
        "load_s": 0.25,
        "evaluate_s": 0.125,
    }
    return EvaluateReply(loss=loss, **(fields | changes))  # type: ignore[arg-type]


def opened(*devices: str) -> LossQuery:
    query = LossQuery(3, 0, limit_s=10.0)
    for device in devices:
        query.add(device, now=100.0)
    return query


def test_all_devices_reply() -> None:
    query = opened("a", "b")
    query.on_reply("a", reply(1.0), None, 101.0)
    assert (query.open_devices(), query.is_over) == (["b"], False)
    query.on_reply("b", reply(2.0), None, 104.0)
    assert query.is_over
    assert [x.took_s for x in query.devices.values()] == [1.0, 4.0]


def test_a_duplicate_and_a_reply_of_an_unknown_device_change_nothing() -> None:
    query = opened("a", "b")
    query.on_reply("a", reply(1.0), None, 101.0)
    query.on_reply("a", reply(9.0), None, 102.0)
    query.on_reply("stranger", reply(9.0), None, 102.0)
    kept = query.devices["a"].reply
    assert kept is not None
    assert kept.loss == 1.0
    assert set(query.devices) == {"a", "b"}


def test_a_device_without_a_reply_at_the_limit_is_late_and_stays_late() -> None:
    query = opened("a", "b")
    query.on_reply("a", reply(), None, 101.0)
    assert query.wake_at() == 110.0
    assert query.pass_limit(109.9) == []
    assert query.pass_limit(110.0) == ["b"]
    assert query.pass_limit(111.0) == []
    query.on_reply("b", reply(), None, 112.0)
    assert query.devices["b"].outcome is QueryOutcome.LATE
    assert query.devices["b"].reason == "no answer within 10 s"
    assert query.is_over


def test_no_limit_passes_while_our_own_link_is_down() -> None:
    query = opened("a")
    query.on_link_down(105.0)
    query.on_link_down(107.0)
    assert query.wake_at() is None
    assert query.pass_limit(1000.0) == []
    query.on_link_up(205.0)
    query.on_link_up(206.0)
    assert query.wake_at() == 210.0
    assert query.pass_limit(210.0) == ["a"]


@pytest.mark.parametrize("outcome", [QueryOutcome.FAILED, QueryOutcome.LOST])
def test_an_outcome_is_final(outcome: QueryOutcome) -> None:
    query = opened("a", "b")
    query.end("a", outcome, "gone")
    query.on_reply("a", reply(), None, 101.0)
    query.on_reply("b", reply(), None, 101.0)
    query.end("b", outcome, "gone")
    query.end("stranger", outcome, "gone")
    assert [x.outcome for x in query.devices.values()] == [outcome, QueryOutcome.ANSWERED]


def test_a_faulty_reply_is_refused() -> None:
    query = opened("a")
    query.on_reply("a", reply(), "a fault", 101.0)
    assert (query.devices["a"].outcome, query.devices["a"].reply) == (QueryOutcome.REFUSED, None)
    assert query.is_over


def test_the_model_must_have_come_in_a_blob_that_was_announced() -> None:
    assert pulled_manifest(reply(), REQUEST) == MODEL
    assert pulled_manifest(reply(pulled=MODEL.id), REQUEST) == MODEL
    assert pulled_manifest(reply(pulled=PACKED.id), CODED) == PACKED
    assert fault_in_reply(reply(), REQUEST) is None
    for request in (REQUEST, CODED):
        assert "a blob that was announced" in (
            fault_in_reply(reply(pulled=bytes(16)), request) or ""
        )
    assert "at least 1 example" in (fault_in_reply(reply(n=0), REQUEST) or "")


def test_a_test_counts_correct_examples_and_may_have_none() -> None:
    request = structs.replace(REQUEST, split="test")
    assert fault_in_reply(reply(correct=1), request) is None
    assert fault_in_reply(reply(n=0, correct=0), request) is None
    assert "number of correct test examples" in (fault_in_reply(reply(), request) or "")
    assert "a blob that was announced" in (
        fault_in_reply(reply(correct=1, pulled=bytes(16)), request) or ""
    )


def test_a_test_of_regression_has_an_error_instead() -> None:
    request = structs.replace(REQUEST, split="test")
    assert fault_in_reply(reply(mae=0.5), request, Predicted("regression")) is None
    assert fault_in_reply(reply(n=0, correct=0), request, Predicted("regression")) is None
    for wrong in (reply(), reply(correct=1)):
        assert "mean absolute error" in (
            fault_in_reply(wrong, request, Predicted("regression")) or ""
        )
    assert "number of correct" in (fault_in_reply(reply(mae=0.5), request) or "")


def test_rows_and_losses_agree() -> None:
    query = opened("c", "a")
    query.on_reply("a", reply(0.75), None, 101.5)
    query.end("c", QueryOutcome.FAILED, "no memory")
    np.testing.assert_array_equal(query.losses(), [np.nan, 0.75])
    assert query.answered() == {"a"}
    rows = {row.device: row for row in loss_query_rows(query, lambda *_: MODEL.size_bytes)}
    assert (rows["a"].outcome, rows["a"].loss, rows["a"].duration_s) == ("answered", 0.75, 1.5)
    assert (rows["a"].bytes_down, rows["a"].was_cold) == (MODEL.size_bytes, True)
    assert (rows["c"].outcome, rows["c"].reason, rows["c"].loss) == ("failed", "no memory", None)
    assert rows["c"].bytes_down == 0
