"""Cohorts whose examples have several targets: the vectorised trainer does what devices do."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the vectorised trainer needs torch")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import torch

from fairbed.coordinator.task.catalogue import build_task, make_module
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.replay.cohort.base import CohortJob
from fairbed.testbed.replay.cohort.batches import StackedBatch, by_positions
from fairbed.testbed.replay.cohort.devices import DeviceTrainer
from fairbed.testbed.replay.cohort.functional import TorchTrainer
from fairbed.testbed.replay.cohort.shards import Shards
from fairbed.wire.artifact import initial_vector
from fairbed.wire.evaluation import positions_of
from fairbed.wire.messages import Hyperparameters
from tests.coordinator.task.test_positions import LENGTH, VOCABULARY

MODEL = "tests.testbed.replay.cohort.test_positions:words"
SIZES = (17, 9, 5)


class Words(torch.nn.Module):
    """An embedding and a mixing of the earlier positions, without buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, 6)
        self.mix = torch.nn.Linear(LENGTH, LENGTH)
        self.output = torch.nn.Linear(6, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x)
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        out: torch.Tensor = self.output(torch.tanh(h))
        return out


def words(x_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return Words()


@dataclass
class Divided:
    dataset: Dataset
    train_rows: tuple[np.ndarray, ...]


def data() -> Divided:
    rng = np.random.default_rng(4)
    n = sum(SIZES)
    y = rng.integers(0, VOCABULARY, (n, LENGTH))
    is_unset = rng.random(y.shape) < 0.4
    is_unset[:, 0] = False
    dataset = Dataset(
        name="words",
        x=rng.integers(0, VOCABULARY, (n, LENGTH)),
        y=np.where(is_unset, -1, y),
        classes=VOCABULARY,
        x_classes=VOCABULARY,
        description="",
        source="",
        origin="generated",
    )
    ends = np.cumsum(SIZES)
    return Divided(dataset, tuple(np.arange(e - s, e) for e, s in zip(ends, SIZES, strict=True)))


def test_stacked_weights_are_those_of_positions() -> None:
    y = np.array([[[1, -1], [0, 2], [0, 0]], [[-1, 3], [1, 1], [2, 2]]])
    weights = np.array([[1 / 3] * 3, [1.0, 0.0, 0.0]], np.float32)
    batch = StackedBatch(np.zeros((2, 3), int), np.array([3, 1]), weights, np.arange(2))
    found = by_positions(batch, y)
    assert found.count.tolist() == [5, 1]
    np.testing.assert_allclose(found.weights, [[0.2] * 3, [1.0, 0.0, 0.0]], rtol=1e-6)
    assert by_positions(batch, y[:, :, 0]) is batch


@pytest.mark.slow
@pytest.mark.full
def test_vectorised_and_torch_trainers_weight_tokens_as_devices_with_graphs_do() -> None:
    options: dict[str, Any] = {"x_classes": VOCABULARY, "y_shape": (LENGTH,)}
    task = build_task(MODEL, (LENGTH,), VOCABULARY, engine="onnx", **options)
    module = build_task(MODEL, (LENGTH,), VOCABULARY, engine="torch", **options)
    divided = data()
    shards = Shards(divided, (LENGTH,))
    counts = positions_of(divided.dataset.y)
    assert shards.positions is not None
    assert shards.positions.tolist() == [counts[rows].sum() for rows in divided.train_rows]
    devices = DeviceTrainer(task, shards)
    vectorised = TorchTrainer(make_module(MODEL, (LENGTH,), VOCABULARY), task.spec, shards)
    vector = initial_vector(task.spec, 2)
    jobs = [CohortJob(k, 7 + k) for k in range(3)]
    h = Hyperparameters(epochs=2, batch_size=4, learning_rate=0.3)
    right, losses = {}, {}
    for result in devices.train(vector, jobs, h):
        right[int(result.at[0])] = result.vectors[0].copy()
        losses[int(result.at[0])] = result.loss_train[0]
    others = [*vectorised.train(vector, jobs, h)]
    others += DeviceTrainer(module, shards).train(vector, jobs, h)
    assert sum(len(result.at) for result in others) == 6
    for result in others:
        for at, found, loss in zip(result.at, result.vectors, result.loss_train, strict=True):
            np.testing.assert_allclose(found, right[int(at)], atol=2e-6)
            assert loss == pytest.approx(losses[int(at)], rel=1e-5)
            assert not np.allclose(found, vector)
    np.testing.assert_allclose(
        vectorised.losses(vector, range(3)), devices.losses(vector, range(3)), rtol=1e-5
    )
