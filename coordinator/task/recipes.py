"""The shipped models, by name, shape of an example, and widths of the hidden layers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fairbed.wire.artifact import TaskKind
from fairbed.wire.models import path_of

FLAT_MODELS = ("softmax", "mlp")
"""Models that flatten an example to one row of features."""

MODELS = (*FLAT_MODELS, "cnn")


PRESETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: f"fairbed.coordinator.task.presets:{name.replace('-', '_')}"
        for name in (
            "linear-svm",
            "cnn-ditto",
            "cnn-femnist",
            "cnn-celeba",
            "cnn-corefed",
            "vgg-11",
            "m5",
            "char-lstm",
            "word-lstm",
            "text-lstm",
        )
    }
)
"""Path of the factory of each model of a published study, by its name."""

MODEL_NAMES = (*MODELS, *PRESETS)
"""Names of models that need no code of the user."""

LOSSES_OF_PRESETS: Final[Mapping[str, str]] = MappingProxyType({PRESETS["linear-svm"]: "hinge"})
"""Loss of a model, by its path, where it is not that of its kind."""


def model_path(name: str) -> str:
    """Return the path of a preset or a model of the user; the name of a shipped one as it is."""
    return name if name in MODELS else PRESETS.get(name) or path_of(name)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model family in one size."""

    model: str
    """softmax: one linear layer; mlp: hidden layers with ReLU; cnn: two 5x5 convolutions, each
    with ReLU and 2x2 max-pooling, and one hidden layer."""
    x_shape: tuple[int, ...]
    """Shape of one example; (features,) for softmax and mlp, (channels, height, width) for cnn."""
    classes: int
    widths: tuple[int, ...] = ()
    """softmax: none; mlp: each hidden layer; cnn: channels, channels, hidden layer."""
    kind: TaskKind = "classification"

    @property
    def outputs(self) -> int:
        """Width of the last layer: the classes, or 1."""
        return self.classes if self.kind == "classification" else 1

    @property
    def name(self) -> str:
        """Name of the task: model, shape, widths of an mlp, then classes or kind."""
        hidden = self.widths if self.model == "mlp" else ()
        return task_name(self.model, self.x_shape, self.classes, self.kind, hidden)


def task_name(
    model: str,
    x_shape: tuple[int, ...],
    classes: int,
    kind: TaskKind,
    hidden: tuple[int, ...] = (),
) -> str:
    """Return the name of a task, such as `mlp-64-64-10` or `softmax-10-regression`."""
    predicts = str(classes) if kind == "classification" else kind
    return "-".join([model, "x".join(map(str, x_shape)), *map(str, hidden), predicts])


SHIPPED = (
    Recipe("softmax", (60,), 10),
    Recipe("softmax", (64,), 10),
    Recipe("softmax", (784,), 10),
    Recipe("mlp", (64,), 10, (64,)),
    Recipe("mlp", (784,), 10, (318,)),
    Recipe("cnn", (1, 8, 8), 10, (32, 64, 128)),
    Recipe("cnn", (1, 28, 28), 10, (16, 32, 128)),
    Recipe("softmax", (30,), 2, kind="binary"),
    Recipe("mlp", (30,), 2, (64,), kind="binary"),
    Recipe("softmax", (10,), 1, kind="regression"),
    Recipe("mlp", (10,), 1, (64,), kind="regression"),
)


def find_shipped(
    model: str, x_shape: tuple[int, ...], classes: int, kind: TaskKind = "classification"
) -> Recipe | None:
    """Return the shipped recipe for the data; softmax and mlp accept any shape of their size."""
    for recipe in SHIPPED:
        fits = recipe.x_shape == x_shape or (
            model in FLAT_MODELS and math.prod(recipe.x_shape) == math.prod(x_shape)
        )
        if (recipe.model, recipe.classes, recipe.kind) == (model, classes, kind) and fits:
            return recipe
    return None


def default_recipe(
    model: str, x_shape: tuple[int, ...], classes: int, kind: TaskKind = "classification"
) -> Recipe:
    """Return the shipped recipe, or one with a hidden layer of 128 units for other shapes.

    Raises:
        ValueError: There is no such model, or it does not accept examples of this shape.
    """
    shipped = find_shipped(model, x_shape, classes, kind)
    if shipped is not None:
        return shipped
    if model == "cnn":
        if len(x_shape) != 3 or min(x_shape[1:]) < 4:
            raise ValueError(
                f"model.name: cnn needs examples of (channels, height >= 4, width >= 4), "
                f"got {x_shape}; choose softmax or mlp"
            )
        return Recipe(model, x_shape, classes, (16, 32, 128), kind)
    if model in FLAT_MODELS:
        widths = (128,) if model == "mlp" else ()
        return Recipe(model, (math.prod(x_shape),), classes, widths, kind)
    raise ValueError(
        f"model.name: must be one of {', '.join(MODEL_NAMES)} or package.module:Name, got {model!r}"
    )
