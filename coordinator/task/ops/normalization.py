"""Batch normalization; torch hands over its backward already taken apart."""

from collections.abc import Mapping

import numpy as np
from torch import fx

from coordinator.task.lowering import Handler, Lowering, Value, shape_of, static_shape, unsupported


def _batch_norm_training(lowering: Lowering, node: fx.Node) -> Value:
    """Normalise by the mini-batch and move the running statistics, with n - 1 for the variance.

    The stock translation of this operation normalises by the running statistics instead.
    """
    x, weight, bias, mean_node, variance_node, training, momentum, epsilon = node.args
    assert isinstance(x, fx.Node)
    assert isinstance(mean_node, fx.Node)
    assert isinstance(variance_node, fx.Node)
    if not training:
        raise unsupported(node, f"must be training, got training={training}")
    graph, value = lowering.graph, lowering.value(x)
    channels = static_shape(x, 1)[0]
    axes = graph.ints([0, *range(2, len(shape_of(x)))])
    flat = graph.ints([channels])
    mean = graph.op("ReduceMean", value, axes, keepdims=1)
    centred = graph.op("Sub", value, mean)
    variance = graph.op("ReduceMean", graph.op("Mul", centred, centred), axes, keepdims=1)
    deviation = graph.op("Sqrt", graph.op("Add", variance, _scalar(lowering, epsilon)))
    inverse = graph.op("Reciprocal", deviation)
    result = graph.op("Mul", centred, inverse)
    column = graph.ints([1, channels, *[1] * (len(shape_of(x)) - 2)])
    for kind, part in (("Mul", weight), ("Add", bias)):
        if isinstance(part, fx.Node):
            result = graph.op(kind, result, graph.op("Reshape", lowering.value(part), column))
    mean, variance = graph.op("Reshape", mean, flat), graph.op("Reshape", variance, flat)
    size = graph.op("Cast", graph.op("Size", value), to=1)
    n = graph.op("Div", size, _scalar(lowering, channels))
    unbiased = graph.op("Div", n, graph.op("Sub", n, _scalar(lowering, 1.0)))
    return (
        result,
        mean,
        graph.op("Reshape", inverse, flat),
        _move(lowering, mean_node, mean, momentum),
        _move(lowering, variance_node, graph.op("Mul", variance, unbiased), momentum),
    )


def _batch_norm_evaluation(lowering: Lowering, node: fx.Node) -> Value:
    x, weight, bias, mean, variance, _, epsilon = node.args
    assert isinstance(x, fx.Node)
    assert isinstance(mean, fx.Node)
    assert isinstance(variance, fx.Node)
    channels = static_shape(x, 1)[0]
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    inputs = [
        lowering.value(part) if isinstance(part, fx.Node) else lowering.graph.constant(default)
        for part, default in ((weight, ones), (bias, zeros), (mean, zeros), (variance, ones))
    ]
    result = lowering.graph.op(
        "BatchNormalization", lowering.value(x), *inputs, epsilon=float(str(epsilon))
    )
    return (result, "", "")


def _move(lowering: Lowering, running: fx.Node, seen: str, momentum: object) -> str:
    """Return running + momentum (seen - running)."""
    graph, old = lowering.graph, lowering.value(running)
    step = graph.op("Mul", graph.op("Sub", seen, old), _scalar(lowering, momentum))
    return graph.op("Add", old, step)


def _scalar(lowering: Lowering, number: object) -> str:
    return lowering.graph.constant(np.array(float(str(number)), np.float32))


OPERATIONS: Mapping[str, Handler] = {
    "aten._native_batch_norm_legit_functional.default": _batch_norm_training,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm_evaluation,
}
