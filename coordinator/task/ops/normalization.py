"""Normalisation of batches, layers and groups; torch decomposes the gradients."""

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
    channels = static_shape(x, 1)[0]
    axes = [0, *range(2, len(shape_of(x)))]
    flat = graph.ints([channels])
    result, mean, variance, inverse = _standardised(lowering, value, axes, epsilon)
    column = graph.ints([1, channels, *[1] * (len(shape_of(x)) - 2)])
    for kind, part in (("Mul", weight), ("Add", bias)):
        if part is not None:
            result = graph.op(kind, result, graph.op("Reshape", lowering.value(part), column))
    mean, variance = graph.op("Reshape", mean, flat), graph.op("Reshape", variance, flat)
    size = graph.op("Cast", graph.op("Size", value), to=ELEMENT_TYPES[torch.float32])
    n = graph.op("Div", size, _scalar(lowering, channels))
    unbiased = graph.op("Div", n, graph.op("Sub", n, _scalar(lowering, 1.0)))
    return (
        result,
        mean,
        graph.op("Reshape", inverse, flat),
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
    ones = np.ones(static_shape(x, 1)[0], np.float32)
    scale = lowering.graph.constant(ones) if weight is None else lowering.value(weight)
    shift = lowering.graph.constant(0 * ones) if bias is None else lowering.value(bias)
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


def _layer_norm(lowering: Lowering, node: fx.Node) -> Value:
    """Normalise each example over its last axes."""
    x, shape, weight, bias, epsilon = arguments(node)
    rank = len(shape_of(x))
    axes = list(range(rank - len(shape), rank))
    result, mean, _, inverse = _standardised(lowering, lowering.value(x), axes, epsilon)
    for kind, part in (("Mul", weight), ("Add", bias)):
        if part is not None:
            result = lowering.graph.op(kind, result, lowering.value(part))
    return result, mean, inverse


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
    graph, over = lowering.graph, lowering.graph.ints(axes)
    mean = graph.op("ReduceMean", value, over, keepdims=1)
    centred = graph.op("Sub", value, mean)
    variance = graph.op("ReduceMean", graph.op("Mul", centred, centred), over, keepdims=1)
    deviation = graph.op("Sqrt", graph.op("Add", variance, _scalar(lowering, epsilon)))
    inverse = graph.op("Reciprocal", deviation)
    return graph.op("Mul", centred, inverse), mean, variance, inverse


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
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_group_norm.default": _group_norm,
}
