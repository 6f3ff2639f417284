"""Tasks by the name that an experiment file gives its model."""

import importlib.util
from importlib import resources
from typing import TYPE_CHECKING

from fairbed.coordinator.task.errors import UnknownTask
from fairbed.coordinator.task.recipes import SHIPPED, default_recipe, find_shipped
from fairbed.wire.artifact import Artifact, decode_artifact
from fairbed.wire.models import call_factory, factory_at
from fairbed.wire.plugins import PluginError

if TYPE_CHECKING:
    from torch import nn

ARTIFACTS = "artifacts"
SUFFIX = ".task"


def load_task(model: str, x_shape: tuple[int, ...], classes: int) -> Artifact:
    """Return the task of a model: the shipped one, or a new export if torch is installed.

    Args:
        model: softmax, mlp, cnn, or `package.module:factory`.
        x_shape: Shape of one example. softmax and mlp accept any shape of their size; the engine
            flattens the examples.
        classes: Number of classes.

    Raises:
        UnknownTask: No shipped task fits, and it cannot be built here.
    """
    recipe = find_shipped(model, x_shape, classes)
    if recipe is not None:
        return decode_artifact(read_shipped(recipe.name))
    if importlib.util.find_spec("torch") and importlib.util.find_spec("onnx"):
        return build_task(model, x_shape, classes)
    shipped = ", ".join(recipe.name for recipe in SHIPPED)
    shape = "x".join(map(str, x_shape))
    raise UnknownTask(
        f"model.name: {model} for examples of shape {shape} in {classes} classes must be exported "
        f"with torch, got no torch (shipped: {shipped}); install fairbed[torch]"
    )


def read_shipped(name: str) -> bytes:
    """Return the blob of a shipped task."""
    file = resources.files("fairbed.coordinator.task") / ARTIFACTS / f"{name}{SUFFIX}"
    return file.read_bytes()


def build_task(model: str, x_shape: tuple[int, ...], classes: int) -> Artifact:
    """Export a task with torch.

    A factory, `package.module:factory`, is called with x_shape and classes, and returns a
    `torch.nn.Module` that maps (B, *x_shape) to logits, (B, classes).

    Raises:
        UnknownTask: There is no such model or factory, torch is missing, or the shape is wrong.
        Unsupported: The exporter lacks an operation of the model.
        WrongArtifact: The export does not compute what torch computes.
    """
    try:
        from fairbed.coordinator.task.export import export_task
    except ImportError as exc:
        raise UnknownTask(
            f"model.name: {model} must be exported, got: {exc}; install fairbed[torch]"
        ) from exc
    module = make_module(model, x_shape, classes)
    if ":" in model:
        shape = "x".join(map(str, x_shape))
        return export_task(module, f"{model}-{shape}-{classes}", model, x_shape, classes)
    recipe = default_recipe(model, x_shape, classes)
    return export_task(module, recipe.name, model, recipe.x_shape, classes)


def make_module(model: str, x_shape: tuple[int, ...], classes: int) -> "nn.Module":
    """Return the torch module of a model; the names are those of `build_task`.

    Raises:
        UnknownTask: There is no such model or factory, or the shape is wrong.
        ImportError: torch is missing.
    """
    if ":" in model:
        return _call_factory(model, x_shape, classes)
    from fairbed.coordinator.task.models import make_model

    try:
        return make_model(default_recipe(model, x_shape, classes))
    except ValueError as exc:
        raise UnknownTask(str(exc)) from exc


def _call_factory(model: str, x_shape: tuple[int, ...], classes: int) -> "nn.Module":
    from torch import nn

    try:
        module = call_factory(model, factory_at(model), x_shape, classes)
    except PluginError as exc:
        raise UnknownTask(str(exc)) from exc
    if not isinstance(module, nn.Module):
        raise UnknownTask(
            f"model.name: {model}(x_shape, classes) must return a torch.nn.Module, got "
            f"{type(module).__name__}; correct the factory"
        )
    return module
