"""Max-pooling over windows that tile the input, average pooling, and their gradients."""

import itertools
import math
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class _Windows:
    kernel: list[int]
    stride: list[int]
    padding: list[int]


def _windows(node: fx.Node, first: int) -> _Windows:
    """Read kernel, stride, padding, ceil_mode, count_include_pad, divisor from argument `first`."""
    defaults: list[Any] = [None, [], [0, 0], False, True, None]
    given: list[Any] = arguments(node)[first : first + 6]
    kernel, stride, padding, ceil, counts_padding, divisor = given + defaults[len(given) :]
    if ceil or not counts_padding or divisor is not None:
        raise unsupported(
            node,
            "must divide by the size of the kernel, without ceil, got "
            f"ceil {ceil}, count_include_pad {counts_padding}, divisor {divisor}",
        )
    pair = [
        [int(n) for n in (part if len(part) == 2 else [part[0]] * 2)]
        for part in (kernel, stride or kernel, padding)
    ]
    return _Windows(*pair)


def _adaptive_windows(node: fx.Node, x: fx.Node, outputs: Sequence[int]) -> _Windows:
    """Return the windows of adaptive pooling, whose number divides the size of the input."""
    sizes = static_shape(x, 2)
    if any(size % count for size, count in zip(sizes, outputs, strict=True)):
        raise unsupported(node, f"must divide the input {sizes} evenly, got {list(outputs)}")
    kernel = [size // count for size, count in zip(sizes, outputs, strict=True)]
    return _Windows(kernel, kernel, [0, 0])


def _mean_of(lowering: Lowering, x: fx.Node, windows: _Windows) -> str:
    return lowering.graph.op(
        "AveragePool",
        lowering.value(x),
        kernel_shape=windows.kernel,
        strides=windows.stride,
        pads=windows.padding * 2,
        count_include_pad=1,
    )


def _spread(lowering: Lowering, gradient: fx.Node, x: fx.Node, windows: _Windows) -> str:
    """Return the gradient of the input: each window's gradient in equal parts to its inputs.

    It is a transposed convolution of each channel with a constant kernel; `output_padding` adds
    the last rows and columns that no window covers.
    """
    channels, *sizes = static_shape(x, 1)
    outs = static_shape(gradient, 2)
    uncovered = [
        size - ((out - 1) * stride + kernel - 2 * pad)
        for size, out, kernel, stride, pad in zip(
            sizes, outs, windows.kernel, windows.stride, windows.padding, strict=True
        )
    ]
    share = np.full((channels, 1, *windows.kernel), 1.0 / math.prod(windows.kernel), np.float32)
    return lowering.graph.op(
        "ConvTranspose",
        lowering.value(gradient),
        lowering.graph.constant(share),
        kernel_shape=windows.kernel,
        strides=windows.stride,
        pads=windows.padding * 2,
        output_padding=uncovered,
        group=channels,
    )


def _average_pool(lowering: Lowering, node: fx.Node) -> Value:
    return _mean_of(lowering, arguments(node)[0], _windows(node, 1))


def _average_pool_backward(lowering: Lowering, node: fx.Node) -> Value:
    gradient, x = arguments(node)[:2]
    return _spread(lowering, gradient, x, _windows(node, 2))


def _adaptive_average_pool(lowering: Lowering, node: fx.Node) -> Value:
    x, outputs = arguments(node)
    return _mean_of(lowering, x, _adaptive_windows(node, x, outputs))


def _adaptive_average_pool_backward(lowering: Lowering, node: fx.Node) -> Value:
    gradient, x = arguments(node)
    windows = _adaptive_windows(node, x, static_shape(gradient, 2))
    return _spread(lowering, gradient, x, windows)


OPERATIONS: Mapping[str, Handler] = {
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.max_pool2d_with_indices_backward.default": _max_pool_backward,
    "aten.avg_pool2d.default": _average_pool,
    "aten.avg_pool2d_backward.default": _average_pool_backward,
    "aten._adaptive_avg_pool2d.default": _adaptive_average_pool,
    "aten._adaptive_avg_pool2d_backward.default": _adaptive_average_pool_backward,
}
