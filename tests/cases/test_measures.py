"""The catalogue of measures: one entry is enough for every view that it names."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fairbed.coordinator.report.facts import RunFacts
from fairbed.coordinator.report.html import read_page, report_page
from fairbed.coordinator.report.measures import added, device_measures, run_measures
from fairbed.coordinator.report.measures.entry import (
    SECONDS,
    Compared,
    DeviceMeasure,
    Exchanges,
    FleetColumnOf,
    Number,
    PageColumnOf,
    Round,
    RunMeasure,
    Summary,
    TextColumnOf,
    Tile,
    number_at,
)
from fairbed.coordinator.report.measures.page import measures_page
from fairbed.coordinator.report.measures.scales import TIME
from fairbed.coordinator.report.quantities import SampleCount
from fairbed.coordinator.report.summary import summarise_run, summary_table
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.tui.fleet_columns import LETTERS, by_key, columns_of
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.view import RunView
from fairbed.coordinator.tui.widgets.header import RunHeader, explanations
from fairbed.testbed.compare.measures import known_metrics, measure
from fairbed.testbed.metrics.prometheus import RunCollector
from fairbed.testbed.metrics.tensorboard import round_curves
from fairbed.testbed.metrics.totals import Totals
from tests.coordinator.store.fake_run import FakeRun
from tests.coordinator.tui.screen import room, shows

SLOWEST = RunMeasure(
    key="train_p99_s",
    name="p99 training",
    meaning="99th percentile of the training time of the timed exchanges",
    source=Exchanges("train_s", "p99"),
    unit="s",
    format=SECONDS,
    json="measures.train_p99_s",
    show="exchanges",
    report="p99 of training",
    room=Tile(label="P99 TRAIN", priority=0),
    compare=Compared(group="exchange", short="p99 train", better="less", kind=TIME),
    prometheus="train_p99_seconds",
)
UPLOAD = DeviceMeasure(
    key="upload_s_mean",
    name="mean upload",
    meaning="Mean time of the upload of the update",
    unit="s",
    format=SECONDS,
    source=Exchanges("upload_s", "mean").of_devices,
    show=TextColumnOf(heading="upload s", priority=0),
    report=PageColumnOf(heading="upload s"),
    room=FleetColumnOf(key="upload_mean", heading="upl s", wide_heading="upload s", priority=0),
    prometheus="upload_mean_seconds",
)
LATE = RunMeasure(
    key="round_cancelled",
    name="cancelled exchanges",
    meaning="Exchanges that the coordinator cancelled in the newest closed round",
    source=Round("cancelled"),
    tensorboard="exchanges/cancelled",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = FakeRun(tmp_path_factory.mktemp("runs") / "run", devices=4, watts=3.0)
    run.play(12)
    return run.finish()


@pytest.fixture
def reader(folder: Path) -> Iterator[RunReader]:
    with RunReader(folder) as found:
        yield found


def test_a_new_entry_is_in_every_view_that_it_names(reader: RunReader) -> None:
    with added(SLOWEST, UPLOAD):
        summary = summarise_run(reader)
        table = " ".join(summary_table(summary).split())
        printed = json.loads(msgspec.json.encode(summary))
        page = report_page([read_page(reader, has_figures=False)])
        side = report_page([read_page(reader, has_figures=False)] * 2)
        compared = measure(reader.folder)
        metric = {x.key: x for x in known_metrics()}[SLOWEST.key]
        totals, collector = Totals(reader), RunCollector()
        totals.refresh(0.0)
        collector.totals = totals
        series = collector.text().decode()
        view = ViewReader(reader).refresh(RunView())
        tiles, columns = dict(explanations()), {} if view is None else columns_of(view)
        docs = measures_page("")
    with RunReader(reader.folder) as again:
        rows = [x for x in again.exchanges() if x.train_s is not None]
    (p99,) = {printed["measures"]["train_p99_s"]["value"]}
    assert max(x.train_s or 0.0 for x in rows) >= p99 > sorted(x.train_s or 0.0 for x in rows)[-3]
    sample = SampleCount(len(rows), printed["exchange"]["count"])
    assert printed["measures"]["train_p99_s"]["sample"] == {"n": sample.n, "of": sample.of}
    assert f"; p99 training {p99:.2f} s ({sample})" in table
    assert "upload s" in table
    assert f">p99 of training</dt><dd>{p99:.2f} s ({sample})</dd>" in page
    assert ">upload s</th>" in page
    assert "<th" in side
    assert ">p99 of training</th>" in side
    assert (metric.heading, metric.better, metric.quantity) == ("p99 training", "less", TIME)
    assert compared.values[SLOWEST.key] == p99
    assert f"\nfairbed_train_p99_seconds {p99}" in series
    first = printed["fleet"][0]
    upload = first["measures"]["upload_s_mean"]["value"]
    assert f'\nfairbed_device_upload_mean_seconds{{device="{first["name"]}"}} {upload}' in series
    assert view is not None
    assert view.measures[SLOWEST.key] == Number(p99, sample)
    assert tiles["P99 TRAIN"] == f"{SLOWEST.meaning}."
    (column,) = [x for x in columns if x.key == "upload_mean"]
    assert column.value(view.devices[0]) == upload
    assert column.letter in LETTERS
    for text in ("`train_p99_s`", "`fairbed_train_p99_seconds`", "| `upload_s_mean` |"):
        assert text in docs


@pytest.mark.anyio
async def test_a_new_entry_is_on_the_screen(folder: Path) -> None:
    with added(SLOWEST, UPLOAD):
        async with room(folder, (200, 40)) as (app, pilot):
            assert await shows(app, pilot, "P99 TRAIN")
            assert await shows(app, pilot, "upload s")
            header = app.screen.query_one(RunHeader)
            found = header.view.measures[SLOWEST.key].value
            assert await shows(app, pilot, SLOWEST.with_unit(found))


def test_a_new_column_of_rounds_is_a_curve(reader: RunReader) -> None:
    with added(LATE):
        assert round_curves()["exchanges/cancelled"].of_row(reader.rounds()[-1]) == 0
    assert "exchanges/cancelled" not in round_curves()


def test_without_an_entry_the_json_has_no_key_for_it(reader: RunReader) -> None:
    printed = json.loads(msgspec.json.encode(summarise_run(reader)))
    assert SLOWEST.key not in printed.get("measures", {})
    assert UPLOAD.key not in printed["fleet"][0].get("measures", {})


def test_the_place_of_a_measure_has_the_number_of_its_source(reader: RunReader) -> None:
    """So what a comparison or the exporter reads is what the summary prints."""
    summary = summarise_run(reader)
    with reader.snapshot():
        facts = RunFacts(reader, summary)
        both = {
            m.key: (m.of(facts).value, number_at(summary, m.json).value)
            for m in run_measures()
            if m.json and not m.json.startswith("attackers.")  # null without an attack
        }
    assert {key: pair for key, pair in both.items() if pair[0] != pair[1]} == {}
    assert sum(one is not None for one, _ in both.values()) > 30
    for measured in device_measures():
        if measured.in_json and not measured.is_own:
            assert hasattr(summary.fleet[0], measured.key)


def test_each_name_of_a_view_is_given_once() -> None:
    for names in (
        [m.key for m in run_measures()],
        [m.prometheus for m in run_measures() if m.prometheus],
        [m.tensorboard for m in run_measures() if m.tensorboard],
        [m.json for m in run_measures() if m.json],
        [m.key for m in device_measures()],
        [m.prometheus for m in device_measures() if m.prometheus],
        list(by_key()),
    ):
        assert len(set(names)) == len(names)


def test_a_remote_view_has_no_statistic_of_the_exchanges_that_it_lacks(
    reader: RunReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = replace(reader.run(), oldest_round=4)
    monkeypatch.setattr(reader, "run", lambda: lacks)
    with added(SLOWEST, UPLOAD), reader.snapshot():
        facts = RunFacts(reader)
        assert SLOWEST.of(facts).value is None
        assert "newest exchanges only" in SLOWEST.of(facts).why_none
        assert UPLOAD.of(facts) == {}


def test_a_statistic_of_too_few_exchanges_has_a_reason(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run", devices=4)
    run.play(1)
    with added(SLOWEST, UPLOAD), RunReader(run.finish()) as reader:
        summary = summarise_run(reader)
        text = " ".join(summary_table(summary).split())
        lacking = measure(reader.folder).missing
    assert summary.measures
    assert summary.measures["train_p99_s"] == Number(None, SampleCount(4, 4), "fewer than 5")
    assert "; p99 training none (4 of 4, fewer than 5)" in text
    assert "n < 5" in text
    assert lacking["train_p99_s"] == "fewer than 5"


def test_an_entry_that_no_view_could_read_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must read the store"):
        RunMeasure(key="x", name="x", meaning="X", source=Summary("devices"), json="measures.x")
    with pytest.raises(ValueError, match=r"json must be measures\.x, got measures\.y"):
        RunMeasure(key="x", name="x", meaning="X", source=Round("round"), json="measures.y")
    with pytest.raises(ValueError, match="a curve needs a column of rounds"):
        RunMeasure(
            key="x", name="x", meaning="X", source=Exchanges("tau_s", "mean"), tensorboard="x"
        )
    with (
        pytest.raises(ValueError, match="each key must be new, got jain"),
        added(RunMeasure(key="jain", name="x", meaning="X", source=Round("round"))),
    ):
        pass
    with (
        pytest.raises(ValueError, match="needs a source, got none: x"),
        added(DeviceMeasure(key="x", name="x", meaning="X")),
    ):
        pass
