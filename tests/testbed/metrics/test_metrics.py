"""Metrics of a run for Prometheus and curves for TensorBoard, read with their own clients."""

import math
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ExchangeRow
from fairbed.testbed.cli.main import main
from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.metrics import totals as totals_module
from fairbed.testbed.metrics.exporter import Follower, Page
from fairbed.testbed.metrics.prometheus import _exchanges
from fairbed.testbed.metrics.start import ExportTargets
from fairbed.testbed.metrics.totals import SILENT_AFTER_S, Totals
from tests.coordinator.store.fake_run import FakeRun
from tests.testbed.small_run import Running, assert_gone, running, wait_until

Samples = Mapping[str, float]
"""Value by name and labels, as in `fairbed_rounds_total{status="done"}`."""


def samples_of(text: str) -> dict[str, float]:
    """Parse metrics with the client of Prometheus, which refuses what it cannot read."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found, "each series once"
            found[name] = sample.value
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    fake = FakeRun(tmp_path / "run", devices=5, watts=4.0)
    yield fake
    fake.store.close()


def scrape(run: FakeRun, follower: Follower, page: Page) -> Samples:
    run.store.flush()
    follower.refresh()
    return samples_of(page.content.decode())


def follower_of(run: FakeRun) -> tuple[Follower, Page]:
    page = Page()
    return Follower(run.folder, page, None, 1), page


def test_counters_are_those_of_the_summary(run: FakeRun) -> None:
    run.play(12)
    follower, page = follower_of(run)
    found = scrape(run, follower, page)
    with RunReader(run.folder) as reader:
        summary = summarise_run(reader)
        exchanges = reader.exchanges()
    assert found['fairbed_rounds_total{status="done"}'] == 11
    assert found['fairbed_rounds_total{status="void"}'] == 1
    assert found["fairbed_rounds_planned"] == 30
    for outcome, n in Counter(x.outcome for x in exchanges).items():
        assert found[f'fairbed_exchanges_total{{outcome="{outcome}"}}'] == n
    assert found['fairbed_exchanges_total{outcome="lost"}'] == 0
    assert found["fairbed_exchange_duration_seconds_count"] == len(
        [x for x in exchanges if x.tau_s is not None]
    )
    assert found["fairbed_exchange_prediction_error_seconds_count"] == len(
        [x for x in exchanges if x.tau_s is not None and x.round > 1]
    )
    assert found["fairbed_exchange_duration_seconds_sum"] == pytest.approx(
        sum(x.tau_s or 0.0 for x in exchanges)
    )
    assert found['fairbed_exchange_phase_seconds_sum{phase="train"}'] == pytest.approx(
        sum(x.train_s or 0.0 for x in exchanges)
    )
    assert found["fairbed_exchange_energy_joules_total"] == pytest.approx(
        sum(x.energy_j or 0.0 for x in exchanges)
    )
    assert found["fairbed_exchanges_with_energy_total"] == len(exchanges)
    assert found["fairbed_selection_rate_min_ratio"] == summary.fairness.min_selection_rate
    assert found["fairbed_aggregation_rate_min_ratio"] == summary.fairness.min_aggregation_rate
    assert found["fairbed_selection_rate_guaranteed_ratio"] == summary.fairness.beta
    assert found["fairbed_guarantee_holds"] == 1
    assert found["fairbed_model_accuracy_mean_ratio"] == summary.accuracy.mean
    assert found["fairbed_selections_total"] == sum(summary.selected.values())
    for name, n in summary.selected.items():
        assert found[f'fairbed_device_selections_total{{device="{name}"}}'] == n
        assert found[f'fairbed_device_virtual_queue{{device="{name}"}}'] >= 0
    assert found['fairbed_network_bytes_total{direction="down"}'] == summary.bytes.down
    assert found['fairbed_run_status{status="running"}'] == 1
    follower.close()


def test_untimed_exchanges_are_in_no_time_and_in_no_error(run: FakeRun) -> None:
    run.play(5)
    run.store.flush()
    with RunReader(run.folder) as reader:
        rows = reader.exchanges()
        for row in rows[4:]:
            run.store.add(replace(row, is_valid=False))
        run.store.flush()
        followed = Totals(reader)
        followed.refresh(0.0)
        text = {family.name: family for family in _exchanges(followed)}
    sums = followed.exchanges
    assert (int(sums.within.sum()), sums.phase_n["train"], sums.predicted) == (4, 4, 0)
    assert sums.tau_s == pytest.approx(sum(row.tau_s or 0.0 for row in rows[:4]))
    assert text["fairbed_exchange_prediction_bias_seconds"].samples == []


def test_reading_new_rows_gives_the_same_as_reading_all(run: FakeRun) -> None:
    stepwise, page = follower_of(run)
    for _ in range(12):
        scrape(run, stepwise, page)
        run.play(1)
    once, other_page = follower_of(run)
    timed = ("process", "exporter")
    assert {
        name: pytest.approx(value)
        for name, value in scrape(run, stepwise, page).items()
        if not any(word in name for word in timed)
    } == {
        name: value
        for name, value in scrape(run, once, other_page).items()
        if not any(word in name for word in timed)
    }
    stepwise.close()
    once.close()


def test_counters_never_fall(run: FakeRun) -> None:
    follower, page = follower_of(run)
    before: Samples = scrape(run, follower, page)
    for _ in range(4):
        run.play(3)
        now = scrape(run, follower, page)
        for name, value in before.items():
            if name.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket")):
                assert now[name] >= value, name
        before = now
    follower.close()


def test_the_histogram_is_cumulative(run: FakeRun) -> None:
    run.play(9)
    follower, page = follower_of(run)
    found = scrape(run, follower, page)
    buckets = [v for name, v in found.items() if "exchange_duration_seconds_bucket" in name]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["fairbed_exchange_duration_seconds_count"]
    with RunReader(run.folder) as reader:
        times = [x.tau_s for x in reader.exchanges() if x.tau_s is not None]
    assert found['fairbed_exchange_duration_seconds_bucket{le="2.5"}'] == sum(
        t <= 2.5 for t in times
    )
    follower.close()


def test_a_late_exchange_counts_once_when_it_has_ended(run: FakeRun) -> None:
    run.play(1)
    run.store.flush()
    with RunReader(run.folder) as reader:
        row = reader.exchanges()[0]
        followed = Totals(reader)
        followed.refresh(0.0)
        done = followed.exchanges.outcomes["done"]

        def store(**changes: Any) -> Counter[str]:
            run.store.add(replace(late, **changes))
            run.store.flush()
            followed.refresh(0.0)
            return followed.exchanges.outcomes

        late: ExchangeRow = replace(row, attempt=1, outcome="late", tau_s=None, busy_s=None)
        assert store() == {"done": done}
        assert store(outcome="done", tau_s=9.0, busy_s=9.0) == {"done": done + 1}
        assert store(outcome="done", tau_s=9.0, busy_s=9.0) == {"done": done + 1}


def test_agents_are_counted_by_state_and_silent_ones_are_silent(run: FakeRun) -> None:
    run.now_s = 50.0
    run.telemetry(0, "training")
    run.telemetry(1, "made-up-by-a-device")
    run.store.flush()
    with RunReader(run.folder) as reader:
        followed = Totals(reader)
        followed.refresh(1_000.0)
        assert followed.states == {"training": 1, "unknown": 1, "silent": 3}
        followed.refresh(1_000.0 + SILENT_AFTER_S + 1.0)
        assert followed.states == {"silent": 5}


def test_a_large_fleet_has_no_series_per_device(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals_module, "MAX_DEVICES", 4)
    run.play(3)
    follower, page = follower_of(run)
    found = scrape(run, follower, page)
    assert found["fairbed_devices"] == 5
    assert not [name for name in found if "device=" in name]
    with RunReader(run.folder) as reader:
        assert (
            found["fairbed_selection_rate_min_ratio"]
            == summarise_run(reader).fairness.min_selection_rate
        )
    follower.close()


def test_no_label_has_a_value_per_round(run: FakeRun) -> None:
    follower, page = follower_of(run)
    run.play(14)  # enough exchanges for a median of each device
    before = scrape(run, follower, page).keys()
    run.play(10)
    assert scrape(run, follower, page).keys() == before
    follower.close()


def test_names_and_units_follow_the_conventions(run: FakeRun) -> None:
    run.play(3)
    follower, page = follower_of(run)
    scrape(run, follower, page)
    for family in text_string_to_metric_families(page.content.decode()):
        assert family.name.startswith("fairbed_")
        assert family.documentation.endswith("."), family.name
        assert not any(f"_{unit}" in family.name for unit in ("_ms", "_mib", "_percent", "_kb"))
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample.name
            assert "round" not in sample.labels
    follower.close()


def points(folder: Path, tag: str) -> dict[int, float]:
    """Read a curve with TensorBoard; each step must be there once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars(tag)]
    assert len(dict(found)) == len(found), "each step once"
    assert found == sorted(found)
    return dict(found)


def test_curves_have_one_point_per_round(run: FakeRun, tmp_path: Path) -> None:
    curves = tmp_path / "tb"
    follower = Follower(run.folder, None, curves, 1)
    for _ in range(3):
        run.play(4)
        run.store.flush()
        follower.refresh()
    follower.close()
    with RunReader(run.folder) as reader:
        rounds, metrics = reader.rounds(), reader.metrics()
        exchanges = [x for x in reader.exchanges(2, 3) if x.outcome == "done"]
    duration = points(curves, "round/duration_s")
    assert duration == pytest.approx({row.round: row.duration_s for row in rounds}, rel=1e-6)
    accuracy = points(curves, "accuracy/mean")
    assert accuracy == pytest.approx({row.round: row.accuracy_mean for row in metrics}, rel=1e-6)
    assert points(curves, "phases/train_s")[3] == pytest.approx(
        sum(x.train_s or 0.0 for x in exchanges) / len(exchanges), rel=1e-6
    )
    rates = points(curves, "rates/min_selection")
    assert list(rates) == list(range(1, 13))
    with RunReader(run.folder) as reader:
        assert rates[12] == pytest.approx(summarise_run(reader).fairness.min_selection_rate)


def test_a_task_of_regression_has_errors_in_place_of_accuracies(
    run: FakeRun, tmp_path: Path
) -> None:
    run.play(1)
    run.store.flush()
    with RunReader(run.folder) as reader:
        (metric,), devices = reader.metrics(), reader.device_metrics()
    none: dict[str, Any] = {x: None for x in metric.__slots__ if x.startswith("accuracy")}
    run.store.add(replace(metric, **none, rmse_mean=2.5, mae_mean=2.0))
    for row in devices:
        run.store.add(replace(row, accuracy=None, rmse=2.5))
    run.store.flush()
    page = Page()
    follower = Follower(run.folder, page, tmp_path / "tb", 1)
    found = scrape(run, follower, page)
    follower.close()
    assert found["fairbed_model_rmse_mean"] == 2.5
    assert not [name for name in found if "accuracy" in name]
    assert points(tmp_path / "tb", "rmse/mean") == {1: 2.5}


def test_a_resumed_run_has_each_step_once(run: FakeRun, tmp_path: Path) -> None:
    curves = tmp_path / "tb"
    (curves / "mine").mkdir(parents=True)
    (curves / "events.out.tfevents.1.host").write_bytes(b"")  # of another program
    for rounds in (5, 8):
        follower = Follower(run.folder, None, curves, 1)
        run.play(rounds - run.round)
        run.store.flush()
        follower.refresh()
        follower.close()
        if rounds == 5:  # its name has the second in which it was made
            (written,) = curves.glob("*.fairbed")
            written.rename(curves / "events.out.tfevents.7.host.fairbed")
    assert list(points(curves, "round/duration_s")) == list(range(1, 9))
    assert len(list(curves.glob("*.fairbed"))) == 1
    assert (curves / "events.out.tfevents.1.host").exists()


def test_the_follower_starts_again_when_the_run_is_resumed(run: FakeRun, tmp_path: Path) -> None:
    curves, page = tmp_path / "tb", Page()
    follower = Follower(run.folder, page, curves, 1)
    run.play(4)
    scrape(run, follower, page)
    run.store.close()
    run.store = type(run.store).reopen(run.folder)
    run.store.set_status("running")
    run.play(2)
    found = scrape(run, follower, page)
    assert found["fairbed_run_resumes_total"] == 1
    assert found['fairbed_rounds_total{status="done"}'] == 5  # and a void one
    follower.close()
    assert list(points(curves, "round/duration_s")) == list(range(1, 7))


def test_a_run_that_has_not_begun_has_metrics_of_the_exporter_alone(tmp_path: Path) -> None:
    page = Page()
    follower = Follower(tmp_path / "none", page, None, 1)
    assert "fairbed_exporter_refresh_seconds" in samples_of(page.content.decode())
    follower.close()


@pytest.mark.parametrize("where", ["9464x", ":", "host:port", ":65536", ":-1"])
def test_an_address_needs_a_port(where: str) -> None:
    with pytest.raises(UsageError, match=r"--metrics: must be \[HOST\]:PORT, as in :9464, got"):
        ExportTargets(where, None)


def test_without_a_host_the_metrics_are_on_this_machine_alone() -> None:
    for where in (":0", "0"):
        with ExportTargets(where, None) as targets:
            assert (targets.url or "").startswith("http://127.0.0.1:")


def test_a_taken_port_is_one_line_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f":{taken.getsockname()[1]}"
        arguments = ["--out", str(tmp_path / "run"), "--metrics", where]
        assert main(["replay", "examples/quickstart.toml", *arguments]) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"--metrics {where}: must be a free address of this machine" in error
        assert error.endswith("got: Address already in use; choose another port")
        assert main(["run", "examples/quickstart.toml", "--headless", *arguments]) == 1
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_one_line_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbed.testbed.metrics.start.find_spec", lambda name: None)
    installed = r"must be installed, got none; run: .*fairbed\[metrics\]"
    with pytest.raises(UsageError, match=f"--metrics: the package prometheus_client {installed}"):
        ExportTargets(":0", None)
    with pytest.raises(UsageError, match=f"--tensorboard: the package tensorboardX {installed}"):
        ExportTargets(None, Path("tb"))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="must be a folder that can be written"):
        ExportTargets(None, tmp_path / "file" / "tb")


def get(url: str) -> tuple[str, str]:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as page:
        return page.read().decode(), page.headers["Content-Type"]


def test_a_replay_exports_to_its_last_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, curves = tmp_path / "run", tmp_path / "tb"
    options = ["--out", str(folder), "--no-training", "--set", "rounds=40", "--json"]
    options += ["--metrics", ":0", "--tensorboard", str(curves)]
    assert main(["replay", "examples/quickstart.toml", *options]) == 0
    captured = capsys.readouterr()
    assert msgspec.json.decode(captured.out)["status"] == "done"
    assert "metrics at http://127.0.0.1:" in captured.err
    assert list(points(curves / "run", "round/duration_s")) == list(range(1, 41))


@pytest.mark.broker
@pytest.mark.full
def test_a_live_run_is_scraped_and_ends(tmp_path: Path) -> None:
    curves = tmp_path / "tb"
    options = ("--metrics", ":0", "--tensorboard", str(curves))
    with running(tmp_path, rounds=400, options=options) as run:
        url = _url_of(run)
        assert url is not None
        with pytest.raises(HTTPError, match="404"):
            get(url.removesuffix("metrics"))
        wait_until(
            lambda: samples_of(get(url)[0]).get('fairbed_rounds_total{status="done"}', 0) >= 2,
            "a scrape with two rounds",
        )
        text, kind = get(url)
        found = samples_of(text)
        assert kind.startswith("text/plain; version=")
        assert found['fairbed_run_status{status="running"}'] == 1
        assert sum(v for name, v in found.items() if name.startswith("fairbed_agents")) == 3
        assert found["fairbed_run_process_resident_memory_bytes"] > 1e6
        assert not math.isnan(found["fairbed_model_accuracy_mean_ratio"])
        run.process.terminate()
        assert run.finish()[0] == 0
        with pytest.raises(OSError, match="refused"):
            get(url)
    with RunReader(run.folder) as reader:
        assert list(points(curves / "run", "round/duration_s")) == [
            row.round for row in reader.rounds()
        ]


def _url_of(run: Running) -> str | None:
    assert run.process.stderr is not None
    for line in run.process.stderr:
        if line.startswith("metrics at "):
            return line.split()[-1]
    return None


@pytest.mark.full
@pytest.mark.broker
def test_a_killed_run_ends_its_exporter(tmp_path: Path) -> None:
    curves = tmp_path / "tb"
    with running(tmp_path, rounds=400, options=("--tensorboard", str(curves))) as run:
        run.wait_round(1)
        exporters = [x for x in run.family() if "exporter" in " ".join(x.cmdline())]
        assert len(exporters) == 1
        run.process.kill()
        assert_gone(exporters)
    with RunReader(run.folder) as reader:
        assert list(points(curves / "run", "round/duration_s")) == [
            row.round for row in reader.rounds()
        ]
