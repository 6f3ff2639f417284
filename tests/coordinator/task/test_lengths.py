"""Sequences padded to several lengths: graphs and modules of each, and what depends on padding."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="models are exported with torch")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import msgspec
import torch
from numpy.typing import NDArray
from torch import nn

from fairbed.coordinator.task.catalogue import build_task
from fairbed.coordinator.task.errors import TaskError
from fairbed.device_agent import trainer
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.wire.artifact import Artifact, decode_artifact, encode_artifact, initial_vector
from fairbed.wire.buckets import buckets_of
from fairbed.wire.messages import Hyperparameters

HERE = __name__
VOCABULARY, LENGTH, LENGTHS, WIDTH = 9, 8, (3, 5, 8), 8


class Tagger(nn.Module):
    """Self-attention over the whole sequence, with a mask of the padding, and dropout."""

    def __init__(self, classes: int, drop: float = 0.0, *, is_masked: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.drop, self.output = nn.Dropout(drop), nn.Linear(WIDTH, classes)
        self.is_masked = is_masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places[: x.shape[1]]
        mask = x == 0 if self.is_masked else None
        h = h + self.attention(h, h, h, key_padding_mask=mask, need_weights=False)[0]
        out: torch.Tensor = self.output(self.drop(h))
        return out


class Classifier(Tagger):
    """One class of each sequence: the mean over its tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (x != 0).unsqueeze(2).float()
        out: torch.Tensor = (super().forward(x) * kept).sum(1) / kept.sum(1)
        return out


class Fixed(Tagger):
    """It adds all places, whatever the length of x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.output(self.tokens(x) + self.places)
        return out


def tagger(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Tagger(classes)


def dropping(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Tagger(classes, 0.5)


def unmasked(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Tagger(classes, is_masked=False)


def fixed(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Fixed(classes)


def of_sequence(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Classifier(classes)


class Recurrent(nn.Module):
    """A GRU, whose graph is unrolled."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.cells = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.output = nn.Linear(WIDTH, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.output(self.cells(self.tokens(x))[0])
        return out


def recurrent(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Recurrent(classes)


@cache
def task_of(
    factory: str, engine: Any = "onnx", lengths: tuple[int, ...] = LENGTHS, classes: int = 4
) -> Artifact:
    task = build_task(
        f"{HERE}:{factory}",
        (LENGTH,),
        classes,
        engine=engine,
        x_classes=VOCABULARY,
        y_shape=() if factory == "of_sequence" else (LENGTH,),
        lengths=lengths,
    )
    return decode_artifact(encode_artifact(task))


def examples(task: Artifact, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, LENGTH + 1, (n, 1))
    is_padding = np.arange(LENGTH) >= lengths
    x = np.where(is_padding, 0, rng.integers(1, VOCABULARY, (n, LENGTH)))
    y = rng.integers(0, task.spec.classes, (n, *task.spec.y_shape))
    return x, y if y.ndim == 1 else np.where(is_padding, -1, y)


class Counted:
    """Keeps what a meter counts."""

    def __init__(self) -> None:
        self.steps = list[tuple[int, int | None]]()

    def step(self, n_examples: int, length: int | None = None) -> None:
        self.steps.append((n_examples, length))

    def read(self, n_bytes: int) -> None:
        raise AssertionError("nothing is read")


FACTORIES = ["tagger", "of_sequence", "recurrent"]


@pytest.mark.full
@pytest.mark.parametrize("engine", ["onnx", "torch"])
@pytest.mark.parametrize("factory", FACTORIES)
def test_a_shorter_length_gives_the_loss_and_gradient_of_the_longest(
    factory: str, engine: str
) -> None:
    task, whole = task_of(factory, engine), task_of(factory, engine, ())
    assert task.spec.buckets == LENGTHS
    assert not task.remarks, "padding is masked"
    short, long = open_own_engine(task), open_own_engine(whole)
    self_check(short)
    vector, (x, y) = initial_vector(task.spec, 1), examples(task, 40)
    buckets = buckets_of(task.spec, x, y)
    assert buckets is not None
    assert set(buckets.tolist()) == set(LENGTHS)
    for length in LENGTHS:
        rows = np.flatnonzero(buckets == length)
        loss, gradient = short.gradient(vector, x[rows], y[rows])
        wanted_loss, wanted = long.gradient(vector, x[rows], y[rows])
        assert loss == pytest.approx(wanted_loss, rel=1e-5)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-6)
    found, wanted_found = short.evaluate(vector, x, y), long.evaluate(vector, x, y)
    assert found.loss_sum == pytest.approx(wanted_found.loss_sum, rel=1e-5)
    assert found.correct == wanted_found.correct
    assert found.exact == wanted_found.exact
    np.testing.assert_array_equal(found.class_counts, wanted_found.class_counts)


@pytest.mark.full
def test_scores_come_in_the_order_of_the_examples() -> None:
    task, whole = (task_of("of_sequence", "onnx", lengths, 2) for lengths in (LENGTHS, ()))
    vector, (x, y) = initial_vector(task.spec, 1), examples(task, 40)
    found = [open_own_engine(each).evaluate(vector, x, y).scores for each in (task, whole)]
    assert found[0] is not None
    assert found[1] is not None
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_training_takes_the_steps_of_one_length_and_is_charged_for_each(engine: str) -> None:
    task = task_of("recurrent", engine)
    x, y = examples(task, 43)
    settings = Hyperparameters(epochs=2, batch_size=10, learning_rate=0.1)
    results = []
    for micro_batch in (None, None, 4):
        h = msgspec.structs.replace(settings, micro_batch=micro_batch)
        meter, vector = Counted(), initial_vector(task.spec, 1)
        found = trainer.train(open_own_engine(task), vector, x, y, h, 7, meter, lambda: False)
        results.append((found, meter.steps))
    first, again, parts = results
    np.testing.assert_array_equal(first[0].vector, again[0].vector)
    assert first[0].steps == 2 * math.ceil(43 / 10)
    assert {length for _, length in first[1]} == set(LENGTHS)
    assert sum(n for n, _ in first[1]) == sum(n for n, _ in parts[1]) == 2 * 43
    np.testing.assert_allclose(parts[0].vector, first[0].vector, rtol=1e-4, atol=1e-6)
    meter = Counted()
    loss, quality = trainer.evaluate(open_own_engine(task), first[0].vector, x, y, meter)
    assert [length for _, length in meter.steps] == [*LENGTHS]
    assert loss > 0.0
    assert quality.positions == int((y >= 0).sum())


@pytest.mark.full
def test_masks_of_dropout_are_those_of_each_length() -> None:
    task = task_of("dropping")
    engine, vector, (x, y) = open_own_engine(task), initial_vector(task.spec, 1), examples(task, 12)
    self_check(engine)
    rows = np.flatnonzero(buckets_of(task.spec, x, y) == LENGTHS[0])
    losses = []
    for seed, size in ((4, None), (4, None), (4, 2), (5, None)):
        engine.reseed(seed, 0)
        losses.append(engine.gradient(vector, x[rows], y[rows], size)[0])
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-5)
    assert losses[0] != losses[3]
    shapes = [[mask.shape for mask in each.spec.masks] for each in (*task.shorter, task)]
    assert shapes == [[(length, WIDTH)] for length in LENGTHS]


@pytest.mark.full
def test_own_data_of_a_device_must_have_a_token_in_each_sequence() -> None:
    task = task_of("recurrent")
    x, _ = examples(task, 5)
    trainer.check_tokens(task.spec, x)
    x[3] = 0
    with pytest.raises(ValueError, match=r"^data: every sequence must have a token, got .* in exa"):
        trainer.check_tokens(task.spec, x)


@pytest.mark.full
def test_a_model_that_sees_padding_is_named() -> None:
    [remark] = task_of("unmasked", "torch").remarks
    assert "outputs must not depend on padding" in remark
    assert "mask the padding, where x == 0" in remark


@pytest.mark.full
def test_a_model_of_one_length_is_refused() -> None:
    with pytest.raises(
        TaskError, match=r"data\.buckets: the model must accept sequences of 3"
    ) as e:
        task_of("fixed", "torch")
    assert "\n" not in str(e.value)
    assert str(e.value).endswith("slice positions and masks to x.shape[1]")
