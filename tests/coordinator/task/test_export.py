"""Exports of models that are not shipped, against torch; `export_task` itself compares them."""

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import onnx
import torch
from torch import nn

from fairbed.coordinator.task.catalogue import load_task
from fairbed.coordinator.task.errors import Unsupported, WrongArtifact
from fairbed.coordinator.task.export import export_task
from fairbed.coordinator.task.models import make_model
from fairbed.coordinator.task.modules import make_layout
from fairbed.coordinator.task.recipes import Recipe, find_shipped
from fairbed.coordinator.task.selfcheck import TorchReference, verify
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.wire.artifact import Artifact, TaskKind, initial_vector
from fairbed.wire.selfcheck import selfcheck_inputs
from tests.tiers import some_in_fast


def export(model: nn.Module, *x_shape: int, classes: int = 3) -> Artifact:
    return export_task(model, "test", "test", x_shape, classes)


def head(features: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, 3)]


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "few channels, stride that leaves a row": (
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 4, 2, stride=2), *head(36)),
        (3, 14, 14),
    ),
    "many channels, padding and dilation": (
        nn.Sequential(
            nn.Conv2d(2, 9, 3),
            nn.ReLU(),
            nn.Conv2d(9, 8, 3, padding=(1, 2), dilation=2),
            *head(192),
        ),
        (2, 8, 8),
    ),
    "pooling that leaves a row and a column": (
        nn.Sequential(nn.Conv2d(1, 3, 2), nn.MaxPool2d((2, 3)), nn.ReLU(), *head(12)),
        (1, 6, 9),
    ),
    "one-dimensional convolution without bias": (
        nn.Sequential(nn.Conv1d(2, 10, 4, stride=2, bias=False), nn.Conv1d(10, 3, 3), *head(12)),
        (2, 14),
    ),
    "batch normalization of images": (
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), *head(48)),
        (1, 6, 6),
    ),
    "batch normalization without scale": (
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3)),
        (6,),
    ),
    "activations with a gradient of their own": (
        nn.Sequential(
            *[nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6), nn.GELU("tanh")],
            *[nn.Linear(6, 6), nn.SiLU(), nn.Linear(6, 6), nn.LeakyReLU(0.2)],
            *[nn.Linear(6, 6), nn.ELU(0.7), nn.Linear(6, 6), nn.Softplus()],
            *[nn.Linear(6, 6), nn.Hardtanh(-0.3, 0.4), nn.Linear(6, 6), nn.Hardswish()],
            *[nn.Linear(6, 6), nn.Mish(), nn.Linear(6, 6), nn.Hardsigmoid(), nn.Linear(6, 3)],
        ),
        (6,),
    ),
    "normalization of layers and groups, average pooling": (
        nn.Sequential(
            *[nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.AvgPool2d(3, stride=2, padding=1)],
            *[nn.LayerNorm([4, 4, 5]), nn.RMSNorm(5), nn.PReLU()],
            *[
                nn.Conv2d(4, 4, 2, padding=(1, 0)),
                nn.AvgPool2d(2, stride=1),
                nn.AdaptiveAvgPool2d(1),
            ],
            *head(4),
        ),
        (1, 9, 11),
    ),
    "smooth activations": (
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3)),
        (6,),
    ),
}


@pytest.mark.parametrize(
    "name",
    some_in_fast(
        MODELS,
        "many channels, padding and dilation",
        "batch normalization of images",
        "normalization of layers and groups, average pooling",
    ),
)
def test_exports_and_runs_on_the_device_engine(name: str) -> None:
    model, x_shape = MODELS[name]
    self_check(OnnxEngine(export(model, *x_shape)))


def test_the_device_moves_the_running_statistics_as_torch_does() -> None:
    model, x_shape = MODELS["batch normalization of images"]
    artifact = export(model, *x_shape)
    engine, reference = OnnxEngine(artifact), TorchReference(model, artifact.spec.layout)
    n_params = artifact.spec.layout.n_params
    vector = initial_vector(artifact.spec, 0)
    assert vector[n_params:].tolist() == [0, 0, 0, 1, 1, 1]
    for seed in range(4):
        _, x, y = selfcheck_inputs(artifact.spec, seed, 5)
        right = reference.step(vector, x, y)
        engine.gradient(vector, x, y)
        np.testing.assert_allclose(vector[n_params:], right.buffers, rtol=1e-5)
    loss, correct, *_ = engine.evaluate(vector, x, y)
    right_loss, right_correct, *_ = reference.evaluate(vector, x, y)
    assert loss == pytest.approx(right_loss, rel=1e-5)
    assert correct == right_correct


@pytest.mark.parametrize("model", ["softmax", "mlp", "cnn"])
def test_gradients_of_the_shipped_tasks_equal_float64_torch(model: str) -> None:
    x_shape = (1, 28, 28)
    artifact, recipe = load_task(model, x_shape, 10), find_shipped(model, x_shape, 10)
    assert recipe is not None
    engine = OnnxEngine(artifact)
    reference = TorchReference(make_model(recipe), artifact.spec.layout)
    vector, errors = initial_vector(artifact.spec, 3), []
    for step, batch in enumerate((20, 13, 1, 20, 7)):
        _, x, y = selfcheck_inputs(artifact.spec, step, batch)
        right = reference.step(vector, x, y)
        loss, gradient = engine.gradient(vector, x, y)
        assert loss == pytest.approx(right.loss, rel=1e-5)
        difference = np.linalg.norm(gradient - right.gradient)
        errors.append(float(difference / np.linalg.norm(right.gradient)))
        vector -= np.float32(0.05) * gradient
    # A near-tie in a pooling window may cost one step 1e-3, so the median is compared.
    assert np.median(errors) < 1e-5


def test_gives_the_gradient_of_a_tie_to_the_first_of_the_largest() -> None:
    model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3))
    image = nn.Sequential(nn.Conv2d(1, 1, 1), *model)
    artifact = export(image, 1, 4, 4)
    vector = initial_vector(artifact.spec, 0)
    x, y = np.ones((2, 1, 4, 4), np.float32), np.array([0, 2])
    _, gradient = OnnxEngine(artifact).gradient(vector, x, y)
    right = TorchReference(image, artifact.spec.layout).step(vector, x, y)
    np.testing.assert_allclose(gradient, right.gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.full
def test_the_exporter_loads_the_runtime_with_its_telemetry_off(tmp_path: Path) -> None:
    code = (
        "from fairbed.coordinator.task import catalogue, selfcheck;"
        "selfcheck.GraphRunner(catalogue.load_task('softmax', (64,), 10))"
    )
    drop = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "CI")
    environment = {key: value for key, value in os.environ.items() if key not in drop}
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        timeout=60,
        env=environment | {"HOME": str(tmp_path)},
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_two_exports_are_the_same_bytes() -> None:
    recipe = Recipe("cnn", (1, 8, 8), 10, (4, 8, 6))
    first, second = (
        export_task(make_model(recipe), recipe.name, "cnn", recipe.x_shape, 10) for _ in range(2)
    )
    assert first == second


def test_the_graphs_have_no_metadata_and_run_at_any_batch_size() -> None:
    for graph in (load_task("cnn", (1, 8, 8), 10).train, load_task("mlp", (64,), 10).evaluate):
        model = onnx.load_from_string(graph)
        assert (model.producer_name, model.ir_version) == ("fairbed", 10)
        assert [entry.version for entry in model.opset_import] == [20]
        assert not model.metadata_props
        assert not any(node.doc_string or node.name for node in model.graph.node)
        sizes = {i.name: i.type.tensor_type.shape.dim for i in model.graph.input}
        assert sizes["x"][0].dim_param == sizes["y"][0].dim_param == "batch"


class Angles(nn.Module):
    """An operation without a rule."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.special.i0(x)
        return y


class Both(nn.Module):
    """Has two operations without a rule that do not depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = nn.RReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.special.i0(x).sum() + self.noise(x)
        return y


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            nn.RReLU(),
            r"model\.1: aten\.rrelu_with_noise_functional\.default must have a rule, got n",
        ),
        (Angles(), r"model\.1: aten\.i0\.default must have a rule, got none; use"),
        (
            nn.Sequential(nn.RReLU(), Angles(), nn.RReLU()),
            r"model\.1\.0: aten\.rrelu_.* got none; model\.1\.1: aten\.i0\.default",
        ),
        (
            Both(),
            r"model\.1: aten\.i0\.default .*; model\.1\.noise: aten\.rrelu",
        ),
    ],
)
def test_an_unknown_operation_is_one_line_naming_the_layer(layer: nn.Module, message: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), layer, nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(2, 1, 8, 8))
    with pytest.raises(Unsupported, match=message) as error:
        export(model, 1, 8, 8)
    assert "\n" not in str(error.value)


class Branching(nn.Module):
    """Depends on its input in a way that cannot be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y * 2 if bool(y.sum() > 0) else y


def test_a_model_that_cannot_be_recorded_is_one_line() -> None:
    message = r"test: forward\(\) must compute the same operations for all values"
    with pytest.raises(Unsupported, match=message) as error:
        export(Branching(), 4)
    assert "\n" not in str(error.value)


@pytest.mark.full
def test_torch_logs_no_traceback_of_a_model_that_fails() -> None:
    code = (
        "from torch import nn\n"
        "from fairbed.coordinator.task.errors import Unsupported\n"
        "from fairbed.coordinator.task.export import export_task\n"
        "try:\n"
        "    export_task(nn.Sequential(nn.Flatten(), nn.Linear(3, 5)), 't', 't', (4,), 5)\n"
        "except Unsupported as exc:\n"
        "    print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "reduction dim" in done.stdout or "cannot be multiplied" in done.stdout
    assert done.stderr == ""


class Idle(nn.Module):
    """Carries a parameter that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.spare = nn.Linear(4, 3), nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y


def test_a_parameter_without_gradient_is_named_and_has_one_of_zero() -> None:
    artifact = export(Idle(), 4)
    [remark] = artifact.remarks
    assert remark.startswith("spare: the loss must depend on every parameter, got one that it does")
    engine = OnnxEngine(artifact)
    vector, x, y = selfcheck_inputs(artifact.spec, 1, 5)
    for _ in range(2):
        _, gradient = engine.gradient(vector, x, y)
        views = artifact.spec.layout.views(gradient)
        assert not views["spare"].any()
        assert views["linear.weight"].all()


def test_a_frozen_layer_is_a_constant_of_the_graphs() -> None:
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 3))
    artifact = export(model, 4)
    assert [tensor.name for tensor in artifact.spec.layout.tensors] == ["2.weight", "2.bias"]
    self_check(OnnxEngine(artifact))


def test_a_wrong_artifact_is_refused() -> None:
    artifact = load_task("mlp", (64,), 10)
    recipe = find_shipped("mlp", (64,), 10)
    assert recipe is not None
    model = make_model(recipe)
    leaky = nn.Sequential(OrderedDict(model.named_children()))
    leaky.relu1 = nn.LeakyReLU(0.05)  # the same tensors, another function
    with pytest.raises(WrongArtifact, match=r"the exported loss must equal torch's within 1e-06"):
        verify(artifact, TorchReference(leaky, artifact.spec.layout))


def test_a_layout_starts_other_tensors_as_the_module_does() -> None:
    layer = nn.Embedding(50, 40)
    layout = make_layout(nn.Sequential(layer, nn.LayerNorm(40)))
    starts = {tensor.name: (tensor.init, tensor.init_bound) for tensor in layout.tensors}
    assert starts["1.weight"] == ("ones", 0.0)
    assert starts["1.bias"] == ("zeros", 0.0)
    assert starts["0.weight"][0] == "uniform"
    assert starts["0.weight"][1] / np.sqrt(3) == pytest.approx(layer.weight.std().item(), rel=1e-3)


def names_of(artifact: Artifact) -> list[str]:
    """Return the outputs of the evaluation graph."""
    graph = onnx.load_model_from_string(artifact.evaluate).graph
    return [output.name for output in graph.output]


TASKS: dict[str, tuple[nn.Module, TaskKind, int, TaskKind, list[str]]] = {
    "regression, (B, 1)": (nn.Linear(6, 1), "regression", 1, "regression", ["loss_sum", "scores"]),
    "regression, (B,)": (
        nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)),
        "regression",
        1,
        "regression",
        ["loss_sum", "scores"],
    ),
    "one logit": (
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1)),
        "binary",
        2,
        "binary",
        ["loss_sum", "correct_sum", "scores"],
    ),
    "one logit, found by its output": (
        nn.Linear(6, 1),
        "classification",
        2,
        "binary",
        ["loss_sum", "correct_sum", "scores"],
    ),
    "two logits": (
        nn.Linear(6, 2),
        "binary",
        2,
        "classification",
        ["loss_sum", "correct_sum", "scores"],
    ),
}


@pytest.mark.parametrize("name", some_in_fast(TASKS, "one logit"))
def test_exports_every_kind_of_task(name: str) -> None:
    model, kind, classes, found_kind, outputs = TASKS[name]
    artifact = export_task(model, "test", "test", (6,), classes, kind=kind)
    spec = artifact.spec
    assert (spec.kind, spec.classes, spec.is_scored) == (found_kind, classes, True)
    assert names_of(artifact) == spec.evaluation_outputs == outputs
    engine, reference = OnnxEngine(artifact), TorchReference(model, spec.layout, spec.kind)
    self_check(engine)
    vector, x, y = selfcheck_inputs(spec, 4, 150)
    loss, gradient = engine.gradient(vector.copy(), x, y)
    right = reference.step(vector, x, y)
    assert loss == pytest.approx(right.loss, rel=1e-5)
    np.testing.assert_allclose(gradient, right.gradient, rtol=1e-3, atol=1e-5)
    found, expected = engine.evaluate(vector, x, y), reference.evaluate(vector, x, y)
    assert found.loss_sum == pytest.approx(expected.loss_sum, rel=1e-5)
    assert found.correct == expected.correct
    assert found.scores is not None
    assert expected.scores is not None
    assert found.scores.shape == (150,)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-5)


def test_the_gradient_at_a_logit_of_exactly_zero_is_half_minus_y() -> None:
    artifact = export_task(nn.Linear(1, 1), "test", "test", (1,), 2, kind="binary")
    x, y = np.ones((2, 1), np.float32), np.array([0, 0])
    loss, gradient = OnnxEngine(artifact).gradient(np.zeros(2, np.float32), x, y)
    assert loss == pytest.approx(np.log(2.0))
    np.testing.assert_allclose(gradient, [0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "classes", "message"),
    [
        (
            "regression",
            1,
            r"one number per example, shape \(B,\) or \(B, 1\), got \(B, 3\); change",
        ),
        ("classification", 5, r"torch must be able to record the model, got: .*5.*; rewrite"),
        ("binary", 2, r"one logit per example, .* or two, shape \(B, 2\), got \(B, 3\); change"),
    ],
)
def test_refuses_outputs_that_do_not_fit_the_task(
    kind: TaskKind, classes: int, message: str
) -> None:
    with pytest.raises(Unsupported, match=message):
        export_task(nn.Linear(6, 3), "test", "test", (6,), classes, kind=kind)


def test_two_graphs_of_a_linear_model_equal_the_formulas() -> None:
    spec_of = load_task("softmax", (10,), 1, "regression").spec
    engine = OnnxEngine(load_task("softmax", (10,), 1, "regression"))
    vector, x, y = selfcheck_inputs(spec_of, 1, 40)
    assert x.dtype == np.float32
    error = x.astype(np.float64) @ vector[:10] + vector[10] - y
    loss, gradient = engine.gradient(vector, x, y)
    assert loss == pytest.approx(0.5 * np.mean(error**2), rel=1e-5)
    np.testing.assert_allclose(gradient[:10], x.T @ error / 40, rtol=1e-3, atol=1e-5)
    found = engine.evaluate(vector, x, y)
    assert found.loss_sum == pytest.approx(0.5 * np.sum(error**2), rel=1e-5)
    assert found.scores is not None
    np.testing.assert_allclose(found.scores - y, error, rtol=1e-3, atol=1e-5)
