"""Losses and metrics by name, and those of the user, as functions of torch.

The coordinator records them in the graphs of a task; a device calls them only if it trains a module
with torch. This module does not import torch: whoever calls these functions has done so.

    loss(output, y) -> l, or (l, c)         l, c: shape (B,)
    metric(output, y) -> (sum, weight)      both of shape (B,), or (B, columns)

`output` is what the module returns; y has shape (B, *y_shape), with -1 where there is no label. A
mini-batch has the loss sum l / sum c. Without c it is the number of positions with a target.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from fairbed.wire.artifact import (
    MAX_COUNTED,
    Better,
    FunctionSource,
    NamedMetric,
    Scaling,
    TaskSpec,
)
from fairbed.wire.models import factory_at, package_of, source_hash
from fairbed.wire.plugins import PluginError

Tensor: TypeAlias = Any
"""A `torch.Tensor`."""

LossFunction: TypeAlias = Callable[[Any, Tensor], tuple[Tensor, Tensor | None]]
"""Maps what a module returns and y to l and c; c is None for the number of positions."""

MetricFunction: TypeAlias = Callable[[Any, Tensor], tuple[Tensor, Tensor]]


def first_output(output: Any) -> Any:
    """Return the first of several outputs of a module, of which an evaluation counts."""
    while isinstance(output, tuple | list | dict) and output:
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output


@dataclass(frozen=True, slots=True)
class Functions:
    """Loss and metrics of a task."""

    loss: LossFunction | None = None
    """None: that of its kind."""
    metrics: tuple[MetricFunction, ...] = ()


def functions_of(spec: TaskSpec) -> Functions:
    """Return loss and metrics of a task.

    Raises:
        PluginError: A function of the user is absent, or its source differs from that of the task.
    """
    loss = None if not isinstance(spec.loss, FunctionSource) else loss_of(spec.loss, spec)
    return Functions(loss, tuple(metric_of(each, spec) for each in spec.named_metrics))


def loss_of(source: FunctionSource, spec: TaskSpec) -> LossFunction:
    """Return the loss of a source, for a task.

    Raises:
        PluginError: It is absent, has other options, or does not fit the task.
    """
    options = dict(source.options)
    if source.is_own:
        own = partial(_sourced(source, "model.loss"), **options)
        return partial(_with_weights, own)
    built_in = LOSSES.get(source.path)
    if built_in is None:
        raise PluginError(
            f"model.loss: must be {', '.join(('auto', *LOSSES))}, or package.module:function, got "
            f"{source.path!r}; correct the name"
        )
    if spec.kind not in built_in.kinds or (built_in.at_positions and not spec.y_shape):
        where = " at several positions" if built_in.at_positions else ""
        raise PluginError(
            f"model.loss: {source.path} must have a task of {' or '.join(built_in.kinds)}{where}, "
            f"got {spec.kind}{'' if spec.y_shape else ' with one target per example'}; choose "
            "another loss"
        )
    _check_options(source.path, options, built_in.options, spec)
    return partial(built_in.function, spec, **options)


def metric_of(metric: NamedMetric, spec: TaskSpec) -> MetricFunction:
    """Return a metric of a task; see `loss_of`."""
    source = metric.source
    if source.is_own:
        return _sourced(source, "evaluation.metrics")
    return _built_in_metric(source.path, spec)[0]


def _with_weights(own: Callable[..., Any], output: Any, y: Tensor) -> tuple[Tensor, Tensor | None]:
    found = own(output, y)
    return (found[0], found[1]) if isinstance(found, tuple) else (found, None)


def _sourced(source: FunctionSource, key: str) -> Callable[..., Any]:
    """Return a function of the user if its source has the hash that the task names."""
    got = own_hash(source.path, key)
    if got != source.sha256:
        raise PluginError(
            f"{key} {source.path}: the source of {package_of(source.path)} must be that of the "
            f"coordinator (sha256 {source.sha256.hex()[:12]}), got {got.hex()[:12]}; copy the "
            "coordinator's file to this device"
        )
    return own_function(source.path, key)


def own_function(path: str, key: str) -> Callable[..., Any]:
    """Return the function that a path names; the key of the experiment begins messages."""
    try:
        return factory_at(path)
    except PluginError as exc:
        raise _of_key(exc, key) from exc


def own_hash(path: str, key: str) -> bytes:
    """Return the SHA-256 of the source file of the function that a path names."""
    try:
        return source_hash(path)
    except PluginError as exc:
        raise _of_key(exc, key) from exc


def _of_key(exc: PluginError, key: str) -> PluginError:
    text = str(exc).replace("model.name", key, 1).replace("name a factory", "name a function", 1)
    return PluginError(text)


@dataclass(frozen=True, slots=True)
class _Loss:
    function: Callable[..., tuple[Tensor, Tensor | None]]
    kinds: tuple[str, ...]
    options: Mapping[str, tuple[float, float]]
    """Least and largest value of each option; (0, 0): a list with a number per class."""
    at_positions: bool = False


def _check_options(
    name: str,
    options: Mapping[str, Any],
    known: Mapping[str, tuple[float, float]],
    spec: TaskSpec,
) -> None:
    for key, value in options.items():
        if key not in known:
            choices = ", ".join(known) or "none"
            raise PluginError(
                f"model.loss_options.{key}: {name} must have options of {choices}, got {key!r}; "
                "remove it"
            )
        low, high = known[key]
        if high == low == 0.0:
            numbers = value if isinstance(value, tuple) else ()
            if len(numbers) != spec.classes or min(numbers) < 0.0 or not any(numbers):
                got = list(numbers) if isinstance(value, tuple) else repr(value)
                raise PluginError(
                    f"model.loss_options.{key}: must be a list of {spec.classes} numbers of at "
                    f"least 0, one per class and not all 0, got {got}; correct it"
                )
        elif isinstance(value, bool | str | tuple) or not low <= value <= high:
            raise PluginError(
                f"model.loss_options.{key}: must be a number from {low:g} to {high:g}, got "
                f"{value!r}; correct it"
            )


def _torch() -> Any:
    return sys.modules["torch"]


def _constant(values: Sequence[float], like: Tensor) -> Tensor:
    return _torch().tensor([float(value) for value in values], dtype=like.dtype)


def _logits(output: Any, spec: TaskSpec) -> Tensor:
    """Return the logit of each class, (B, *y_shape, classes); one logit z is (0, z)."""
    output = first_output(output)
    if spec.kind == "classification":
        return output.movedim(1, -1) if spec.classes_axis == "first" else output
    one = output.reshape(-1, *spec.y_shape, 1)
    return one * _torch().arange(2).to(output.dtype)


def _numbers(output: Any, y: Tensor) -> Tensor:
    """Return the predictions of regression in the shape of y."""
    output = first_output(output)
    return output if y.dim() > 1 else output.reshape(-1)


def _of_examples(values: Tensor) -> Tensor:
    """Return the sum over the positions of each example, shape (B,)."""
    return values.sum(tuple(range(1, values.dim()))) if values.dim() > 1 else values


def _one_hot(y: Tensor, logits: Tensor) -> Tensor:
    """Return the labels as 0 and 1, (B, *y_shape, classes); all 0 where there is none."""
    numbers = _torch().arange(logits.shape[-1])
    return (y.unsqueeze(-1) == numbers).to(logits.dtype)


def _cross_entropy(
    spec: TaskSpec,
    output: Any,
    y: Tensor,
    *,
    label_smoothing: float = 0.0,
    weight: Sequence[float] = (),
    ignore_index: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return `torch.nn.functional.cross_entropy`; c is the weight of the label."""
    logits = _logits(output, spec)
    logs, labels = _torch().log_softmax(logits, -1), _one_hot(y, logits)
    if ignore_index is not None:
        labels = labels * (y != ignore_index).to(labels.dtype).unsqueeze(-1)
    known = labels.sum(-1)
    if weight:
        labels, logs_of_all = labels * _constant(weight, logits), logs * _constant(weight, logits)
    else:
        logs_of_all = logs
    losses = -(logs * labels).sum(-1)
    if label_smoothing:
        share = label_smoothing / logits.shape[-1]
        losses = (1.0 - label_smoothing) * losses - share * logs_of_all.sum(-1) * known
    if not weight and ignore_index is None:
        return _of_examples(losses), None
    return _of_examples(losses), _of_examples(labels.sum(-1))


def _hinge(
    spec: TaskSpec,
    output: Any,
    y: Tensor,
    *,
    margin: float = 1.0,
    p: float = 1.0,
    weight: Sequence[float] = (),
) -> tuple[Tensor, Tensor | None]:
    """Return `torch.nn.functional.multi_margin_loss`, for one logit max(0, margin -+ z)^p."""
    torch = _torch()
    if spec.kind == "binary":
        z = first_output(output).reshape(y.shape)
        labels = torch.where(y > 0, 1.0, -1.0).to(z.dtype)
        losses = (margin - labels * z).clamp(min=0.0)
        losses = losses if p == 1.0 else losses * losses
        if weight:
            low, high = (float(number) for number in weight)
            losses = losses * torch.where(y > 0, high, low).to(z.dtype)
        return _of_examples(losses * (y >= 0).to(z.dtype)), None
    logits = _logits(output, spec)
    labels = _one_hot(y, logits)
    right = (logits * labels).sum(-1, keepdim=True)
    losses = (margin - right + logits).clamp(min=0.0)
    losses = (losses if p == 1.0 else losses * losses) * (1.0 - labels)
    of_labels = labels * _constant(weight, logits) if weight else labels
    return _of_examples(losses.sum(-1) * of_labels.sum(-1) / logits.shape[-1]), None


def _huber(
    spec: TaskSpec, output: Any, y: Tensor, *, delta: float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """Return `torch.nn.functional.huber_loss`."""
    error = (_numbers(output, y) - y).abs()
    inner = error.clamp(max=delta)
    return _of_examples(inner * (error - 0.5 * inner)), None


def _multi_label(
    spec: TaskSpec,
    output: Any,
    y: Tensor,
    *,
    weight: Sequence[float] = (),
    pos_weight: Sequence[float] = (),
) -> tuple[Tensor, Tensor | None]:
    """Return `torch.nn.functional.binary_cross_entropy_with_logits`, its mean over known labels."""
    z = first_output(output)
    both = z.unsqueeze(-1) * _torch().arange(2).to(z.dtype)
    logs = _torch().log_softmax(both, -1)
    is_set, is_unset = (y == 1).to(z.dtype), (y == 0).to(z.dtype)
    if pos_weight:
        is_set = is_set * _constant(pos_weight, z)
    losses = -(is_set * logs[..., 1] + is_unset * logs[..., 0])
    if weight:
        losses = losses * _constant(weight, z)
    return _of_examples(losses), None


def _dice(
    spec: TaskSpec, output: Any, y: Tensor, *, smooth: float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """Return 1 minus the soft Dice coefficient of each example, the mean over classes; c is 1.

        D = (2 sum p t + smooth) / (sum p + sum t + smooth)

    Sums are over the positions with a label. Of one logit and of labels it is that of what is set.

    Source:
        Milletari et al., 3DV 2016 (arXiv:1606.04797), eq. 3, without squares.
    """
    torch = _torch()
    known = (y >= 0).unsqueeze(-1)
    if spec.kind == "classification":
        logits = _logits(output, spec)
        shares, labels = torch.softmax(logits, -1), _one_hot(y, logits)
    else:
        z = first_output(output).reshape(y.shape).unsqueeze(-1)
        shares, labels = torch.sigmoid(z), (y == 1).unsqueeze(-1).to(z.dtype)
    shares = shares * known.to(shares.dtype)
    over = tuple(range(1, y.dim()))
    both, total = (shares * labels).sum(over), (shares + labels).sum(over)
    losses = 1.0 - ((2.0 * both + smooth) / (total + smooth)).mean(-1)
    return losses, torch.ones_like(_of_examples(y)).to(losses.dtype)


_PER_CLASS = (0.0, 0.0)

LOSSES: Mapping[str, _Loss] = {
    "cross-entropy": _Loss(
        _cross_entropy,
        ("classification", "binary"),
        {"label_smoothing": (0.0, 1.0), "weight": _PER_CLASS, "ignore_index": (-1.0, 1 << 31)},
    ),
    "hinge": _Loss(
        _hinge,
        ("classification", "binary"),
        {"margin": (0.0, 1e6), "p": (1.0, 2.0), "weight": _PER_CLASS},
    ),
    "huber": _Loss(_huber, ("regression",), {"delta": (1e-6, 1e6)}),
    "multi-label": _Loss(
        _multi_label, ("multi-label",), {"weight": _PER_CLASS, "pos_weight": _PER_CLASS}
    ),
    "dice": _Loss(
        _dice,
        ("classification", "binary", "multi-label"),
        {"smooth": (0.0, 1e6)},
        at_positions=True,
    ),
}
"""Losses by name."""


class _Traits(NamedTuple):
    better: Better = "more"
    scaling: Scaling = "ratio"
    columns: int = 1


_TOP = re.compile(r"top([1-9]\d{0,5})")

METRICS: Mapping[str, tuple[str, ...]] = {
    "topK": ("classification",),
    "f1": ("classification", "binary", "multi-label"),
    "iou": ("classification", "binary"),
    "perplexity": ("classification", "binary"),
    "mse": ("regression",),
    "rmse": ("regression",),
    "mae": ("regression",),
}
"""Metrics by name, and their tasks; topK is top5, top3, ..."""


def is_metric(name: str) -> bool:
    """Return whether a name is that of a built-in metric."""
    return (name in METRICS and name != "topK") or _TOP.fullmatch(name) is not None


def label_of(name: str) -> str:
    """Return the name of a metric in results: that of its function."""
    return name.rpartition(":")[2].rpartition(".")[2]


def built_in_traits(name: str, spec: TaskSpec) -> _Traits:
    """Return what is declared of a built-in metric for a task.

    Raises:
        PluginError: There is no such metric, or it does not fit the task.
    """
    return _built_in_metric(name, spec)[1]


def _built_in_metric(name: str, spec: TaskSpec) -> tuple[MetricFunction, _Traits]:
    kinds = METRICS["topK"] if _TOP.fullmatch(name) else METRICS.get(name, ())
    if not is_metric(name):
        raise PluginError(
            f"evaluation.metrics: must be of {', '.join(METRICS)}, or package.module:function, got "
            f"{name!r}; correct the name"
        )
    if spec.kind not in kinds:
        raise PluginError(
            f"evaluation.metrics: {name} must have a task of {' or '.join(kinds)}, got "
            f"{spec.kind}; choose another metric"
        )
    if top := _TOP.fullmatch(name):
        return partial(_top, spec, int(top[1])), _Traits()
    if name == "perplexity":
        return partial(_nats, spec), _Traits("less", "exp")
    if name in ("mse", "rmse"):
        return _squares, _Traits("less", "sqrt" if name == "rmse" else "ratio")
    if name == "mae":
        return _absolute, _Traits("less")
    is_one = spec.kind == "binary" or (spec.kind == "classification" and spec.classes == 2)
    columns = 1 if is_one and name == "f1" else spec.classes
    if columns > MAX_COUNTED:
        raise PluginError(
            f"evaluation.metrics: {name} must have at most {MAX_COUNTED} classes, got "
            f"{spec.classes}; choose another metric"
        )
    return partial(_f1 if name == "f1" else _iou, spec), _Traits(columns=columns)


def _top(spec: TaskSpec, k: int, output: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions whose label is among the k largest logits; a tie counts as larger."""
    logits = _logits(output, spec)
    labels = _one_hot(y, logits)
    own = (logits * labels).sum(-1, keepdim=True)
    above = ((logits >= own).to(logits.dtype) * (1.0 - labels)).sum(-1)
    known = labels.sum(-1)
    return _of_examples((above < k).to(logits.dtype) * known), _of_examples(known)


def _nats(spec: TaskSpec, output: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    logits = _logits(output, spec)
    labels = _one_hot(y, logits)
    logs = _torch().log_softmax(logits, -1)
    return _of_examples(-(logs * labels).sum(-1)), _of_examples(labels.sum(-1))


def _squares(output: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    error = _numbers(output, y) - y
    return _of_examples(error * error), _of_examples(_torch().ones_like(y))


def _absolute(output: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    error = _numbers(output, y) - y
    return _of_examples(error.abs()), _of_examples(_torch().ones_like(y))


def _counts(spec: TaskSpec, output: Any, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return true positives, predictions and labels of each class, each (B, classes)."""
    if spec.kind == "multi-label":
        z = first_output(output)
        known = (y >= 0).to(z.dtype)
        found, labels = (z > 0.0).to(z.dtype) * known, (y == 1).to(z.dtype)
        return found * labels, found, labels
    logits = _logits(output, spec)
    labels = _one_hot(y, logits)
    found = _one_hot(logits.argmax(-1), logits) * (y >= 0).to(logits.dtype).unsqueeze(-1)

    def of_classes(values: Tensor) -> Tensor:
        return values.sum(tuple(range(1, y.dim()))) if y.dim() > 1 else values

    return of_classes(found * labels), of_classes(found), of_classes(labels)


def _f1(spec: TaskSpec, output: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return 2 TP and 2 TP + FP + FN: of class 1 of two, else of each class or label."""
    both, found, labels = _counts(spec, output, y)
    if spec.kind != "multi-label" and both.shape[-1] == 2:
        both, found, labels = both[:, 1], found[:, 1], labels[:, 1]
    return 2.0 * both, found + labels


def _iou(spec: TaskSpec, output: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return TP and TP + FP + FN of each class."""
    both, found, labels = _counts(spec, output, y)
    return both, found + labels - both
