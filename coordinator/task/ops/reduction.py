"""Reductions along axes: sums, means, maxima, softmax."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from fairbed.coordinator.task.lowering import (
    ELEMENT_TYPES,
    Handler,
    Lowering,
    Value,
    arguments,
    dtype_of,
    operation_name,
    shape_of,
    static_shape,
    unsupported,
)
from fairbed.coordinator.task.ops.elementwise import ALIASES
from fairbed.coordinator.task.ops.shape import permutation, viewed


def _reduce(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        source, *options = arguments(node)
        dims = options[0] if options else []
        keep = len(options) > 1 and options[1]
        inputs = [lowering.tensor(source, dtype_of(node))]
        if dims:
            rank = len(shape_of(source))
            inputs.append(lowering.graph.ints(sorted(dim % rank for dim in dims)))
        return lowering.graph.op(kind, *inputs, keepdims=int(keep))

    return handler


def _softmax(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        source, axis, _ = arguments(node)
        return lowering.graph.op(kind, lowering.tensor(source, dtype_of(node)), axis=axis)

    return handler


_LINEAR = (
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.expand.default",
    "aten.mul.Scalar",
    "aten.div.Scalar",
    *ALIASES,
)
"""Operations whose result is finite where their first argument is."""


def _safe_softmax(lowering: Lowering, node: fx.Node) -> Value:
    """Return a softmax that is 0 where all inputs are -inf: where a mask hides each position.

    Products alone hide none. Otherwise a finite least input replaces NaN of such a row by a share,
    and a factor makes it 0.
    """
    source, axis = arguments(node)[:2]
    graph, value = lowering.graph, lowering.tensor(source, dtype_of(node))
    origin = source
    while operation_name(origin) in _LINEAR and isinstance(origin.args[0], fx.Node):
        origin = origin.args[0]
    if operation_name(origin) in ("aten.bmm.default", "aten.mm.default"):
        return graph.op("Softmax", value, axis=axis)
    least = lowering.tensor(float(np.finfo(np.float32).min), torch.float32)
    over = graph.ints([axis % len(shape_of(source))])
    most = graph.op("ReduceMax", value, over, keepdims=1)
    is_shown = graph.op("GreaterOrEqual", most, least)
    shown = graph.op("Cast", is_shown, to=ELEMENT_TYPES[torch.float32])
    found = graph.op("Softmax", graph.op("Max", value, least), axis=axis)
    return graph.op("Mul", found, shown)


def _softmax_backward(lowering: Lowering, node: fx.Node) -> Value:
    """Return y (g - sum(g y)).

    In attention g = G V^T and the result is O = y V, so the sum is that of G O, which is as wide
    as a head, and not as long as the sequence.

    Source:
        Dao et al., NeurIPS 2022 (FlashAttention), appendix B.
    """
    gradient, result, axis = arguments(node)[:3]
    graph, g, y = lowering.graph, lowering.value(gradient), lowering.value(result)
    last = len(shape_of(result)) - 1
    over = graph.ints([axis % max(1, last + 1)])
    attended = _attended(gradient, result) if axis % (last + 1) == last else None
    if attended is None:
        total = graph.op("ReduceSum", graph.op("Mul", g, y), over, keepdims=1)
    else:
        product = graph.op("Mul", *(lowering.value(part) for part in attended))
        total = graph.op("ReduceSum", product, graph.ints([2]), keepdims=1)
        rows = [n if isinstance(n, int) else -1 for n in [*shape_of(result)[:-1], 1]]
        total = graph.op("Reshape", total, graph.ints(rows))
    return graph.op("Mul", y, graph.op("Sub", g, total))


def _attended(gradient: fx.Node, weights: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return G and O of attention weights y, if their gradient is G V^T and O = y V."""
    of_weights = _shown(gradient)
    if operation_name(of_weights) != "aten.bmm.default":
        return None
    outer, turned = arguments(of_weights)
    values, axes = permutation(turned)
    lengths = {str(shape_of(part)[-1]) for part in (of_weights, weights)}
    if axes != [0, 2, 1] or len(lengths) > 1:
        return None
    first = _shown(weights)
    forms = [first]
    for form in forms:
        forms += [user for user in form.users if user not in forms and _shown(user) is first]
    for product in values.users:
        is_product = operation_name(product) == "aten.bmm.default"
        if is_product and product.args[0] in forms and product.args[1] is values:
            return outer, product
    return None


def _shown(node: fx.Node) -> fx.Node:
    """Return the value that a chain of views and aliases shows."""
    while (source := viewed(node)) is not node or operation_name(source) in ALIASES:
        node = source if source is not node else arguments(source)[0]
    return node


def _argmax(lowering: Lowering, node: fx.Node) -> Value:
    source, axis, *keep = arguments(node)
    keepdims = int(keep[0]) if keep else 0
    return lowering.graph.op("ArgMax", lowering.value(source), axis=axis, keepdims=keepdims)


def _single(kind: str) -> Handler:
    """Return the rule of a reduction along one axis, dim and keepdim."""

    def handler(lowering: Lowering, node: fx.Node) -> Value:
        source, dim, *keep = arguments(node)
        axis = lowering.graph.ints([dim % max(1, len(shape_of(source)))])
        value = lowering.tensor(source, dtype_of(node))
        return lowering.graph.op(kind, value, axis, keepdims=int(bool(keep and keep[0])))

    return handler


def _extreme(reduction: str, position: str) -> Handler:
    """Return the rule of values and positions of the extremes along an axis."""

    def handler(lowering: Lowering, node: fx.Node) -> Value:
        source, dim, *keep = arguments(node)
        axis, keepdims = dim % max(1, len(shape_of(source))), int(bool(keep and keep[0]))
        value, graph = lowering.value(source), lowering.graph
        return (
            graph.op(reduction, value, graph.ints([axis]), keepdims=keepdims),
            graph.op(position, value, axis=axis, keepdims=keepdims),
        )

    return handler


def _any(kind: str) -> Handler:
    """Return the rule of whether any, or all, of the values along axes are not zero."""

    def handler(lowering: Lowering, node: fx.Node) -> Value:
        source, *options = arguments(node)
        dims, keep = (options[0] if options else []), bool(len(options) > 1 and options[1])
        axes = [dims] if isinstance(dims, int) else list(dims)
        is_set = lowering.tensor(source, torch.bool)
        number = lowering.graph.op("Cast", is_set, to=ELEMENT_TYPES[torch.int64])
        over = (
            [lowering.graph.ints([axis % len(shape_of(source)) for axis in axes])] if axes else []
        )
        found = lowering.graph.op(kind, number, *over, keepdims=int(keep))
        return lowering.graph.op("Cast", found, to=ELEMENT_TYPES[torch.bool])

    return handler


def _variance(lowering: Lowering, node: fx.Node) -> Value:
    """Return sum (x - mean)^2 / (n - correction)."""
    source, *options = arguments(node)
    rank, dims = len(shape_of(source)), (options[0] if options else None)
    axes = sorted(dim % rank for dim in dims) if dims else list(range(rank))
    named: dict[str, Any] = dict(node.kwargs)
    keepdims, correction = int(named.get("keepdim", False)), named.get("correction", 1)
    correction = 1 if correction is None else correction
    graph, value = lowering.graph, lowering.value(source)
    over = graph.ints(axes)
    centred = graph.op("Sub", value, graph.op("ReduceMean", value, over, keepdims=1))
    squares = graph.op("Mul", centred, centred)
    mean = graph.op("ReduceMean", squares, over, keepdims=keepdims)
    if correction == 0:
        return mean
    sizes = [shape_of(source)[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise unsupported(node, "must not have a correction over the batch")
    n = math.prod(int(size) for size in sizes)
    if n <= correction:
        raise unsupported(node, f"must have more than {correction} values, got {n}")
    return graph.op("Mul", mean, graph.constant(np.array(n / (n - correction), np.float32)))


def _cumulated(lowering: Lowering, node: fx.Node) -> Value:
    source, dim = arguments(node)[:2]
    axis = lowering.graph.constant(np.array(dim % max(1, len(shape_of(source))), np.int64))
    return lowering.graph.op("CumSum", lowering.tensor(source, dtype_of(node)), axis)


def _top(lowering: Lowering, node: fx.Node) -> Value:
    source, count, *options = arguments(node)
    given = [*options, *(-1, True, True)[len(options) :]]
    return _largest(lowering, source, count, int(given[0]), bool(given[1]))


def _sorted(lowering: Lowering, node: fx.Node) -> Value:
    source, *options = arguments(node)
    dim, descending = [*options, *(-1, False)[len(options) :]][:2]
    rank = max(1, len(shape_of(source)))
    count = static_shape(source, dim % rank)[0]
    return _largest(lowering, source, count, int(dim), bool(descending))


def _largest(
    lowering: Lowering, source: fx.Node, count: int, dim: int, is_descending: bool
) -> Value:
    axis, wanted = dim % max(1, len(shape_of(source))), lowering.graph.ints([count])
    return lowering.graph.ops(
        "TopK", 2, lowering.value(source), wanted, axis=axis, largest=int(is_descending), sorted=1
    )


OPERATIONS: Mapping[str, Handler] = {
    "aten.sum.default": _reduce("ReduceSum"),
    "aten.sum.dim_IntList": _reduce("ReduceSum"),
    "aten.mean.default": _reduce("ReduceMean"),
    "aten.mean.dim": _reduce("ReduceMean"),
    "aten.amax.default": _reduce("ReduceMax"),
    "aten.amin.default": _reduce("ReduceMin"),
    "aten.max.default": _reduce("ReduceMax"),
    "aten.min.default": _reduce("ReduceMin"),
    "aten.max.dim": _extreme("ReduceMax", "ArgMax"),
    "aten.min.dim": _extreme("ReduceMin", "ArgMin"),
    **dict.fromkeys(("aten.any.default", "aten.any.dim", "aten.any.dims"), _any("ReduceMax")),
    **dict.fromkeys(("aten.all.default", "aten.all.dim"), _any("ReduceMin")),
    "aten.prod.default": _reduce("ReduceProd"),
    "aten.prod.dim_int": _single("ReduceProd"),
    "aten.var.correction": _variance,
    "aten.cumsum.default": _cumulated,
    "aten.topk.default": _top,
    "aten.sort.default": _sorted,
    "aten._log_softmax.default": _softmax("LogSoftmax"),
    "aten._softmax.default": _softmax("Softmax"),
    "aten._safe_softmax.default": _safe_softmax,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten.argmax.default": _argmax,
}
