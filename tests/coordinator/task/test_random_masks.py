"""Random masks of a module are inputs of its graph; `export_task` compares them with torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import torch
from torch import Tensor, nn
from torch.nn import functional

from fairbed.coordinator.task.errors import Unsupported
from fairbed.coordinator.task.export import export_task
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.trainer import train
from fairbed.testbed.replay.cohort.devices import Unpaced
from fairbed.wire.artifact import Artifact, RandomMask, decode_artifact, encode_artifact
from fairbed.wire.messages import Hyperparameters
from fairbed.wire.selfcheck import selfcheck_inputs
from tests.tiers import some_in_fast

Mask = tuple[tuple[int, ...], float] | tuple[tuple[int, ...], float, bool]


class Branch(nn.Module):
    """A residual branch with random numbers of its own in training mode."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.change = nn.Linear(6, 6), nn.Linear(6, 3), change

    def forward(self, x: Tensor) -> Any:
        y = self.first(x)
        return self.last(x + (self.change(y, x) if self.training else y))


class Recurrent(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self, cells: Any, **options: Any) -> None:
        super().__init__()
        self.cells = cells(6, 5, 2, dropout=0.3, **options)
        self.first = options.get("batch_first", False)
        self.last = nn.Linear(10 if options.get("bidirectional") else 5, 3)

    def forward(self, x: Tensor) -> Any:
        states, _ = self.cells(x if self.first else x.transpose(0, 1))
        return self.last(states[:, -1] if self.first else states[-1])


class Attention(nn.Module):
    """Attention with dropout of its weights."""

    def __init__(self, *, is_function: bool) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)
        self.last, self.is_function = nn.Linear(6, 3), is_function

    def forward(self, x: Tensor) -> Any:
        y, _ = self.attend(x, x, x, need_weights=False)
        if self.is_function:
            p = 0.2 if self.training else 0.0
            y = functional.scaled_dot_product_attention(y, x, x, dropout_p=p)
        return self.last(y.mean(1))


class Windows(nn.Module):
    """Dropout in two windows of each example, which torch sees as examples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        y = self.first(x.reshape(x.shape[0] * 2, 2, 6))
        y = functional.dropout(y, 0.3, self.training)
        return self.last(y.reshape(-1, 4, 6).mean(1))


class Connections(nn.Linear):
    """Dropout of weights: one mask for all examples."""

    def forward(self, x: Tensor) -> Tensor:
        weight = functional.dropout(self.weight, 0.3, self.training)
        return functional.linear(x, weight, self.bias)


def images(layer: nn.Module, *shape: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(24, 24), nn.Unflatten(1, shape), layer, nn.Flatten(), nn.Linear(24, 3)
    )


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 8, 0.2, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3))


def row(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], 1))


MASKED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[Mask]]] = {
    "Dropout": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.Linear(6, 3)),
        (6,),
        [((6,), 0.9)],
    ),
    "Dropout in place": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1, inplace=True), nn.Linear(6, 3)),
        (6,),
        [((6,), 0.9)],
    ),
    "almost all dropped": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(1.0 - 1e-7), nn.Linear(6, 3)),
        (6,),
        [((6,), 1 / 65536)],
    ),
    "all dropped": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(1.0), nn.Linear(6, 3)),
        (6,),
        [((6,), 0.0)],
    ),
    "nothing dropped": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.Linear(6, 3)),
        (6,),
        [],
    ),
    "Dropout1d": (lambda: images(nn.Dropout1d(0.3), 4, 6), (24,), [((4, 1), 0.7)]),
    "Dropout2d": (lambda: images(nn.Dropout2d(0.3), 4, 2, 3), (24,), [((4, 1, 1), 0.7)]),
    "Dropout3d": (lambda: images(nn.Dropout3d(0.3), 3, 2, 2, 2), (24,), [((3, 1, 1, 1), 0.7)]),
    "AlphaDropout": (lambda: images(nn.AlphaDropout(0.3), 4, 6), (24,), [((4, 6), 0.7)]),
    "FeatureAlphaDropout": (
        lambda: images(nn.FeatureAlphaDropout(0.3), 4, 2, 3),
        (24,),
        [((4, 1, 1), 0.7)],
    ),
    "MultiheadAttention": (
        lambda: Attention(is_function=False),
        (4, 6),
        [((2, 4, 4), 0.7)],
    ),
    "attention as a function": (
        lambda: Attention(is_function=True),
        (4, 6),
        [((2, 4, 4), 0.7), ((4, 4), 0.8)],
    ),
    "TransformerEncoderLayer": (
        encoder,
        (4, 6),
        [((2, 4, 4), 0.8), ((4, 6), 0.8), ((4, 8), 0.8), ((4, 6), 0.8)],
    ),
    "GRU": (lambda: Recurrent(nn.GRU, batch_first=True), (4, 6), [((4, 5), 0.7)]),
    "LSTM": (lambda: Recurrent(nn.LSTM), (4, 6), [((4, 5), 0.7)]),
    "RNN": (lambda: Recurrent(nn.RNN, bidirectional=True), (4, 6), [((4, 10), 0.7)]),
    "windows": (Windows, (4, 6), [((2, 2, 6), 0.7)]),
    "weights": (lambda: Connections(6, 3), (6,), [((3, 6), 0.7, False)]),
    "stochastic depth by bernoulli": (
        lambda: Branch(lambda y, x: y * row(x).bernoulli_(0.8).div_(0.8)),
        (6,),
        [((1,), 0.8)],
    ),
    "stochastic depth of a batch": (
        lambda: Branch(lambda y, _: y * torch.empty(1, 1).bernoulli_(0.8).div_(0.8)),
        (6,),
        [((1, 1), 0.8, False)],
    ),
    "stochastic depth by floor": (
        lambda: Branch(lambda y, x: y.div(0.8) * (0.8 + torch.rand(x.shape[0], 1)).floor_()),
        (6,),
        [((1,), 0.8)],
    ),
    "a comparison": (
        lambda: Branch(lambda y, x: y * (torch.rand(x.shape[0], 1) < 0.8) / 0.8),
        (6,),
        [((1,), 0.8)],
    ),
    "the other comparison": (
        lambda: Branch(lambda y, _: torch.where(torch.rand_like(y) > 0.2, y / 0.8, y * 0.0)),
        (6,),
        [((6,), 0.8)],
    ),
    "probabilities": (
        lambda: Branch(lambda y, x: y * torch.bernoulli(torch.ones(x.shape[0], 1) * 0.7)),
        (6,),
        [((1,), 0.7)],
    ),
    "three kinds": (
        lambda: Branch(
            lambda y, x: (
                functional.dropout(y * (torch.rand(x.shape[0], 1) < 0.8), 0.3)
                * row(x).bernoulli_(0.5)
            )
        ),
        (6,),
        [((1,), 0.8), ((6,), 0.7), ((1,), 0.5)],
    ),
}


def exported(name: str) -> Artifact:
    make, x_shape, _ = MASKED[name]
    torch.manual_seed(0)
    return decode_artifact(encode_artifact(export_task(make(), "test", "test", x_shape, 3)))


@pytest.mark.parametrize(
    "name", some_in_fast(MASKED, "Dropout", "stochastic depth by floor", "three kinds")
)
def test_masks_are_declared_and_the_same_seed_and_step_give_the_same_gradient(name: str) -> None:
    artifact, masks = exported(name), MASKED[name][2]
    expected = []
    for shape, keep, *rest in masks:
        of_batch = rest == [False]
        expected.append(
            RandomMask(shape=shape, keep=round(keep * 65536), is_per_example=not of_batch)
        )
    assert list(artifact.spec.masks) == expected
    first, again = OnnxEngine(artifact), OnnxEngine(artifact)
    self_check(first)
    vector, x, y = selfcheck_inputs(artifact.spec, 3, 12)
    found: dict[int, float] = {}
    for engine in (first, again):
        for step in range(3):
            engine.reseed(7, step)
            loss, gradient = engine.gradient(vector, x, y)
            assert found.setdefault(step, loss) == loss
            engine.gradient(vector * 2, x, y)
            assert engine.gradient(vector, x, y)[0] == loss
            assert np.isfinite(gradient).all()
    are_random = any(1 < mask.keep < 65536 for mask in artifact.spec.masks)
    assert (len(set(found.values())) > 1) is are_random


def test_training_depends_on_its_seed_alone_and_evaluation_drops_nothing() -> None:
    artifact = exported("Dropout")
    engine, other = OnnxEngine(artifact), OnnxEngine(artifact)
    start, x, y = selfcheck_inputs(artifact.spec, 3, 24)
    h = Hyperparameters(epochs=2, batch_size=9, learning_rate=0.1)
    before = other.evaluate(start, x, y)
    other.reseed(1, 1)
    other.gradient(start.copy(), x, y)

    def trained(of: OnnxEngine, seed: int) -> Any:
        return train(of, start, x, y, h, seed, Unpaced(), lambda: False).vector

    np.testing.assert_array_equal(trained(engine, 5), trained(other, 5))
    assert np.abs(trained(engine, 6) - trained(other, 5)).max() > 1e-4
    assert other.evaluate(start, x, y) == before


def test_the_gradient_is_that_of_the_mean_over_masks() -> None:
    """1,500 masks: the mean output of a linear model with dropout is that without."""
    artifact = exported("weights")
    engine = OnnxEngine(artifact)
    vector, x, y = selfcheck_inputs(artifact.spec, 3, 8)
    vector *= 0.01  # nearly linear
    total = np.zeros(artifact.spec.layout.n_params)
    for step in range(1500):
        engine.reseed(1, step)
        total += engine.gradient(vector, x, y)[1]
    model = nn.Linear(6, 3)
    with torch.no_grad():
        for name, values in artifact.spec.layout.views(vector).items():
            model.get_parameter(name).copy_(torch.from_numpy(values.copy()))
    loss = functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert model.weight.grad is not None
    right = model.weight.grad.numpy().ravel()
    mean = (total / 1500).astype(np.float32)
    found = artifact.spec.layout.views(mean)["weight"].ravel()
    np.testing.assert_allclose(found, right, atol=0.06 * np.abs(right).max())


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "normal noise": (lambda y, _: y + torch.randn_like(y), "aten.randn_like.default must have a r"),
    "uniform noise": (
        lambda y, _: y + torch.rand_like(y),
        "aten.rand_like.default must be a random mask of training with a row per example, as d",
    ),
    "numbers used twice": (
        lambda y, x: y * ((u := torch.rand(x.shape[0], 1)) < 0.8) * (u > 0.1),
        "aten.rand.default must be a random mask",
    ),
    "another probability of each": (
        lambda y, _: y * torch.bernoulli(y.sigmoid()),
        "must be a random mask",
    ),
    "RReLU": (lambda y, _: functional.rrelu(y, training=True), "aten.rrelu_with_noise_functional"),
    "an order": (lambda y, _: y[torch.randperm(y.shape[0])], "aten.randperm.default must have a r"),
}


@pytest.mark.parametrize("name", some_in_fast(REFUSED, "uniform noise"))
def test_other_random_numbers_have_no_rule(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(Unsupported) as caught:
        export_task(Branch(change), "test", "test", (6,), 3)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_random_numbers_in_evaluation_have_no_rule() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    model[1].train = lambda mode=True: model[1]  # type: ignore[method-assign]  # always training
    with pytest.raises(Unsupported, match=r"aten\.native_dropout\.default must be a random mask"):
        export_task(model, "test", "test", (6,), 3)
