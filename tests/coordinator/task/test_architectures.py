"""Networks that people train on devices export exactly; `export_task` compares them with torch."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

import torch

from fairbed.coordinator.task.export import export_task
from fairbed.device_agent.engines.base import self_check
from fairbed.device_agent.engines.onnx import OnnxEngine
from tests.coordinator.task.architectures import ARCHITECTURES, VOCABULARY
from tests.tiers import some_in_fast


@pytest.mark.parametrize(
    "name",
    some_in_fast(
        ARCHITECTURES, "ResNet", "ShuffleNetV2", "SqueezeNet", "TextCNN", "encoder with padding"
    ),
)
def test_an_architecture_trains_without_torch(name: str) -> None:
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    artifact = export_task(
        architecture.make(),
        "test",
        "test",
        architecture.x_shape,
        architecture.classes,
        x_dtype="int64" if architecture.has_tokens else "float32",
        x_classes=VOCABULARY if architecture.has_tokens else 0,
    )
    self_check(OnnxEngine(artifact))
