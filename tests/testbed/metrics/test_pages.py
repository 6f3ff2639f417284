"""The dashboard of Grafana, the settings of Prometheus and the page name metrics that exist."""

import json
import os
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from fairbed.coordinator.report.measures import device_measures, run_measures
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli import EXAMPLES
from fairbed.testbed.metrics.exporter import Follower, Page
from tests.coordinator.store.fake_run import FakeRun

DASHBOARD = EXAMPLES / "grafana" / "fairbed.json"
ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "metrics.md"


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Metric]:
    """Return all metrics of a run that knows everything."""
    run = FakeRun(tmp_path_factory.mktemp("runs") / "run", watts=3.0)
    run.play(3)
    run.store.flush()
    page = Page()
    follower = Follower(run.folder, page, None, os.getpid())
    follower.refresh()
    follower.close()
    run.store.close()
    with RunReader(run.folder) as reader:
        assert reader.newest_round() == 3
    return list(text_string_to_metric_families(page.content.decode()))


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return found


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_the_dashboard_asks_for_series_that_exist(families: list[Metric]) -> None:
    samples = [sample for family in families for sample in family.samples]
    names = {sample.name for sample in samples}
    names |= {"fairbed_run_process_cpu_seconds_total"}  # there is none without /proc
    labels = {label for sample in samples for label in sample.labels}
    for expression in expressions():
        assert set(re.findall(r"\bfairbed_\w+", expression)) <= names, expression
        assert expression.count("(") == expression.count(")")
        assert 'job=~"$job",instance=~"$instance"' in expression
    legends = {
        label
        for panel in panels()
        for target in panel.get("targets", ())
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"])
    }
    assert legends <= labels


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    boxes = [panel["gridPos"] for panel in panels()]
    assert len({panel["id"] for panel in panels()}) == len(boxes)
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
    for a, b in combinations(boxes, 2):
        is_beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        is_above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert is_beside or is_above, (a, b)


def test_counters_are_shown_as_rates_or_totals() -> None:
    for expression in expressions():
        for name in re.findall(r"(\w+_(?:bucket|sum|count)){", expression):
            assert f"rate({name}" in expression


def test_the_pages_list_every_metric_with_its_type(families: list[Metric]) -> None:
    rows = re.findall(r"^\| `(fairbed_\w+)` \| (\w+) \|", DOCS.read_text("utf-8"), re.MULTILINE)
    rows += [(f"fairbed_{m.prometheus}", "gauge") for m in run_measures() if m.prometheus]
    rows += [(f"fairbed_device_{m.prometheus}", "gauge") for m in device_measures() if m.prometheus]
    listed = dict(rows)
    assert len(listed) == len(rows)
    own = [x for x in families if not x.name.startswith("fairbed_run_process_")]
    assert listed == {f"{x.name}_total" if x.type == "counter" else x.name: x.type for x in own}


def test_prometheus_reads_the_port_of_the_page() -> None:
    settings = (EXAMPLES / "grafana" / "prometheus.yml").read_text(encoding="utf-8")
    assert "127.0.0.1:9464" in settings
    assert "--metrics :9464" in DOCS.read_text("utf-8")
