"""examples/regression.toml and two-classes.toml: each task on live runs, replays and own data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.report.figures import read_figures
from fairbed.coordinator.report.html import write_report
from fairbed.coordinator.report.summary import RunSummary, summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import DeviceMetricRow, MetricRow, PersonalScoreRow
from fairbed.coordinator.task.catalogue import load_task
from fairbed.coordinator.tui.fleet_columns import columns_of
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.screens.overview import accuracy_curves, quality_title
from fairbed.coordinator.tui.view import RunView
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.testbed.cli.main import main
from fairbed.testbed.compare.measures import measure
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.experiment.shards import FleetData, load_examples
from tests.coordinator.tui.screen import WIDE, room, settled
from tests.testbed import test_own_data as own_data

EXAMPLES = Path(__file__).parents[2] / "examples"
DITTO = 'personalisation.method="ditto"'


def result_of(
    example: str, folder: Path, command: str, *settings: str
) -> tuple[RunSummary, MetricRow, dict[str, DeviceMetricRow]]:
    """Run or replay an example; return its summary and the rows of its last evaluation."""
    options = [part for setting in settings for part in ("--set", setting)]
    options += ["--headless"] if command == "run" else []
    path = EXAMPLES / f"{example}.toml"
    assert main([command, str(path), "--out", str(folder), *options]) == 0
    with RunReader(folder) as reader:
        rows = {row.device: row for row in reader.device_metrics()}
        return summarise_run(reader), reader.metrics()[-1], rows


def predicted(
    example: str, folder: Path, *settings: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return targets and scores of the held-out examples of each device, by the final model."""
    experiment = load_experiment(EXAMPLES / f"{example}.toml", list(settings))
    dataset = load_examples(experiment, {})
    with RunReader(folder) as reader:
        found = reader.final_model()
        names = [device.name for device in reader.devices()]
    assert found is not None
    data = FleetData(
        dataset,
        experiment.data,
        devices=experiment.shards,
        seed=experiment.seed_for("data"),
        names=names,
    )
    task = load_task(experiment.model.name, dataset.x_shape, dataset.classes, dataset.kind)
    engine = OnnxEngine(task)
    assert dataset.x.dtype == np.float32
    x = dataset.x.astype(np.float32)
    y, scores = {}, {}
    for name, rows in zip(names, data.test_rows, strict=True):
        evaluation = engine.evaluate(found[1], x[rows], dataset.y[rows])
        assert evaluation.scores is not None
        y[name], scores[name] = dataset.y[rows], evaluation.scores
    return y, scores


def printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["show", str(folder)]) == 0
    return capsys.readouterr().out


def close_to(values: Sequence[Any]) -> list[Any]:
    """Return values that equal numbers with their first four digits, and all else."""
    return [pytest.approx(x, rel=1e-4) if isinstance(x, float) else x for x in values]


def test_a_replay_of_regression_has_the_errors_of_scikit_learn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    summary, last, rows = result_of("regression", tmp_path, "replay")
    y, found = predicted("regression", tmp_path)
    rmse = {}
    for name, row in rows.items():
        target = y[name].astype(np.float64)
        rmse[name] = metrics.root_mean_squared_error(target, found[name])
        assert row.accuracy is row.auroc is None
        assert row.rmse == pytest.approx(rmse[name], rel=1e-5)
        assert row.mae == pytest.approx(metrics.mean_absolute_error(target, found[name]), rel=1e-5)
        assert row.r2 == pytest.approx(metrics.r2_score(target, found[name]), rel=1e-4)
    targets, values = np.concatenate(list(y.values())), np.concatenate(list(found.values()))
    assert last.rmse_mean == pytest.approx(np.mean(list(rmse.values())), rel=1e-5)
    assert last.rmse_worst10 == pytest.approx(max(rmse.values()), rel=1e-5)
    assert last.rmse_best10 == pytest.approx(min(rmse.values()), rel=1e-5)
    pooled = metrics.root_mean_squared_error(targets.astype(np.float64), values)
    assert last.rmse_pooled == pytest.approx(pooled, rel=1e-5)
    assert last.r2_pooled == pytest.approx(metrics.r2_score(targets, values), rel=1e-4)
    assert last.accuracy_mean is last.accuracy_gini is last.auroc_pooled is None
    assert (summary.task, summary.accuracy.mean, summary.auroc) == ("regression", None, None)
    assert summary.error is not None
    assert summary.error.rmse_mean == last.rmse_mean
    assert last.rmse_pooled is not None
    assert last.rmse_pooled < 0.85, "the mean of the targets has 1"
    text = printed(tmp_path, capsys)
    assert f"RMSE mean {last.rmse_mean:.3f}, worst 10 % {last.rmse_worst10:.3f}" in text
    assert f"R2 {last.r2_pooled:.3f}" in text
    assert "accuracy" not in text


@pytest.mark.parametrize("task", ["binary", pytest.param("classification", marks=pytest.mark.full)])
def test_a_replay_of_two_classes_has_the_auroc_of_scikit_learn(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    if task == "classification":  # two logits are not shipped
        pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
    costs = "shipped" if task == "binary" else "measured"
    settings = (f'model.task="{task}"', f'replay.costs_from="{costs}"', "rounds=6")
    summary, last, rows = result_of("two-classes", tmp_path, "replay", *settings)
    y, found = predicted("two-classes", tmp_path, *settings)
    known = []
    for name, row in rows.items():
        assert row.rmse is None
        assert row.accuracy == pytest.approx(np.mean((found[name] > 0) == y[name]))
        if 0 < y[name].sum() < len(y[name]):
            known.append(metrics.roc_auc_score(y[name], found[name]))
            assert row.auroc == pytest.approx(known[-1], abs=1e-12)
        else:
            assert row.auroc is None
    pooled = metrics.roc_auc_score(*map(np.concatenate, map(list, (y.values(), found.values()))))
    assert last.auroc_pooled == pytest.approx(pooled, abs=1e-12)
    assert last.auroc_mean == pytest.approx(np.mean(known), abs=1e-12)
    assert last.auroc_worst10 == pytest.approx(min(known), abs=1e-12)
    assert summary.task == task
    assert summary.auroc is not None
    assert pooled > 0.9
    assert summary.measures
    own = {key: one.value for key, one in summary.measures.items() if key.startswith("auroc")}
    sizes = [row.n for row in rows.values() if row.auroc is not None]
    assert own["auroc_devices"] == len(known)
    assert own["auroc_best10"] == pytest.approx(max(known), abs=1e-12)
    assert own["auroc_by_examples"] == pytest.approx(np.average(known, weights=sizes), abs=1e-12)
    apart = np.abs(np.subtract.outer(known, known)).mean() / (2.0 * np.mean(known))
    assert own["auroc_gini"] == pytest.approx(apart, abs=1e-12)
    text = printed(tmp_path, capsys)
    assert f"over all examples {pooled:.3f}" in text
    assert f"; devices with both classes {len(known)}" in text
    assert "RMSE" not in text


def test_the_rules_of_fairness_take_the_losses_of_regression(tmp_path: Path) -> None:
    for rule in ("q-fedavg", "afl"):
        settings = (f'aggregation.rule="{rule}"', "rounds=8")
        summary, last, _ = result_of("regression", tmp_path / rule, "replay", *settings)
        assert summary.aggregation.rule == rule
        assert last.rmse_mean is not None
        assert last.rmse_mean < 1.0


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short replay."""
    folder = tmp_path_factory.mktemp("tasks") / "regression"
    result_of("regression", folder, "replay", "rounds=4")
    return folder


def test_the_control_room_shows_errors_instead_of_accuracies(regression: Path) -> None:
    with RunReader(regression) as reader:
        view = ViewReader(reader).refresh(RunView())
        rows = {row.device: row for row in reader.device_metrics()}
        metrics = reader.metrics()
    assert view is not None
    assert (view.task, quality_title(view)) == ("regression", "Error (RMSE)")
    assert {device.name: device.rmse for device in view.devices} == {
        name: row.rmse for name, row in rows.items()
    }
    keys = {column.key for column in columns_of(view)}
    assert "rmse" in keys
    assert not {"accuracy", "auroc"} & keys
    curves = {curve.label: curve.points for curve in accuracy_curves(view)}
    assert curves["mean"] == tuple((row.round, row.rmse_mean) for row in metrics)
    assert curves["worst 10 %"][-1] == (4, max(row.rmse or 0.0 for row in rows.values()))


@pytest.mark.anyio
async def test_the_header_of_the_control_room_names_the_error(regression: Path) -> None:
    async with room(regression, WIDE) as (app, pilot):
        picture = await settled(app, pilot)
    with RunReader(regression) as reader:
        last = reader.metrics()[-1]
    assert "RMSE" in picture.splitlines()[1]
    assert f"{last.rmse_mean:.3f}" in picture.splitlines()[2]
    assert "ACCURACY" not in picture


def test_figures_and_page_of_regression_show_the_error(regression: Path, tmp_path: Path) -> None:
    with RunReader(regression) as reader:
        found, last = read_figures(reader), reader.metrics()[-1]
        write_report([reader], tmp_path / "page.html", has_figures=False)
    assert found.score == "RMSE"
    assert found.metrics["score_mean"][-1] == last.rmse_mean
    assert found.scores.size == 10
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "RMSE, mean over devices" in page
    assert f"root mean squared error of {last.rmse_mean:.3f}" in page
    assert "accuracy, mean over devices" not in page


def test_lists_and_comparisons_have_the_error(
    regression: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result_of("regression", tmp_path / "afl", "replay", "rounds=4", 'aggregation.rule="afl"')
    measured = measure(regression)
    with RunReader(regression) as reader:
        last = reader.metrics()[-1]
    assert (measured.values["rmse_mean"], measured.curves.accuracy) == (last.rmse_mean, ())
    capsys.readouterr()
    assert main(["runs", "--runs", str(regression.parent)]) == 0
    assert f"RMSE {last.rmse_mean:.3f}" in capsys.readouterr().out
    out = ["--out", str(tmp_path / "out"), "--no-figures"]
    assert main(["compare", str(regression), str(tmp_path / "afl"), *out]) == 0
    assert "Primary metric: RMSE" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("example", ["regression", "two-classes"])
def test_a_live_run_has_the_scores_of_its_replay(example: str, tmp_path: Path) -> None:
    settings = ("rounds=4", DITTO)
    live, last, rows = result_of(example, tmp_path / "live", "run", *settings)
    replayed, _, others = result_of(example, tmp_path / "replay", "replay", *settings)
    assert rows.keys() == others.keys()
    assert len(rows) == 10
    for name, row in rows.items():
        other = others[name]
        assert (row.accuracy, row.auroc) == (other.accuracy, other.auroc)
        assert [row.rmse, row.mae, row.r2] == close_to([other.rmse, other.mae, other.r2])
    assert live.personal is not None
    assert replayed.personal is not None
    personal, expected = live.personal, replayed.personal
    assert [personal.rmse_mean, personal.accuracy_mean] == close_to(
        [expected.rmse_mean, expected.accuracy_mean]
    )
    assert (live.task, last.rmse_mean is None) == (replayed.task, example == "two-classes")
    keys = ("round", "device", "auroc", "rmse", "mae")
    scores = []
    for folder in ("live", "replay"):
        with RunReader(tmp_path / folder) as reader:
            scores.append(reader.columns(PersonalScoreRow, keys, "ORDER BY round, device"))
    assert len(scores[0]) == len(scores[1]) == 16
    for one, other_one in zip(*scores, strict=True):
        assert list(one) == close_to(other_one)


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
def test_devices_with_own_data_test_a_model_of_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, law = np.random.default_rng(0), np.arange(10) / 10
    for name, n in (("server", 200), ("board-a", 100), ("board-b", 60)):
        x = rng.standard_normal((n, 10)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=x @ law + 0.1 * rng.standard_normal(n))
    monkeypatch.chdir(tmp_path)
    out = own_data.run(tmp_path, 'model.name="softmax"', "rounds=8")
    with RunReader(out) as reader:
        rows = {row.device: row for row in reader.device_metrics()}
        last = reader.metrics()[-1]
    assert sorted(rows) == list(own_data.NAMES)
    assert {name: rows[name].n for name in own_data.NAMES[:2]} == {"board-a": 20, "board-b": 12}
    for row in rows.values():
        assert row.accuracy is None
        assert row.rmse is not None
        assert row.mae is not None
        assert row.r2 is not None
        assert 0.0 < row.mae <= row.rmse < 0.5, "the targets have 1.7"
        assert row.r2 > 0.9
    assert last.rmse_mean == pytest.approx(np.mean([row.rmse or 0.0 for row in rows.values()]))
    assert last.r2_pooled is None, "a device keeps its examples"
