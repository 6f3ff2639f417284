"""Tasks by the name that an experiment file gives its model."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairbed.coordinator.policy.config import ModelEngine
from fairbed.coordinator.task.errors import TaskError, UnknownTask, Unsupported, WrongArtifact
from fairbed.coordinator.task.recipes import (
    MODELS,
    SHIPPED,
    default_recipe,
    find_shipped,
    task_name,
)
from fairbed.wire.artifact import Artifact, TaskKind, decode_artifact
from fairbed.wire.models import GROUP, call_factory, factory_at, path_of
from fairbed.wire.plugins import PluginError, is_path, registered, users_code

if TYPE_CHECKING:
    from torch import nn

    from fairbed.coordinator.task.kept import ExportCache
    from fairbed.coordinator.task.modules import AnyExamples
    from fairbed.coordinator.task.selfcheck import ExportFigures

ARTIFACTS = "artifacts"
SUFFIX = ".task"

MODULE_SEED, TWIN_SEED = 0, 1
"""Of the random numbers that a factory draws: two runs get the same module. What a twin has in
common with it, the factory sets."""


def user_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of Fairbed in the user's cache, which may not exist."""
    root = environ.get("XDG_CACHE_HOME") or str(
        Path(environ.get("HOME", "~")).expanduser() / ".cache"
    )
    return Path(root) / "fairbed"


def load_task(
    model: str,
    x_shape: tuple[int, ...],
    classes: int,
    kind: TaskKind = "classification",
    *,
    engine: ModelEngine = "auto",
    examples: "AnyExamples | None" = None,
) -> Artifact:
    """Return the task of a model: the shipped one, or a new one if torch is installed.

    Args:
        model: softmax, mlp, cnn, `package.module:Name`, or an installed or registered name.
        x_shape: Shape of one example. softmax and mlp accept any shape of their size; the engine
            flattens the examples.
        classes: Number of classes; 1 for regression.
        kind: What the model predicts.
        engine: As for `build_task`.
        examples: As for `build_task`.

    Raises:
        UnknownTask: No shipped task fits, and it cannot be built here.
        Unsupported: The engine cannot train the model.
        WrongArtifact: The export does not compute what torch computes.
    """
    model = path_of(model)
    if engine == "torch" and not is_path(model):
        raise UnknownTask(
            f'model.engine: "torch" must have a model package.module:Name, got {model}; choose '
            '"auto"'
        )
    recipe = find_shipped(model, x_shape, classes, kind)
    if recipe is not None:
        return decode_artifact(read_shipped(recipe.name))
    needed = ("torch",) if engine == "torch" else ("torch", "onnx")
    if all(importlib.util.find_spec(package) for package in needed):
        from fairbed.coordinator.task.kept import ExportCache

        return build_task(
            model,
            x_shape,
            classes,
            kind,
            engine=engine,
            examples=examples,
            kept=ExportCache(user_cache(os.environ) / "exports"),
        )
    shipped = ", ".join(recipe.name for recipe in SHIPPED)
    shape = "x".join(map(str, x_shape))
    predicts = f"in {classes} classes" if kind == "classification" else f"and {kind}"
    raise UnknownTask(
        f"model.name: {model} for examples of shape {shape} {predicts} must be exported "
        f"with torch, got no torch (shipped: {shipped}); install fairbed[torch]"
    )


def read_shipped(name: str) -> bytes:
    """Return the blob of a shipped task."""
    file = resources.files("fairbed.coordinator.task") / ARTIFACTS / f"{name}{SUFFIX}"
    return file.read_bytes()


def build_task(
    model: str,
    x_shape: tuple[int, ...],
    classes: int,
    kind: TaskKind = "classification",
    *,
    engine: ModelEngine = "auto",
    examples: "AnyExamples | None" = None,
    report: "Callable[[ExportFigures], None] | None" = None,
    kept: "ExportCache | None" = None,
) -> Artifact:
    """Export a task with torch, or name the module that devices train with torch.

    A factory, `package.module:Name`, is called with x_shape and classes, and returns a
    `torch.nn.Module` that maps (B, *x_shape) to logits, (B, classes). With two classes it may
    return one logit, and for regression it must return one number: (B,) or (B, 1).

    Args:
        model: As for `load_task`.
        x_shape: Shape of one example.
        classes: Number of classes; 1 for regression.
        kind: What the model predicts.
        engine: onnx exports the module, torch names it; auto names a module of the user that
            cannot be exported.
        examples: x of the data, shape (n, ...). The checks draw normal numbers; if the module fails
            on them, as one of tokens does, they draw from the range of the examples.
        report: Called with what an export took, once it is checked.
        kept: Earlier exports, of which an equal one is returned; None exports again.

    Raises:
        UnknownTask: There is no such model or factory, torch is missing, or the shape is wrong.
        Unsupported: The exporter lacks an operation of the model, or torch cannot train it.
        WrongArtifact: The export does not compute what torch computes.
    """
    try:
        from fairbed.coordinator.task.modules import (
            check_twins,
            export_problem,
            fixed_tensors,
            make_trainable,
            module_task,
            x_range_for,
        )

        if engine != "torch":
            from fairbed.coordinator.task.export import export_task
    except ImportError as exc:
        raise UnknownTask(
            f"model.name: {model} must be exported, got: {exc}; install fairbed[torch]"
        ) from exc
    model = path_of(model)
    module = make_module(model, x_shape, classes, kind)
    if model in MODELS:
        recipe = default_recipe(model, x_shape, classes, kind)
        return export_task(
            module, recipe.name, model, recipe.x_shape, classes, kind=kind, report=report
        )
    name = task_name(model, x_shape, classes, kind)

    def broken(problem: str) -> Unsupported:
        return Unsupported(f"{name}: the model must be usable, got {problem}; correct the module")

    with users_code(broken, TaskError):
        problem = export_problem(module)
        make_trainable(module, name, x_shape)
        x_range = x_range_for(module, name, x_shape, examples)
        twin = make_module(model, x_shape, classes, kind, seed=TWIN_SEED)
        make_trainable(twin, name, x_shape)
        check_twins(module, twin, name)
        fixed, remarks = fixed_tensors(module, twin, x_shape, x_range)
        reason = ""
        if engine != "torch":
            try:
                if problem:
                    raise Unsupported(problem)
                with users_code(partial(_not_exported, name), TaskError):
                    export = partial(
                        export_task,
                        module,
                        name,
                        model,
                        x_shape,
                        classes,
                        kind=kind,
                        x_range=x_range,
                        fixed=fixed,
                        twin=twin,
                    )
                    if kept is None or not is_path(model):
                        task = export(report=report)
                    else:
                        settings = (name, model, x_shape, classes, kind, x_range, sorted(fixed))
                        task = kept.exported(
                            model,
                            (module, twin),
                            settings,
                            lambda found: export(report=found),
                            report,
                        )
                return msgspec.structs.replace(task, remarks=remarks)
            except (Unsupported, WrongArtifact) as exc:
                if not is_path(model):  # no device can import it
                    raise
                if engine == "onnx":
                    raise type(exc)(
                        f'{exc}, or model.engine = "auto" with torch on the devices'
                    ) from exc
                reason = str(exc).rpartition("; ")[0]
        task = module_task(
            module,
            name,
            model,
            x_shape,
            classes,
            kind,
            x_range=x_range,
            fixed=fixed,
            twin=twin,
            reason=reason,
        )
        return msgspec.structs.replace(task, remarks=remarks)


def _not_exported(name: str, problem: str) -> Unsupported:
    return Unsupported(f"{name}: the model must be exportable, got {problem}; rewrite that part")


def make_module(
    model: str,
    x_shape: tuple[int, ...],
    classes: int,
    kind: TaskKind = "classification",
    *,
    seed: int = MODULE_SEED,
) -> "nn.Module":
    """Return the torch module of a model; the names are those of `build_task`.

    The seed is that of the random numbers which a factory draws.

    Raises:
        UnknownTask: There is no such model or factory, or the shape is wrong.
        ImportError: torch is missing.
    """
    if is_path(model) or model in registered(GROUP):
        return _call_factory(model, x_shape, classes, seed)
    from fairbed.coordinator.task.models import make_model

    try:
        return make_model(default_recipe(model, x_shape, classes, kind))
    except ValueError as exc:
        raise UnknownTask(str(exc)) from exc


def _call_factory(model: str, x_shape: tuple[int, ...], classes: int, seed: int) -> "nn.Module":
    from torch import nn

    from fairbed.coordinator.task.modules import seeded_draws

    try:
        with seeded_draws(seed):
            module = call_factory(model, factory_at(model), x_shape, classes)
    except PluginError as exc:
        raise UnknownTask(str(exc)) from exc
    if not isinstance(module, nn.Module):
        raise UnknownTask(
            f"model.name: {model}(x_shape, classes) must return a torch.nn.Module, got "
            f"{type(module).__name__}; correct the factory"
        )
    return module
