"""Local rules in a replay: the devices' and the coordinator's half together, as in a live run."""

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import ExchangeConfig, TrainingConfig
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.connection import DATABASE
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.local_training import make_rule
from fairbed.testbed.cli.main import main
from fairbed.testbed.compare.worker import CellJob, run_job
from fairbed.testbed.emulation.malicious import Attack, AttackKind, MaliciousDevice
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.testbed.replay.learning import Learning
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of
from fairbed.wire.local_training import Merged, Step, Trained
from tests.coordinator.algorithms.aggregation.rounds import Reports
from tests.coordinator.algorithms.aggregation.rounds import merged as merge_of
from tests.testbed.replay.cohort.fleets import (
    RECIPES,
    SPLIT_DRIFT,
    Meter,
    SplitDrift,
    distance,
    fleet_data,
    shipped,
)
from tests.testbed.replay.fleets import QUICKSTART
from tests.testbed.replay.test_learning import ALL_DEVICES, N, a_learning, an_experiment, train
from tests.testbed.replay.test_resume import cut_off_at

RECIPE = RECIPES["softmax-60-10"]
DATA = fleet_data(RECIPE)
TRAINING = TrainingConfig(learning_rate=0.05, rule=SPLIT_DRIFT, rule_options={"share": 0.5})
SMALL = ["model.name=softmax", "training.epochs=1"]
NO_DEVICE = np.zeros(0, dtype=np.int64)

Engine = Literal["batched", "device", "torch"]


def with_rule(folder: Path, engine: Engine = "batched", **sections: object) -> Learning:
    experiment = an_experiment(training=TRAINING, **sections)
    replay = msgspec.structs.replace(experiment.replay, engine=engine)
    return a_learning(folder, msgspec.structs.replace(experiment, replay=replay), DATA)


def quickstart(*settings: str) -> Experiment:
    training = [f'training.rule="{SPLIT_DRIFT}"', "training.rule_options={share=0.5}"]
    return load_experiment(QUICKSTART, [*SMALL, *training, *settings])


def attackers(*rows: int, kind: AttackKind = "model-replacement") -> dict[int, MaliciousDevice]:
    return {row: MaliciousDevice(Attack(kind=kind, scale=3.0)) for row in rows}


def common_of(learning: Learning) -> Vector:
    """Return the vector that the coordinator sends."""
    half = learning._decisions.local_half
    assert half is not None
    return half.vectors(learning.vector.size)


def kept_of(learning: Learning) -> Vector:
    """Return the two vectors that each device keeps, shape (N, 2, n_params)."""
    assert learning._rule is not None
    return learning._rule.kept.starts(range(N)).reshape(N, 2, -1)


@pytest.mark.parametrize("engine", ["batched", "device", "torch"])
def test_rounds_are_those_of_devices_and_a_coordinator(engine: Engine, tmp_path: Path) -> None:
    learning, artifact = with_rule(tmp_path, engine), shipped(RECIPE)
    shards, device_engine = Shards(DATA, artifact.spec.x_shape), OnnxEngine(artifact)
    rule, model = make_rule(SPLIT_DRIFT, {"share": 0.5}), learning.vector.copy()
    common, tolerance = np.zeros_like(model), 0.0 if engine == "device" else 1e-5
    kept = [{name: np.zeros_like(model) for name in rule.kept} for _ in range(N)]
    for round_id, merged in enumerate(([0, 1, 2, 3, 4, 5, 6], [1, 4], [0, 4, 6], [1, 2, 4]), 1):
        train(learning, DATA, ALL_DEVICES, np.array(merged), round_id)
        updates = []
        for row in range(N):
            x, y = shards.whole(row)
            seed = learning._decisions.training_seed(round_id, row)
            vectors = {"common": common, **kept[row]}
            h = TRAINING.hyperparameters(round_id)
            done = trainer.train(
                device_engine,
                *(model, x, y, h, seed, Meter(), lambda: False),
                rule=rule,
                vectors=vectors,
            )
            if row in merged:  # otherwise the next round begins as this one did
                kept[row] = dict(done.kept)
                updates.append(np.concatenate([done.vector, done.returned["change"]]))
        reports = Reports(
            rows=np.array(merged),
            n_k=np.array([len(DATA.train_rows[row]) for row in merged]),
            models=updates,
            loss_before=None,
        )
        padded = np.concatenate([model, np.zeros_like(common)])
        after = merge_of(Aggregator(FedAvg()), padded, model.size, reports).vector
        before, model, change = model, after[: model.size], after[model.size :]
        common = common + change  # no device has joined but those of the round
        assert distance(learning.vector, model, before) <= tolerance
        assert distance(common_of(learning), common, np.zeros_like(common)) <= tolerance
        for row in range(N):
            mine, truth = kept_of(learning)[row], np.stack([kept[row][n] for n in rule.kept])
            assert np.linalg.norm(mine - truth) <= tolerance * np.linalg.norm(truth)
    assert [kept_of(learning)[row][1, 0] for row in range(N)] == [2, 3, 2, 1, 4, 1, 2]


def test_a_round_without_updates_changes_no_vector(tmp_path: Path) -> None:
    learning = with_rule(tmp_path)
    train(learning, DATA, ALL_DEVICES, ALL_DEVICES)
    before = common_of(learning).tobytes(), kept_of(learning).tobytes()
    train(learning, DATA, ALL_DEVICES, NO_DEVICE, 2)
    assert (common_of(learning).tobytes(), kept_of(learning).tobytes()) == before


def test_propfair_is_a_rule_of_every_replay(tmp_path: Path) -> None:
    training = TrainingConfig(learning_rate=0.05, rule="propfair", M=2.6)
    artifact, models = shipped(RECIPE), list[Vector]()
    shards, rule = Shards(DATA, artifact.spec.x_shape), make_rule("propfair", {"base": 2.6})
    for engine in ("batched", "device", "torch"):
        experiment = an_experiment(training=training)
        replay = msgspec.structs.replace(experiment.replay, engine=engine)
        learning = a_learning(tmp_path, msgspec.structs.replace(experiment, replay=replay), DATA)
        start = learning.vector.copy()
        train(learning, DATA, ALL_DEVICES, np.array([4]))
        models.append(learning.vector)
    x, y = shards.whole(4)
    seed, h = learning._decisions.training_seed(1, 4), training.hyperparameters(1)
    truth = trainer.train(
        OnnxEngine(artifact), start, x, y, h, seed, Meter(), lambda: False, rule=rule
    ).vector
    assert [distance(model, truth, start) < 1e-5 for model in models] == [True] * 3


@pytest.mark.parametrize("exchange", [{"up": "int8"}, {"up": "top-k"}, {"down": "int8"}])
def test_vectors_of_the_rule_are_not_encoded(exchange: dict[str, str], tmp_path: Path) -> None:
    """The first round begins at the same model, or without vectors to send."""
    plain = with_rule(tmp_path)
    coded = with_rule(tmp_path, exchange=ExchangeConfig(**exchange))  # type: ignore[arg-type]
    if "down" in exchange:
        plain._vector = coded.vector.copy()
    for learning in (plain, coded):
        train(learning, DATA, ALL_DEVICES, ALL_DEVICES)
    assert plain.vector.tobytes() != coded.vector.tobytes()
    assert common_of(plain).tobytes() == common_of(coded).tobytes()
    train(coded, DATA, ALL_DEVICES, ALL_DEVICES, 2)
    assert np.isfinite(coded.vector).all()


@pytest.mark.parametrize(("up", "down"), [("float32", "float32"), ("int8", "float16")])
def test_an_exchange_has_the_bytes_of_its_vectors(up: str, down: str, tmp_path: Path) -> None:
    codecs = [f"exchange.up={up}", f"exchange.down={down}", "replay.training=false", "rounds=3"]
    plain = [*codecs, 'training.rule="sgd"', "training.rule_options={}"]
    found = []
    for name, settings in (("plain", plain), ("rule", codecs)):
        replay_experiment(quickstart(*settings), tmp_path / name, "run", lambda replayed: None)
        with RunReader(tmp_path / name) as reader:
            found.append(reader.exchanges())
    one_vector = 4 * 650
    for x, y in zip(*found, strict=True):
        assert x.device == y.device
        assert y.bytes_up == x.bytes_up + one_vector
        assert y.bytes_down == x.bytes_down + one_vector
        assert y.upload_s > x.upload_s
        assert y.download_s > x.download_s


def test_a_replay_warns_of_costs_without_the_rule() -> None:
    costs = "replay.task_costs={step_s=1e-3,example_s=0,evaluation_step_s=0,evaluation_example_s=0}"
    warned = [
        [finding.kind for finding in setup_of(quickstart(*settings)).findings()]
        for settings in ((), ['training.rule="propfair"', "training.rule_options={}"], [costs])
    ]
    assert [("costs" in kinds) for kinds in warned] == [True, False, False]


def test_a_malicious_device_changes_its_model_alone(tmp_path: Path) -> None:
    honest, attacked = with_rule(tmp_path), with_rule(tmp_path)
    attacked._malicious.update(attackers(1, 4))
    for learning in (honest, attacked):
        train(learning, DATA, ALL_DEVICES, ALL_DEVICES)
    assert honest.vector.tobytes() != attacked.vector.tobytes()
    assert common_of(honest).tobytes() == common_of(attacked).tobytes()
    assert kept_of(honest).tobytes() == kept_of(attacked).tobytes()


def test_devices_whose_updates_are_rejected_keep_their_vectors(tmp_path: Path) -> None:
    learning = with_rule(tmp_path)
    learning._malicious.update(attackers(1, 4, kind="nan"))
    learned = train(learning, DATA, ALL_DEVICES, ALL_DEVICES)
    assert [bool(text) for text in learned.rejections] == [k in (1, 4) for k in range(N)]
    assert kept_of(learning)[:, 1, 0].tolist() == [float(k not in (1, 4)) for k in range(N)]
    assert np.isfinite(common_of(learning)).all()


def test_a_checkpoint_has_the_vectors_of_both_sides(tmp_path: Path) -> None:
    whole, resumed = with_rule(tmp_path), with_rule(tmp_path)
    train(whole, DATA, ALL_DEVICES, ALL_DEVICES[:4])
    state = whole.to_state(), whole._decisions.to_state()
    mine, decisions = msgspec.msgpack.decode(msgspec.msgpack.encode(state))
    resumed.load_state(whole.vector.copy(), mine)
    resumed._decisions.load_state(decisions)
    for learning in (whole, resumed):
        train(learning, DATA, ALL_DEVICES, ALL_DEVICES[2:], 2)
    assert whole.vector.tobytes() == resumed.vector.tobytes()
    assert common_of(whole).tobytes() == common_of(resumed).tobytes()
    assert kept_of(whole).tobytes() == kept_of(resumed).tobytes()


def test_a_resumed_replay_has_the_models_of_an_uninterrupted_one(tmp_path: Path) -> None:
    of = quickstart("rounds=6")
    replay_experiment(of, tmp_path / "whole", "run", lambda replayed: None)
    for at in (2, 4):
        cut_off_at(at, of, tmp_path / "parts")
    replay_experiment(of, tmp_path / "parts", "run", lambda replayed: None)
    models = []
    for name in ("whole", "parts"):
        with RunReader(tmp_path / name) as reader:
            found = reader.final_model()
        assert found is not None
        models.append(found[1].tobytes())
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises", "gradient() must not raise, got RuntimeError: broken"),
        ("shape", "end(): drift must return float32 of shape ("),
        ("merge", "merge() must not raise, got RuntimeError: broken"),
    ],
)
def test_a_rule_that_breaks_its_contract_ends_the_run_at_the_last_closed_round(
    fault: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "tests.testbed.replay.test_local_rules:Faulty"
    folder, options = tmp_path / "run", [*SMALL, f'training.rule="{path}"', "rounds=6"]
    options.append(f'training.rule_options={{fault="{fault}"}}')
    command = ["replay", str(QUICKSTART), "--out", str(folder)]
    assert main([*command, *(word for one in options for word in ("--set", one))]) == 1
    printed = capsys.readouterr().err.strip().splitlines()[-1]
    assert printed.startswith(f"fairbed: local rule {path}: {says}")
    assert printed.endswith(f"run fairbed doctor --local-training {path} to check it")
    with RunReader(folder) as reader:
        run, rounds = reader.run().row, reader.rounds()
    assert run.status == "failed"
    assert f"fairbed: {run.reason}" == printed
    closed = [row.round for row in rounds]
    assert closed == list(range(1, len(closed) + 1))
    assert 1 <= len(closed) < 6
    job = CellJob(run_id="cell", folder=str(tmp_path / "cell"), experiment=quickstart(*options))
    assert f"fairbed: {run_job(job).problem}" == printed


def test_a_cell_of_a_comparison_takes_a_rule(tmp_path: Path) -> None:
    job = CellJob(run_id="cell", folder=str(tmp_path / "cell"), experiment=quickstart("rounds=2"))
    assert run_job(job).problem == ""
    assert (tmp_path / "cell" / DATABASE).exists()


class Faulty(SplitDrift):
    """Breaks the contract once a device has taken part in a round, or in the second merge."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault, self._merges = fault, 0

    def gradient(self, step: Step) -> None:
        """Raise with the fault `raises`."""
        if self._fault == "raises" and step.vectors["rounds"].any():
            raise RuntimeError("broken")
        super().gradient(step)

    def end(self, trained: Trained) -> dict[str, Vector]:
        """Return a vector of another shape with the fault `shape`."""
        found = super().end(trained)
        if self._fault == "shape" and trained.vectors["rounds"].any():
            found["drift"] = found["drift"][..., :-1]
        return found

    def merge(self, merged: Merged) -> dict[str, Vector]:
        """Raise in the second merge with the fault `merge`."""
        self._merges += 1
        if self._fault == "merge" and self._merges == 2:
            raise RuntimeError("broken")
        return super().merge(merged)
