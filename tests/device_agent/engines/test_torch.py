"""The torch engine: the numbers of the other engine, dropout by seed, and no unknown code."""

import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="torch is not installed: this engine cannot run")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import torch

from fairbed.coordinator.task.catalogue import load_task
from fairbed.coordinator.task.errors import UnknownTask, Unsupported
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.base import Engine, self_check
from fairbed.device_agent.engines.choose import open_engine, open_own_engine
from fairbed.device_agent.errors import EngineError, EngineMismatch
from fairbed.testbed.replay.cohort.devices import Unpaced
from fairbed.wire.artifact import (
    Artifact,
    ModuleSource,
    TaskKind,
    decode_artifact,
    encode_artifact,
    initial_vector,
)
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.selfcheck import selfcheck_inputs

MODELS = "tests.device_agent.engines.torch_models"
SMOOTH, RECURRENT = f"{MODELS}:smooth", f"{MODELS}:recurrent"


def trained(engine: Engine, seed: int = 3, steps: int = 6) -> NDArray[np.float32]:
    _, x, y = selfcheck_inputs(engine.spec, 5, 24)
    hyperparameters = Hyperparameters(
        epochs=3, batch_size=10, learning_rate=0.1, momentum=0.5, max_steps=steps
    )
    start = initial_vector(engine.spec, 1)
    result = trainer.train(engine, start, x, y, hyperparameters, seed, Unpaced(), lambda: False)
    assert result.steps == steps
    return result.vector


@pytest.fixture(scope="module")
def recurrent() -> Artifact:
    return load_task(RECURRENT, (4, 3), 3)


@pytest.mark.parametrize(
    ("model", "classes", "kind"),
    [
        ("smooth", 3, "classification"),
        ("smooth", 2, "classification"),
        ("smooth", 1, "regression"),
        ("one_logit", 2, "binary"),
    ],
)
def test_trains_and_evaluates_as_the_graphs_do(model: str, classes: int, kind: TaskKind) -> None:
    path = f"{MODELS}:{model}"
    graphs = load_task(path, (6,), classes, kind, engine="onnx")
    module = load_task(path, (6,), classes, kind, engine="torch")
    assert (graphs.engine, module.engine) == ("onnx", "torch")
    assert graphs.spec.layout == module.spec.layout
    assert graphs.spec.selfcheck == module.spec.selfcheck
    assert graphs.spec.kind == module.spec.kind == kind
    engines = open_own_engine(graphs), open_own_engine(module)
    for engine in engines:
        self_check(engine)
    by_graphs, by_torch = (trained(engine) for engine in engines)
    assert np.abs(by_graphs - initial_vector(graphs.spec, 1)).max() > 0.05
    np.testing.assert_allclose(by_torch, by_graphs, rtol=2e-4, atol=2e-6)
    _, x, y = selfcheck_inputs(graphs.spec, 9, 150)
    right, found = (engine.evaluate(by_graphs, x, y) for engine in engines)
    assert found.loss_sum == pytest.approx(right.loss_sum, rel=1e-5)
    assert found.correct == right.correct
    assert (found.scores is None) == (right.scores is None)
    if found.scores is not None and right.scores is not None:
        np.testing.assert_allclose(found.scores, right.scores, rtol=1e-4, atol=1e-5)


def test_both_engines_compute_the_same_parts_and_update_buffers_in_their_order() -> None:
    tasks = [load_task(f"{MODELS}:smooth", (6,), 3, engine=name) for name in ("onnx", "torch")]
    vector, x, y = selfcheck_inputs(tasks[0].spec, 4, 20)
    n_params, found = tasks[0].spec.layout.n_params, []
    for task in tasks:
        model = vector.copy()
        loss, gradient = open_own_engine(task).gradient(model, x, y, 7)
        found.append(np.concatenate([[loss], gradient, model[n_params:]]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-6)
    means = x[:7], x[7:14], x[14:]
    inputs = dict(tasks[0].spec.layout.views(vector))
    expected = inputs["2.running_mean"]
    for part in means:
        hidden = part.reshape(len(part), -1) @ inputs["1.weight"].T + inputs["1.bias"]
        expected = 0.9 * expected + 0.1 * hidden.mean(0)
    got = vector.copy()
    got[n_params:] = found[0][1 + n_params :]
    np.testing.assert_allclose(
        tasks[0].spec.layout.views(got)["2.running_mean"], expected, rtol=1e-4, atol=1e-6
    )


def test_what_the_exporter_refuses_is_named_and_torch_takes_over(recurrent: Artifact) -> None:
    assert recurrent.engine == "torch"
    assert recurrent.module is not None
    assert recurrent.module.is_random
    assert recurrent.module.path == RECURRENT
    assert "the model must accept batches of any size" in recurrent.module.reason
    assert "\n" not in recurrent.module.reason
    bessel = load_task(f"{MODELS}:bessel", (2, 4, 4), 3)
    assert bessel.module is not None
    assert bessel.module.reason.startswith("model.0: aten.i0.default must have")
    assert not bessel.module.is_random
    assert decode_artifact(encode_artifact(recurrent)) == recurrent
    with pytest.raises(Unsupported, match=r'or model\.engine = "auto" with torch on the devices'):
        load_task(RECURRENT, (4, 3), 3, engine="onnx")


def test_dropout_depends_on_the_seed_of_round_and_device_alone(recurrent: Artifact) -> None:
    first, again, other = open_own_engine(recurrent), open_own_engine(recurrent), 4
    self_check(first)  # draws nothing
    one = trained(first)
    torch.manual_seed(99)
    np.testing.assert_array_equal(trained(again), one)
    np.testing.assert_array_equal(trained(first), one)
    assert np.abs(trained(again, other) - one).max() > 1e-3


def test_an_engine_that_is_opened_during_a_step_changes_none_of_its_random_numbers(
    recurrent: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_own_engine(recurrent)
    undisturbed, opened = trained(engine, steps=1), list[threading.Thread]()

    def dropout(*args: Any) -> torch.Tensor:
        if not opened:
            opened.append(threading.Thread(target=open_own_engine, args=(recurrent,)))
            opened[0].start()
            opened[0].join(0.2)  # it draws the first parameters, if nothing keeps it from that
        return original(*args)

    original = torch.nn.functional.dropout
    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    np.testing.assert_array_equal(trained(engine, steps=1), undisturbed)
    opened[0].join()


def test_one_step_drops_the_same_units_at_other_parameters(recurrent: Artifact) -> None:
    engine = open_own_engine(recurrent)
    vector, x, y = selfcheck_inputs(recurrent.spec, 1, 8)
    still, _ = engine.gradient(vector, x, y)
    engine.reseed(1, 0)
    first, gradient = engine.gradient(vector, x, y)
    gradient = gradient.copy()
    assert first != still
    engine.gradient(vector * 2, x, y)
    second, repeated = engine.gradient(vector, x, y)
    assert first == second
    np.testing.assert_array_equal(gradient, repeated)
    engine.reseed(1, 1)
    assert engine.gradient(vector, x, y)[0] != first


def test_evaluation_drops_nothing(recurrent: Artifact) -> None:
    engine = open_own_engine(recurrent)
    vector, x, y = selfcheck_inputs(recurrent.spec, 1, 8)
    before = engine.evaluate(vector, x, y)
    engine.reseed(5, 5)
    engine.gradient(vector, x, y)
    assert engine.evaluate(vector, x, y)[:2] == before[:2]


def test_a_module_that_computes_something_else_fails_the_self_check(recurrent: Artifact) -> None:
    check = msgspec.structs.replace(
        recurrent.spec.selfcheck, loss=recurrent.spec.selfcheck.loss * 2
    )
    spec = msgspec.structs.replace(recurrent.spec, selfcheck=check)
    with pytest.raises(EngineMismatch, match=r"torch .*self-check loss must be"):
        self_check(open_own_engine(msgspec.structs.replace(recurrent, spec=spec)))


def test_a_device_imports_no_module_that_its_owner_does_not_allow(recurrent: Artifact) -> None:
    assert open_engine(recurrent, 1, [MODELS]).spec is recurrent.spec
    with pytest.raises(EngineError, match=f"start the agent with --allow-models {MODELS}$"):
        open_engine(recurrent, 1, ["tests.device_agent"])


def written(folder: Path, name: str, width: int) -> None:
    (folder / f"{name}.py").write_text(
        "from torch import nn\n"
        "def make(x_shape, classes):\n"
        f"    return nn.Sequential(nn.Linear(*x_shape, {width}), nn.Linear({width}, classes))\n"
    )


def test_a_device_runs_no_other_source_than_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path, "model_of_the_test", 5)
    task = load_task("model_of_the_test:make", (4,), 3, engine="torch")
    self_check(open_own_engine(task))
    written(tmp_path, "model_of_the_test", 7)
    with pytest.raises(EngineError, match=r"must be that of the coordinator \(sha256 .*copy the"):
        open_own_engine(task)
    newer = load_task("model_of_the_test:make", (4,), 3, engine="torch")
    self_check(open_own_engine(newer))
    monkeypatch.delitem(sys.modules, "model_of_the_test")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.at_all:make", "must name an importable module, got none named"),
        ("builtins:len", "must be in a Python file, got a module without one"),
        (f"{MODELS}:nothing", "must name a factory in the module .*got no such name"),
        (f"{MODELS}:falling", "must return a torch.nn.Module, got RuntimeError: no layers at all"),
        (f"{MODELS}:smooth", "must have the tensors of the coordinator's, got"),
    ],
)
def test_a_module_that_does_not_fit_is_one_line(
    path: str, message: str, recurrent: Artifact
) -> None:
    from fairbed.wire.models import source_hash
    from fairbed.wire.plugins import PluginError

    try:
        sha256 = source_hash(path)
    except PluginError:
        sha256 = bytes(32)
    source = ModuleSource(path=path, sha256=sha256)
    with pytest.raises(EngineError, match=message) as error:
        open_own_engine(msgspec.structs.replace(recurrent, module=source))
    assert "\n" not in str(error.value)


def test_torch_needs_a_model_of_the_user() -> None:
    with pytest.raises(UnknownTask, match=r'model\.engine: "torch" must have a model package'):
        load_task("softmax", (60,), 10, engine="torch")
