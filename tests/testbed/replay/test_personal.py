"""Personal models in a replay: those of the devices, resumed with the same bits, within memory."""

from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import (
    ExchangeConfig,
    PersonalisationConfig,
    TrainingConfig,
)
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import PersonalScoreRow
from fairbed.device_agent import trainer
from fairbed.device_agent.ditto import train_personal
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.testbed.emulation.work import TaskCosts
from fairbed.testbed.experiment.file import Experiment, ExperimentError, load_experiment
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.device_vectors import BLOCK_BYTES, DeviceVectors
from fairbed.testbed.replay.learning import Learning
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.world.work import Work
from fairbed.wire.messages import LambdaChoice
from fairbed.wire.shard import make_shard
from tests.testbed.replay.cohort.fleets import RECIPES, Meter, distance, fleet_data, shipped
from tests.testbed.replay.fleets import EXAMPLES
from tests.testbed.replay.test_learning import ALL_DEVICES, N, a_learning, an_experiment, train
from tests.testbed.replay.test_resume import cut_off_at

RECIPE = RECIPES["softmax-60-10"]
DATA = fleet_data(RECIPE)
TRAINING = TrainingConfig(learning_rate=0.05, momentum=0.5)
DITTO = PersonalisationConfig(method="ditto", lambda_=0.7)
EXAMPLE = EXAMPLES / "ditto.toml"


def personal(folder: Path, settings: PersonalisationConfig = DITTO, **sections: object) -> Learning:
    experiment = an_experiment(personalisation=settings, training=TRAINING, **sections)
    return a_learning(folder, experiment, DATA)


def models_of(learning: Learning) -> list[Vector]:
    assert learning._personal is not None
    return [learning._personal.models[row].copy() for row in range(N)]


def on_the_device(
    learning: Learning, row: int, start: Vector, w_t: Vector, round_id: int
) -> Vector:
    """Return the personal model of a device after a round, by the devices' own code."""
    artifact = shipped(RECIPE)
    x, y = Shards(DATA, artifact.spec.x_shape).whole(row)
    seed = learning._decisions.training_seed(round_id, row)
    h = DITTO.hyperparameters(TRAINING, round_id)
    assert h.proximal == 0.7
    return trainer.train(
        OnnxEngine(artifact), start, x, y, h, seed, Meter(), lambda: False, w_t
    ).vector


def test_personal_models_and_their_scores_are_those_of_the_devices(tmp_path: Path) -> None:
    learning = personal(tmp_path)
    expected = [learning.vector.copy()] * N
    for round_id in (1, 2, 3):
        w_t = learning.vector.copy()
        train(learning, DATA, ALL_DEVICES, ALL_DEVICES[:3], round_id)
        expected = [on_the_device(learning, k, expected[k], w_t, round_id) for k in range(N)]
        for mine, truth in zip(models_of(learning), expected, strict=True):
            assert distance(mine, truth, w_t) < 1e-5
    learning.score_personal()
    engine, dataset = OnnxEngine(shipped(RECIPE)), DATA.dataset
    tested = [k for k in range(N) if len(DATA.test_rows[k])]
    assert [(one.round, one.row) for one in learning.personal_scores] == [(3, k) for k in tested]
    for one in learning.personal_scores:
        rows = DATA.test_rows[one.row]
        x, y = make_shard(dataset.x[rows], dataset.y[rows]).arrays()
        loss, quality = trainer.evaluate(engine, expected[one.row], x, y, Meter())
        assert (one.score.n, one.score.correct) == (len(rows), quality.correct)
        assert one.score.loss_sum / one.score.n == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("choice", ["local", "dynamic"])
def test_devices_that_choose_lambda_have_the_bits_of_the_device(
    choice: LambdaChoice, tmp_path: Path
) -> None:
    settings = PersonalisationConfig(method="ditto", lambda_choice=choice)
    learning, engine = personal(tmp_path, settings), OnnxEngine(shipped(RECIPE))
    shards = Shards(DATA, shipped(RECIPE).spec.x_shape)
    expected = [learning.vector.copy()] * N
    for round_id in (1, 2, 3):
        w_t = learning.vector.copy()
        train(learning, DATA, ALL_DEVICES, ALL_DEVICES[:3], round_id)
        request = settings.request(TRAINING, round_id, run="run", init_seed=None)
        assert (request.choice, request.candidates) == (choice, (0.1, 1.0, 2.0))
        for k in range(N):
            x, y = shards.whole(k)
            expected[k] = train_personal(
                engine,
                expected[k],
                w_t,
                x,
                y,
                request,
                learning._decisions.training_seed(round_id, k),
                Meter(),
                lambda: nullcontext(Meter()),
                lambda: False,
            )
    for mine, truth in zip(models_of(learning), expected, strict=True):
        assert mine.tobytes() == truth.tobytes()


@pytest.mark.parametrize("choice", ["fixed", "local", "dynamic"])
def test_the_work_of_a_personal_model_counts_sections_and_validations(choice: LambdaChoice) -> None:
    costs = TaskCosts(step_s=1.0, example_s=0.1, evaluation_step_s=0.01, evaluation_example_s=0.001)
    settings = PersonalisationConfig(method="ditto", lambda_choice=choice)
    training = TrainingConfig(epochs=2, batch_size=10, learning_rate=0.05)
    config = an_experiment(personalisation=settings, training=training).coordinator()
    n = np.array([30, 45])
    work = Work.of(config, costs, n, n, needs_loss=False)
    fixed = 6 * 1.0 + 60 * 0.1
    assert work.train_s == pytest.approx([fixed, 10 * 1.0 + 90 * 0.1])
    # 45 examples: 5 validate, and 40 train in 8 steps.
    section, validations = 8 * 1.0 + 80 * 0.1, 3 * (0.01 + 5 * 0.001)
    chosen = {
        "fixed": 10 * 1.0 + 90 * 0.1,
        "local": 3 * section + validations,
        "dynamic": section + 8 * validations,
    }
    assert work.personal_s == pytest.approx([fixed, chosen[choice]])
    faster = Work.of(config, costs, n, n, needs_loss=True, evaluation_speed=np.array([1.0, 1e9]))
    assert faster.personal_s[1] == pytest.approx(
        chosen[choice]
        - {"local": validations}.get(choice, 8 * validations if choice == "dynamic" else 0.0)
    )
    assert faster.evaluate_s == pytest.approx([0.01 + 30 * 0.001, 0.0], abs=1e-9)


def test_the_work_of_a_personal_part_that_is_trained_first_counts_its_steps() -> None:
    costs = TaskCosts(step_s=1.0, example_s=0.1, evaluation_step_s=0.01, evaluation_example_s=0.001)
    training = TrainingConfig(epochs=2, personal_epochs=3, batch_size=10, max_steps=7)
    config = msgspec.structs.replace(an_experiment().coordinator(), training=training)
    n = np.array([30, 40])
    work = Work.of(config, costs, n, n, needs_loss=False)
    assert work.steps.tolist() == [9 + 6, 12 + 7] == training.local_steps(n).tolist()
    assert work.train_s == pytest.approx([15 * 1.0 + 150 * 0.1, 19 * 1.0 + 190 * 0.1])


def test_the_global_model_does_not_depend_on_personal_models(tmp_path: Path) -> None:
    mine, plain = personal(tmp_path), personal(tmp_path, PersonalisationConfig())
    for round_id in (1, 2):
        for learning in (mine, plain):
            train(learning, DATA, ALL_DEVICES, ALL_DEVICES, round_id)
    assert mine.vector.tobytes() == plain.vector.tobytes()
    plain.score_personal()
    assert plain.personal_scores == []


def test_local_only_does_not_depend_on_the_global_model(tmp_path: Path) -> None:
    settings = PersonalisationConfig(method="local-only", lambda_=5.0)
    models = []
    for merged in (ALL_DEVICES, ALL_DEVICES[:1]):
        learning = personal(tmp_path, settings)
        for round_id in (1, 2, 3):
            train(learning, DATA, ALL_DEVICES, merged, round_id)
        models.append([model.tobytes() for model in models_of(learning)])
    assert models[0] == models[1]


def test_a_local_model_is_that_of_a_device_which_trains_alone(tmp_path: Path) -> None:
    """The devices join late, when the global model has long left the one before round 1."""
    settings, rate = PersonalisationConfig(method="local-only"), np.float32(0.05)
    experiment = an_experiment(personalisation=settings)
    learning, engine = a_learning(tmp_path, experiment, DATA), OnnxEngine(shipped(RECIPE))
    first, h = learning.vector.copy(), experiment.training.hyperparameters(1)
    rows = np.arange(3, N)
    for round_id in (1, 2):
        train(learning, DATA, np.arange(3), ALL_DEVICES, round_id)
    assert distance(learning.vector, first, first * 0) > 0.1
    for round_id in (3, 4):
        train(learning, DATA, rows, ALL_DEVICES, round_id)
    shards = Shards(DATA, shipped(RECIPE).spec.x_shape)
    for row in rows.tolist():
        v, (x, y) = first.copy(), shards.whole(row)
        for round_id in (3, 4):
            seed = learning._decisions.training_seed(round_id, row)
            for _, batch in trainer.mini_batches(len(y), h, seed):
                v -= rate * engine.gradient(v, x[batch], y[batch])[1]
        assert distance(models_of(learning)[row], v, first) < 1e-5


def test_a_device_that_was_not_selected_keeps_its_model(tmp_path: Path) -> None:
    learning = personal(tmp_path)
    train(learning, DATA, ALL_DEVICES, ALL_DEVICES, 1)
    before = models_of(learning)
    train(learning, DATA, ALL_DEVICES[2:4], ALL_DEVICES[2:4], 2)
    is_same = [a.tobytes() == b.tobytes() for a, b in zip(before, models_of(learning), strict=True)]
    assert is_same == [k not in (2, 3) for k in range(N)]


def test_an_evaluation_scores_every_model_that_has_changed_since_the_last(tmp_path: Path) -> None:
    def scored(one: Learning) -> dict[int, int]:
        return {score.row: score.round for score in one.personal_scores}

    tested = [k for k in range(N) if len(DATA.test_rows[k])]
    learning = personal(tmp_path)
    train(learning, DATA, ALL_DEVICES, ALL_DEVICES, 1)
    assert learning.personal_scores == [], "no evaluation was due"
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(learning.to_state()))
    resumed = personal(tmp_path)
    resumed.load_state(learning.vector.copy(), state)
    for one in (learning, resumed):
        train(one, DATA, ALL_DEVICES[2:4], ALL_DEVICES[2:4], 2)
        one.score_personal()
        assert scored(one) == {k: 2 if k in (2, 3) else 1 for k in tested}
    train(learning, DATA, ALL_DEVICES[4:], ALL_DEVICES, 3)
    learning.train(4, 4, [], ())
    learning.score_personal()
    assert scored(learning) == {k: 3 for k in tested if k >= 4}, "a void round evaluates, too"


def test_a_state_has_the_bits_of_every_model(tmp_path: Path) -> None:
    learning = personal(tmp_path, exchange=ExchangeConfig(up="top-k"))
    train(learning, DATA, ALL_DEVICES[:5], ALL_DEVICES, 1)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(learning.to_state()))
    again = personal(tmp_path, exchange=ExchangeConfig(up="top-k"))
    again.load_state(learning.vector.copy(), state)
    for one in (learning, again):
        train(one, DATA, ALL_DEVICES, ALL_DEVICES, 2)
    for a, b in zip(models_of(learning), models_of(again), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.full
def test_a_resumed_replay_has_the_scores_of_an_uninterrupted_one(tmp_path: Path) -> None:
    of = load_experiment(EXAMPLE, ["rounds=8"])
    replay_experiment(of, tmp_path / "whole", "run", lambda replayed: None)
    for at in (2, 5):
        cut_off_at(at, of, tmp_path / "parts")
    replay_experiment(of, tmp_path / "parts", "run", lambda replayed: None)
    rows = []
    for name in ("whole", "parts"):
        with RunReader(tmp_path / name) as reader:
            rows.append(reader.columns(PersonalScoreRow, ("round", "device", "accuracy", "loss")))
            summary = summarise_run(reader)
            exchanges = reader.exchanges()
    assert rows[0] == rows[1]
    assert len(rows[0]) == 8 * 4
    assert summary.personal is not None
    assert summary.personal.devices == len({device for _, device, *_ in rows[0]})
    for x in exchanges:
        assert x.personal_s is not None
        assert x.train_s is not None
        assert x.personal_s == pytest.approx(x.train_s), "the same steps"
        phases = x.download_s, x.load_s, x.train_s, x.personal_s, x.encode_s, x.upload_s, x.signal_s
        assert x.tau_s == pytest.approx(sum(value or 0.0 for value in phases))


def test_memory_grows_with_the_devices_that_trained() -> None:
    models = DeviceVectors(np.full(1_000, -1.0, dtype=np.float32))
    per_block = BLOCK_BYTES // 4_000
    for row in range(0, 2 * (per_block + 1), 2):
        models.keep(row, np.full(1_000, row, dtype=np.float32))
    assert len(models) == per_block + 1
    state = models.to_state()
    assert sum(block.nbytes for block in state["blocks"]) <= 2 * BLOCK_BYTES
    assert models[2 * per_block][0] == 2 * per_block
    assert models.starts([0, 1, 2])[:, 0].tolist() == [0.0, -1.0, 2.0]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["personalisation.lambda=-1"], "personalisation.lambda"),
        (
            ["personalisation.lambda=11"],
            "personalisation.lambda times training.learning_rate must be at most 0.5, got 11 x "
            "0.05 = 0.55: the personal model would oscillate; lower one of them",
        ),
        (["personalisation.lambda=1e9"], "personalisation.lambda"),
        (["personalisation.lambda=nan"], "personalisation.lambda"),
        (['personalisation.lambda_choice="best"'], "personalisation.lambda_choice"),
        (
            ['personalisation.lambda_choice="local"', "personalisation.lambda_candidates=[1, 20]"],
            "personalisation.lambda_candidates times training.learning_rate must be at most 0.5, "
            "got 20 x 0.05 = 1: the personal model would oscillate; lower one of them",
        ),
        (["personalisation.lambda_candidates=[]"], "personalisation.lambda_candidates"),
        (["personalisation.lambda_candidates=[0.1, -1]"], "personalisation.lambda_candidates"),
        (['personalisation.method="dito"'], "personalisation.method"),
        (["personalisation.lamda=1"], "lambda"),
    ],
)
def test_a_bad_setting_is_one_line(settings: list[str], line: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        load_experiment(EXAMPLE, settings)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_lambda_without_ditto_is_not_limited() -> None:
    settings = ["personalisation.lambda=11", 'personalisation.method="local-only"']
    assert isinstance(load_experiment(EXAMPLE, settings), Experiment)
