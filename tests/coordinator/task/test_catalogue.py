"""Tasks by name, and initial models."""

import importlib.util
import math

import numpy as np
import pytest

from fairbed.coordinator.task.catalogue import build_task, load_task, read_shipped
from fairbed.coordinator.task.errors import UnknownTask
from fairbed.coordinator.task.recipes import SHIPPED, Recipe
from fairbed.wire import plugins
from fairbed.wire.artifact import SelfCheck, TaskSpec, decode_artifact, initial_vector
from fairbed.wire.models import GROUP
from fairbed.wire.plugins import Registered
from fairbed.wire.tensors import Layout, Tensor

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


@pytest.mark.parametrize("recipe", SHIPPED, ids=lambda recipe: str(recipe.name))
def test_every_shipped_task_is_small_and_describes_itself(recipe: Recipe) -> None:
    blob = read_shipped(recipe.name)
    spec = decode_artifact(blob).spec
    assert len(blob) < 12_000
    assert (spec.name, spec.model) == (recipe.name, recipe.model)
    assert (spec.x_shape, spec.classes) == (recipe.x_shape, recipe.classes)
    assert spec.kind == recipe.kind


def test_names_contain_shape_and_hidden_widths() -> None:
    assert [recipe.name for recipe in SHIPPED] == [
        "softmax-60-10",
        "softmax-64-10",
        "softmax-784-10",
        "mlp-64-64-10",
        "mlp-784-318-10",
        "cnn-1x8x8-10",
        "cnn-1x28x28-10",
        "softmax-30-binary",
        "mlp-30-64-binary",
        "softmax-10-regression",
        "mlp-10-64-regression",
    ]


def test_the_large_mlp_weighs_one_megabyte() -> None:
    layout = load_task("mlp", (784,), 10).spec.layout
    assert layout.n_values == 784 * 318 + 318 + 318 * 10 + 10
    assert layout.size_bytes == pytest.approx(1e6, rel=0.02)


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_flat_models_take_images_of_their_size(model: str) -> None:
    assert load_task(model, (1, 28, 28), 10).spec.x_shape == (784,)


def test_the_cnn_keeps_the_shape_of_its_images() -> None:
    assert load_task("cnn", (1, 8, 8), 10).spec.x_shape == (1, 8, 8)


def test_without_torch_the_error_of_another_shape_lists_the_shipped_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnknownTask) as error:
        load_task("cnn", (3, 32, 32), 10)
    assert "softmax-60-10, softmax-64-10" in str(error.value)
    assert str(error.value).endswith("install fairbed[torch]")


@needs_torch
@pytest.mark.parametrize(
    ("model", "x_shape", "message"),
    [
        ("resnet", (3, 32, 32), "must be one of softmax, mlp, cnn, linear-svm, "),
        ("cnn", (64,), r"cnn needs examples of \(channels, height >= 4, width >= 4\)"),
        ("nowhere.at_all:make", (3,), "must name an importable module, got none named 'nowhere.at"),
        ("math:no_such_name", (3,), "must name a factory in the module math, got no such name"),
        ("math:pi", (3,), "must name a factory in the module math, got float"),
        ("builtins:len", (3,), "must need no arguments but x_shape and classes, got 'obj'; give"),
        ("builtins:print", (3,), "must return a torch.nn.Module, got NoneType; correct"),
    ],
)
def test_a_model_that_cannot_be_built_has_a_reason(
    model: str, x_shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UnknownTask, match=message):
        build_task(model, x_shape, 10)


@pytest.mark.full
@needs_torch
def test_builds_a_shape_that_is_not_shipped() -> None:
    spec = load_task("softmax", (2, 3), 4).spec
    assert (spec.name, spec.x_shape, spec.layout.n_params) == ("softmax-6-4", (6,), 28)


@needs_torch
def test_builds_a_model_of_the_user() -> None:
    spec = load_task(f"{__name__}:make_narrow", (6,), 3).spec
    assert spec.name == f"{__name__}:make_narrow-6-3"
    assert [tensor.name for tensor in spec.layout.tensors] == ["weight", "bias"]


@pytest.mark.full
@needs_torch
def test_builds_a_registered_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import nn

    found = {"flat": Registered(lambda classes: nn.Linear(6, classes))}
    monkeypatch.setitem(plugins._registered, GROUP, found)
    spec = load_task("flat", (6,), 3).spec
    assert (spec.name, spec.model, spec.layout.n_params) == ("flat-6-3", "flat", 21)
    monkeypatch.setitem(plugins._registered, GROUP, {"flat": Registered(make_narrow)})
    assert load_task("flat", (6,), 3).spec.model == f"{__name__}:make_narrow"


def make_narrow(x_shape: tuple[int, ...], classes: int) -> object:
    from torch import nn

    return nn.Linear(math.prod(x_shape), classes)


def test_starts_as_torch_starts_a_convolution_and_a_linear_layer() -> None:
    spec = load_task("cnn", (1, 8, 8), 10).spec
    views = spec.layout.views(initial_vector(spec, 5))
    for name, fan_in in (("conv1", 25), ("conv2", 32 * 25), ("hidden", 256), ("output", 128)):
        weight, bias = views[f"{name}.weight"], views[f"{name}.bias"]
        bound = 1 / math.sqrt(fan_in)
        assert 0.95 * bound < np.abs(weight).max() <= bound
        assert 0 < np.abs(bias).max() <= bound
        assert abs(weight.std() / (bound / math.sqrt(3)) - 1) < 0.05


def test_the_start_depends_on_the_seed_alone() -> None:
    spec = load_task("mlp", (64,), 10).spec
    first, again, other = (initial_vector(spec, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.dtype == np.float32
    np.testing.assert_allclose(first[:3], [0.0029552, 0.1126159, -0.0889601], atol=1e-6)


def test_fills_ones_and_zeros_as_the_layout_defines() -> None:
    layout = Layout(
        tensors=(
            Tensor(name="scale", shape=(2,), offset=0, init="ones"),
            Tensor(name="shift", shape=(3,), offset=2),
        )
    )
    check = SelfCheck(seed=0, batch=1, loss=0.0, gradient_l2=0.0)
    spec = TaskSpec(
        name="t", model="t", layout=layout, x_shape=(1,), classes=2, opset=20, selfcheck=check
    )
    np.testing.assert_array_equal(initial_vector(spec, 0), [1, 1, 0, 0, 0])
