"""The model of a replay: merged by the rule of the run from the updates of its devices."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.arrays import Ints, Vector
from fairbed.coordinator.fleet.codec_agreement import CodecAgreement, encoded_version
from fairbed.coordinator.policy.config import (
    AggregationConfig,
    ExchangeConfig,
    ModelConfig,
    TrainingConfig,
)
from fairbed.coordinator.policy.decisions import Decisions, make_decisions
from fairbed.coordinator.policy.factories import make_aggregator
from fairbed.device_agent.coding import Coder
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.trainer import evaluate
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.replay.cohort.base import CohortJob
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.engine.training import Learned, VersionBatch
from fairbed.testbed.replay.learning import Learning, make_learning
from fairbed.testbed.replay.setup import ReplaySetup
from fairbed.testbed.replay.world.linear import LinearWorld
from fairbed.wire.chunks import manifest_of
from fairbed.wire.codecs import unpack
from fairbed.wire.messages import Coding, Train
from tests.coordinator.algorithms.aggregation.rounds import Reports
from tests.coordinator.algorithms.aggregation.rounds import merged as merge_of
from tests.coordinator.algorithms.aggregation.test_streaming import Median
from tests.testbed.replay.cohort.fleets import (
    RECIPES,
    SIZES,
    Meter,
    distance,
    fleet_data,
    on_devices,
    shipped,
)

Up: TypeAlias = Literal["float32", "float16", "int8", "top-k"]
Down: TypeAlias = Literal["float32", "float16", "int8", "delta"]

RECIPE = RECIPES["softmax-60-10"]
N = len(SIZES)
ALL_DEVICES = np.arange(N, dtype=np.int64)


def an_experiment(**sections: Any) -> Experiment:
    sections.setdefault("training", TrainingConfig(learning_rate=0.05))
    return Experiment(name="learning", rounds=5, model=ModelConfig(name="softmax"), **sections)


def a_learning(
    folder: Path, experiment: Experiment, data: FleetData, decisions: Decisions | None = None
) -> Learning:
    decisions = decisions or make_decisions(experiment.coordinator())
    names, world = sorted(data.assignments()), LinearWorld([], 1.0, 0)
    return make_learning(
        ReplaySetup(experiment, names, world, decisions, [], data), folder, threads=1
    )


def train(
    learning: Learning, data: FleetData, trained: Ints, merged: Ints, round_id: int = 1
) -> Learned:
    """Train devices on the current model and merge some of their updates."""
    batch = VersionBatch(
        round=round_id,
        version=round_id,
        rows=trained,
        n_k=np.array([len(data.train_rows[row]) for row in trained.tolist()], dtype=np.int64),
        is_merged=np.isin(trained, merged),
    )
    return learning.train(round_id, round_id, [batch], ())[0]


def from_devices(
    experiment: Experiment, data: FleetData, start: Vector, rows: list[int], round_id: int = 1
) -> Reports:
    """Return the reports of real devices."""
    artifact, config = shipped(RECIPE), experiment.coordinator()
    shards, engine = Shards(data, artifact.spec.x_shape), OnnxEngine(shipped(RECIPE))
    decisions = make_decisions(config)
    jobs = [CohortJob(row, decisions.training_seed(round_id, row)) for row in rows]
    hyperparameters = config.training.hyperparameters(round_id)
    results = on_devices(artifact, shards, start, jobs, hyperparameters)
    losses = [evaluate(engine, start, *shards.whole(row), Meter())[0] for row in rows]
    return Reports(
        rows=np.array(rows),
        n_k=np.array([len(data.train_rows[row]) for row in rows]),
        models=[result.vector for result in results],
        loss_before=np.array(losses),
        learning_rate=hyperparameters.learning_rate,
    )


@pytest.mark.parametrize("round_id", [1, 2, 3])
def test_a_round_of_fedavg_is_that_of_the_devices(tmp_path: Path, round_id: int) -> None:
    training = TrainingConfig(learning_rate=0.2, learning_rate_decay=0.1, decay_every=1)
    experiment, data = an_experiment(training=training), fleet_data(RECIPE)
    learning = a_learning(tmp_path, experiment, data)
    start = learning.vector.copy()
    train(learning, data, ALL_DEVICES, ALL_DEVICES, round_id)
    reports = from_devices(experiment, data, start, list(range(N)), round_id)
    truth = merge_of(Aggregator(FedAvg()), start, start.size, reports).vector
    assert distance(learning.vector, truth, start) < 1e-5


@pytest.mark.parametrize(
    "rule",
    [
        *("q-fedavg", "afl", "term", "propfair"),
        *("aaggff-s", "aaggff-d", "corefed"),
    ],
)
def test_a_rule_that_needs_losses_gets_those_of_the_model_that_was_sent(
    rule: str, tmp_path: Path
) -> None:
    aggregation = AggregationConfig(rule=rule, q=2.0)
    experiment, data = an_experiment(aggregation=aggregation), fleet_data(RECIPE)
    learning = a_learning(tmp_path, experiment, data)
    start = learning.vector.copy()
    losses = train(learning, data, ALL_DEVICES, ALL_DEVICES).losses
    reports = from_devices(experiment, data, start, list(range(N)))
    assert reports.loss_before is not None
    assert losses.tolist() == pytest.approx(reports.loss_before.tolist(), rel=1e-6)
    own = make_aggregator(aggregation, experiment.training, experiment.selection.per_round)
    truth = merge_of(own, start, start.size, reports).vector
    assert distance(learning.vector, truth, start) < 1e-5


@pytest.mark.parametrize("options", [{"rule": "fedmgda+"}, {"max_weight": 0.3}])
def test_a_rule_whose_updates_are_stored_is_that_of_the_devices(
    options: dict[str, Any], tmp_path: Path
) -> None:
    aggregation = AggregationConfig(**options)
    experiment, data = an_experiment(aggregation=aggregation), fleet_data(RECIPE)
    learning = a_learning(tmp_path, experiment, data)
    start = learning.vector.copy()
    train(learning, data, ALL_DEVICES, ALL_DEVICES)
    reports = from_devices(experiment, data, start, list(range(N)))
    truth = merge_of(make_aggregator(aggregation), start, start.size, reports).vector
    assert distance(learning.vector, truth, start) < 1e-5


def test_a_rule_that_must_see_all_models_sees_them(tmp_path: Path) -> None:
    rule = Aggregator(FedAvg(), pseudo_gradient=Median())
    experiment, data = an_experiment(), fleet_data(RECIPE)
    made = make_decisions(experiment.coordinator())
    decisions = Decisions(made.config, made.selector, made.estimator, rule)
    learning = a_learning(tmp_path, experiment, data, decisions)
    start = learning.vector.copy()
    train(learning, data, ALL_DEVICES, ALL_DEVICES)
    reports = from_devices(experiment, data, start, list(range(N)))
    truth = merge_of(rule, start, start.size, reports).vector
    assert distance(learning.vector, truth, start) < 1e-5


def test_only_merged_updates_enter_the_model_and_every_device_reports_a_loss(
    tmp_path: Path,
) -> None:
    experiment, data = an_experiment(), fleet_data(RECIPE)
    learning = a_learning(tmp_path, experiment, data)
    start, merged = learning.vector.copy(), np.array([1, 4])
    losses = train(learning, data, ALL_DEVICES, merged).losses
    truth = merge_of(
        Aggregator(FedAvg()), start, start.size, from_devices(experiment, data, start, [1, 4])
    ).vector
    assert distance(learning.vector, truth, start) < 1e-5
    assert np.isfinite(losses).all()


def test_without_updates_the_model_stays(tmp_path: Path) -> None:
    data = fleet_data(RECIPE)
    learning = a_learning(tmp_path, an_experiment(), data)
    start, none = learning.vector.copy(), np.zeros(0, dtype=np.int64)
    train(learning, data, ALL_DEVICES[:2], none)
    np.testing.assert_array_equal(learning.vector, start)


def test_a_device_with_diverging_training_has_no_update(tmp_path: Path) -> None:
    experiment, data = an_experiment(), fleet_data(RECIPE)
    data.dataset.x[data.train_rows[4]] *= np.float32(1e30)
    learning = a_learning(tmp_path, experiment, data)
    start = learning.vector.copy()
    learned = train(learning, data, ALL_DEVICES, ALL_DEVICES)
    assert np.flatnonzero(np.isnan(learned.losses)).tolist() == [4]
    assert np.flatnonzero(learned.has_failed).tolist() == [4]
    others = [row for row in range(N) if row != 4]
    truth = merge_of(
        Aggregator(FedAvg()), start, start.size, from_devices(experiment, data, start, others)
    ).vector
    assert distance(learning.vector, truth, start) < 1e-5


def test_the_model_is_evaluated_on_all_held_out_examples(tmp_path: Path) -> None:
    data = fleet_data(RECIPE)
    scores = a_learning(tmp_path, an_experiment(), data).evaluate()
    assert sum(score.n for score in scores.values()) == sum(len(rows) for rows in data.test_rows)


@pytest.mark.parametrize("up", ["float32", "float16", "int8", "top-k"])
@pytest.mark.parametrize("down", ["float32", "float16", "int8", "delta"])
def test_codecs_change_models_and_updates_as_they_do_live(
    tmp_path: Path, up: Up, down: Down
) -> None:
    exchange = ExchangeConfig(up=up, down=down, top_k=0.05)
    experiment, data = an_experiment(exchange=exchange), fleet_data(RECIPE)
    learning, layout = a_learning(tmp_path, experiment, data), shipped(RECIPE).spec.layout
    decisions = make_decisions(experiment.coordinator())
    agreement = CodecAgreement(exchange, layout, "run")
    coders, wanted = [Coder() for _ in range(N)], manifest_of(b"x" * layout.size_bytes, "model")
    for round_id in (1, 2, 3):
        sent = learning.vector.copy()
        train(learning, data, ALL_DEVICES, ALL_DEVICES, round_id)
        reports = from_devices(experiment, data, sent, list(range(N)), round_id)
        models: list[Vector] = []
        for row, trained in enumerate(reports.models):
            order = Train(
                round=round_id,
                model=wanted,
                hyperparameters=experiment.training.hyperparameters(round_id),
                seed=decisions.training_seed(round_id, row),
                needs_loss=False,
                deadline_s=1.0,
                coding=Coding(up=up, top_k=30 if up == "top-k" else None, run="run")
                if round_id == 1 or up != "top-k"
                else Coding(up=up, top_k=30, run="run", aggregated=round_id - 1),
            )
            blob = coders[row].encode(order, layout, sent, trained)
            codec = agreement.up
            models.append(trained if codec is None else unpack(blob, codec, layout, sent))
        merged = merge_of(
            Aggregator(FedAvg()), sent, sent.size, replace(reports, models=models)
        ).vector
        if agreement.down is not None:
            base = sent if down == "delta" else None
            rng = decisions.encoding_stream(round_id)
            merged = encoded_version(agreement.down, layout, merged, base, rng)[1]
        # Rounding may fall to the other side where the engines differ in the last bit.
        assert distance(learning.vector, merged, sent) < (1e-5 if up == down == "float32" else 0.1)
