"""Targets at positions: tokens of a text, pixels, labels, numbers; in graphs and with torch."""

from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="models are exported with torch")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fairbed.coordinator.task.catalogue import build_task
from fairbed.coordinator.task.errors import TaskError, UnknownTask
from fairbed.coordinator.task.selfcheck import GraphRunner
from fairbed.device_agent.engines.base import Engine, self_check
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.wire.artifact import Artifact, TaskKind, initial_vector
from fairbed.wire.evaluation import positions_of

HERE = __name__
VOCABULARY, LENGTH, WIDTH = 11, 6, 8


class TokenModel(nn.Module):
    """A causal language model: embedding with positions, one attention layer, tied to nothing."""

    def __init__(self, length: int = LENGTH, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(length, WIDTH))
        self.ask, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", torch.ones(length, length).tril() == 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.mask, torch.Tensor)
        h = self.tokens(x) + self.places
        scores = self.ask(h) @ self.key(h).transpose(1, 2) / WIDTH**0.5
        shares = torch.softmax(scores.masked_fill(self.mask, -1e9), -1)
        out: torch.Tensor = self.output(h + shares @ self.value(h))
        return out


def tokens(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return TokenModel()


def short(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return TokenModel(length=LENGTH - 1)


def few_rows(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return TokenModel(vocabulary=VOCABULARY - 1)


def pixels(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, classes, 1))


def one_logit(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))


def numbers(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 1))


def labels(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, classes))


PICTURE = (2, 5, 4)
TASKS: dict[str, tuple[str, tuple[int, ...], int, TaskKind, dict[str, Any]]] = {
    "tokens": (
        "tokens",
        (LENGTH,),
        VOCABULARY,
        "classification",
        {"x_classes": VOCABULARY, "y_shape": (LENGTH,)},
    ),
    "pixels": ("pixels", PICTURE, 3, "classification", {"y_shape": (5, 4)}),
    "one logit": ("one_logit", PICTURE, 2, "classification", {"y_shape": (5, 4)}),
    "numbers": ("numbers", PICTURE, 1, "regression", {"y_shape": PICTURE}),
    "labels": ("labels", (5,), 4, "multi-label", {"y_shape": (4,)}),
}


@cache
def task_of(name: str, engine: Any) -> Artifact:
    factory, x_shape, classes, kind, options = TASKS[name]
    return build_task(f"{HERE}:{factory}", x_shape, classes, kind, engine=engine, **options)


def examples(task: Artifact, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return x and y: the last examples have one label each, and the first one all."""
    spec, rng = task.spec, np.random.default_rng(5)
    if spec.x_dtype == "int64":
        x: NDArray[Any] = rng.integers(0, spec.x_classes, (n, *spec.x_shape))
    else:
        x = rng.standard_normal((n, *spec.x_shape)).astype(np.float32)
    shape = (n, *spec.y_shape)
    if spec.kind == "regression":
        return x, rng.standard_normal(shape).astype(np.float32)
    y = rng.integers(0, 2 if spec.kind == "multi-label" else spec.classes, shape)
    is_unset = rng.random(shape) < 0.3
    is_unset[0], is_unset[n - max(1, n // 10) :] = False, True
    is_unset.reshape(n, -1)[:, 1] = False
    return x, np.where(is_unset, -1, y)


def by_torch(task: Artifact, model: nn.Module, vector: NDArray[np.float32], x: Any, y: Any) -> Any:
    """Return the loss of torch's own functions in float64, its gradient, and the output."""
    model = model.double()
    views = task.spec.layout.views(vector)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(views[name]))
    output = model(torch.from_numpy(x) if x.dtype == np.int64 else torch.from_numpy(x).double())
    target = torch.from_numpy(y)
    if task.spec.kind == "regression":
        loss = 0.5 * functional.mse_loss(output, target.double())
    elif task.spec.kind == "classification":
        logits = output.movedim(-1, 1) if x.dtype == np.int64 else output
        loss = functional.cross_entropy(logits, target, ignore_index=-1)
    else:
        output = output.reshape(target.shape)
        known = target >= 0
        loss = functional.binary_cross_entropy_with_logits(output[known], target[known].double())
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return loss.item(), gradient_of(model), output.detach().numpy()


def gradient_of(model: nn.Module) -> NDArray[np.float64]:
    flat = [g.numpy().ravel() for p in model.parameters() if (g := p.grad) is not None]
    return np.concatenate(flat)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", TASKS)
def test_loss_and_gradient_equal_those_of_torch_on_both_engines(name: str) -> None:
    factory, x_shape, classes, _, _ = TASKS[name]
    for wanted in ("onnx", "torch"):
        task = task_of(name, wanted)
        assert task.engine == wanted
        engine = open_own_engine(task)
        self_check(engine)
        vector = initial_vector(task.spec, 3)
        for n in (16, 5, 1):
            x, y = examples(task, n)
            model = globals()[factory](x_shape, classes)
            loss, gradient, _ = by_torch(task, model, vector, x, y)
            got, found = engine.gradient(vector.copy(), x, y)
            assert got == pytest.approx(loss, rel=3e-7)
            error = np.linalg.norm(found - gradient) / np.linalg.norm(gradient)
            assert error < 5e-7, f"{wanted}, {n} examples"


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", TASKS)
def test_evaluations_count_positions_and_add_up_by_chunks(name: str) -> None:
    factory, x_shape, classes, _, _ = TASKS[name]
    for wanted in ("onnx", "torch"):
        task = task_of(name, wanted)
        engine, vector = open_own_engine(task), initial_vector(task.spec, 3)
        x, y = examples(task, 150)
        model = globals()[factory](x_shape, classes)
        loss, _, output = by_torch(task, model, vector, x, y)
        found = engine.evaluate(vector, x, y)
        assert found.loss_sum == pytest.approx(loss * positions_of(y).sum(), rel=1e-5)
        if task.spec.kind == "regression":
            assert found.absolute_sum == pytest.approx(np.abs(output - y).sum(), rel=1e-5)
            assert (found.correct, found.exact, found.scores) == (0, 0, None)
            continue
        if task.spec.kind == "classification":
            right = output.argmax(-1 if x.dtype == np.int64 else 1) == y
        else:
            right = (output > 0.0) == y
        assert found.correct == right.sum()
        assert found.exact == (right | (y < 0)).reshape(150, -1).all(1).sum() > 0
        assert (found.scores is not None) == (task.spec.kind == "multi-label")
        parts = [engine.evaluate(vector, x[i : i + 50], y[i : i + 50]) for i in (0, 50, 100)]
        assert found.exact == sum(part.exact for part in parts)
        assert found.correct == sum(part.correct for part in parts)
        if task.spec.kind == "multi-label":
            assert found.class_counts is None
            continue
        axis = -1 if x.dtype == np.int64 else 1
        one = output > 0.0 if task.spec.kind == "binary" else output.argmax(axis)
        kinds = one[right], one[y >= 0], y[y >= 0]
        counts = [np.bincount(kind, minlength=classes) for kind in kinds]
        assert found.class_counts is not None
        assert found.class_counts.tolist() == np.array(counts).tolist()


@pytest.mark.slow
@pytest.mark.full
def test_rows_of_weight_0_and_random_weights_are_exact() -> None:
    task = task_of("tokens", "onnx")
    vector, (x, y) = initial_vector(task.spec, 3), examples(task, 13)
    weights = np.random.default_rng(6).random(13).astype(np.float32)
    weights[[0, 5, 12]] = 0.0
    runner = GraphRunner(task)
    names, feeds = runner.feeds(vector, x, y, ())
    loss, *parts = runner.train(names, feeds | {"w": weights})
    found = np.concatenate([part.ravel() for part in parts])
    model = TokenModel().double()
    views = task.spec.layout.views(vector)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(views[name]))
    logits = model(torch.from_numpy(x)).movedim(-1, 1)
    each = functional.cross_entropy(logits, torch.from_numpy(y), ignore_index=-1, reduction="none")
    right = (each.sum(1) * torch.from_numpy(weights.astype(np.float64))).sum()
    right.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    gradient = gradient_of(model)
    assert float(loss) == pytest.approx(right.item(), rel=3e-7)
    assert np.linalg.norm(found - gradient) / np.linalg.norm(gradient) < 3e-7


def weighted(engine: Engine, vector: NDArray[np.float32], x: Any, y: Any) -> tuple[float, Any]:
    loss, gradient = engine.gradient(vector, x, y)
    return loss, gradient.copy()


@pytest.mark.slow
@pytest.mark.full
def test_micro_batches_weighted_by_their_positions_are_the_whole_batch() -> None:
    task = task_of("tokens", "onnx")
    engine, vector = open_own_engine(task), initial_vector(task.spec, 3)
    x, y = examples(task, 16)
    loss, gradient = weighted(engine, vector, x, y)
    parts = [slice(0, 3), slice(3, 10), slice(10, 16)]
    counts = [positions_of(y[part]).sum() for part in parts]
    results = [weighted(engine, vector, x[part], y[part]) for part in parts]
    total = sum(counts)
    assert sum(n * one for n, (one, _) in zip(counts, results, strict=True)) / total == (
        pytest.approx(loss, rel=1e-6)
    )
    mean = sum(n * one for n, (_, one) in zip(counts, results, strict=True)) / total
    assert np.linalg.norm(mean - gradient) / np.linalg.norm(gradient) < 1e-6


def square(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(5, 5)


@pytest.mark.slow
@pytest.mark.full
def test_an_output_with_two_axes_of_the_classes_needs_the_key() -> None:
    where = f"{HERE}:square"
    with pytest.raises(TaskError, match=r"^model.classes_axis: must name the axis of the 5 cl"):
        build_task(where, (5, 5), 5, y_shape=(5,))
    first = build_task(where, (5, 5), 5, y_shape=(5,), classes_axis="first").spec
    last = build_task(where, (5, 5), 5, y_shape=(5,), classes_axis="last").spec
    assert first.classes_axis == "first"
    assert first.selfcheck != last.selfcheck


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            f"{HERE}:few_rows",
            {"x_classes": VOCABULARY, "y_shape": (LENGTH,)},
            r"must accept the tokens 0 .. 10 of the data, got .*; give its embedding 11 rows$",
        ),
        (
            f"{HERE}:short",
            {"x_classes": VOCABULARY, "y_shape": (LENGTH,)},
            r"must accept tokens of shape \(B, 6\) in int64, got .*; give it as many positions",
        ),
        (
            f"{HERE}:tokens",
            {"x_classes": VOCABULARY, "y_shape": (LENGTH + 1,)},
            r"with targets of shape \(B, 7\) the model must return \(B, 7, 11\) or \(B, 11, 7\), "
            r"got \(B, 6, 11\); change its last layer",
        ),
        ("softmax", {"x_classes": 11}, r"^model.name: softmax must have x of floats and one"),
        ("mlp", {"y_shape": (6,)}, r"^model.name: mlp must have x of floats and one target per"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_one_line(
    model: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        build_task(model, (LENGTH,), VOCABULARY, **options)
    assert "\n" not in str(caught.value)


def test_an_empty_sequence_is_one_line() -> None:
    with pytest.raises(UnknownTask, match=r"got the shapes \(0,\) and \(\); leave out empty seq"):
        build_task(f"{HERE}:tokens", (0,), VOCABULARY, x_classes=VOCABULARY)
