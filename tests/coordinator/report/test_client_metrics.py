"""What clients measure: means by examples, both ends by name, and curves, in every view."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fairbed.coordinator.report import client_metrics
from fairbed.coordinator.report.client_metrics import (
    curves,
    lines,
    summaries,
    values_line,
    weighted_mean,
)
from fairbed.coordinator.report.device_history import read_history
from fairbed.coordinator.report.html import read_page, report_page
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.report.tables import read_table
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ClientMetricRow
from fairbed.coordinator.tui.screens.device import metrics_text, series_of
from tests.coordinator.store.fake_run import FakeRun


def row(
    device: str, value: float, n: int = 1, *, name: str = "cost", phase: str = "fit", round: int = 1
) -> ClientMetricRow:
    return ClientMetricRow(round=round, device=device, phase=phase, name=name, value=value, n=n)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[RunReader]:
    run = FakeRun(tmp_path / "run")
    run.measures = True
    run.play(4)
    run.store.close()
    with RunReader(run.folder) as found:
        yield found


def test_a_mean_weighs_devices_by_their_examples() -> None:
    assert weighted_mean([row("a", 1.0, 1), row("b", 4.0, 3)]) == pytest.approx(13 / 4)
    assert weighted_mean([row("a", 1.0, 0), row("b", 4.0, 0)]) == 2.5
    (found,) = summaries([row("b", 4.0, 3), row("a", 1.0, 1), row("c", 4.0, 1)])
    assert (found.lowest_device, found.highest_device, found.devices) == ("a", "b", 3)
    assert lines([found]) == [
        "cost (fit) 3.4, mean of 3 devices after round 1; lowest 1 a, highest 4 b"
    ]
    (alone,) = summaries([row("a", 2.0)])
    assert lines([alone]) == ["cost (fit) 2 of a, the only device after round 1"]


def test_long_lists_are_cut_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "MAX_LINES", 2)
    found = summaries([row("a", 1.0, name=name) for name in "xyz"])
    assert lines(found)[-1] == "and 1 more, in the table client_metric"


def test_curves_have_mean_and_range_of_each_round() -> None:
    rows = [row("a", 1.0, 1), row("b", 4.0, 3), row("a", 7.0, 2, round=3)]
    found = curves([row("a", 0.5, phase="evaluate"), *rows])
    assert list(found) == [("fit", "cost"), ("evaluate", "cost")]
    np.testing.assert_array_equal(
        found["fit", "cost"], [[1.0, 3.0], [3.25, 7.0], [1.0, 7.0], [4.0, 7.0]]
    )


def test_every_view_has_them(reader: RunReader) -> None:
    summary = summarise_run(reader)
    assert summary.client_metrics
    fit, evaluated = summary.client_metrics
    assert (fit.phase, evaluated.phase, fit.round) == ("fit", "evaluate", 4)
    assert evaluated.mean == 20.0
    assert "metric     cost (fit)" in summary_table(summary)
    page = report_page([read_page(reader)])
    assert "Metrics of the client" in page
    table = read_table(reader, "client_metric", columns=["round", "name", "value"])
    assert len(table) == len(reader.client_metrics())


def test_those_of_an_app_are_of_no_device(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.measures = True
    run.play(1)
    for phase, round_id, value in (
        ("central", 0, 9.0),
        ("central", 1, 2.5),
        ("merged fit", 1, 3.5),
    ):
        run.store.add(row("", value, 0, phase=phase, round=round_id))
    run.store.close()
    with RunReader(run.folder) as reader:
        summary, page = summarise_run(reader), report_page([read_page(reader)])
        found = curves(reader.client_metrics())
        of_round = reader.client_metrics(0, 1, "")
    phases = [one.phase for one in summary.client_metrics or []]
    assert phases == ["fit", "evaluate", "merged fit", "central"]
    assert "cost (central) 2.5, of the strategy of the app after round 1" in summary_table(summary)
    assert "Rows without devices are of the strategy of the app" in page
    np.testing.assert_array_equal(found["central", "cost"][:2], [[0.0, 1.0], [9.0, 2.5]])
    assert values_line(of_round) == "cost (merged fit) 3.5, cost (central) 2.5"


def test_the_screen_of_a_device_has_its_own(reader: RunReader) -> None:
    device = reader.client_metrics()[0].device
    history = read_history(reader, device)
    assert {x.device for x in history.metrics} == {device}
    assert metrics_text(history).startswith("cost ")
    (own,) = [one for one in series_of(history, ()) if one.title == "cost, of the client"]
    assert [curve.label for curve in own.curves] == ["fit", "evaluate"]
    assert all(curve.points for curve in own.curves)


def test_a_run_without_a_client_has_no_word_of_them(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(2)
    run.store.close()
    with RunReader(run.folder) as found:
        summary = summarise_run(found)
        page = report_page([read_page(found)])
        assert not summary.client_metrics
        assert not summary.has_client
        assert "metric " not in summary_table(summary)
        assert "Metrics of the client" not in page
        assert found.client_metric_names() == []
