"""`[model] batch_norm`: a replay has the models of live agents, bit for bit, in each mode."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

from fairbed.coordinator.policy.config import (
    AggregationConfig,
    CoordinatorConfig,
    EvaluationConfig,
    ExchangeConfig,
    ModelConfig,
    RoundConfig,
    SelectionConfig,
    TrainingConfig,
)
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.task.catalogue import build_task
from fairbed.coordinator.task.errors import TaskError
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.trainer import train
from fairbed.testbed.emulation.malicious import Attack
from fairbed.testbed.replay.cohort.devices import Unpaced
from fairbed.testbed.replay.engine.engine import ReplayEngine
from fairbed.testbed.replay.learning import Learning
from fairbed.wire.artifact import Artifact, BatchNorm, initial_vector
from fairbed.wire.messages import HeldOut
from fairbed.wire.plugins import PluginError
from tests.coordinator import lab
from tests.coordinator.lab import NAMES, make_config
from tests.coordinator.task.normed import make
from tests.testbed.replay.as_live import (
    QueryStory,
    Story,
    a_learning,
    a_world,
    replay_query_story,
    replay_story,
    run_live,
)

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped, pytest.mark.slow]

MODES: tuple[BatchNorm, ...] = ("merged", "silobn", "fedbn", "frozen")
QUICK_S = (0.01, 0.01, 0.01)
TRAINING = TrainingConfig(epochs=2, batch_size=10, learning_rate=0.3)
SOME = SelectionConfig(policy="uniform", per_round=2)


@cache
def task(mode: BatchNorm) -> Artifact:
    return build_task(f"{make.__module__}:make", (12,), 10, engine="onnx", batch_norm=mode)


def config(mode: BatchNorm, rounds: int = 5, **sections: object) -> CoordinatorConfig:
    model = ModelConfig(name="normed", batch_norm=mode)
    defaults: dict[str, object] = {"model": model, "training": TRAINING, "selection": SOME}
    return make_config(rounds, 3, **(defaults | sections))


@pytest.mark.parametrize("mode", MODES)
async def test_a_replay_has_the_models_of_live_agents(mode: BatchNorm, tmp_path: Path) -> None:
    one = config(
        mode,
        training=msgspec.structs.replace(TRAINING, proximal=0.1, momentum=0.5),
        exchange=ExchangeConfig(up="int8", down="delta"),
    )
    place = await run_live(tmp_path / "live", one, QUICK_S, artifact=task(mode))
    with place.reader() as reader:
        live = Story(reader.rounds(), reader.exchanges(0), reader.releases())
    virtual = replay_story(tmp_path / "replay", one, QUICK_S, artifact=task(mode))
    assert virtual.models == live.models, "bit for bit"
    assert len(set(live.models)) == 5


@pytest.mark.parametrize("mode", ["silobn", "fedbn"])
async def test_micro_batches_keep_the_same_values_live_and_replayed(
    mode: BatchNorm, tmp_path: Path
) -> None:
    """A step updates the statistics of a device once for each part, as `training.micro_batch`."""
    parts = msgspec.structs.replace(TRAINING, micro_batch=4, micro_batch_statistics=True)
    one = config(mode, 3, training=parts)
    place = await run_live(tmp_path / "live", one, QUICK_S, artifact=task(mode))
    with place.reader() as reader:
        live = [row.model_sha256 for row in reader.rounds()]
    virtual = replay_story(tmp_path / "replay", one, QUICK_S, artifact=task(mode))
    assert virtual.models == live, "bit for bit"
    whole = replay_story(tmp_path / "whole", config(mode, 3), QUICK_S, artifact=task(mode))
    assert whole.models[0] != virtual.models[0], "each part has statistics of its own"


@pytest.mark.parametrize("mode", ["silobn", "fedbn"])
async def test_a_restart_of_coordinator_and_devices_changes_no_bit(
    mode: BatchNorm, tmp_path: Path
) -> None:
    for rounds in (2, 5):  # the second one goes on with the first
        place = await run_live(
            tmp_path / "live", config(mode, rounds), QUICK_S, artifact=task(mode)
        )
    with place.reader() as reader:
        live = [row.model_sha256 for row in reader.rounds()]
    virtual = replay_story(tmp_path / "replay", config(mode), QUICK_S, artifact=task(mode))
    assert virtual.models == live


@pytest.mark.parametrize("mode", ["silobn", "fedbn"])
async def test_each_device_tests_the_model_with_its_own_values(
    mode: BatchNorm, tmp_path: Path
) -> None:
    """The coordinator has no such values, so its evaluator is left out."""
    one = msgspec.structs.replace(config(mode, 3), held_out=HeldOut(fraction=0.2, seed=1))
    artifact, held_out = task(mode), 30
    async with lab.lab(tmp_path / "live", agents=0, artifact=artifact) as place:
        place.device_names, place.has_evaluator = NAMES, False
        place.shards = lab.Shards(width=12, held_out=held_out)
        for name in NAMES:
            place.shards.shard(name)
            place.start_agent(name)
        assert await place.run(one) == "done"
    with place.reader() as reader:
        live = {row.device: row.loss for row in reader.device_metrics(3)}
    decisions = make_decisions(one)
    learning = a_learning(decisions, tmp_path / "replay", artifact=artifact)
    engine = ReplayEngine(decisions, a_world(QUICK_S), cohort=learning)
    for _ in engine.replay(3):
        pass
    assert learning._local is not None
    found, runner = {}, OnnxEngine(artifact)
    for row, name in enumerate(NAMES):
        shard = place.shards.shard(name)
        assert shard is not None
        assert shard.held_out is not None
        own = learning._local.of(row, learning.vector)
        found[name] = runner.evaluate(own, *shard.held_out.arrays()).loss_sum / held_out
    assert live == pytest.approx(found, rel=1e-12)
    assert shard is not None
    assert shard.held_out is not None
    without = runner.evaluate(learning.vector, *shard.held_out.arrays()).loss_sum / held_out
    assert live[name] != pytest.approx(without, rel=1e-3)


@pytest.mark.parametrize("mode", ["silobn", "fedbn"])
async def test_losses_are_those_of_the_model_with_the_values_of_each_device(
    mode: BatchNorm, tmp_path: Path
) -> None:
    choice = SelectionConfig(policy="power-of-choice", variant="cpow-d", per_round=2, candidates=3)
    one = config(mode, selection=choice, aggregation=AggregationConfig(rule="q-fedavg", q=1.0))
    place = await run_live(tmp_path / "live", one, QUICK_S, artifact=task(mode))
    with place.reader() as reader:
        chosen = [(x.round, x.device) for x in reader.exchanges(0)]
        models = [row.model_sha256 for row in reader.rounds()]
        live = QueryStory(reader.loss_queries(), chosen, models)
    virtual = replay_query_story(tmp_path / "replay", one, QUICK_S, artifact=task(mode))
    assert virtual.losses == live.losses, "bit for bit"
    assert virtual.chosen == live.chosen
    assert virtual.models == live.models


def learned(
    mode: BatchNorm, folder: Path, rounds: int = 3, attacks: Mapping[int, Attack] | None = None
) -> Learning:
    """Return the model and the devices of a replay after some rounds."""
    one = config(mode, rounds, selection=lab.WHOLE_FLEET)
    decisions = make_decisions(one)
    learning = a_learning(decisions, folder, attacks or {}, task(mode))
    engine = ReplayEngine(decisions, a_world(QUICK_S), cohort=learning, attacks=attacks or {})
    for _ in engine.replay(rounds):
        pass
    return learning


def test_a_device_keeps_its_own_values_and_the_model_has_none(tmp_path: Path) -> None:
    layout = task("fedbn").spec.layout
    model = learned("fedbn", tmp_path).vector
    initial = initial_vector(task("fedbn").spec, config("fedbn").seed_init)
    assert np.array_equal(model[layout.local], initial[layout.local])
    others = np.setdiff1d(np.arange(layout.n_values), layout.local)
    assert np.mean(model[others] != initial[others]) > 0.9
    local = learned("fedbn", tmp_path)._local
    assert local is not None
    own = local.starts(range(len(NAMES)), model)[:, layout.local]
    assert all(np.all(own[a] != own[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    late = local.of(len(NAMES), model)  # it was never selected
    assert np.array_equal(late[layout.local], initial[layout.local])


def test_an_attack_on_values_that_devices_keep_has_no_effect(tmp_path: Path) -> None:
    layout = task("silobn").spec.layout
    attacks = {0: Attack(kind="random-update")}
    model = learned("silobn", tmp_path, attacks=attacks).vector
    honest = learned("silobn", tmp_path).vector
    assert not np.array_equal(model, honest)
    assert np.array_equal(model[layout.local], honest[layout.local])


def test_a_checkpoint_has_the_values_that_devices_keep(tmp_path: Path) -> None:
    one = learned("fedbn", tmp_path)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(one.to_state()))
    other = learned("fedbn", tmp_path / "other", rounds=1)
    other.load_state(one.vector.copy(), state)
    assert one._local is not None
    assert other._local is not None
    rows = range(len(NAMES))
    own = one._local.starts(rows, one.vector)
    assert np.array_equal(own, other._local.starts(rows, other.vector))


def test_frozen_statistics_stay_as_they_were(tmp_path: Path) -> None:
    frozen, merged = task("frozen"), task("merged")
    assert frozen.spec.layout.n_values == frozen.spec.layout.n_params
    assert merged.spec.layout.n_values == frozen.spec.layout.n_values + 12
    engine, rng = OnnxEngine(frozen), np.random.default_rng(0)
    x, y = rng.standard_normal((8, 12)).astype(np.float32), np.arange(8)
    vector = initial_vector(frozen.spec, 1)
    whole, _ = engine.gradient(vector, x, y)
    each = [engine.gradient(vector, x[i : i + 1], y[i : i + 1])[0] for i in range(8)]
    assert whole == pytest.approx(np.mean(each), rel=1e-5), "no example changes that of another"
    assert whole == pytest.approx(engine.evaluate(vector, x, y).loss_sum / 8, rel=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_torch_trains_as_the_graphs_do(mode: BatchNorm) -> None:
    torch_task = build_task(f"{make.__module__}:make", (12,), 10, engine="torch", batch_norm=mode)
    graphs, module = task(mode).spec.layout, torch_task.spec.layout
    assert [(t.name, t.is_local) for t in graphs.tensors] == [
        (t.name, t.is_local) for t in module.tensors
    ]
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((40, 12)).astype(np.float32), rng.integers(0, 10, 40)
    start, h = initial_vector(torch_task.spec, 2), TRAINING.hyperparameters(1)
    one, other = (
        train(open_own_engine(made), start, x, y, h, 5, Unpaced(), lambda: False).vector
        for made in (task(mode), torch_task)
    )
    assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(one - start)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"round": RoundConfig(late="merge", deadline_s=2.0)}, "rounds that drop late updates"),
        ({"training": TrainingConfig(rule="tests.local_rules:Drift")}, "without vectors"),
        ({"evaluation": EvaluationConfig(own_data="server-test-set")}, "is not defined"),
    ],
)
def test_a_run_that_is_not_defined_is_refused(sections: dict[str, object], why: str) -> None:
    with pytest.raises(PluginError, match=f'^model.batch_norm: "fedbn" must have .*{why}'):
        make_decisions(config("fedbn", 5, **sections))


@pytest.mark.parametrize("mode", ["silobn", "fedbn", "frozen"])
def test_a_model_without_batch_norm_is_refused(mode: BatchNorm) -> None:
    with pytest.raises(TaskError, match=f'^model.batch_norm: "{mode}" must have a model with'):
        build_task(f"{make.__module__}:plain", (12,), 10, batch_norm=mode)
