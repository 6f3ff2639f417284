"""Phases of an exchange over time."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.coordinator.tui.phase_spans import MISSED, OVER, Span, extend, spans_of
from tests.coordinator.store.fake_run import FakeRun


@pytest.fixture
def row(tmp_path: Path) -> ExchangeRow:
    run = FakeRun(tmp_path / "run")
    exchange = run.exchange(run.begin_round()[0])
    run.store.close()
    return replace(exchange, dispatched_at_s=10.0)


def test_the_phases_of_an_exchange_follow_each_other_without_gaps(row: ExchangeRow) -> None:
    spans = spans_of(row, 10.0, 60.0)
    names = [span.phase for span in spans]
    assert names == ["download", "load", "train", "encode", "queued", "upload"]
    for span, following in pairwise(spans):
        assert span.end_s == following.start_s


def test_phases_and_control_messages_add_up_to_the_exchange(row: ExchangeRow) -> None:
    spans = spans_of(row, 10.0, 60.0)
    assert row.tau_wall_s is not None
    before, after = spans[0].start_s, row.tau_wall_s - spans[-1].end_s
    assert before == pytest.approx(after)
    assert before + after == pytest.approx(0.024)


def test_a_device_that_missed_the_round_is_shown_until_its_end(row: ExchangeRow) -> None:
    late = replace(row, outcome="late", tau_wall_s=None, train_s=None, encode_s=None, upload_s=None)
    spans = spans_of(late, 10.0, 60.0)
    assert spans[-1].phase == MISSED
    assert spans[-1].end_s == 60.0


def test_an_open_exchange_grows_with_each_report() -> None:
    spans: tuple[Span, ...] = ()
    for state, now_s in [
        ("idle", 0.1),
        ("downloading", 0.2),
        ("training", 0.6),
        ("training", 1.6),
        ("offering", 2.0),
        ("uploading", 2.1),
        ("idle", 2.5),
        ("idle", 9.0),
    ]:
        spans = extend(spans, state, now_s)
    assert spans == (
        Span("download", 0.0, 0.6),
        Span("train", 0.6, 2.0),
        Span("queued", 2.0, 2.1),
        Span("upload", 2.1, 2.5),
        Span(OVER, 2.5, 2.5),
    )
