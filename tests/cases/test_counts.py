"""One name is one number in every reader, and a number of too few exchanges is in none."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairbed.coordinator.report import summary_schema
from fairbed.coordinator.report.device_history import slowest_phase
from fairbed.coordinator.report.estimators import compare_estimators, stated
from fairbed.coordinator.report.html import read_page, report_page
from fairbed.coordinator.report.measures import run_measure
from fairbed.coordinator.report.quantities import SampleCount
from fairbed.coordinator.report.result import result_lines, result_of
from fairbed.coordinator.report.summary import RunSummary, summarise_run, summary_table
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.coordinator.tui.run_list import differences, read_series
from fairbed.coordinator.tui.screens.estimator import facts_text, read_accuracy
from fairbed.coordinator.tui.widgets.header import RunHeader
from fairbed.testbed.compare.measures import known_metrics, measure
from fairbed.testbed.metrics.prometheus import RunCollector
from fairbed.testbed.metrics.tensorboard import round_curves
from fairbed.testbed.metrics.totals import Totals
from tests.coordinator.store.fake_run import FakeRun
from tests.coordinator.tui.screen import room, shows

PRINTED = 0.0051
"""Most by which a number that is printed with two digits differs."""

Numbers = dict[str, float]
"""Numbers by the words before them."""


class SpoiltRun(FakeRun):
    """A run in which some exchanges are untimed."""

    spoils: Callable[[int, ExchangeRow], bool]

    def exchange(self, row: int) -> ExchangeRow:
        """Return an exchange of the open round, not yet stored."""
        x = super().exchange(row)
        if x.outcome != "done" or not self.spoils(self.round, x):
            return x
        return replace(x, is_valid=False, is_contended=True, reason="this machine was too busy")


def spoilt(folder: Path, spoils: Callable[[int, ExchangeRow], bool]) -> Path:
    run = SpoiltRun(folder, watts=3.0)
    run.spoils = spoils
    run.play(30)
    return run.finish()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 116 exchanges, of which one was late."""
    run = FakeRun(tmp_path_factory.mktemp("runs") / "whole", watts=3.0)
    run.play(30)
    return run.finish()


@pytest.fixture(scope="module")
def nearly_untimed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with 5 timed exchanges, 2 of them in the second half of the rounds."""
    folder = tmp_path_factory.mktemp("runs") / "untimed"
    return spoilt(folder, lambda number, x: number not in (2, 17) or x.device[-1] in "1357")


def of_summary(reader: RunReader) -> Numbers:
    text = " ".join(summary_table(summarise_run(reader)).split())
    return {
        **_found(text, r"virtual queues: sum", r"largest", r"mean sum", r"max"),
        "exchange, median s": _after(text, r"exchanges 116, median"),
        "lowest rate": _after(text, "selection rate: min"),
        "accuracy": _after(text, "accuracy mean"),
        "worst 10 %": _after(text, "worst 10 %"),
        "energy": _after(text, "energy"),
        "timed": _after(text, r"exchanges 116, median [\d.]+ s, p95 [\d.]+ s \("),
        "Jain index": _after(text, "kept; Jain index"),
        "median round": _after(text, r"\(1 void\), median"),
        "mean error": _after(text, "mean error") / 100,
        "median error": _after(text, r"mean error [\d.]+ %, median") / 100,
    }


def of_json(reader: RunReader) -> Numbers:
    s = json.loads(msgspec.json.encode(summarise_run(reader)))
    return {
        "virtual queues: sum": s["queues"]["total"],
        "largest": s["queues"]["largest"],
        "mean sum": s["queues"]["mean_total"],
        "max": s["queues"]["max"],
        "exchange, median s": s["exchange"]["median_s"],
        "lowest rate": s["fairness"]["min_selection_rate"],
        "accuracy": s["accuracy"]["mean"],
        "worst 10 %": s["accuracy"]["worst10"],
        "timed": s["exchange"]["samples"]["median_s"]["n"],
        "Jain index": s["fairness"]["jain"],
        "median round": s["round_s"]["median"],
        "mean error": s["estimator"]["mape_second_half"],
        "median error": s["estimator"]["median_ape"],
    }


def page_text(reader: RunReader) -> str:
    page = report_page([read_page(reader, has_figures=False)])
    body = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub("<[^>]*>", " ", body)).replace("\xa0", " ").split())


def of_report(reader: RunReader) -> Numbers:
    text = page_text(reader)
    return {
        **_found(text, r"virtual queues: sum", r"largest"),
        "exchange, median s": _after(text, r"median exchange \(115 of 116 timed\)"),
        "timed": _after(text, r"median exchange \("),
        "lowest rate": _after(text, r"lowest rate \(0.15 guaranteed\)"),
        "accuracy": _after(text, "accuracy, mean over devices"),
        "worst 10 %": _after(text, r"accuracy, worst 10 % \(noise \d+ %\)"),
        "Jain index": _after(text, "Jain index of the selections is"),
        "median round": _after(text, "A median round took"),
        "mean error": _after(text, "mean error") / 100,
        "energy": _after(text, r"up;"),
    }


def of_comparison(reader: RunReader) -> Numbers:
    values = measure(reader.folder).values
    headings = {metric.heading: metric.key for metric in known_metrics()}
    shared = {
        "virtual queues: mean sum": "mean sum",
        "virtual queues: max": "max",
        "median exchange": "exchange, median s",
        "median round": "median round",
        "mean error of predictions": "mean error",
        "median error of predictions": "median error",
        "min rate selected": "lowest rate",
        "final accuracy": "accuracy",
        "worst 10 %": "worst 10 %",
        "Jain": "Jain index",
    }
    found = {name: values[headings[heading]] for heading, name in shared.items()}
    return {name: value for name, value in found.items() if value is not None}


def of_prometheus(reader: RunReader) -> Numbers:
    collector, totals = RunCollector(), Totals(reader)
    totals.refresh(0.0)
    collector.totals = totals
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(collector.text().decode())
        for sample in family.samples
        if not sample.labels
    }
    return {
        "virtual queues: sum": samples["fairbed_virtual_queues"],
        "largest": samples["fairbed_virtual_queue_largest"],
        "lowest rate": samples["fairbed_selection_rate_min_ratio"],
        "Jain index": samples["fairbed_selection_jain_ratio"],
        "accuracy": samples["fairbed_model_accuracy_mean_ratio"],
        "worst 10 %": samples["fairbed_model_accuracy_worst10_ratio"],
        "timed": samples["fairbed_exchange_duration_seconds_count"],
    }


def of_tensorboard(reader: RunReader) -> Numbers:
    row = reader.rounds()[-1]
    found = {
        "virtual queues: sum": round_curves()["queues/sum"].of_row(row),
        "largest": round_curves()["queues/largest"].of_row(row),
    }
    return {name: value for name, value in found.items() if value is not None}


def of_run_list(reader: RunReader) -> Numbers:
    series = read_series(reader.folder)
    rows = {label: first for label, first, _, _ in differences(series, series)}
    return {
        "virtual queues: sum": float(rows["virtual queues: sum"]),
        "median round": float(rows["median round"].removesuffix(" s")),
        "accuracy": float(rows["accuracy"]),
        "worst 10 %": float(rows["worst 10 %"]),
        "energy": float(rows["energy"].split()[0]),
    }


READERS: dict[str, Callable[[RunReader], Numbers]] = {
    "summary": of_summary,
    "JSON": of_json,
    "report": of_report,
    "compare": of_comparison,
    "Prometheus": of_prometheus,
    "TensorBoard": of_tensorboard,
    "list of runs": of_run_list,
}


def _after(text: str, words: str) -> float:
    match = re.search(rf"{words} ?([\d.]+\d)", text) or re.search(rf"([\d.]+) {words}", text)
    assert match, (words, text)
    return float(match[1])


def _found(text: str, *words: str) -> Numbers:
    line = text[text.index("virtual queues: sum") :]
    return {word: _after(line, word) for word in words}


def test_one_name_is_one_number_in_every_reader(whole: Path) -> None:
    with RunReader(whole) as reader:
        numbers = {name: read(reader) for name, read in READERS.items()}
    assert numbers["JSON"]["virtual queues: sum"] != numbers["JSON"]["mean sum"]
    names = {name for found in numbers.values() for name in found}
    for name in names:
        printed = {reader: found[name] for reader, found in numbers.items() if name in found}
        assert len(printed) > 1, name
        assert max(printed.values()) - min(printed.values()) < PRINTED, (name, printed)


@pytest.mark.anyio
async def test_the_control_room_has_the_sum_of_the_queues_of_the_summary(whole: Path) -> None:
    with RunReader(whole) as reader:
        queues = summarise_run(reader).queues
    async with room(whole, (200, 40)) as (app, pilot):
        assert await shows(app, pilot, "QUEUES ΣZ")
        header = app.screen.query_one(RunHeader)
        tiles = {tile.label: tile.value.plain for tile in header._tiles(header.view)}
    assert tiles["QUEUES ΣZ"] == f"{queues.total:.2f}"


def test_a_policy_without_queues_prints_none(whole: Path) -> None:
    with RunReader(whole) as reader:
        summary = summarise_run(reader)
    queues = summary_schema.Queues(total=None, largest=None, mean_total=None, max=None)
    text = summary_table(msgspec.structs.replace(summary, queues=queues))
    assert run_measure("queue_total").name not in text
    assert "no virtual queues" in text


@pytest.mark.parametrize(
    ("n", "of", "why"),
    [
        (0, 0, "fewer than 5"),
        (4, 4, "fewer than 5"),
        (5, 5, ""),
        (5, 10, ""),
        (5, 11, "fewer than half"),
        (59, 120, "fewer than half"),
        (60, 120, ""),
    ],
)
def test_a_statistic_needs_five_exchanges_and_half_of_all(n: int, of: int, why: str) -> None:
    assert SampleCount(n, of).why_none == why


def structs_of(value: Any, path: str = "") -> Iterator[tuple[str, msgspec.Struct]]:
    """Yield each struct inside a summary that is one of its groups, with its path."""
    if isinstance(value, msgspec.Struct) and not isinstance(value, SampleCount):
        yield path, value
        for key in value.__struct_fields__:
            yield from structs_of(getattr(value, key), f"{path}.{key}")
    elif isinstance(value, dict | list):
        children = value.values() if isinstance(value, dict) else value
        for child in children:
            yield from structs_of(child, path)


STATISTIC = re.compile(
    r"median|p95|mape|ape$|^bias$|unaccounted|cell_wait|^(total|wasted|energy)_j$"
)


def test_every_statistic_of_exchanges_has_its_counts_beside_it(whole: Path) -> None:
    with RunReader(whole) as reader:
        summary = summarise_run(reader)
    checked = set()
    for path, group in structs_of(summary):
        if type(group).__module__ != summary_schema.__name__:
            continue
        keys = {
            key
            for key, kind in get_type_hints(type(group)).items()
            if kind == float | None and STATISTIC.search(key)
        }
        assert keys == set(getattr(group, "samples", {})), path
        checked |= {f"{path}.{key}" for key in keys}
        for key in keys:
            sample = group.samples[key]  # type: ignore[attr-defined]
            assert 0 <= sample.n <= sample.of, (path, key)
            is_sum = key.endswith("_j") and key != "median_j"
            why = sample.why_no_total if is_sum else sample.why_none
            assert (getattr(group, key) is None) >= bool(why), (path, key)
    assert {".exchange.p95_s", ".fleet.tau_s_median", ".energy.total_j"} < checked


def test_five_times_of_many_exchanges_are_no_median_anywhere(nearly_untimed: Path) -> None:
    with RunReader(nearly_untimed) as reader:
        summary, text = summarise_run(reader), summary_table(summarise_run(reader))
        page, card = page_text(reader), dict(result_lines(result_of(reader)))
        facts = facts_text("ridge", read_accuracy(30, reader))
        errors = stated(compare_estimators(reader), reader)
        device = slowest_phase(reader.exchanges_of(summary.fleet[0].name))
    n = summary.exchange.timed
    assert 5 <= n < 10
    assert "median_s" in summary.exchange.samples
    _assert_null(summary)
    assert f"exchanges  116, no median ({n} of 116 timed, fewer than half); 1 late" in text
    assert "prediction no error in the second half of the rounds (" in text
    assert " exchanges predicted and timed, fewer than 5)" in text
    assert f"median exchange ({n} of 116 timed, fewer than half) –" in page
    assert "What the slowest exchanges spent their time on is not stated" in page
    assert "longest median exchange" not in page
    assert card["slowest"].startswith("unknown: no device has 5 timed exchanges")
    assert "no error (fewer than half)" in facts
    assert "no 80 % interval" in facts
    assert errors["ridge"].mape is errors["ridge"].p95_ape is errors["ridge"].coverage is None
    assert errors["ridge"].of == 116
    assert isinstance(device, SampleCount)
    values = measure(nearly_untimed).values
    timed = ("tau_median_s", "tau_p95_s", "mape", "median_ape")
    assert [values[key] for key in timed] == [None] * 4
    assert values["accuracy_mean"] is not None


def _assert_null(summary: RunSummary) -> None:
    x, e = summary.exchange, summary.estimator
    assert x.median_s is x.p95_s is x.unaccounted_ratio is x.up_median_bytes is None
    assert e.mape_second_half is e.median_ape is e.bias is None
    assert e.predicted > 50
    assert all(d.tau_s_median is d.train_s_median is None for d in summary.fleet)
    assert all(p.train_s_median is p.step_s_median is None for p in summary.profiles.values())


def test_a_number_of_part_of_the_exchanges_reads_n_of_all(tmp_path: Path) -> None:
    folder = spoilt(tmp_path / "part", lambda number, _: number % 3 == 0)
    with RunReader(folder) as reader:
        summary, text = summarise_run(reader), summary_table(summarise_run(reader))
        page, card = page_text(reader), dict(result_lines(result_of(reader)))
    n = summary.exchange.timed
    assert 58 < n < 115
    assert f" s ({n} of 116 timed); 1 late" in text
    assert f"median exchange ({n} of 116 timed)" in page
    assert re.search(r"bias [+-][\d.]+ % in the second half of the rounds \(\d+ of 60 exch", text)
    assert re.search(r": median exchange [\d.]+ s \(\d+ of \d+ timed\), ", card["slowest"])
    rows = [line.split() for line in text.splitlines() if line.startswith("raspberry")]
    assert all(row[7] == "of" for row in rows)


def test_a_short_demo_prints_counts_and_the_reason(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "demo", devices=1, rounds=3, watts=3.0)
    run.play(3)
    with RunReader(run.finish()) as reader:
        text = summary_table(summarise_run(reader))
        page = page_text(reader)
    assert "3 of 3, no median (3 of 3 not void, fewer than 5)" in text
    assert "exchanges  3, no median (3 of 3 timed, fewer than 5); 0 late" in text
    assert "J in 3 of 3 exchanges" in text
    assert "n < 5" in text.splitlines()[-2]
    assert "A median round" not in page
    assert "No median round: 3 of 3 rounds were not void, fewer than 5." in page
