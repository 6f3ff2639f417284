"""Tasks by the name that an experiment file gives its model."""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from fairbed.coordinator.policy.config import ModelEngine
from fairbed.coordinator.task.errors import (
    TaskError,
    UnknownTask,
    Unsupported,
    Untrainable,
    WrongArtifact,
    untrainable,
)
from fairbed.coordinator.task.recipes import (
    LOSSES_OF_PRESETS,
    MODELS,
    PRESETS,
    SHIPPED,
    default_recipe,
    find_shipped,
    model_path,
    task_name,
)
from fairbed.wire.artifact import (
    MAX_REMARKS,
    Artifact,
    BatchNorm,
    ClassesAxis,
    FunctionSource,
    TaskKind,
    TaskSpec,
    decode_artifact,
)
from fairbed.wire.messages import MAX_TEXT
from fairbed.wire.models import GROUP, call_factory, factory_at, freeze_statistics
from fairbed.wire.plugins import PluginError, is_path, registered, users_code

if TYPE_CHECKING:
    from torch import nn

    from fairbed.coordinator.task.changes import ModelChanges
    from fairbed.coordinator.task.kept import ExportCache
    from fairbed.coordinator.task.modules import AnyExamples
    from fairbed.coordinator.task.selfcheck import ExportFigures
    from fairbed.wire.evaluation import Targets

AUTO = "auto"
"""The loss of the kind of a task."""

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
    targets: "Targets | None" = None,
    x_classes: int = 0,
    y_shape: tuple[int, ...] = (),
    classes_axis: ClassesAxis | None = None,
    batch_norm: BatchNorm = "merged",
    lengths: Sequence[int] = (),
    changes: "ModelChanges | None" = None,
    personal: Sequence[str] = (),
    loss: str = AUTO,
    loss_options: Mapping[str, object] | None = None,
    metrics: Sequence[str] = (),
    bounded_by: str = "",
) -> Artifact:
    """Return the task of a model: the shipped one, or a new one if torch is installed.

    Args:
        model: A name of `MODEL_NAMES`, `package.module:Name`, or an installed or registered name.
        x_shape: Shape of one example. softmax and mlp accept any shape of their size; the engine
            flattens the examples.
        classes: Number of classes; 1 for regression.
        kind: What the model predicts.
        engine: As for `build_task`.
        examples: As for `build_task`, likewise `targets`.
        targets: y of the data.
        x_classes: As for `build_task`.
        y_shape: As for `build_task`.
        classes_axis: As for `build_task`.
        batch_norm: As for `build_task`.
        lengths: As for `build_task`.
        changes: As for `build_task`, likewise `personal`.
        personal: Patterns of names of the values that each device keeps for itself.
        loss: As for `build_task`, likewise `loss_options` and `metrics`.
        loss_options: Options of the loss.
        metrics: Metrics by name.
        bounded_by: As for `build_task`.

    Raises:
        UnknownTask: No shipped task fits, and it cannot be built here.
        Unsupported: The engine cannot train the model.
        WrongArtifact: The export does not compute what torch computes.
    """
    named, model = model, model_path(model)
    if loss == AUTO:
        loss = LOSSES_OF_PRESETS.get(model, AUTO)
    if engine == "torch" and not is_path(model):
        raise UnknownTask(
            f'model.engine: "torch" must have a model package.module:Name, got {model}; choose '
            '"auto"'
        )
    check_shipped(model, kind, x_classes, y_shape)
    recipe = None
    is_plain = loss == AUTO and not loss_options and not metrics
    if is_plain and changes is None and not personal:
        recipe = find_shipped(model, x_shape, classes, kind)
    if recipe is not None:
        if batch_norm != "merged":
            raise UnknownTask(
                f'model.batch_norm: "{batch_norm}" must have a model with batch normalisation, got '
                f'{model}, which has none; set "merged"'
            )
        return decode_artifact(read_shipped(recipe.name))
    needed = ("torch",) if engine == "torch" else ("torch", "onnx")
    if all(importlib.util.find_spec(package) for package in needed):
        from fairbed.coordinator.task.kept import ExportCache

        return build_task(
            named,
            x_shape,
            classes,
            kind,
            engine=engine,
            examples=examples,
            targets=targets,
            x_classes=x_classes,
            y_shape=y_shape,
            classes_axis=classes_axis,
            batch_norm=batch_norm,
            lengths=lengths,
            changes=changes,
            personal=personal,
            loss=loss,
            loss_options=loss_options,
            metrics=metrics,
            bounded_by=bounded_by,
            kept=ExportCache(user_cache(os.environ) / "exports"),
        )
    shipped = ", ".join(recipe.name for recipe in SHIPPED)
    shape = "x".join(map(str, x_shape))
    predicts = f"in {classes} classes" if kind == "classification" else f"and {kind}"
    if not is_plain:
        raise UnknownTask(
            f"model.name: {model} with model.loss or evaluation.metrics must be exported with "
            "torch, got no torch; install fairbed[torch], or remove them"
        )
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
    targets: "Targets | None" = None,
    x_classes: int = 0,
    y_shape: tuple[int, ...] = (),
    classes_axis: ClassesAxis | None = None,
    batch_norm: BatchNorm = "merged",
    lengths: Sequence[int] = (),
    changes: "ModelChanges | None" = None,
    personal: Sequence[str] = (),
    loss: str = AUTO,
    loss_options: Mapping[str, object] | None = None,
    metrics: Sequence[str] = (),
    bounded_by: str = "",
    report: "Callable[[ExportFigures], None] | None" = None,
    kept: "ExportCache | None" = None,
) -> Artifact:
    """Export a task with torch, or name the module that devices train with torch.

    A factory, `package.module:Name`, is called with x_shape, classes and x_classes, as it needs
    them, and returns a `torch.nn.Module` that maps (B, *x_shape) to logits, (B, classes). With two
    classes it may return one logit, and for regression it must return one number: (B,) or (B, 1).
    With a y_shape it returns (B, *y_shape, classes) or (B, classes, *y_shape); one logit of two
    classes,
    one of each label, or one number per position is (B, *y_shape).

    Args:
        model: As for `load_task`.
        x_shape: Shape of one example.
        classes: Number of classes, or of labels for multi-label; 1 for regression.
        kind: What the model predicts.
        engine: onnx exports the module, torch names it; auto names a module of the user that
            cannot be exported.
        examples: x of the data, shape (n, ...). The checks draw normal numbers; if the module fails
            on them, as one of tokens does, they draw from the range of the examples.
        targets: y of the data, shape (n, *y_shape), of whose values the checks of functions of the
            user draw; None: of all classes, or normal numbers.
        x_classes: Vocabulary size, if x is int64; 0 for float32.
        y_shape: Shape of the targets of one example.
        classes_axis: Axis of the classes in the output, if two fit.
        batch_norm: What becomes of batch normalisation.
        lengths: Lengths to which sequences of tokens are padded, ascending, the last that of
            x_shape; empty: that one alone. The factory is called for the longest.
        changes: Weights of the module, and what of it is trained. Frozen parameters of 64 KiB or
            more become the base of the task, whose file is in the cache of this user
            (`wire.base_files.default_bases`).
        personal: Patterns of names of the values that each device keeps for itself.
        loss: auto is that of the kind; another by name, or `package.module:function`.
        loss_options: Options of the loss.
        metrics: Metrics by name, or `package.module:function`.
        bounded_by: Key and value of a part of the run that takes losses as at least 0; empty: a
            loss of the user may be below 0.
        report: Called with what an export took, once it is checked.
        kept: Earlier exports, of which an equal one is returned; None exports again.

    Raises:
        UnknownTask: There is no such model or factory, torch is missing, or the shape is wrong.
        Unsupported: The exporter lacks an operation of the model, or torch cannot train it.
        WrongArtifact: The export does not compute what torch computes.
    """
    try:
        from fairbed.coordinator.task.lengths import padding_remarks, with_lengths
        from fairbed.coordinator.task.modules import (
            base_layout,
            check_batch_norm,
            check_operations,
            check_twins,
            fixed_tensors,
            frozen_values,
            make_trainable,
            module_task,
            seeded_draws,
            with_local_values,
            x_range_for,
        )
        from fairbed.wire.base_files import base_of, default_bases

        if engine != "torch":
            from fairbed.coordinator.task import lowering
            from fairbed.coordinator.task.export import export_task
    except ImportError as exc:
        raise UnknownTask(
            f"model.name: {model} must be exported, got: {exc}; install fairbed[torch]"
        ) from exc
    named, model = model, model_path(model)
    if loss == AUTO:
        loss = LOSSES_OF_PRESETS.get(model, AUTO)
    check_shipped(model, kind, x_classes, y_shape)
    if 0 in (*x_shape, *y_shape):
        raise UnknownTask(
            f"data: examples and targets must hold a value, got the shapes {x_shape} and "
            f"{y_shape}; leave out empty sequences"
        )
    loss_of, measured = None, tuple["FunctionSource", ...]()
    code: list[object] = []
    y_values: tuple[float, ...] = ()
    if loss != AUTO or loss_options or metrics:
        from fairbed.coordinator.task.own_functions import (
            loss_source,
            metric_sources,
            own_code,
            values_of,
        )

        loss_of = loss_source(loss, loss_options or {}, bounded_by)
        measured = metric_sources(metrics)
        if code := own_code(loss_of, measured):
            y_values = values_of(targets, kind, classes)
    make = partial(make_module, model, x_shape, classes, kind, x_classes=x_classes)
    module = make()
    check_batch_norm(module, model, batch_norm)
    name = task_name(named if named in PRESETS else model, x_shape, classes, kind)
    if model in MODELS:
        recipe = default_recipe(model, x_shape, classes, kind)
        if changes is None and not personal:
            of_recipe = partial(
                export_task,
                module,
                recipe.name,
                model,
                recipe.x_shape,
                classes,
                kind=kind,
                y_values=y_values,
                loss=loss_of,
                metrics=measured,
            )
            if kept is None or not (loss_of or measured):
                return of_recipe(report=report)
            return kept.exported(
                model,
                (module, *code),
                (recipe, loss_of, measured, y_values),
                lambda found: of_recipe(report=found),
                report,
            )
        name, x_shape = recipe.name, recipe.x_shape

    def broken(problem: str) -> Unsupported:
        return Unsupported(f"{name}: the model must be usable, got {problem}; correct the module")

    with users_code(broken, TaskError):
        remarks = make_trainable(module, name, x_shape, x_classes)
        x_range = x_range_for(module, name, x_shape, examples, x_classes)
        twin = make(seed=TWIN_SEED)
        make_trainable(twin, name, x_shape, x_classes, seed=TWIN_SEED)
        check_twins(module, twin, name)
        if changes is not None:
            for each, seed in ((module, MODULE_SEED), (twin, TWIN_SEED)):
                with seeded_draws(seed):
                    changes.apply(each)
            make_trainable(module, name, x_shape, x_classes)  # something must be trained
        if batch_norm == "frozen":
            freeze_statistics(module)
            freeze_statistics(twin)
        fixed, more = fixed_tensors(
            module,
            twin,
            x_shape,
            x_range,
            x_classes,
            has_weights=changes is not None and changes.weights is not None,
        )
        base = base_layout(module, fixed)
        remarks = [remark[:MAX_TEXT] for remark in [*remarks, *more]]
        own = partial(
            with_local_values, model=module, batch_norm=batch_norm, personal=tuple(personal)
        )
        shorter = [*lengths[:-1]]

        def exported(
            of: tuple[int, ...], of_y: tuple[int, ...], axis: ClassesAxis | None
        ) -> Artifact:
            export = partial(
                export_task,
                module,
                name,
                model,
                of,
                classes,
                kind=kind,
                x_dtype="int64" if x_classes else "float32",
                x_classes=x_classes,
                y_shape=of_y,
                classes_axis=axis,
                x_range=x_range,
                y_values=y_values,
                fixed=fixed,
                twin=twin,
                base=base,
                loss=loss_of,
                metrics=measured,
            )
            if kept is None or not is_path(model):
                return export(report=report)
            settings = (name, model, of, classes, kind, x_range, sorted(fixed), base)
            of_data = (x_classes, of_y, axis, batch_norm, loss_of, measured, y_values)
            return kept.exported(
                model,
                (module, twin, *code),
                (*settings, *of_data),
                lambda found: export(report=found),
                report,
            )

        def of_module(
            of: tuple[int, ...], of_y: tuple[int, ...], axis: ClassesAxis | None
        ) -> Artifact:
            return module_task(
                module,
                name,
                model,
                of,
                classes,
                kind,
                x_classes=x_classes,
                y_shape=of_y,
                classes_axis=axis,
                x_range=x_range,
                y_values=y_values,
                fixed=fixed,
                twin=twin,
                base=base,
                loss=loss_of,
                metrics=measured,
                reason=reason,
            )

        def of_all_lengths(
            make: Callable[[tuple[int, ...], tuple[int, ...], ClassesAxis | None], Artifact],
        ) -> Artifact:
            task = make(x_shape, y_shape, classes_axis)
            notes = padding_remarks(module, task.spec, shorter)
            parts = list[Artifact]()
            for of in map(task.spec.of_length, shorter):
                of_classes = of.kind == "classification" and of.y_shape
                axis: ClassesAxis | None = None  # a length may be the number of classes
                if of_classes:
                    axis = "last" if of.classes_axis is UNSET else of.classes_axis
                parts.append(own(make(of.x_shape, of.y_shape, axis)))
            longest = own(_with_remarks(task, [*remarks, *notes]))
            if changes is not None:
                longest = msgspec.structs.replace(longest, adaptation=changes.adaptation)
            if base is not None:
                made, blob = base_of(base, frozen_values(module, base))
                default_bases(os.environ).put(made.sha256, blob)
                longest = msgspec.structs.replace(longest, base=made)
            return with_lengths(longest, lengths, tuple(parts))

        reason = ""
        if engine != "torch":
            try:
                with users_code(partial(_not_exported, name), TaskError):
                    most = lowering.MOST_NODES
                    check_operations(module, name, x_shape, x_range, x_classes, most)
                    return of_all_lengths(exported)
            except Untrainable:
                raise
            except (Unsupported, WrongArtifact) as exc:
                if not is_path(model):  # no device can import it
                    raise
                if engine == "onnx":
                    raise type(exc)(
                        f'{exc}, or model.engine = "auto" with torch on the devices'
                    ) from exc
                reason = str(exc).rpartition("; ")[0]
        return of_all_lengths(of_module)


def _with_remarks(task: Artifact, remarks: list[str]) -> Artifact:
    return msgspec.structs.replace(task, remarks=[*remarks, *task.remarks][:MAX_REMARKS])


def check_shipped(
    model: str, kind: TaskKind, x_classes: int = 0, y_shape: tuple[int, ...] = ()
) -> None:
    """Check that a shipped model takes these data; a model of the user may.

    Raises:
        UnknownTask: It takes floats, and predicts one class or number.
    """
    if model not in MODELS or not (x_classes or y_shape or kind == "multi-label"):
        return
    got = f"tokens of {x_classes} kinds" if x_classes else f"{kind} with targets {y_shape}"
    raise UnknownTask(
        f"model.name: {model} must have x of floats and one target per example, got {got}; give a "
        "model of your own, package.module:Name"
    )


def _not_exported(name: str, problem: str) -> Unsupported:
    return untrainable(name, problem) or Unsupported(
        f"{name}: the model must be exportable, got {problem}; rewrite that part"
    )


def make_module(
    model: str,
    x_shape: tuple[int, ...],
    classes: int,
    kind: TaskKind = "classification",
    *,
    x_classes: int = 0,
    seed: int = MODULE_SEED,
) -> "nn.Module":
    """Return the torch module of a model; the names are those of `build_task`.

    The seed is that of the random numbers which a factory draws.

    Raises:
        UnknownTask: There is no such model or factory, or the shape is wrong.
        ImportError: torch is missing.
    """
    if is_path(model) or model in registered(GROUP):
        return _call_factory(model, x_shape, classes, x_classes, seed)
    from fairbed.coordinator.task.models import make_model

    try:
        return make_model(default_recipe(model, x_shape, classes, kind))
    except ValueError as exc:
        raise UnknownTask(str(exc)) from exc


def changed_module(spec: TaskSpec, changes: "ModelChanges | None") -> "nn.Module":
    """Return the module of a task as it was exported, with the values that it has before round 1.

    Raises:
        UnknownTask: There is no such model or factory, or no file of weights.
        Unsupported: Weights or patterns do not fit.
    """
    from fairbed.coordinator.task.modules import make_trainable, seeded_draws

    module = make_module(
        spec.model, spec.x_shape, spec.classes, spec.kind, x_classes=spec.x_classes
    )
    make_trainable(module, spec.name, spec.x_shape, spec.x_classes)
    if changes is not None:
        with seeded_draws(MODULE_SEED):
            changes.apply(module)
    return module


def _call_factory(
    model: str, x_shape: tuple[int, ...], classes: int, x_classes: int, seed: int
) -> "nn.Module":
    from torch import nn

    from fairbed.coordinator.task.modules import seeded_draws

    try:
        with seeded_draws(seed):
            module = call_factory(model, factory_at(model), x_shape, classes, x_classes)
    except PluginError as exc:
        raise UnknownTask(str(exc)) from exc
    if not isinstance(module, nn.Module):
        raise UnknownTask(
            f"model.name: {model}(x_shape, classes) must return a torch.nn.Module, got "
            f"{type(module).__name__}; correct the factory"
        )
    return module
