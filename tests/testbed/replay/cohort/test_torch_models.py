"""Cohorts of models that devices train with torch."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be trained with it")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.experiment.file import ExperimentError
from fairbed.testbed.replay.cohort.choose import make_trainer
from fairbed.testbed.replay.cohort.devices import DeviceTrainer
from fairbed.testbed.replay.cohort.functional import TorchTrainer
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.run.evaluation import FleetEvaluator
from tests.testbed.replay.cohort.fleets import (
    EVERYTHING,
    PLAIN,
    RECIPES,
    SIZES,
    distance,
    fleet_data,
    jobs_of,
    kept,
    on_devices,
    split_drift,
    start_of,
)

MODELS = "tests.device_agent.engines.torch_models"


@pytest.mark.full
def test_torch_trains_personal_models_and_local_rules_as_the_graphs_do() -> None:
    data = fleet_data(RECIPES["cnn-1x8x8-10"])
    graphs = load_task(f"{MODELS}:smooth", (1, 8, 8), 10, engine="onnx")
    module = load_task(f"{MODELS}:smooth", (1, 8, 8), 10, engine="torch")
    shards, jobs, start = Shards(data, (1, 8, 8)), jobs_of(len(SIZES)), start_of(graphs)
    rule = split_drift(start[: graphs.spec.layout.n_params], len(jobs))
    starts = np.repeat(start[np.newaxis], len(jobs), axis=0) * np.float32(1.1)
    answers = [
        kept(DeviceTrainer(task, shards).train(start, jobs, EVERYTHING, starts, rule), len(jobs))
        for task in (graphs, module)
    ]
    for one, other in zip(*answers, strict=True):
        assert distance(other.vector, one.vector, start) < 1e-3
        for name, vector in one.vectors.items():
            np.testing.assert_allclose(other.vectors[name], vector, rtol=1e-3, atol=1e-5)
    vector = answers[0][0].vector
    scores, others = (FleetEvaluator(data, task).test(vector) for task in (graphs, module))
    assert others.loss_sum == pytest.approx(scores.loss_sum, rel=1e-4)
    assert others.quality == scores.quality


@pytest.mark.parametrize(("model", "engine"), [("recurrent", "torch"), ("dropping", "onnx")])
def test_no_bit_of_dropout_depends_on_threads_or_the_engine_that_was_opened(
    model: str, engine: str
) -> None:
    artifact = load_task(f"{MODELS}:{model}", (1, 8, 8), 10)
    assert artifact.engine == engine
    shards, jobs = Shards(fleet_data(RECIPES["cnn-1x8x8-10"]), (1, 8, 8)), jobs_of(len(SIZES))
    start = start_of(artifact)
    one, many = (DeviceTrainer(artifact, shards, threads) for threads in (1, 4))
    alone = kept(one.train(start, jobs, PLAIN), len(jobs))
    together = kept(many.train(start, jobs, PLAIN), len(jobs))
    many.close()
    live = on_devices(artifact, shards, start, jobs, PLAIN)
    for a, b, c in zip(alone, together, live, strict=True):
        np.testing.assert_array_equal(a.vector, b.vector)
        np.testing.assert_array_equal(a.vector, c.vector)


@pytest.mark.parametrize("model", ["recurrent", "dropping"])
def test_a_model_with_dropout_is_trained_by_the_engine_of_the_devices(model: str) -> None:
    artifact = load_task(f"{MODELS}:{model}", (1, 8, 8), 10)
    data = fleet_data(RECIPES["cnn-1x8x8-10"])
    assert type(make_trainer(artifact, data)) is DeviceTrainer
    with pytest.raises(ExperimentError, match="one length, got dropout in tests"):
        make_trainer(artifact, data, "torch")


def test_one_vectorised_call_trains_as_the_engine_of_the_devices_does() -> None:
    artifact = load_task(f"{MODELS}:flat", (1, 8, 8), 10, engine="torch")
    data = fleet_data(RECIPES["cnn-1x8x8-10"])
    trainer = make_trainer(artifact, data, "torch")
    assert type(trainer) is TorchTrainer
    shards, jobs, start = Shards(data, (1, 8, 8)), jobs_of(len(SIZES)), start_of(artifact)
    answers = kept(trainer.train(start, jobs, PLAIN), len(jobs))
    for answer, truth in zip(
        answers, on_devices(artifact, shards, start, jobs, PLAIN), strict=True
    ):
        assert distance(answer.vector, truth.vector, start) < 1e-4
