"""Tasks by the name that an experiment file gives its model."""

import importlib.util
from importlib import resources
from typing import TYPE_CHECKING

from fairbed.coordinator.task.errors import UnknownTask
from fairbed.coordinator.task.recipes import SHIPPED, default_recipe, find_shipped, task_name
from fairbed.wire.artifact import Artifact, TaskKind, decode_artifact
from fairbed.wire.models import call_factory, factory_at
from fairbed.wire.plugins import PluginError

if TYPE_CHECKING:
    from torch import nn

ARTIFACTS = "artifacts"
SUFFIX = ".task"


def load_task(
    model: str, x_shape: tuple[int, ...], classes: int, kind: TaskKind = "classification"
) -> Artifact:
    """Return the task of a model: the shipped one, or a new export if torch is installed.

    Args:
        model: softmax, mlp, cnn, or `package.module:factory`.
        x_shape: Shape of one example. softmax and mlp accept any shape of their size; the engine
            flattens the examples.
        classes: Number of classes; 1 for regression.
        kind: What the model predicts.

    Raises:
        UnknownTask: No shipped task fits, and it cannot be built here.
    """
    recipe = find_shipped(model, x_shape, classes, kind)
    if recipe is not None:
        return decode_artifact(read_shipped(recipe.name))
    if importlib.util.find_spec("torch") and importlib.util.find_spec("onnx"):
        return build_task(model, x_shape, classes, kind)
    shipped = ", ".join(recipe.name for recipe in SHIPPED)
    shape = "x".join(map(str, x_shape))
    raise UnknownTask(
        f"model.name: {model} for {_task_of(classes, kind)} of examples of shape {shape} must be "
        f"exported with torch, got no torch (shipped: {shipped}); install fairbed[torch]"
    )


def read_shipped(name: str) -> bytes:
    """Return the blob of a shipped task."""
    file = resources.files("fairbed.coordinator.task") / ARTIFACTS / f"{name}{SUFFIX}"
    return file.read_bytes()


def _task_of(classes: int, kind: TaskKind) -> str:
    return f"classification in {classes} classes" if kind == "classification" else kind


def build_task(
    model: str, x_shape: tuple[int, ...], classes: int, kind: TaskKind = "classification"
) -> Artifact:
    """Export a task with torch.

    A factory, `package.module:factory`, is called with x_shape and classes, and returns a
    `torch.nn.Module` that maps (B, *x_shape) to logits, (B, classes). With two classes it may
    return one logit, and for regression it must return one number: (B,) or (B, 1).

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
    module = make_module(model, x_shape, classes, kind)
    if ":" in model:
        name = task_name(model, x_shape, classes, kind)
        return export_task(module, name, model, x_shape, classes, kind=kind)
    recipe = default_recipe(model, x_shape, classes, kind)
    return export_task(module, recipe.name, model, recipe.x_shape, classes, kind=kind)


def make_module(
    model: str, x_shape: tuple[int, ...], classes: int, kind: TaskKind = "classification"
) -> "nn.Module":
    """Return the torch module of a model; the names are those of `build_task`.

    Raises:
        UnknownTask: There is no such model or factory, or the shape is wrong.
        ImportError: torch is missing.
    """
    if ":" in model:
        return _call_factory(model, x_shape, classes)
    from fairbed.coordinator.task.models import make_model

    try:
        return make_model(default_recipe(model, x_shape, classes, kind))
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
