"""Networks that people train on devices export exactly; `export_task` compares them with torch."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import numpy as np
import torch

from fairbed.coordinator.task.selfcheck import GraphRunner
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.onnx import OnnxEngine
from fairbed.wire.artifact import draw_masks, initial_vector
from fairbed.wire.selfcheck import selfcheck_inputs
from tests.coordinator.task.architectures import ARCHITECTURES
from tests.tiers import some_in_fast

STEPS, EXAMPLES, SEED, LEARNING_RATE = 2, 5, 7, np.float32(0.05)


@pytest.mark.parametrize("name", some_in_fast(ARCHITECTURES, "SqueezeNet 1.1"))
def test_an_architecture_trains_without_torch(name: str) -> None:
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    artifact = architecture.export(architecture.make())
    spec = artifact.spec
    has_tokens = architecture.x_classes > 0
    assert (spec.kind, spec.y_shape) == (architecture.kind, architecture.y_shape)
    assert (spec.x_dtype, spec.x_classes) == (
        "int64" if has_tokens else "float32",
        architecture.x_classes,
    )
    engine, runner = OnnxEngine(artifact), GraphRunner(artifact)
    self_check(engine)
    start = initial_vector(spec, SEED)
    vector, expected = start.copy(), start.copy()
    for step in range(STEPS):
        _, x, y = selfcheck_inputs(spec, step, EXAMPLES)
        engine.reseed(SEED, step)
        loss, gradient = engine.gradient(vector, x, y)
        vector[: spec.layout.n_params] -= LEARNING_RATE * gradient
        masks = draw_masks(spec.masks, SEED, step, EXAMPLES)
        right, gradient, buffers = runner.step(expected, x, y, masks)
        moved = expected[: spec.layout.n_params] - LEARNING_RATE * gradient
        expected = np.concatenate([moved, buffers])
        assert loss == pytest.approx(right, rel=1e-5)
    distance = np.linalg.norm(expected - start)
    assert distance > 0.0
    assert np.linalg.norm(vector - expected) < 1e-3 * distance
