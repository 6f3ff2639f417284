"""torch modules as tasks: their layout, and tasks of modules that devices import.

Such a task has no graphs. It names the module and the hash of its source, and the self-check is
computed here with torch in float64.
"""

import copy
import math
from typing import Literal, TypeAlias

import msgspec
import torch
from msgspec import UNSET
from torch import nn
from torch.nn.modules.conv import _ConvNd

from fairbed.coordinator.task.errors import Unsupported
from fairbed.coordinator.task.selfcheck import TorchReference, record_selfcheck
from fairbed.wire.artifact import Artifact, ModuleSource, SelfCheck, TaskKind, TaskSpec
from fairbed.wire.messages import MAX_TEXT
from fairbed.wire.models import source_hash
from fairbed.wire.plugins import PluginError
from fairbed.wire.selfcheck import selfcheck_inputs
from fairbed.wire.tensors import Layout, Tensor

SELFCHECK_SEED = 20
SELFCHECK_BATCH = 5

NO_OPSET = 1
"""Opset of a task without graphs."""

Role: TypeAlias = Literal["param", "buffer"]
Start: TypeAlias = Literal["zeros", "ones", "uniform"]


def make_layout(model: nn.Module) -> Layout:
    """Return the layout of a module: parameters, then float buffers, in the module's order.

    Initial values: weights and biases of linear and convolution layers are uniform in
    +-1/sqrt(fan_in), as in torch. Other tensors stay all 0 or all 1 if they are; the rest is
    uniform with the standard deviation of the module's own values.
    """
    bounds = _uniform_bounds(model)
    named: list[tuple[str, torch.Tensor, Role]] = [
        (name, tensor, "param") for name, tensor in model.named_parameters()
    ]
    named += [
        (name, tensor, "buffer")
        for name, tensor in model.named_buffers()
        if tensor.dtype == torch.float32
    ]
    tensors: list[Tensor] = []
    offset = 0
    for name, values, role in named:
        tensor = _tensor(name, values.detach(), offset, role, bounds.get(name))
        tensors.append(tensor)
        offset += tensor.size
    return Layout(tensors=tuple(tensors))


def _uniform_bounds(model: nn.Module) -> dict[str, float]:
    """Return 1/sqrt(fan_in) for the parameters of linear and convolution layers, by name."""
    bounds = {}
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Linear | _ConvNd):
            fan_in = math.prod(module.weight.shape[1:])
            for leaf, _ in module.named_parameters(recurse=False):
                bounds[f"{prefix}.{leaf}" if prefix else leaf] = 1.0 / math.sqrt(fan_in)
    return bounds


def _tensor(
    name: str, values: torch.Tensor, offset: int, role: Role, bound: float | None
) -> Tensor:
    start: Start = "uniform"
    if bound is None and bool((values == 0).all()):
        start = "zeros"
    elif bound is None and bool((values == 1).all()):
        start = "ones"
    elif bound is None:
        bound = math.sqrt(3.0) * float(values.double().std(correction=0))
    return Tensor(
        name=name,
        shape=tuple(values.shape),
        offset=offset,
        role=role,
        init=start,
        init_bound=bound or 0.0,
    )


def with_kind(spec: TaskSpec, output: tuple[int, ...]) -> TaskSpec:
    """Return the spec of a model with outputs of this shape, without the batch.

    Raises:
        Unsupported: The outputs do not fit the task.
    """
    is_one = output in ((), (1,))
    if spec.kind == "regression":
        if is_one:
            return spec
        needed = "one number per example, shape (B,) or (B, 1)"
    elif is_one or output == (2,):
        return msgspec.structs.replace(spec, task="binary" if is_one else UNSET)
    else:
        needed = "one logit per example, shape (B,) or (B, 1), or two, shape (B, 2)"
    shape = ", ".join(map(str, ("B", *output)))
    raise Unsupported(
        f"{spec.name}: for {spec.kind} the model must return {needed}, got ({shape}); change its "
        "last layer"
    )


def module_task(
    model: nn.Module,
    name: str,
    path: str,
    x_shape: tuple[int, ...],
    classes: int,
    kind: TaskKind = "classification",
    *,
    reason: str = "",
) -> Artifact:
    """Return the task of a module that devices train with torch.

    Args:
        model: As for `export_task`.
        name: Name of the task.
        path: `package.module:factory`, which a device imports.
        x_shape: Shape of one example.
        classes: Number of classes; 1 for regression.
        kind: What the model predicts; with two classes its output decides.
        reason: Why there are no graphs; empty if the experiment chose torch.

    Raises:
        Unsupported: The module cannot be trained, or its source is no file.
    """
    wrong = [n for n, p in model.named_parameters() if p.dtype != torch.float32]
    if wrong:
        raise Unsupported(f"{name}: parameters must be float32, got another type in {wrong[0]}")
    spec = TaskSpec(
        name=name,
        model=path,
        layout=make_layout(model),
        x_shape=x_shape,
        classes=classes,
        opset=NO_OPSET,
        selfcheck=SelfCheck(seed=SELFCHECK_SEED, batch=SELFCHECK_BATCH, loss=0.0, gradient_l2=0.0),
        task=UNSET if kind == "classification" else kind,
    )
    try:
        output, is_random = _tried(model, spec)
        if spec.is_scored:
            spec = with_kind(spec, output)
        elif output != (classes,):
            raise Unsupported(
                f"{name}: the model must return logits of shape (B, {classes}), got "
                f"({', '.join(map(str, ('B', *output)))}); change its last layer"
            )
        source = ModuleSource(
            path=path,
            sha256=source_hash(path),
            is_random=is_random,
            reason=reason[:MAX_TEXT],
        )
        reference = TorchReference(model, spec.layout, spec.kind, is_random=is_random)
        check = record_selfcheck(spec, reference, SELFCHECK_SEED, SELFCHECK_BATCH)
    except Unsupported:
        raise
    except (PluginError, OSError) as exc:
        raise Unsupported(str(exc)) from exc
    except Exception as exc:  # the user's code may raise anything
        line = " ".join(str(exc).split())[:200] or type(exc).__name__
        raise Unsupported(
            f"{name}: torch must be able to train the model in float64, got: {line}; correct the "
            "module"
        ) from exc
    unused = reference.unused()
    if unused:
        raise Unsupported(
            f"{unused[0]}: the loss must depend on every parameter, got one that it does not "
            "depend on; remove it from the model"
        )
    spec = msgspec.structs.replace(spec, selfcheck=check)
    return Artifact(spec=spec, train=b"", evaluate=b"", module=source)


def _tried(model: nn.Module, spec: TaskSpec) -> tuple[tuple[int, ...], bool]:
    """Return the shape of an output without the batch, and whether a module draws random numbers.

    Raises:
        Unsupported: The output is not one tensor with a row per example.
    """
    _, x, _ = selfcheck_inputs(spec, SELFCHECK_SEED, SELFCHECK_BATCH)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        output = copy.deepcopy(model).train()(torch.from_numpy(x))
        is_random = not torch.equal(before, torch.get_rng_state())
    if not isinstance(output, torch.Tensor) or output.shape[:1] != (SELFCHECK_BATCH,):
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise Unsupported(
            f"{spec.name}: the module must return one tensor with a row per example, got {got} "
            f"for {SELFCHECK_BATCH} examples; correct the module"
        )
    return tuple(output.shape[1:]), is_random
