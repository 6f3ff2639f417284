"""The models of published studies: sizes of the sources, exported and compared with torch."""

import numpy as np
import pytest

from fairbed.coordinator.task.catalogue import build_task, make_module
from fairbed.coordinator.task.recipes import MODEL_NAMES, PRESETS
from fairbed.wire.models import factory_at

PICTURE = (1, 28, 28)

# Values of the parameters, counted by hand from the layers that each source names.
SIZES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "linear-svm": ((100,), 2, 0, 101),
    "cnn-ditto": (PICTURE, 10, 0, 832 + 51_264 + 3_137 * 1_024 + 10_250),
    "cnn-femnist": (PICTURE, 62, 0, 416 + 12_832 + 1_569 * 128 + 129 * 62),
    "cnn-corefed": ((3, 32, 32), 10, 0, 456 + 2_416 + 401 * 120 + 121 * 84 + 85 * 10),
    "cnn-celeba": ((3, 84, 84), 2, 0, 896 + 3 * 9_248 + 4 * 64 + 32 * 36 + 1),
    "vgg-11": ((3, 32, 32), 10, 0, 9_220_480 + 2 * 513 * 512 + 5_130),
    "m5": (
        (1, 16_000),
        35,
        0,
        81 * 64 + 193 * 64 + 193 * 128 + 385 * 256 + 2 * (64 + 64 + 128 + 256) + 257 * 35,
    ),
    "char-lstm": ((80,), 65, 67, 67 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * 514 + 257 * 65),
    "word-lstm": ((10,), 50, 50, 50 * 200 + 4 * 256 * 458 + 4 * 256 * 514 + 257 * 50),
    "text-lstm": ((25,), 2, 90, 90 * 300 + 4 * 100 * 402 + 4 * 100 * 202 + 101 * 30 + 31),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_parameters_of_its_source(name: str) -> None:
    x_shape, classes, tokens, expected = SIZES[name]
    module = make_module(PRESETS[name], x_shape, classes, x_classes=tokens)
    assert sum(parameter.numel() for parameter in module.parameters()) == expected
    assert "Source:" in (factory_at(PRESETS[name]).__doc__ or "")
    assert name in MODEL_NAMES


# Small inputs; the export compares the graph with torch, and raises if they differ. Those of other
# tests of the exporter are of the tier `full`. vgg-11 is not here: its loss is NaN in the check in
# float64, so devices train it with torch.
FAST = ("linear-svm", "cnn-corefed", "text-lstm")
EXPORTED: dict[str, tuple[tuple[int, ...], int, int, tuple[int, ...]]] = {
    "linear-svm": ((6,), 2, 0, ()),
    "cnn-ditto": ((1, 8, 8), 5, 0, ()),
    "cnn-femnist": ((1, 8, 8), 5, 0, ()),
    "cnn-corefed": ((1, 16, 16), 3, 0, ()),
    "cnn-celeba": ((3, 16, 16), 2, 0, ()),
    "m5": ((1, 2_000), 3, 0, ()),
    "char-lstm": ((5,), 6, 8, ()),
    "word-lstm": ((4,), 9, 9, (4,)),
    "text-lstm": ((5,), 2, 9, ()),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.full) for name in EXPORTED],
)
def test_a_preset_is_exported_and_checked(name: str) -> None:
    x_shape, classes, tokens, y_shape = EXPORTED[name]
    x = np.random.default_rng(0).integers(0, tokens, (20, *x_shape)) if tokens else None
    task = build_task(name, x_shape, classes, x_classes=tokens, y_shape=y_shape, examples=x)
    assert task.module is None, "devices need no torch"
    assert task.spec.name.startswith(f"{name}-")


def test_a_support_vector_machine_has_the_hinge_as_its_loss() -> None:
    task = build_task("linear-svm", (3,), 2)
    assert task.spec.loss.path == "hinge"  # type: ignore[union-attr]  # it is set
    other = build_task("linear-svm", (3,), 2, loss="cross-entropy")
    assert other.spec.loss.path == "cross-entropy"  # type: ignore[union-attr]
