"""Losses and metrics of a task: found by name, and checked by values before anything records them.

A device pads, weighs and splits mini-batches, and an evaluation adds up chunks. So a loss must have
rows that depend on their own example alone, and a metric must add up.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import msgspec
import numpy as np
import torch
from msgspec import UNSET
from torch import nn
from torch.utils import _pytree as pytree

from fairbed.coordinator.task.errors import Unsupported
from fairbed.wire.artifact import (
    MAX_COUNTED,
    MAX_METRICS,
    MAX_Y_VALUES,
    Better,
    FunctionSource,
    NamedMetric,
    Scaling,
    TaskKind,
    TaskSpec,
)
from fairbed.wire.evaluation import Targets
from fairbed.wire.losses import (
    LOSSES,
    Functions,
    built_in_traits,
    first_output,
    functions_of,
    is_metric,
    label_of,
    own_function,
    own_hash,
)
from fairbed.wire.plugins import PluginError, is_path, users_code
from fairbed.wire.selfcheck import selfcheck_inputs
from fairbed.wire.tensors import batch_text

SEED, BATCH = 21, 6
"""Of the examples on which functions are checked."""

TOLERANCE = 1e-4
"""Largest change of a row by other rows, and of sums by a split, relative to the largest value."""

AUTO = "auto"
RESERVED = ("accuracy", "loss")
"""Names that no metric of the user may have."""


def loss_source(
    name: str, options: Mapping[str, Any], bounded_by: str = ""
) -> FunctionSource | None:
    """Return the source of a loss by name; None for that of the task.

    Args:
        name: auto, the name of a built-in one, or `package.module:function`.
        options: Its options.
        bounded_by: Key and value of what takes losses as at least 0; empty: nothing does.

    Raises:
        Unsupported: There is no such loss, or options belong to none.
    """
    if name == AUTO:
        if options:
            raise Unsupported(
                'model.loss_options: must be left out with model.loss = "auto", got '
                f"{', '.join(options)}; name a loss"
            )
        return None
    if name not in LOSSES and not is_path(name):
        raise Unsupported(
            f"model.loss: must be {', '.join((AUTO, *LOSSES))}, or package.module:function, got "
            f"{name!r}; correct the name"
        )
    given = tuple(
        (key, tuple(map(float, value)) if isinstance(value, list | tuple) else value)
        for key, value in sorted(options.items())
    )
    return FunctionSource(
        path=name,
        sha256=_hash_of(name, "model.loss"),
        options=given,
        bounded_by=bounded_by if is_path(name) else "",
    )


N_VALUES = 16
"""Values of the targets of a regression of which the checks draw, from the least to the largest."""


def values_of(targets: Targets | None, kind: TaskKind, classes: int) -> tuple[float, ...]:
    """Return the values of which the checks of functions draw targets.

    Args:
        targets: y of the data, shape (n, *y_shape); None: not known.
        kind: What the model predicts.
        classes: Number of classes.

    Returns:
        Quantiles of a regression, or the classes that occur; empty for all that the kind has.
    """
    if targets is None or not targets.size:
        return ()
    if kind == "regression":
        finite = targets[np.isfinite(targets)]
        places = np.linspace(0.0, 1.0, N_VALUES)
        found = np.unique(np.quantile(finite, places, method="nearest")) if finite.size else finite
        return tuple(map(float, found))
    present = [float(label) for label in np.unique(targets).tolist() if label >= 0]
    is_all = len(present) == (2 if kind == "multi-label" else classes)
    return () if is_all or len(present) > MAX_Y_VALUES else tuple(present)


def metric_sources(names: Sequence[str]) -> tuple[FunctionSource, ...]:
    """Return the sources of metrics by name.

    Raises:
        Unsupported: There is no such metric, two have one name, or there are too many.
    """
    known = list[str]()
    for name in names:
        if not is_metric(name) and not is_path(name):
            raise Unsupported(
                "evaluation.metrics: must be top5, f1, iou, perplexity, mse, rmse, mae, or "
                f"package.module:function, got {name!r}; correct the name"
            )
        label = label_of(name)
        if label in known or label in RESERVED:
            got = "two of that name" if label in known else f"the name {label}"
            raise Unsupported(
                f"evaluation.metrics: {name} must have a name of its own, got {got}; rename the "
                "function"
            )
        known.append(label)
    if len(known) > MAX_METRICS:
        raise Unsupported(
            f"evaluation.metrics: must be at most {MAX_METRICS}, got {len(known)}; remove some"
        )
    return tuple(
        FunctionSource(path=name, sha256=_hash_of(name, "evaluation.metrics")) for name in names
    )


def _hash_of(name: str, key: str) -> bytes:
    if not is_path(name):
        return b""
    try:
        return own_hash(name, key)
    except (PluginError, OSError) as exc:
        raise Unsupported(str(exc)) from exc


def own_code(loss: FunctionSource | None, metrics: Sequence[FunctionSource]) -> list[Any]:
    """Return the functions of the user, on which an export depends."""
    sources = [("model.loss", loss)] if loss is not None else []
    named = [*sources, *(("evaluation.metrics", each) for each in metrics)]
    try:
        return [own_function(each.path, key) for key, each in named if each.is_own]
    except PluginError as exc:
        raise Unsupported(str(exc)) from exc


def with_functions(
    spec: TaskSpec,
    model: nn.Module,
    loss: FunctionSource | None,
    metrics: Sequence[FunctionSource],
) -> TaskSpec:
    """Return a task with its loss and metrics, checked on outputs of the module.

    Args:
        spec: The task, complete but for them.
        model: The module; it is not changed.
        loss: A loss by name or of the user; None: that of the task.
        metrics: Metrics by name or of the user.

    Raises:
        Unsupported: One is absent, does not fit the task, or breaks its contract.
    """
    if loss is None and not metrics:
        return spec
    _, x, y = selfcheck_inputs(spec, SEED, BATCH)

    def broken(problem: str) -> Unsupported:
        return Unsupported(f"{spec.name}: the model must accept x, got {problem}; correct it")

    with users_code(broken, Unsupported), torch.random.fork_rng(devices=[]), torch.no_grad():
        output = copy.deepcopy(model).eval()(torch.from_numpy(x))
    _check_output(spec, output, has_loss=loss is not None)
    try:
        named = tuple(_declared(each, spec) for each in metrics)
        spec = msgspec.structs.replace(spec, loss=loss or UNSET, metrics=named or UNSET)
        functions = functions_of(spec)
    except PluginError as exc:
        raise Unsupported(str(exc)) from exc
    if loss is not None and _check_loss(loss, functions, output, y):
        spec = msgspec.structs.replace(spec, weighs=True)
    if not named:
        return spec
    sized = tuple(
        _checked_metric(metric, function, output, y)
        for metric, function in zip(named, functions.metrics, strict=True)
    )
    return msgspec.structs.replace(spec, metrics=sized)


def _declared(source: FunctionSource, spec: TaskSpec) -> NamedMetric:
    if not source.is_own:
        traits = built_in_traits(source.path, spec)
        return NamedMetric(
            name=source.path,
            source=source,
            better=traits.better,
            scaling=traits.scaling,
            columns=traits.columns,
        )
    function = own_function(source.path, "evaluation.metrics")
    better = _attribute(source.path, function, "better", get_args(Better))
    scaling = _attribute(source.path, function, "scaling", get_args(Scaling))
    return NamedMetric(name=label_of(source.path), source=source, better=better, scaling=scaling)


def _attribute(path: str, function: object, name: str, choices: Sequence[str]) -> Any:
    value = getattr(function, name, choices[0])
    if value not in choices:
        raise Unsupported(
            f"evaluation.metrics {path}: {name} must be {' or '.join(choices)}, got {value!r}; "
            "correct it"
        )
    return value


def _check_output(spec: TaskSpec, output: Any, *, has_loss: bool) -> None:
    leaves = pytree.tree_leaves(output)
    if not has_loss and not isinstance(output, torch.Tensor):
        return  # a later step reports it
    for leaf in leaves:
        is_fit = isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (BATCH,)
        if not is_fit:
            got = tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
            raise Unsupported(
                f"{spec.name}: each output of the module must be a tensor with a row per example, "
                f"got {got} for B = {BATCH}; return only what belongs to one example"
            )
    first = first_output(output)
    if spec.kind == "classification" and not spec.y_shape and spec.classes > 2:
        shape = tuple(first.shape[1:])
        if shape != (spec.classes,):
            raise Unsupported(
                f"{spec.name}: the first output must be logits of shape (B, {spec.classes}), of "
                f"which an evaluation counts, got {batch_text(shape)}; return them first"
            )


def _rows(output: Any, rows: slice) -> Any:
    return pytree.tree_map(lambda leaf: leaf[rows], output)


def _tensor(y: Targets) -> torch.Tensor:
    return torch.from_numpy(y)


def _check_loss(source: FunctionSource, functions: Functions, output: Any, y: Targets) -> bool:
    """Check a loss on outputs; return whether it weighs examples itself.

    Raises:
        Unsupported: It breaks its contract.
    """
    assert functions.loss is not None
    name = f"model.loss {source.path}"
    function, targets = functions.loss, _tensor(y)
    given = pytree.tree_map(
        lambda leaf: leaf.clone().requires_grad_() if leaf.is_floating_point() else leaf, output
    )

    def call(of: Any, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        def broken(problem: str) -> Unsupported:
            return Unsupported(f"{name}: must return a loss per example, got {problem}; correct it")

        with users_code(broken, Unsupported):
            losses, weights = function(of, at)
        _check_rows(name, "a loss", losses, len(at), _SCALAR)
        if weights is not None:
            _check_rows(name, "a weight c", weights, len(at), "return one c per example")
        return losses, weights

    losses, weights = call(given, targets)
    values = losses.detach()
    if not bool(torch.isfinite(values).all()):
        raise Unsupported(
            f"{name}: must be finite, got {float(values[~torch.isfinite(values)][0]):g} for an "
            "output of the untrained model; add an epsilon where it divides or takes a logarithm"
        )
    if source.bounded_by and float(values.min()) < 0.0:
        raise Unsupported(
            f"{name}: must be at least 0 with {source.bounded_by}, got {float(values.min()):.3g}; "
            "add a constant, or choose another one"
        )
    if not losses.requires_grad:
        raise Unsupported(
            f"{name}: must have a gradient by the output, got none; leave out argmax, detach() and "
            "numpy"
        )
    scale = float(values.abs().max()) + 1e-6
    for row in range(len(targets)):
        of = slice(row, row + 1)
        alone, weight = call(_rows(given, of), targets[of])
        change = float((alone.detach() - values[of]).abs().max())
        if not change <= TOLERANCE * scale:
            raise Unsupported(
                f"{name}: each row must depend on its own example alone, got row {row} of "
                f"{float(values[row]):.4g}, and {float(alone.detach()[0]):.4g} without the others; "
                "leave out means, sums, norms and ranks over the batch"
            )
        if (weights is None) != (weight is None):
            raise Unsupported(f"{name}: must always return c, or never; correct it")
        if weights is not None and weight is not None and not torch.equal(weight, weights[of]):
            raise Unsupported(
                f"{name}: c of an example must depend on its y alone, got another one without the "
                "other examples; divide by no sum over the batch"
            )
    if weights is None:
        return False
    others = call(pytree.tree_map(lambda leaf: leaf.roll(1, 0) * 2, given), targets)[1]
    if weights.requires_grad or others is None or not torch.equal(weights, others):
        raise Unsupported(
            f"{name}: c must depend on y alone, got one that depends on the output; put that "
            "factor into the loss"
        )
    low = float(weights.min())
    if not bool(torch.isfinite(weights).all()) or low < 0.0 or not bool((weights > 0).any()):
        got = "0 for all examples" if low == 0.0 else f"{low:g}"
        raise Unsupported(
            f"{name}: c must be finite, at least 0, and above 0 for an example, got {got}; return "
            "the number of positions that count"
        )
    return True


_SCALAR = (
    'compute it with reduction="none" and sum over the positions of each example: '
    "losses.flatten(1).sum(1)"
)


def _check_rows(name: str, what: str, values: Any, n: int, advice: str) -> None:
    if not isinstance(values, torch.Tensor):
        got = type(values).__name__
    elif values.shape == (n,):
        return
    else:
        got = "a scalar" if not values.shape else f"the shape {tuple(values.shape)} for B = {n}"
    raise Unsupported(f"{name}: must return {what} per example, shape (B,), got {got}; {advice}")


def _checked_metric(
    metric: NamedMetric,
    function: Callable[[Any, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    output: Any,
    y: Targets,
) -> NamedMetric:
    """Check a metric on outputs; return it with its number of columns.

    Raises:
        Unsupported: It breaks its contract.
    """
    name, targets = f"evaluation.metrics {metric.source.path}", _tensor(y)

    def call(of: Any, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def broken(problem: str) -> Unsupported:
            return Unsupported(
                f"{name}: must return sum and weight per example, got {problem}; correct it"
            )

        with users_code(broken, Unsupported), torch.no_grad():
            found: Any = function(of, at)
        if not isinstance(found, tuple) or len(found) != 2:
            got = f"{len(found)} values" if isinstance(found, tuple) else type(found).__name__
            raise Unsupported(
                f"{name}: must return (sum, weight), each of shape (B,), got {got}; return what "
                "each example adds to the numerator, and to the denominator"
            )
        shapes = [tuple(part.shape) if isinstance(part, torch.Tensor) else None for part in found]
        is_fit = shapes[0] == shapes[1] and shapes[0] is not None and shapes[0][:1] == (len(at),)
        if not is_fit or len(shapes[0] or ()) > 2:
            raise Unsupported(
                f"{name}: sum and weight must be of shape (B,), or (B, columns) for a mean of "
                f"ratios, got {shapes[0]} and {shapes[1]} for B = {len(at)}; return one number per "
                "example"
            )
        return found[0].double(), found[1].double()

    whole = call(output, targets)
    columns = 1 if whole[0].dim() == 1 else whole[0].shape[1]
    if not 1 <= columns <= MAX_COUNTED:
        raise Unsupported(
            f"{name}: must have at most {MAX_COUNTED} columns, got {columns}; remove some"
        )
    if not all(bool(torch.isfinite(part).all()) for part in whole):
        raise Unsupported(
            f"{name}: sum and weight must be finite, got NaN or infinity; let an example without a "
            "value have the weight 0"
        )
    if float(whole[1].min()) < 0.0:
        raise Unsupported(
            f"{name}: a weight must be at least 0, got {float(whole[1].min()):.4g}; put the sign "
            "into the sum"
        )
    cut = len(targets) // 2
    halves = [call(_rows(output, of), targets[of]) for of in (slice(0, cut), slice(cut, None))]
    for part, what in enumerate(("sum", "weight")):
        together = whole[part].sum(0)
        apart = sum((half[part].sum(0) for half in halves), torch.zeros_like(together))
        error = float((together - apart).abs().max())
        if not error <= TOLERANCE * (float(together.abs().max()) + 1e-6):
            raise Unsupported(
                f"{name}: must add up, got a {what} of {float(together.flatten()[0]):.4g} for "
                f"{len(targets)} examples, and {float(apart.flatten()[0]):.4g} for its two halves; "
                "return what each example adds, and no ratio of a batch"
            )
    return msgspec.structs.replace(metric, columns=columns)
