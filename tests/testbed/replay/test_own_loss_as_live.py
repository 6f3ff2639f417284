"""A loss and metrics of the user: live agents, devices with own data and a replay agree."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.policy.config import (
    CoordinatorConfig,
    EvaluationConfig,
    ModelConfig,
    ModelEngine,
    RoundConfig,
    SelectionConfig,
    TrainingConfig,
)
from fairbed.coordinator.ports import Score
from fairbed.coordinator.records.named_metrics import NamedMetrics, spread
from fairbed.coordinator.records.rows import metric_rows
from fairbed.coordinator.report.html import read_page, report_page
from fairbed.coordinator.report.quality import worst_tenth
from fairbed.coordinator.report.result import result_lines, result_of
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.rounds.own_data import score_of
from fairbed.coordinator.state.loss_query import fault_in_reply
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ClientMetricRow
from fairbed.coordinator.task.catalogue import build_task
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.trainer import evaluate
from fairbed.testbed.cli.main import main
from fairbed.testbed.compare.comparison import Comparison
from fairbed.testbed.compare.table import tables
from fairbed.testbed.experiment.file import CohortEngine, ExperimentError
from fairbed.testbed.replay.cohort.choose import make_trainer
from fairbed.testbed.replay.cohort.devices import DeviceTrainer, Unpaced
from fairbed.wire.artifact import Artifact
from fairbed.wire.evaluation import Quality, fault_in_measures
from fairbed.wire.messages import EvaluateReply, EvaluateRequest, HeldOut
from fairbed.wire.named_metrics import value_of
from tests.coordinator import lab
from tests.coordinator.lab import NAMES, make_config
from tests.testbed.replay.as_live import Story, replay_story, run_live
from tests.testbed.replay.cohort.fleets import RECIPES, fleet_data
from tests.wire.messages import MODEL

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

OWN = "tests.coordinator.task.own_code"
QUICK_S = (0.01, 0.01, 0.01)
METRICS = ("top3", "f1", "perplexity", f"{OWN}:large")


@cache
def task(engine: ModelEngine = "onnx", loss: str = "of_both") -> Artifact:
    return build_task(
        f"{OWN}:TwoOutputs",
        (12,),
        10,
        engine=engine,
        loss=f"{OWN}:{loss}",
        metrics=["f1"],
    )


@cache
def measured() -> Artifact:
    return build_task("softmax", (60,), 10, metrics=METRICS)


def config(rounds: int = 3, **sections: object) -> CoordinatorConfig:
    defaults: dict[str, object] = {
        "model": ModelConfig(name="own"),
        "training": TrainingConfig(epochs=2, batch_size=12, learning_rate=0.3, momentum=0.5),
        "selection": SelectionConfig(policy="uniform", per_round=2),
    }
    return make_config(rounds, 3, **(defaults | sections))


async def test_a_replay_has_the_models_of_live_agents(tmp_path: Path) -> None:
    """With a loss below 0: power-of-choice selects by it, and no part of the run bounds it."""
    parts = TrainingConfig(epochs=2, batch_size=12, learning_rate=0.3, micro_batch=5)
    by_loss = SelectionConfig(policy="power-of-choice", per_round=2, candidates=3)
    one, below = config(training=parts, selection=by_loss), task(loss="below")
    place = await run_live(tmp_path / "live", one, QUICK_S, artifact=below)
    with place.reader() as reader:
        live = Story(reader.rounds(), reader.exchanges(0), reader.releases())
        losses = {(x.round, x.device): x.loss_train for x in reader.exchanges(0)}
    virtual = replay_story(tmp_path / "replay", one, QUICK_S, artifact=below)
    assert virtual.models == live.models, "bit for bit"
    assert len(set(live.models)) == 3
    assert all(loss is not None and loss < -50.0 for loss in losses.values())


async def test_devices_with_own_data_report_the_metrics_that_the_coordinator_computes(
    tmp_path: Path,
) -> None:
    artifact = measured()
    evaluation = EvaluationConfig(metrics=METRICS, worst="perplexity")
    one = msgspec.structs.replace(
        config(2, evaluation=evaluation, round=RoundConfig(min_devices=3, deadline_s=30.0)),
        held_out=HeldOut(fraction=0.25, seed=7),
    )
    files = {}
    for seed, name in enumerate(NAMES):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((80, 60)).astype(np.float32)
        files[name] = x, np.argmax(x[:, :10], axis=1)
        x_test, y_test = x[50:], files[name][1][50:]
        file = tmp_path / f"{name}.npz"
        np.savez(file, x=x[:50], y=files[name][1][:50], x_test=x_test, y_test=y_test)
    async with lab.lab(tmp_path, agents=0, artifact=artifact) as place:
        place.device_names, place.has_evaluator = NAMES, False
        for name in NAMES:
            place.start_agent(name, tmp_path / f"{name}.npz")
        assert await place.run(one) == "done"
    excerpt = '[evaluation]\nworst = "perplexity"\n'
    (place.folder / "run" / "experiment.toml").write_text(excerpt, encoding="utf-8")
    with place.reader() as reader:
        final, rows = reader.final_model(), reader.client_metrics(since=1)
        summary, row = summarise_run(reader), reader.metrics()[-1]
    assert final is not None
    check_rows(artifact, final[1], {k: (x[50:], y[50:]) for k, (x, y) in files.items()}, rows)
    assert summary.metrics
    perplexity = next(one for one in summary.metrics if one.name == "perplexity")
    assert perplexity.is_worst
    assert (perplexity.devices, perplexity.better) == (3, "less")
    of_devices = [x.value for x in rows if x.name == "perplexity" and x.phase == "evaluate"]
    assert perplexity.worst10 == row.metric_worst10 == max(of_devices), "less is better"
    assert perplexity.best10 == row.metric_best10 == min(of_devices)
    assert perplexity.mean == row.metric_mean == pytest.approx(np.mean(of_devices))
    assert not summary.client_metrics, "no client has measured them"
    check_views(place.folder / "run", summary_table(summary), max(of_devices))
    text = summary_table(summary)
    assert {one.name: one.metric for one in summary.fleet} == {
        x.device: x.value for x in rows if x.name == "perplexity" and x.phase == "evaluate"
    }
    header = next(line for line in text.splitlines() if line.startswith("device  "))
    assert "metric" in header


def check_views(folder: Path, text: str, worst10: float) -> None:
    """Each view has the worst tenth of the chosen metric, with its name, and none of accuracy."""
    lines = dict(line.split(None, 1) for line in text.splitlines() if line and " " in line)
    assert "mean 0." in lines["accuracy"]
    assert "worst 10 %" not in lines["accuracy"]
    assert lines["worst"].startswith("10 %")
    assert f"worst 10 % {worst10:.4g}" in text
    assert "less is better; the metric of evaluation.worst" in text
    with RunReader(folder) as reader:
        result, page = result_of(reader), read_page(reader, has_figures=False)
        side = report_page([page, page]).replace("&nbsp;", " ")
        newest = reader.metrics()[-1]
    assert (result.worst_metric, result.worst10) == ("perplexity", worst10)
    assert f"worst 10 % of perplexity {worst10:.3f}" in dict(result_lines(result))["accuracy"]
    assert worst_tenth(newest, "perplexity") == ("perplexity", worst10)
    assert worst_tenth(replace(newest, metric_worst10=None), "accuracy")[0] == ""
    html = report_page([page]).replace("&nbsp;", " ")
    assert "perplexity, worst 10 % (less is better)" in html
    assert "accuracy, worst 10 %" not in html
    assert "perplexity, worst 10 %" in side
    findings = " ".join(found.text for found in page.findings)
    assert f"its perplexity was {worst10:.4g} on the worst tenth of the devices" in findings
    assert "has the worst perplexity" in findings
    assert "has the lowest accuracy" not in findings


def check_rows(
    artifact: Artifact,
    vector: Vector,
    held_out: dict[str, tuple[Vector, Ints]],
    rows: list[ClientMetricRow],
) -> None:
    """Compare rows with the metrics of examples that are evaluated here."""
    engine, metrics = open_own_engine(artifact), artifact.spec.named_metrics
    x, y = (np.concatenate(parts) for parts in zip(*held_out.values(), strict=True))
    found = {(row.device, row.phase, row.name): row.value for row in rows}
    for device, phase, (x_of, y_of) in [
        *((name, "evaluate", pair) for name, pair in held_out.items()),
        ("", "pooled", (x, y)),
    ]:
        _, quality = evaluate(engine, vector, x_of, y_of, Unpaced())
        for metric in metrics:
            value = value_of(metric, quality.sums[metric.name])
            assert found.pop((device, phase, metric.name)) == pytest.approx(value, rel=1e-6)
    assert not found


def test_a_report_counts_no_more_examples_than_its_device_has() -> None:
    request = EvaluateRequest(round=1, model=MODEL, seed=0, limit_s=5.0, split="test")
    reply = EvaluateReply(
        round=1,
        model=b"m" * 32,
        loss=1.0,
        n=100,
        was_cold=False,
        download_s=0.0,
        decode_s=0.0,
        load_s=0.0,
        evaluate_s=0.0,
        correct=50,
        sums={
            "top3": (80.0, 100.0),
            "f1": (1.0,) * 20,
            "perplexity": (9.0, 100.0),
            "large": (0.0, 0.0),
        },
    )
    predicted = measured().predicted
    assert fault_in_measures(predicted, reply) is None
    below = msgspec.structs.replace(reply, loss=-0.5, model=request.model.sha256)
    fault = fault_in_reply(below, request, predicted)
    assert fault == "answer: the loss must be at least 0, got -0.5"
    signed = replace(predicted, has_signed_loss=True)
    assert "at least 0" not in (fault_in_reply(below, request, signed) or "")
    score = score_of(reply, request, 10.0, predicted)
    assert score.quality.sums["top3"] == (8.0, 10.0)
    rows = NamedMetrics(measured().spec.named_metrics, "accuracy").rows(1, {"a": score})
    assert {row.name for row in rows} == {"top3", "f1", "perplexity"}, "large has no weight"
    for wrong in ({"top3": (1.0, 1.0)}, reply.sums | {"f1": (1.0, 2.0)}):
        other = msgspec.structs.replace(reply, sums=wrong)
        assert fault_in_measures(predicted, other) == "must have the sums of the metrics of the run"


def test_the_worst_devices_are_those_with_the_largest_value_if_less_is_better() -> None:
    values = np.arange(20.0)
    assert spread(values, "more")["worst10"] == 0.5
    assert spread(values, "less")["worst10"] == 18.5
    assert spread(values, "less")["best10"] == 0.5
    assert spread(values, "less")["gap"] == spread(values, "more")["gap"] == 19.0


def test_error_and_perplexity_do_not_follow_from_another_loss() -> None:
    """They did: the RMSE was sqrt(2 loss), whatever the loss."""
    huber = Score(4, Quality(mae=1.0, rmse=3.0), 2.0, has_own_loss=True)
    [row], metric = metric_rows(1, {"a": huber}, 0.0, 0.0)
    assert metric is not None
    assert (row.rmse, metric.rmse_mean, metric.rmse_pooled) == (3.0, 3.0, 3.0)
    text = Score(4, Quality(correct=5, positions=9, exact=1), 9.0, has_own_loss=True)
    _, metric = metric_rows(1, {"a": text}, 0.0, 0.0)
    assert metric is not None
    assert metric.perplexity is None
    assert metric.loss_mean == 1.0
    unweighted = Score(4, Quality(correct=2), np.nan, has_own_loss=True, is_in_loss=False)
    known = Score(4, Quality(correct=2), 8.0, has_own_loss=True)
    rows, metric = metric_rows(1, {"a": unweighted, "b": known}, 0.0, 0.0)
    assert metric is not None
    assert [row.loss for row in rows] == [None, 2.0]
    assert (metric.loss_mean, metric.loss_std) == (2.0, 0.0), "no divergence"


EXPERIMENT = f"""
name = "own"
seed = 3
rounds = 2
[data]
dataset = "digits"
max_examples = 400
[model]
name = "softmax"
loss = "cross-entropy"
loss_options = {{ label_smoothing = 0.1, weight = [1, 1, 1, 1, 1, 2, 2, 2, 2, 2] }}
[evaluation]
metrics = ["top3", "perplexity", "{OWN}:large"]
worst = "perplexity"
[training]
epochs = 1
batch_size = 20
[selection]
policy = "uniform"
per_round = 2
[[fleet]]
profile = "raspberry-pi-4b"
count = 4
"""


def test_replays_with_own_loss_and_metrics_are_compared_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(EXPERIMENT, encoding="utf-8")
    Path("grid.toml").write_text(
        'experiment = "own.toml"\nseeds = 2\nprimary = "metric.perplexity.worst10"\n'
        'baseline = "plain"\n[[arm]]\nname = "plain"\n[[arm]]\nname = "hinge"\n'
        'set = { "model.loss" = "hinge", "model.loss_options" = {}, '
        '"evaluation.metrics" = ["perplexity"] }\n',
        encoding="utf-8",
    )
    assert main(["compare", "grid.toml", "--out", "out", "--no-figures", "--jobs", "1"]) == 0
    text = capsys.readouterr().out
    found = json.loads(Path("out/compare.json").read_text(encoding="utf-8"))
    assert found["primary"] == "metric.perplexity.worst10"
    known = {metric["key"]: metric for metric in found["metrics"]}
    assert known["metric.perplexity.worst10"]["better"] == "less"
    assert known["metric.top3"]["better"] == "more"
    plain, hinge = found["arms"]
    assert plain["values"]["metric.perplexity"]["mean"] != hinge["values"]["metric.perplexity"]
    assert "metric.top3" not in hinge["values"]
    assert "evaluation.metrics of this arm lacks it" in json.dumps(hinge["missing"])
    assert "perplexity, worst 10 %" in text
    assert found["worst"] == "metric.perplexity.worst10"
    assert "accuracy_worst10" not in found["report"]
    titles = [table.title for table in tables(msgspec.convert(found, Comparison))]
    assert any("perplexity, worst 10 %" in title for title in titles)
    assert not any(title.startswith(("worst 10 %", "accuracy, worst")) for title in titles)
    [run] = list(Path("out").glob("**/plain*/**/run.db"))[:1]
    with RunReader(run.parent) as reader:
        names = {row.name for row in reader.client_metrics()}
        assert names == {"top3", "perplexity", "large"}
        assert any("own_code.py" in name for name in summarise_run(reader).provenance.inputs)


def test_a_replay_with_own_loss_trains_with_the_engine_of_devices() -> None:
    """Batched products and torch's vmap know the loss of the task alone."""
    artifact = build_task("softmax", (60,), 10, loss="hinge")
    data = fleet_data(RECIPES["softmax-60-10"])
    trainer = make_trainer(artifact, data, "auto", 1)
    trainer.close()
    assert isinstance(trainer, DeviceTrainer)
    engines: tuple[CohortEngine, ...] = ("batched", "torch")
    for engine in engines:
        with pytest.raises(ExperimentError, match=r"^replay.engine: .*of the task.*model.loss"):
            make_trainer(artifact, data, engine)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("model.loss=focal", "model.loss must be auto, cross-entropy"),
        ("model.loss=auto", "model.loss_options must be left out with model.loss"),
        ('evaluation.metrics=["best"]', "evaluation.metrics must be of topK, f1"),
        ("evaluation.worst=f1", "evaluation.worst must be accuracy or top3 or perplexity or large"),
    ],
)
def test_names_that_do_not_exist_are_refused_with_the_file(
    change: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text(EXPERIMENT, encoding="utf-8")
    assert main(["config", str(tmp_path / "own.toml"), "--set", change]) != 0
    assert why in capsys.readouterr().err
