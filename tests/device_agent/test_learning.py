"""Integration of trainer, engine and shipped task on real data."""

import numpy as np
import pytest

from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.device_agent.host import UnlimitedPace
from fairbed.device_agent.trainer import evaluate, train
from fairbed.wire.artifact import initial_vector
from fairbed.wire.messages import Hyperparameters


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_the_cnn_learns_handwritten_digits(seed: int) -> None:
    datasets = pytest.importorskip("sklearn.datasets", reason="the digits come with scikit-learn")
    digits = datasets.load_digits()
    x = (digits.data / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = digits.target.astype(np.int64)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    seen, held_out = order[:1437], order[1437:]
    task = load_task("cnn", (1, 8, 8), 10)
    engine, vector = OnnxEngine(task), initial_vector(task.spec, seed)
    with UnlimitedPace().section("train") as meter:
        for epochs, learning_rate in ((5, 0.1), (3, 0.02)):
            plan = Hyperparameters(epochs=epochs, batch_size=20, learning_rate=learning_rate)
            result = train(engine, vector, x[seen], y[seen], plan, seed, meter, lambda: False)
            vector = result.vector
        loss, quality = evaluate(engine, vector, x[held_out], y[held_out], meter)
    assert quality.correct is not None
    assert quality.correct / len(held_out) > 0.95
    assert loss < 0.2
