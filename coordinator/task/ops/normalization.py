"""Normalisation of batches, layers and groups, and gradients of the first two."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import fx

from fairbed.coordinator.task.lowering import (
    ELEMENT_TYPES,
    Handler,
    Lowering,
    Value,
    arguments,
    shape_of,
    static_shape,
    unsupported,
)


def _batch_norm_training(lowering: Lowering, node: fx.Node) -> Value:
    """Normalise by the mini-batch and update the running statistics, with n - 1 for the variance.

    The standard translation of this operation normalises by the running statistics instead.
    """
    x, weight, bias, mean_node, variance_node, training, momentum, epsilon = arguments(node)
    if not training:
        raise unsupported(node, f"must be training, got training={training}")
    graph, value = lowering.graph, lowering.value(x)
    channels, rank = static_shape(x, 1)[0], len(shape_of(x))
    over = graph.ints([0, *range(2, rank)])
    mean = graph.op("ReduceMean", value, over, keepdims=0)
    centred = _centred(lowering, value, mean, rank)
    squares = graph.op("Mul", centred, centred)
    variance = graph.op("ReduceMean", squares, over, keepdims=0)
    scale, shift = _scale_and_shift(lowering, x, weight, bias)
    zeros = graph.constant(np.zeros(channels, np.float32))
    result = graph.op("BatchNormalization", centred, scale, shift, zeros, variance, epsilon=epsilon)
    size = graph.op("Cast", graph.op("Size", value), to=ELEMENT_TYPES[torch.float32])
    n = graph.op("Div", size, _scalar(lowering, channels))
    unbiased = graph.op("Div", n, graph.op("Sub", n, _scalar(lowering, 1.0)))
    return (
        result,
        mean,
        _inverse_deviation(lowering, variance, epsilon),
        _updated(lowering, mean_node, mean, momentum),
        _updated(lowering, variance_node, graph.op("Mul", variance, unbiased), momentum),
    )


def _batch_norm_without_statistics(lowering: Lowering, node: fx.Node) -> Value:
    """Normalise by the mini-batch, or each picture where torch stacked pictures as channels."""
    x, weight, bias, training, _, epsilon = arguments(node)
    if not training:
        raise unsupported(node, f"must be training, got training={training}")
    graph, value = lowering.graph, lowering.value(x)
    axes = [0, *range(2, len(shape_of(x)))]
    result, mean, _, inverse = _standardised(lowering, value, axes, epsilon)
    column = graph.ints([1, -1, *[1] * (len(shape_of(x)) - 2)])
    for kind, part in (("Mul", weight), ("Add", bias)):
        if part is not None:
            result = graph.op(kind, result, graph.op("Reshape", lowering.value(part), column))
    flat = graph.ints([-1])
    return result, graph.op("Reshape", mean, flat), graph.op("Reshape", inverse, flat)


def _batch_norm_evaluation(lowering: Lowering, node: fx.Node) -> Value:
    x, weight, bias, mean, variance, _, epsilon = arguments(node)
    scale, shift = _scale_and_shift(lowering, x, weight, bias)
    result = lowering.graph.op(
        "BatchNormalization",
        lowering.value(x),
        scale,
        shift,
        lowering.value(mean),
        lowering.value(variance),
        epsilon=epsilon,
    )
    return (result, "", "")


def _scale_and_shift(
    lowering: Lowering, x: fx.Node, weight: fx.Node | None, bias: fx.Node | None
) -> tuple[str, str]:
    """Return the weight and the bias of a batch norm; those that it lacks are 1 and 0."""
    ones = np.ones(static_shape(x, 1)[0], np.float32)
    return (
        lowering.graph.constant(ones) if weight is None else lowering.value(weight),
        lowering.graph.constant(0 * ones) if bias is None else lowering.value(bias),
    )


def _batch_norm_backward(lowering: Lowering, node: fx.Node) -> Value:
    """Return the gradients of x, weight and bias, with few passes over the values.

        dx = a g - a inverse^2 mean(g (x - mean)) (x - mean) - a mean(g),  a = weight inverse

    With fixed statistics dx = a g.
    """
    given = arguments(node)
    gradient, x, weight, running_mean, running_variance, mean_node, inverse_node = given[:7]
    training, epsilon = given[7:9]
    graph, g, value = lowering.graph, lowering.value(gradient), lowering.value(x)
    rank = len(shape_of(x))
    axes = graph.ints([0, *range(2, rank)])
    column = graph.ints([1, -1, *[1] * (rank - 2)])
    if training:
        mean, inverse = lowering.value(mean_node), lowering.value(inverse_node)
    else:
        mean, variance = lowering.value(running_mean), lowering.value(running_variance)
        inverse = _inverse_deviation(lowering, variance, epsilon)
    factor = inverse
    if weight is not None:
        factor = graph.op("Mul", inverse, lowering.value(weight))
    total = graph.op("ReduceSum", g, axes, keepdims=0)
    centred = _centred(lowering, value, mean, rank)
    slope = graph.op("ReduceSum", graph.op("Mul", g, centred), axes, keepdims=0)
    weight_gradient = graph.op("Mul", slope, inverse)
    if not training:
        dx = graph.op("Mul", g, graph.op("Reshape", factor, column))
        return dx, weight_gradient, total
    sizes = (
        graph.op("Cast", graph.op("Size", of), to=ELEMENT_TYPES[torch.float32])
        for of in (value, mean)
    )
    share = graph.op("Div", factor, graph.op("Div", *sizes))
    along = graph.op("Mul", share, graph.op("Mul", weight_gradient, inverse))
    level = graph.op("Mul", share, total)
    if isinstance(channels := shape_of(x)[1], int):
        zeros, ones = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        fixed = graph.constant(zeros), graph.constant(ones)
        scaled = graph.op(
            "BatchNormalization", g, factor, graph.op("Neg", level), *fixed, epsilon=0.0
        )
    else:  # torch stacked pictures as channels
        scaled = graph.op("Mul", g, graph.op("Reshape", factor, column))
        scaled = graph.op("Sub", scaled, graph.op("Reshape", level, column))
    part = graph.op("Mul", centred, graph.op("Reshape", along, column))
    return graph.op("Sub", scaled, part), weight_gradient, total


MOST_ONES = 4096
"""Values of a constant weight; a layer norm without weights over more axes is computed by parts."""


def _layer_norm(lowering: Lowering, node: fx.Node) -> Value:
    """Normalise each example over its last axes."""
    x, shape, weight, bias, epsilon = arguments(node)
    rank = len(shape_of(x))
    axes = list(range(rank - len(shape), rank))
    if weight is not None or math.prod(shape) <= MOST_ONES:
        ones = None if weight is not None else np.ones([int(size) for size in shape], np.float32)
        inputs = [lowering.graph.constant(ones) if ones is not None else lowering.value(weight)]
        inputs += [lowering.value(bias)] if bias is not None else []
        given = {"axis": axes[0], "epsilon": epsilon}
        return lowering.graph.ops("LayerNormalization", 3, lowering.value(x), *inputs, **given)
    result, mean, _, inverse = _standardised(lowering, lowering.value(x), axes, epsilon)
    for kind, part in (("Mul", weight), ("Add", bias)):
        if part is not None:
            result = lowering.graph.op(kind, result, lowering.value(part))
    return result, mean, inverse


def _layer_norm_backward(lowering: Lowering, node: fx.Node) -> Value:
    """Return the gradients of x, weight and bias, with few passes over the values.

        dx = inverse (h - mean(h) - inverse^2 mean(h x') x'),  h = g weight,  x' = x - mean

    Products with the weight as a column compute the means, and one with the factors of all rows as
    a line computes the gradient of the weight.
    """
    gradient, x, shape, mean, inverse_node, weight = arguments(node)[:6]
    graph, size = lowering.graph, math.prod(int(n) for n in shape)
    lead = [n if isinstance(n, int) else -1 for n in shape_of(x)[: -len(shape)]]

    def lines(of: fx.Node, width: int) -> str:
        value = lowering.value(of)
        return value if len(shape) == 1 else graph.op("Reshape", value, graph.ints([*lead, width]))

    g, inverse = lines(gradient, size), lines(inverse_node, 1)
    column = graph.constant(np.full((size, 1), 1.0 / size, np.float32))
    h = g
    if weight is not None:
        flat = graph.op("Reshape", lowering.value(weight), graph.ints([size, 1]))
        column = graph.op("Mul", flat, _scalar(lowering, 1.0 / size))
        h = graph.op("Mul", g, graph.op("Reshape", flat, graph.ints([size])))
    centred = graph.op("Sub", lines(x, size), lines(mean, 1))
    product = graph.op("Mul", g, centred)
    along = graph.op("MatMul", product, column)
    along = graph.op("Mul", along, graph.op("Mul", inverse, inverse))
    apart = graph.op("Sub", h, graph.op("MatMul", g, column))
    dx = graph.op("Mul", graph.op("Sub", apart, graph.op("Mul", centred, along)), inverse)
    factors = graph.op("Reshape", inverse, graph.ints([-1, 1]))
    rows = graph.op("Reshape", product, graph.ints([-1, size]))
    found = (
        graph.op("Gemm", factors, rows, transA=1),
        graph.op("ReduceSum", g, graph.ints(list(range(len(lead)))), keepdims=0),
    )
    if len(shape) > 1:
        dx = graph.op("Reshape", dx, graph.ints([*lead, *shape]))
    return dx, *(graph.op("Reshape", each, graph.ints(shape)) for each in found)


def _group_norm(lowering: Lowering, node: fx.Node) -> Value:
    """Normalise each example over the channels of a group and all positions."""
    x, weight, bias, _, channels, size, groups, epsilon = arguments(node)
    graph, spatial = lowering.graph, static_shape(x, 2)
    grouped = graph.ints([-1, groups, channels // groups * size])
    value = graph.op("Reshape", lowering.value(x), grouped)
    result, mean, _, inverse = _standardised(lowering, value, [2], epsilon)
    result = graph.op("Reshape", result, graph.ints([-1, channels, *spatial]))
    column = graph.ints([1, channels, *[1] * len(spatial)])
    for kind, part in (("Mul", weight), ("Add", bias)):
        if part is not None:
            result = graph.op(kind, result, graph.op("Reshape", lowering.value(part), column))
    last = graph.ints([2])
    return result, graph.op("Squeeze", mean, last), graph.op("Squeeze", inverse, last)


def _standardised(
    lowering: Lowering, value: str, axes: list[int], epsilon: float
) -> tuple[str, str, str, str]:
    """Return (x - mean) / sqrt(variance + epsilon) over axes, mean, variance and the factor."""
    centred, mean, variance, inverse = _moments(lowering, value, axes, epsilon)
    return lowering.graph.op("Mul", centred, inverse), mean, variance, inverse


def _moments(
    lowering: Lowering, value: str, axes: list[int], epsilon: float
) -> tuple[str, str, str, str]:
    """Return x - mean over axes, mean, variance and 1 / sqrt(variance + epsilon)."""
    graph, over = lowering.graph, lowering.graph.ints(axes)
    mean = graph.op("ReduceMean", value, over, keepdims=1)
    centred = graph.op("Sub", value, mean)
    variance = graph.op("ReduceMean", graph.op("Mul", centred, centred), over, keepdims=1)
    return centred, mean, variance, _inverse_deviation(lowering, variance, epsilon)


def _inverse_deviation(lowering: Lowering, variance: str, epsilon: float) -> str:
    graph = lowering.graph
    deviation = graph.op("Sqrt", graph.op("Add", variance, _scalar(lowering, epsilon)))
    return graph.op("Reciprocal", deviation)


def _centred(lowering: Lowering, value: str, mean: str, rank: int) -> str:
    """Return x minus a mean per channel; forward and backward share it, and free x."""
    column = lowering.graph.ints([1, -1, *[1] * (rank - 2)])
    return lowering.graph.op("Sub", value, lowering.graph.op("Reshape", mean, column))


def _updated(lowering: Lowering, running: fx.Node, batch: str, momentum: float) -> str:
    """Return running + momentum (batch - running)."""
    graph, old = lowering.graph, lowering.value(running)
    step = graph.op("Mul", graph.op("Sub", batch, old), _scalar(lowering, momentum))
    return graph.op("Add", old, step)


def _scalar(lowering: Lowering, number: float) -> str:
    return lowering.graph.constant(np.array(number, np.float32))


OPERATIONS: Mapping[str, Handler] = {
    "aten._native_batch_norm_legit.no_stats": _batch_norm_without_statistics,
    "aten._native_batch_norm_legit_functional.default": _batch_norm_training,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm_evaluation,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten.native_group_norm.default": _group_norm,
}
