"""torch modules as tasks: their layout, and tasks of modules that devices import.

Such a task has no graphs. It names the module and the hash of its source, and the self-check is
computed here with torch in float64.
"""

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import torch
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from fairbed.coordinator.task.errors import Unsupported, untrainable
from fairbed.coordinator.task.own_functions import with_functions
from fairbed.coordinator.task.selfcheck import TorchReference, check_equal_steps, record_selfcheck
from fairbed.wire.adaptation import LORA_A, fitting, unused
from fairbed.wire.artifact import (
    Artifact,
    BatchNorm,
    ClassesAxis,
    FunctionSource,
    ModuleSource,
    SelfCheck,
    TaskKind,
    TaskSpec,
    XRange,
)
from fairbed.wire.float_types import cast_floats
from fairbed.wire.losses import first_output, functions_of
from fairbed.wire.messages import MAX_TEXT
from fairbed.wire.models import is_frozen, normalisation_layers, source_hash
from fairbed.wire.plugins import PluginError, users_code
from fairbed.wire.preparation import PADDING
from fairbed.wire.selfcheck import Examples, selfcheck_inputs
from fairbed.wire.tensors import Layout, Tensor, batch_text

SELFCHECK_SEED = 20
SELFCHECK_BATCH = 5

MODULE_BATCH = 2
"""Examples of zeros from which lazy layers take their sizes."""

TRIED = (SELFCHECK_BATCH, True), (3, True), (1, False)
"""Batches of the first forward passes, and whether in training mode; a last mini-batch may have one
example."""

MAX_START = 1e6
"""Limit of `wire.tensors.Tensor.init_bound`."""

NOT_FINITE = "an output that is not finite"

NO_OPSET = 1
"""Opset of a task without graphs."""

AnyExamples: TypeAlias = NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int64]

Role: TypeAlias = Literal["param", "buffer"]
Start: TypeAlias = Literal["zeros", "ones", "constant", "uniform"]


def unknown_check(x_range: XRange | None, y_values: Sequence[float] = ()) -> SelfCheck:
    """Return a self-check whose results are not computed yet."""
    return SelfCheck(
        seed=SELFCHECK_SEED,
        batch=SELFCHECK_BATCH,
        loss=0.0,
        gradient_l2=0.0,
        x=UNSET if x_range is None else x_range,
        y=tuple(y_values) or UNSET,
    )


def make_trainable(
    model: nn.Module, name: str, x_shape: tuple[int, ...], x_classes: int = 0, *, seed: int = 0
) -> list[str]:
    """Make a module trainable in place, and refuse one whose parameters no engine trains.

    Floats of another type become float32. Lazy layers take their sizes from one forward pass over
    zeros, in evaluation mode, so that no buffer changes; `seed` is that of their values.

    Returns:
        Lines about what changed.

    Raises:
        Unsupported: No parameter is trained, or one has no value, is no float of 16 to 64 bits,
            not on the CPU, or shares its memory with another tensor.
    """
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise Unsupported(
            f"{name}: the model must be a module of Python, got one of torch.jit; return the "
            "module without torch.jit"
        )
    for label, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise Unsupported(
                f"{label}: each tensor of the model must be on the CPU, got {tensor.device}; leave "
                "out .to() and device="
            )
    cast = cast_floats(model)
    _make_real(model, name, x_shape, torch.int64 if x_classes else torch.float32, seed)
    parameters = list(model.named_parameters())
    trained = [(label, tensor) for label, tensor in parameters if tensor.requires_grad]
    if not trained:
        got = f"{len(parameters)} frozen ones" if parameters else "none"
        raise Unsupported(
            f"{name}: the model must have parameters that are trained, got {got}; add a layer"
        )
    for label, tensor in trained:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor._backward_hooks:
            raise Unsupported(
                f"{label}: a parameter must have no hook on its gradient, got one of "
                "register_hook(); change gradients in a local rule (docs/own-local-training.md)"
            )
        if not tensor.numel():
            problem = f"have values, got the shape {tuple(tensor.shape)}; remove it"
        elif tensor.dtype != torch.float32:
            problem = f"be float32, got {dtype}; leave out dtype="
        else:
            continue
        raise Unsupported(f"{label}: each parameter must {problem}")
    places = {tensor.data_ptr(): label for label, tensor in reversed(trained)}
    for label, tensor in [*parameters, *model.named_buffers()]:
        other = places.get(tensor.data_ptr(), label) if tensor.numel() else label
        if other != label:
            raise Unsupported(
                f"{label}: each parameter must have memory of its own, got that of {other}; clone "
                "it, or tie both as one nn.Parameter"
            )
    if not cast:
        return []
    shown, _, dtype = cast[0].rpartition(": ")
    return [
        f"{_and_more(shown, len(cast))}: each float of the model must be float32, got {dtype}; "
        "all of its floats are cast to float32, also those that forward() computes"
    ]


def _and_more(first: str, count: int) -> str:
    return f"{first} and {count - 1} more" if count > 1 else first


def _make_real(
    model: nn.Module, name: str, x_shape: tuple[int, ...], x_dtype: torch.dtype, seed: int
) -> None:
    """Give the lazy layers of a module the sizes of their inputs.

    Raises:
        Unsupported: The module fails on zeros, or does not use such a layer.
    """

    def lazy() -> Iterator[str]:
        named = [*model.named_parameters(), *model.named_buffers()]
        return (label for label, tensor in named if is_lazy(tensor))

    first = next(lazy(), None)
    if first is None:
        return

    def broken(problem: str) -> Unsupported:
        return Unsupported(
            f"{first}: a lazy layer takes its sizes from zeros of shape "
            f"{(MODULE_BATCH, *x_shape)}, and the model must accept them, got {problem}; give the "
            "sizes of its inputs"
        )

    mode = model.training
    with seeded_draws(seed), torch.no_grad(), users_code(broken):
        model.eval()(torch.zeros((MODULE_BATCH, *x_shape), dtype=x_dtype))
        model.train(mode)
    if (left := next(lazy(), None)) is not None:
        raise Unsupported(
            f"{left}: a lazy layer must be used in evaluation mode, in which it gets its sizes, "
            f"got one that {name} does not use; give the sizes of its inputs"
        )


@contextmanager
def seeded_draws(seed: int) -> Iterator[None]:
    """Let torch draw the same numbers at every start, and restore its generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def x_range_for(
    model: nn.Module,
    name: str,
    x_shape: tuple[int, ...],
    examples: AnyExamples | None,
    x_classes: int = 0,
) -> XRange | None:
    """Return the range from which the checks of a module draw x; None for normal numbers.

    A model of tokens fails on normal numbers, and one with a logarithm has no finite output.

    Args:
        model: The module; it is not changed.
        name: Name of the task.
        x_shape: Shape of one example.
        examples: Of the data, shape (n, ...); None if there are none.
        x_classes: Vocabulary size of integer x, from which the checks draw; 0 for floats.

    Raises:
        Unsupported: The module fails on values of the data, or accepts integers alone and there
            are no examples.
    """
    if x_classes:
        _check_vocabulary(model, name, x_shape, x_classes)
        if examples is not None:
            _check_empty(model, name, examples)
        return None
    normal = _x_of_check(x_shape, None)
    problem = _forward_problem(model, normal)
    if not problem:
        return None
    if examples is None:
        if _forward_problem(model, np.zeros_like(normal)):
            return None  # another fault, which the next step reports
        raise Unsupported(
            f"{name}: the self-check draws x from a normal distribution, and the model must accept "
            f"it, got {problem}; it accepts zeros, as a model of integers (tokens, nn.Embedding) "
            "does: build it with your data, as a replay does, or in Python with "
            "build_task(..., examples=x)"
        )
    scale = 255.0 if examples.dtype == np.uint8 else 1.0  # pixels, which a device divides by it
    low, high = float(examples.min()) / scale, float(examples.max()) / scale
    is_whole = scale == 1.0 and bool((examples == np.floor(examples)).all())
    found = XRange(low=low, high=high, is_whole=is_whole)
    again = _forward_problem(model, _x_of_check(x_shape, found))
    if again:
        kind = "whole numbers" if found.is_whole else "numbers"
        raise Unsupported(
            f"{name}: the model must accept x of the data, {kind} from {low:g} to {high:g}, got "
            f"{again}; correct the module or the data"
        )
    return found


def _check_vocabulary(
    model: nn.Module, name: str, x_shape: tuple[int, ...], x_classes: int
) -> None:
    """Check that a model accepts every token of the data.

    Raises:
        Unsupported: It fails on examples of this shape, or on the last tokens of the vocabulary.
    """
    problem = _forward_problem(model, _x_of_check(x_shape, None, min(2, x_classes)))
    if problem:
        raise Unsupported(
            f"{name}: the model must accept tokens of shape {batch_text(x_shape)} in int64, got "
            f"{problem}; {_advice(problem)}"
        )
    problem = _forward_problem(model, _x_of_check(x_shape, None, x_classes))
    if problem:
        raise Unsupported(
            f"{name}: the model must accept the tokens 0 .. {x_classes - 1} of the data, got "
            f"{problem}; {_advice(problem, f'give its embedding {x_classes} rows')}"
        )


def _check_empty(model: nn.Module, name: str, examples: Examples | NDArray[np.uint8]) -> None:
    """Check that a model has a finite output for padding alone, if an example is that.

    Raises:
        Unsupported: It has none, as of attention whose mask covers all tokens.
    """
    empty = np.flatnonzero((examples == PADDING).reshape(len(examples), -1).all(axis=1))
    if not len(empty):
        return
    problem = _forward_problem(model, np.zeros((SELFCHECK_BATCH, *examples.shape[1:]), np.int64))
    if problem:
        raise Unsupported(
            f"{name}: the model must accept padding alone (token {PADDING}), as row {empty[0]} of "
            f"the data is, got {problem}; leave such examples out, or let masks of attention leave "
            "a token"
        )


def check_operations(
    model: nn.Module,
    name: str,
    x_shape: tuple[int, ...],
    x_range: XRange | None,
    x_classes: int,
    most: int,
) -> None:
    """Refuse a module that is too large to record, before torch records it for minutes.

    Args:
        model: The module; it is not changed.
        name: Name of the task.
        x_shape: Shape of one example.
        x_range: As for `module_task`.
        x_classes: Vocabulary size of integer x; 0 for floats.
        most: Most operations of a recording.

    Raises:
        Unsupported: Its forward pass alone has too many operations.
    """
    counting = _Counting(most)
    x = torch.from_numpy(_x_of_check(x_shape, x_range, x_classes))
    with _no_traces(), suppress(PluginError), users_code(PluginError), counting:
        copy.deepcopy(model).train()(x)  # a later step reports another failure
    if counting.count > most:
        raise Unsupported(
            f"{name}: a recording of the model must have at most {most:,} operations, got more in "
            "forward() alone; use fewer layers or shorter sequences"
        )


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the operations of torch, and ends them beyond a number."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.most, self.count = most, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count > self.most:
            raise PluginError("too many operations")
        return func(*args, **(kwargs or {}))


def _advice(problem: str, of_error: str = "") -> str:
    """Return what to do about a model that fails on tokens."""
    if problem == NOT_FINITE:
        return "let masks of attention leave a token that is not padding, and divide by no zero"
    return of_error or "give it as many positions as a sequence has, and no float operation on x"


def _x_of_check(x_shape: tuple[int, ...], within: XRange | None, x_classes: int = 0) -> Examples:
    """Return x of a forward pass, shape (SELFCHECK_BATCH, *x_shape)."""
    shape = (SELFCHECK_BATCH, *x_shape)
    if x_classes:  # from the last token down, so that an embedding with too few rows fails
        last = x_classes - 1  # token 0 is padding, and a model may mask it
        return (last - np.arange(math.prod(shape)) % max(last, 1)).reshape(shape)
    if within is None:
        return np.random.default_rng(SELFCHECK_SEED).standard_normal(shape).astype(np.float32)
    x = np.linspace(within.low, within.high, math.prod(shape)).reshape(shape)
    return (x.round() if within.is_whole else x).astype(np.float32)


def _forward_problem(model: nn.Module, x: Examples) -> str:
    """Return how a module fails on x, or that its output is not finite; empty if it is."""
    with _no_traces():
        try:
            with users_code(PluginError):
                output = copy.deepcopy(model).train()(torch.from_numpy(x))
        except PluginError as exc:
            return str(exc)
    output = first_output(output)
    is_tensor = isinstance(output, torch.Tensor)
    if is_tensor and not bool(torch.isfinite(output).all()):
        return NOT_FINITE
    return ""


@contextmanager
def _no_traces() -> Iterator[None]:
    """Leave torch's random numbers as they are, and record no gradients."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        yield


def check_batch_norm(model: nn.Module, name: str, batch_norm: BatchNorm) -> None:
    """Refuse a model without the layers that `model.batch_norm` concerns.

    Raises:
        Unsupported: It has none.
    """
    if batch_norm != "merged" and not _normalisation(model, batch_norm):
        raise Unsupported(
            f'model.batch_norm: "{batch_norm}" must have a model with batch normalisation'
            f"{'' if batch_norm == 'fedbn' else ' that tracks running statistics'}, got {name}, "
            'which has none; set "merged"'
        )


def with_local_values(
    artifact: Artifact, model: nn.Module, batch_norm: BatchNorm, personal: Collection[str] = ()
) -> Artifact:
    """Return a task in whose layout the values are marked that devices keep for themselves.

    Args:
        artifact: The task.
        model: Its module.
        batch_norm: What becomes of batch normalisation.
        personal: Patterns of names of further values, `model.personal`.

    Raises:
        Unsupported: Nothing is left to merge, or a pattern fits nothing.
    """
    kept = set() if batch_norm == "frozen" else _normalisation(model, batch_norm)
    layout = artifact.spec.layout
    names = [tensor.name for tensor in layout.tensors]
    if missed := unused(names, personal):
        raise Unsupported(
            f"model.personal: {missed[0]} must fit the name of a trained parameter or a buffer, "
            f"got {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}; correct the pattern"
        )
    kept |= fitting(names, personal)
    tensors = tuple(
        msgspec.structs.replace(tensor, is_local=True) if tensor.name in kept else tensor
        for tensor in layout.tensors
    )
    if all(tensor.is_local is True for tensor in tensors if tensor.role == "param"):
        if personal:
            raise Unsupported(
                "model.personal: must leave parameters to merge, got patterns that fit all of "
                f"{artifact.spec.name}; narrow them"
            )
        raise Unsupported(
            f'model.batch_norm: "{batch_norm}" must leave parameters to merge, got a model with '
            f'parameters of batch normalisation alone, {artifact.spec.name}; set "merged"'
        )
    spec = msgspec.structs.replace(artifact.spec, layout=Layout(tensors=tensors))
    return msgspec.structs.replace(artifact, spec=spec, batch_norm=batch_norm)


def _normalisation(model: nn.Module, batch_norm: BatchNorm) -> set[str]:
    """Return the tensors that a setting of `model.batch_norm` concerns, by name."""
    if batch_norm == "merged":
        return set()
    return {
        f"{name}.{leaf}" if name else leaf
        for name, layer in normalisation_layers(model).items()
        for leaf, _ in [
            *layer.named_buffers(recurse=False),
            *(layer.named_parameters(recurse=False) if batch_norm == "fedbn" else ()),
        ]
    }


def fixed_tensors(
    model: nn.Module,
    twin: nn.Module,
    x_shape: tuple[int, ...],
    x_range: XRange | None,
    x_classes: int = 0,
    *,
    has_weights: bool = False,
) -> tuple[dict[str, bytes], list[str]]:
    """Return the tensors of a module that are no part of the vector, by name, as bytes.

    They are the frozen parameters, buffers that are no floats, and float buffers that a training
    step leaves as they are; one that is all 0 or all 1 may change later, and is in the vector.

    Args:
        model: The module.
        twin: Another one of the same factory, with other random numbers.
        x_shape: Shape of one example.
        x_range: As for `module_task`.
        x_classes: Vocabulary size of integer x; 0 for floats.
        has_weights: Training starts from the values that the module has.

    Returns:
        The tensors, and lines about those that the run does not treat as the module does.

    Raises:
        Unsupported: A forward pass changes a parameter, or a float buffer whose first
            values the module sets, neither to 0 nor to 1.
    """
    frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    in_evaluation = {
        f"{name}.{leaf}" if name else leaf
        for name, layer in normalisation_layers(model).items()
        for leaf, _ in layer.named_buffers(recurse=False)
        if is_frozen(layer)
    }
    starts = frozen | dict(model.named_buffers())
    trial = copy.deepcopy(model).train()
    x = torch.from_numpy(_x_of_check(x_shape, x_range, x_classes))
    with _no_traces(), suppress(PluginError), users_code(PluginError):  # a later step reports it
        trial(x)
    after = dict(trial.named_parameters()) | dict(trial.named_buffers())
    drawn = dict(twin.named_parameters()) | dict(twin.named_buffers())
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and _bytes_of(parameter) != _bytes_of(after[name]):
            raise Unsupported(
                f"{name}: a parameter must keep its value in forward(), got one that it changes; "
                "compute what you need from it, as torch.nn.utils.parametrize does"
            )
    fixed, remarks = dict[str, bytes](), list[str]()
    for name, tensor in starts.items():
        values = _bytes_of(tensor)
        is_float = name not in frozen and tensor.is_floating_point()
        is_changed = values != _bytes_of(after[name])
        is_drawn = values != _bytes_of(drawn[name])
        may_change = name not in in_evaluation
        is_start = is_drawn or has_weights  # known before round 1
        if is_float and may_change and (_is_all(tensor, 0.0, 1.0) or (is_changed and is_start)):
            continue
        if is_changed and (is_float or name in frozen):
            must = (
                "a buffer that training changes must start at all 0 or all 1, got others; keep its "
                "layer in evaluation mode (override train() of the module)"
                if is_float
                else "a frozen parameter must keep its value, got one that a training step "
                "changes; let forward() leave it as it is"
            )
            raise Unsupported(f"{name}: {must}")
        if is_changed and not _only_counts(model, name):
            remarks.append(
                f"{name}: a buffer that is no float must keep its value, got one that training "
                "changes; each step begins with its first value"
            )
        fixed[name] = values
    kept = [
        name
        for name, tensor in model.named_parameters()
        if name not in fixed
        and not _is_all(tensor, float(tensor.detach().flatten()[0]))
        and _bytes_of(tensor) == _bytes_of(drawn[name])
    ]
    if kept and not has_weights:
        remarks.append(
            f"{_and_more(kept[0], len(kept))}: training must start from random values, which "
            "seeds.init draws, got values that the module sets (of a trained model?), which are "
            'not used; set model.weights = "module" to begin with them, or freeze the layer'
        )
    return fixed, remarks


BASE_BYTES = 1 << 16
"""Frozen parameters of this size are a base: a blob beside the task. Smaller ones are in it."""


def base_layout(model: nn.Module, fixed: Collection[str]) -> Layout | None:
    """Return the layout of the frozen parameters of a module that become its base; None if none.

    Args:
        model: The module.
        fixed: Names of the tensors that are no part of the vector.
    """
    tensors, offset = list[Tensor](), 0
    for name, value in model.named_parameters():
        if name in fixed and value.dtype == torch.float32 and value.numel():
            tensors.append(Tensor(name=name, shape=tuple(value.shape), offset=offset))
            offset += value.numel()
    layout = Layout(tensors=tuple(tensors))
    return layout if layout.size_bytes >= BASE_BYTES else None


def frozen_values(model: nn.Module, base: Layout) -> dict[str, NDArray[np.float32]]:
    """Return the values of the tensors of a base, by name."""
    params = dict(model.named_parameters())
    return {tensor.name: params[tensor.name].detach().numpy() for tensor in base.tensors}


def _only_counts(model: nn.Module, name: str) -> bool:
    """Return whether a buffer counts the batches of a normalisation that does not use the count."""
    layer, _, leaf = name.rpartition(".")
    momentum = getattr(model.get_submodule(layer), "momentum", None)
    return leaf == "num_batches_tracked" and momentum is not None


def check_twins(model: nn.Module, twin: nn.Module, name: str) -> None:
    """Refuse a factory that does not make the same tensors at each call."""
    one, other = (
        {
            label: (tuple(t.shape), t.dtype)
            for label, t in [*m.named_parameters(), *m.named_buffers()]
        }
        for m in (model, twin)
    )
    if one != other:
        label = min(set(one.items()) ^ set(other.items()), key=str)[0]
        raise Unsupported(
            f"{name}: two calls must make the same tensors, got {label} of {one.get(label)} and "
            f"{other.get(label)}; make their sizes depend on x_shape and classes alone"
        )


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def _is_all(tensor: torch.Tensor, *values: float) -> bool:
    return any(bool((tensor == value).all()) for value in values)


def make_layout(
    model: nn.Module, fixed: Collection[str] = (), twin: nn.Module | None = None
) -> Layout:
    """Return the layout of a module: parameters, then float buffers, in the module's order.

    The tensors named in `fixed` are no part of it. A tensor of equal values starts so, if the
    module sets them: a twin of other random numbers has them, too.

    Initial values: weights and biases of linear and convolution layers are uniform in
    +-1/sqrt(fan_in), as in torch. The rest is uniform with the standard deviation of the module's
    own values.

    Raises:
        Unsupported: A start value is not finite, or too large.
    """
    bounds = _uniform_bounds(model)
    twins = {} if twin is None else {**dict(twin.named_parameters()), **dict(twin.named_buffers())}
    named: list[tuple[str, torch.Tensor, Role]] = [
        (name, tensor, "param") for name, tensor in model.named_parameters() if name not in fixed
    ]
    named += [
        (name, tensor, "buffer")
        for name, tensor in model.named_buffers()
        if name not in fixed and tensor.is_floating_point()
    ]
    tensors: list[Tensor] = []
    offset = 0
    for name, values, role in named:
        bound = bounds.get(name)
        is_set = bound is None
        if twin is not None:
            is_set = bool(torch.equal(values, twins[name]))
        tensor = _tensor(name, values.detach().double(), offset, role, bound, is_set=is_set)
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


_EQUAL: Mapping[float, Start] = {0.0: "zeros", 1.0: "ones"}


def _tensor(
    name: str, values: torch.Tensor, offset: int, role: Role, bound: float | None, *, is_set: bool
) -> Tensor:
    """Return a tensor with its start; one that is not random (`is_set`) may stay constant."""
    first, value = float(values.flatten()[0]), 0.0
    start: Start = "uniform"
    if is_set and _is_all(values, first):
        start, bound = _EQUAL.get(first, "constant"), 0.0
        value = first if start == "constant" else 0.0
    elif bound is None:
        spread = float(values.std(correction=0)) if values.numel() > 1 else abs(first)
        bound = math.sqrt(3.0) * spread
    if not max(abs(first), bound) <= MAX_START:
        raise Unsupported(
            f"{name}: start values must be finite and at most {MAX_START:g}, got {first:g} first; "
            "correct the module"
        )
    return Tensor(
        name=name,
        shape=tuple(values.shape),
        offset=offset,
        role=role,
        init=start,
        init_bound=bound,
        init_value=value or UNSET,
    )


def with_kind(
    spec: TaskSpec, output: tuple[int, ...], classes_axis: ClassesAxis | None = None
) -> TaskSpec:
    """Return the spec of a model with outputs of this shape, without the batch.

    Args:
        spec: The task.
        output: Shape of an output without the batch.
        classes_axis: Where the classes are, if the output does not decide it.

    Raises:
        Unsupported: The outputs do not fit the task.
    """
    if spec.y_shape:
        return _at_positions(spec, output, classes_axis)
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


def _at_positions(
    spec: TaskSpec, output: tuple[int, ...], classes_axis: ClassesAxis | None
) -> TaskSpec:
    """Return the spec of a model that predicts at positions; see `with_kind`."""
    y, classes = spec.y_shape, spec.classes
    of_classes = {"last": (*y, classes), "first": (classes, *y)}
    shown = [batch_text(y)]
    if spec.kind in ("regression", "multi-label"):
        if output == y:
            return spec
    else:
        if classes == 2 and output in (y, (1, *y), (*y, 1)):
            return msgspec.structs.replace(spec, task="binary")
        fitting = [axis for axis, shape in of_classes.items() if shape == output]
        if len(fitting) > 1 and classes_axis is None:
            raise Unsupported(
                f"model.classes_axis: must name the axis of the {classes} classes if two fit, got "
                f'none for the output {batch_text(output)}; set "last" for '
                '(B, ..., classes) or "first" for (B, classes, ...)'
            )
        axis = classes_axis if classes_axis in fitting else None
        if len(fitting) == 1 and classes_axis is None:
            axis = "first" if fitting == ["first"] else "last"
        if axis is not None:
            first: Literal["first"] | UnsetType = "first" if axis == "first" else UNSET
            return msgspec.structs.replace(spec, task=UNSET, classes_axis=first)
        wanted = of_classes if classes_axis is None else {classes_axis: of_classes[classes_axis]}
        shown = [*map(batch_text, wanted.values()), *(shown if classes == 2 else ())]
    raise Unsupported(
        f"{spec.name}: for {spec.kind} with targets of shape {batch_text(y)} the model must return "
        f"{' or '.join(shown)}, got {batch_text(output)}; change its last layer"
    )


def module_task(
    model: nn.Module,
    name: str,
    path: str,
    x_shape: tuple[int, ...],
    classes: int,
    kind: TaskKind = "classification",
    *,
    x_classes: int = 0,
    y_shape: tuple[int, ...] = (),
    classes_axis: ClassesAxis | None = None,
    x_range: XRange | None = None,
    y_values: Sequence[float] = (),
    fixed: Mapping[str, bytes] | None = None,
    twin: nn.Module | None = None,
    base: Layout | None = None,
    loss: FunctionSource | None = None,
    metrics: Sequence[FunctionSource] = (),
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
        x_classes: Vocabulary size of integer x; 0 for floats.
        y_shape: As for `export_task`, likewise `classes_axis`.
        classes_axis: Where the classes are, if both shapes fit the output.
        x_range: From which the self-check draws x; None for normal numbers.
        y_values: As for `export_task`.
        fixed: The tensors that are no part of the vector, of `fixed_tensors`.
        twin: As for `make_layout`.
        base: Those of `fixed` that are beside the task.
        loss: As for `export_task`, likewise `metrics`.
        metrics: What an evaluation measures.
        reason: Why there are no graphs; empty if the experiment chose torch.

    Raises:
        Unsupported: The module cannot be trained, or its source is no file.
    """
    spec = TaskSpec(
        name=name,
        model=path,
        layout=make_layout(model, fixed or (), twin),
        x_shape=x_shape,
        x_dtype="int64" if x_classes else "float32",
        x_classes=x_classes,
        classes=classes,
        opset=NO_OPSET,
        selfcheck=unknown_check(x_range, y_values),
        task=UNSET if kind == "classification" else kind,
        positions=y_shape or UNSET,
    )

    output, is_random = _tried(model, spec, takes_first=loss is not None)
    if spec.is_scored or spec.y_shape:
        spec = with_kind(spec, output, classes_axis)
    elif output != (classes,):
        raise Unsupported(
            f"{name}: the model must return logits of shape (B, {classes}), got "
            f"({', '.join(map(str, ('B', *output)))}); change its last layer"
        )
    spec = with_functions(spec, model, loss, metrics)
    try:
        source_sha256 = source_hash(path)
    except (PluginError, OSError) as exc:
        raise Unsupported(str(exc)) from exc
    given = dict(fixed or {})
    for tensor in () if base is None else base.tensors:
        del given[tensor.name]
    source = ModuleSource(
        path=path,
        sha256=source_sha256,
        is_random=is_random,
        reason=reason[:MAX_TEXT],
    )
    try:
        reference, check = _referenced(model, spec, is_random=is_random)
    except Unsupported:  # it has types of its own, such as x.to(torch.float32)
        reference, check = _referenced(model, spec, is_random=is_random, is_double=False)
    check_adapters(reference.unused())
    spec = msgspec.structs.replace(spec, selfcheck=check)
    return Artifact(
        spec=spec,
        train=b"",
        evaluate=b"",
        module=source,
        fixed=given,
        remarks=unused_remark(reference.unused()),
    )


def check_adapters(unused: Sequence[str]) -> None:
    """Refuse adapters among the parameters on which the loss does not depend.

    Raises:
        Unsupported: There is one.
    """
    found = [name for name in unused if name.rpartition(".")[2] == LORA_A]
    if found:
        raise Unsupported(
            f"{found[0]}: the loss must depend on each adapter, got one that it does not depend "
            "on; leave its layer out of model.lora"
        )


def unused_remark(unused: Sequence[str]) -> list[str]:
    """Return a line about parameters on which the loss does not depend, if there are any."""
    if not unused:
        return []
    return [
        f"{_and_more(unused[0], len(unused))}: the loss must depend on every parameter, got one "
        "that it does not depend on, so its gradient is 0; remove it from the model, as each round "
        "sends it"[:MAX_TEXT]
    ]


def _referenced(
    model: nn.Module, spec: TaskSpec, *, is_random: bool, is_double: bool = True
) -> tuple[TorchReference, SelfCheck]:
    """Return torch's results for the self-check.

    Raises:
        Unsupported: The module fails, or two equal steps have different losses.
    """

    def broken(problem: str) -> Unsupported:
        return untrainable(spec.name, problem) or Unsupported(
            f"{spec.name}: torch must be able to train the model, got {problem}; correct the module"
        )

    with users_code(broken, Unsupported), torch.random.fork_rng(devices=[]):
        reference = TorchReference(
            model,
            spec.layout,
            spec.kind,
            is_random=is_random,
            is_double=is_double,
            classes_axis=spec.classes_axis,
            own=functions_of(spec),
        )
        check = record_selfcheck(spec, reference, SELFCHECK_SEED, SELFCHECK_BATCH)
        check_equal_steps(spec, reference, is_seeded=False)
    return reference, check


def _tried(model: nn.Module, spec: TaskSpec, *, takes_first: bool) -> tuple[tuple[int, ...], bool]:
    """Return the shape of an output without the batch, and whether a module draws random numbers.

    Raises:
        Unsupported: The output is not one tensor of floats with a row per example, for some size
            of a batch.
    """
    shapes, is_random = set[tuple[int, ...]](), False
    shown = ", ".join(map(str, ("B", *spec.x_shape)))
    for batch, is_training in TRIED:
        _, x, _ = selfcheck_inputs(spec, SELFCHECK_SEED, batch)

        def broken(problem: str, batch: int = batch, x: Examples = x) -> Unsupported:
            advice = "correct the module"
            if spec.x_dtype == "float32" and _accepts_integers(model, x):
                advice = "tokens are whole numbers in float32, so let forward() call x.long()"
            return Unsupported(
                f"{spec.name}: the model must accept x of shape ({shown}) in {spec.x_dtype}, got "
                f"{problem} for B = {batch}; {advice}"
            )

        with torch.random.fork_rng(devices=[]), users_code(broken, Unsupported):
            before = torch.get_rng_state()
            output = copy.deepcopy(model).train(is_training)(torch.from_numpy(x))
            is_random |= is_training and not torch.equal(before, torch.get_rng_state())
        output = first_output(output) if takes_first else output
        is_tensor = isinstance(output, torch.Tensor)
        if not is_tensor or output.shape[:1] != (batch,) or not output.is_floating_point():
            got = f"{output.dtype} {tuple(output.shape)}" if is_tensor else type(output).__name__
            raise Unsupported(
                f"{spec.name}: the module must return one tensor of floats with a row per example, "
                f"got {got.removeprefix('torch.')} for B = {batch}; correct the module"
            )
        if not output.requires_grad:
            raise Unsupported(
                f"{spec.name}: the output must depend on the parameters, got one without a "
                "gradient; leave out torch.no_grad(), detach() and numpy in forward()"
            )
        shapes.add(tuple(output.shape[1:]))
    if len(shapes) > 1:
        raise Unsupported(
            f"{spec.name}: the output must have one shape for any B, got {sorted(shapes)} without "
            "the batch; correct the module"
        )
    return shapes.pop(), is_random


def _accepts_integers(model: nn.Module, x: Examples) -> bool:
    with _no_traces(), suppress(PluginError), users_code(PluginError):
        copy.deepcopy(model)(torch.zeros(x.shape, dtype=torch.int64))
        return True
    return False
