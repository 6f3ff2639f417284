"""Max-pooling over windows that tile the input, and its gradient."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from fairbed.coordinator.task.lowering import (
    Handler,
    Lowering,
    Value,
    arguments,
    static_shape,
    unsupported,
)


@dataclass(frozen=True, slots=True)
class _Tiling:
    kernel: list[int]
    sizes: list[int]
    """Number of windows along each spatial axis."""


def _tiling(node: fx.Node, x: fx.Node, first: int) -> _Tiling:
    """Read kernel, stride, padding, dilation, ceil_mode from argument `first` on."""
    defaults: list[Any] = [None, [], [0], [1], False]
    given: list[Any] = arguments(node)[first : first + 5]
    kernel, stride, padding, dilation, ceil = given + defaults[len(given) :]
    kernel = [int(k) for k in kernel] * (2 if len(kernel) == 1 else 1)
    is_tiled = all(k == s for k, s in zip(kernel, stride or kernel, strict=True))
    if not is_tiled or any(padding) or any(d != 1 for d in dilation) or ceil:
        raise unsupported(
            node,
            f"must tile (stride = kernel, no padding, dilation or ceil), got kernel {kernel}, "
            f"stride {stride}, padding {padding}, dilation {dilation}, ceil {ceil}",
        )
    return _Tiling(kernel, [n // k for n, k in zip(static_shape(x, 2), kernel, strict=True)])


def _max_pool(lowering: Lowering, node: fx.Node) -> Value:
    x = arguments(node)[0]
    kernel = _tiling(node, x, 1).kernel
    pooled = lowering.graph.op("MaxPool", lowering.value(x), kernel_shape=kernel, strides=kernel)
    return (pooled, "")


def _max_pool_backward(lowering: Lowering, node: fx.Node) -> Value:
    """Assign each window's gradient to the first of its largest inputs, as torch does.

    The k-th input of all windows is one strided slice. The gradient that is not assigned yet
    passes from slice to slice until an input equals the maximum.
    """
    graph = lowering.graph
    gradient, x = arguments(node)[:2]
    tiling = _tiling(node, x, 2)
    value, pooled = lowering.value(x), lowering.output(_pool_of(node), 0)
    unassigned, zero = lowering.value(gradient), graph.constant(np.zeros((), np.float32))
    parts = []
    offsets = list(itertools.product(*(range(k) for k in tiling.kernel)))
    for offset in offsets:
        is_max = graph.op("Equal", _nth_inputs(lowering, value, tiling, offset), pooled)
        parts.append(graph.op("Where", is_max, unassigned, zero))
        if offset != offsets[-1]:
            unassigned = graph.op("Where", is_max, zero, unassigned)
    return _interleave(lowering, parts, tiling, static_shape(x, 1))


def _pool_of(node: fx.Node) -> fx.Node:
    indices: fx.Node = arguments(node)[7]
    pool: fx.Node = arguments(indices)[0]
    return pool


def _nth_inputs(lowering: Lowering, value: str, tiling: _Tiling, offset: tuple[int, ...]) -> str:
    stops = [
        o + (n - 1) * k + 1 for o, n, k in zip(offset, tiling.sizes, tiling.kernel, strict=True)
    ]
    axes = range(2, 2 + len(offset))
    bounds = (lowering.graph.ints(list(n)) for n in (offset, stops, axes, tiling.kernel))
    return lowering.graph.op("Slice", value, *bounds)


def _interleave(lowering: Lowering, parts: list[str], tiling: _Tiling, x_shape: list[int]) -> str:
    """Interleave the slices of all window positions, shape (B, C, H, W)."""
    graph = lowering.graph
    channels, height, width = x_shape
    (rows, columns), (k_rows, k_columns) = tiling.sizes, tiling.kernel
    wide = graph.ints([-1, channels, rows, 1, columns, 1])
    shaped = [graph.op("Reshape", part, wide) for part in parts]
    lines = [
        graph.op("Concat", *shaped[i * k_columns : (i + 1) * k_columns], axis=5)
        for i in range(k_rows)
    ]
    joined = graph.op("Concat", *lines, axis=3)
    whole = graph.ints([-1, channels, rows * k_rows, columns * k_columns])
    tiled = graph.op("Reshape", joined, whole)
    uncovered = [height - rows * k_rows, width - columns * k_columns]
    if any(uncovered):
        tiled = graph.op("Pad", tiled, graph.ints([0, 0, 0, 0, 0, 0, *uncovered]))
    return tiled


OPERATIONS: Mapping[str, Handler] = {
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.max_pool2d_with_indices_backward.default": _max_pool_backward,
}
