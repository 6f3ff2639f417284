"""Weights of a file, frozen parameters beside the task, adapters: as torch has them, or refused."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import torch
from msgspec.structs import replace
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from fairbed.coordinator.task.catalogue import build_task, changed_module
from fairbed.coordinator.task.changes import ModelChanges
from fairbed.coordinator.task.errors import TaskError
from fairbed.device_agent.engines.base import Engine, self_check
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.device_agent.errors import EngineError, EngineMismatch
from fairbed.wire.artifact import Adaptation, Artifact, Lora, encode_artifact
from fairbed.wire.base_files import BaseFiles
from tests.cases.fine_tuning.networks import Pictures

PICTURES = f"{Pictures.__module__}:Pictures"
ROWS = f"{Pictures.__module__}:Rows"
SHAPE, CLASSES = (1, 8, 8), 4

HEAD = ModelChanges(
    weights="module", fresh=("head.*",), adaptation=Adaptation(trainable=("head.*",))
)
LORA = ModelChanges(
    weights="module",
    adaptation=Adaptation(trainable=("head.*",), lora=Lora(rank=2, on=("*",), alpha=4.0)),
)
EACH = {"head": (PICTURES, HEAD), "lora": (PICTURES, LORA), "attention": (ROWS, LORA)}


@cache
def task(case: str, engine: str) -> Artifact:
    model, changes = EACH[case]
    return build_task(model, SHAPE, CLASSES, engine=engine, changes=changes)  # type: ignore[arg-type]


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((6, *SHAPE)).astype(np.float32)
    return x, rng.integers(0, CLASSES, 6)


@pytest.mark.parametrize("engine", ["onnx", "torch"])
@pytest.mark.parametrize("case", EACH)
def test_both_engines_train_what_torch_trains(case: str, engine: str) -> None:
    artifact, changes = task(case, engine), EACH[case][1]
    opened: Engine = open_own_engine(artifact)
    self_check(opened)
    assert artifact.base is not None
    n_frozen = artifact.base.layout.n_values
    assert n_frozen > 8 * artifact.spec.layout.n_params
    assert len(encode_artifact(artifact)) < 4 * n_frozen, "the frozen values are not in the task"

    module: Any = changed_module(artifact.spec, changes)
    vector = changes.first_vector(artifact.spec, module, seed=5)
    views = artifact.spec.layout.views(vector)
    named = dict(module.named_parameters())
    assert set(views) >= {name for name, value in named.items() if value.requires_grad}
    for name, value in views.items():
        if name in named:  # what starts at random does so by the seed, not by the module
            with torch.no_grad():
                named[name].copy_(torch.from_numpy(value))
    x, y = batch()
    module.train()
    loss = cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()  # type: ignore[no-untyped-call]
    found, gradient = opened.gradient(vector.copy(), x, y)
    assert found == pytest.approx(loss.item(), rel=1e-5)
    of_torch = [named[t.name].grad for t in artifact.spec.layout.tensors if t.role == "param"]
    wanted = torch.cat([grad.flatten() for grad in of_torch if grad is not None]).numpy()
    np.testing.assert_allclose(gradient, wanted, rtol=2e-4, atol=2e-6)


def test_weights_begin_the_model_and_seeds_the_rest() -> None:
    artifact = task("head", "onnx")
    module: Any = changed_module(artifact.spec, HEAD)
    one, other = (HEAD.first_vector(artifact.spec, module, seed) for seed in (1, 2))
    assert not np.array_equal(one, other), "the head is fresh"
    whole = replace_weights(HEAD, fresh=())
    same = [whole.first_vector(artifact.spec, module, seed) for seed in (1, 2)]
    assert np.array_equal(same[0], same[1]), "the factory gave all values"
    head = module.head.weight.detach().numpy()
    assert np.array_equal(artifact.spec.layout.views(same[0])["head.weight"], head)


def replace_weights(changes: ModelChanges, fresh: tuple[str, ...]) -> ModelChanges:
    return ModelChanges(changes.weights, fresh, changes.adaptation)


def test_a_file_of_weights_is_the_base(tmp_path: Path) -> None:
    torch.manual_seed(9)
    trained: Any = Pictures(SHAPE, 7)  # of another number of classes: its head does not fit
    file = tmp_path / "weights.safetensors"
    save_file(trained.state_dict(), file)
    changes = ModelChanges(str(file), ("head.*",), HEAD.adaptation)
    artifact = build_task(PICTURES, SHAPE, CLASSES, engine="torch", changes=changes)
    assert artifact.base is not None
    module: Any = changed_module(artifact.spec, changes)
    assert torch.equal(module.body[2].weight, trained.body[2].weight)
    assert artifact.base.sha256 != task("head", "torch").base.sha256  # type: ignore[union-attr]


def without_a_layer(state: dict[str, torch.Tensor]) -> None:
    del state["body.2.weight"]


def of_another_shape(state: dict[str, torch.Tensor]) -> None:
    state["head.weight"] = torch.zeros(CLASSES, 32)


def with_more(state: dict[str, torch.Tensor]) -> None:
    state["neck.weight"] = torch.zeros(3)


def with_nan(state: dict[str, torch.Tensor]) -> None:
    state["head.bias"] = torch.tensor([0.0, torch.nan, 0.0, 0.0])


def of_integers(state: dict[str, torch.Tensor]) -> None:
    state["head.bias"] = torch.zeros(CLASSES, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (without_a_layer, "body.2.weight missing"),
        (of_another_shape, "head.weight (4, 32) for (4, 64) of another shape"),
        (with_more, "neck.weight unknown"),
        (with_nan, "head.bias not finite"),
        (of_integers, "head.bias int64 for float32 of another kind"),
    ],
)
def test_weights_of_another_network_are_refused(
    change: Callable[[dict[str, torch.Tensor]], None], got: str, tmp_path: Path
) -> None:
    state = Pictures(SHAPE, CLASSES).state_dict()
    change(state)
    file = tmp_path / "weights.safetensors"
    save_file(state, file)
    with pytest.raises(TaskError) as caught:
        build_task(PICTURES, SHAPE, CLASSES, changes=ModelChanges(str(file)))
    assert f"{file} must have the tensors of the model, got {got}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pickle_and_an_absent_file_are_refused(tmp_path: Path) -> None:
    pickle = tmp_path / "weights.pt"
    torch.save(Pictures(SHAPE, CLASSES).state_dict(), pickle)
    for file, line in (
        (pickle, "must be a .safetensors file, got a pickle, which runs code when it is read"),
        (tmp_path / "none.safetensors", "must be a file, got No such file or directory"),
    ):
        with pytest.raises(TaskError) as caught:
            build_task(PICTURES, SHAPE, CLASSES, changes=ModelChanges(str(file)))
        assert f"model.weights: {file} {line}" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "changes", "personal", "line"),
    [
        (PICTURES, ModelChanges("module", ("heads",)), (), "model.fresh: heads must fit the name"),
        (
            PICTURES,
            ModelChanges(adaptation=Adaptation(trainable=("*.running_mean",))),
            (),
            "model.trainable: *.running_mean must fit the name of a parameter",
        ),
        (
            f"{Pictures.__module__}:Unused",
            ModelChanges(adaptation=Adaptation(lora=Lora(rank=1, on=("spare", "head")))),
            (),
            "spare.lora_a: the loss must depend on each adapter",
        ),
        (PICTURES, ModelChanges(), ("tail.*",), "model.personal: tail.* must fit the name"),
        (PICTURES, HEAD, ("*",), "model.personal: must leave parameters to merge"),
    ],
)
def test_patterns_that_fit_nothing_are_refused(
    model: str, changes: ModelChanges, personal: tuple[str, ...], line: str
) -> None:
    with pytest.raises(TaskError) as caught:
        build_task(model, SHAPE, CLASSES, engine="torch", changes=changes, personal=personal)
    assert line in str(caught.value)


def test_an_altered_base_is_no_engine(tmp_path: Path) -> None:
    """Its hash is another one; one with the right hash but other values fails the self-check."""
    artifact = task("head", "onnx")
    assert artifact.base is not None
    with pytest.raises(EngineError, match=r"must be in .*, got no file with this hash"):
        open_own_engine(artifact, bases=BaseFiles(tmp_path))
    files = BaseFiles(tmp_path)
    size = artifact.base.layout.size_bytes
    values = np.full(size // 4, 0.01, "<f4")
    files.put(artifact.base.sha256, [values.tobytes()])
    with pytest.raises(EngineError):
        open_own_engine(artifact, bases=files)
    other = replace(artifact.base, sha256=hashlib.sha256(values.tobytes()).digest())
    files.put(other.sha256, [values.tobytes()])
    with pytest.raises(EngineMismatch):
        self_check(open_own_engine(replace(artifact, base=other), bases=files))


def test_personal_parameters_are_marked_in_the_layout() -> None:
    artifact = build_task(PICTURES, SHAPE, CLASSES, engine="torch", personal=("head.*",))
    kept = {tensor.name for tensor in artifact.spec.layout.tensors if tensor.is_local is True}
    assert kept == {"head.weight", "head.bias"}


def test_trained_buffers_begin_at_those_of_the_weights(tmp_path: Path) -> None:
    """Statistics of batch norm of a trained network are neither all 0 nor all 1."""
    trained: Any = Pictures(SHAPE, CLASSES)
    trained(torch.randn(9, *SHAPE))
    file = tmp_path / "weights.safetensors"
    save_file(trained.state_dict(), file)
    changes = ModelChanges(str(file))
    artifact = build_task(PICTURES, SHAPE, CLASSES, engine="torch", changes=changes)
    vector = changes.first_vector(artifact.spec, changed_module(artifact.spec, changes), seed=1)
    mean = artifact.spec.layout.views(vector)["body.5.running_mean"]
    np.testing.assert_array_equal(mean, trained.body[5].running_mean.numpy())
    assert mean.any()
