"""Pooling over windows of one to three axes: maxima and means, adaptive ones, and their gradients.

A mean over windows of unequal size (at a border, or adaptive) is a product with a constant matrix
along each axis.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
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
class _Windows:
    """Windows of a pool; one number per spatial axis."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    sizes: list[int]
    """Sizes of the input."""
    outputs: list[int]
    """Numbers of windows."""

    @property
    def is_tiling(self) -> bool:
        """Whether no input is in two windows, and none of them reaches over the border."""
        return (
            self.kernel == self.stride
            and not any(self.padding)
            and set(self.dilation) == {1}
            and not any(self.beyond)
        )

    @property
    def tiles(self) -> dict[str, list[int]]:
        """Attributes of a pool of ONNX without padding."""
        return {"kernel_shape": self.kernel, "strides": self.stride}

    @property
    def beyond(self) -> list[int]:
        """Rows and columns after the input, besides the padding, into which a window reaches."""
        return [max(0, end) for end in self._ends()]

    @property
    def uncovered(self) -> list[int]:
        """Rows and columns at the end of the input that no window covers."""
        return [max(0, -end) for end in self._ends()]

    def _ends(self) -> list[int]:
        axes = zip(
            *(self.kernel, self.stride, self.padding, self.dilation, self.sizes, self.outputs),
            strict=True,
        )
        return [(o - 1) * s + d * (k - 1) + 1 - n - 2 * p for k, s, p, d, n, o in axes]

    @property
    def pads(self) -> list[int]:
        """Pads of ONNX: at the begin of each axis, then at the end."""
        ends = [p + end for p, end in zip(self.padding, self.beyond, strict=True)]
        return [*self.padding, *ends]


def _windows(node: fx.Node, x: fx.Node, pooled: fx.Node, given: Sequence[Any]) -> _Windows:
    """Read kernel, stride, padding and dilation of a pool."""
    sizes = static_shape(x, 2)

    def each(values: Any, default: list[int]) -> list[int]:
        numbers = [int(value) for value in values] if values else default
        return numbers * len(sizes) if len(numbers) == 1 else numbers

    kernel = each(given[0], [])
    parts = (each(given[1], kernel), each(given[2], [0]), each(given[3], [1]))
    return _Windows(kernel, *parts, sizes, static_shape(pooled, 2))


def _with_defaults(given: Sequence[Any], *defaults: Any) -> list[Any]:
    return [*given, *defaults[len(given) :]]


def _max_windows(node: fx.Node, x: fx.Node, pooled: fx.Node, first: int) -> _Windows:
    given = _with_defaults(arguments(node)[first : first + 4], None, [], [0], [1])
    return _windows(node, x, pooled, given)


def _max_pool(lowering: Lowering, node: fx.Node) -> Value:
    x = arguments(node)[0]
    windows = _max_windows(node, x, _first_result(node), 1)
    if windows.is_tiling and not _places_are_read(node):
        return (lowering.graph.op("MaxPool", lowering.value(x), **windows.tiles), "", "")
    pooled, places = _with_indices(lowering, x, windows)
    plane = lowering.graph.constant(np.array(math.prod(windows.sizes), np.int64))
    return pooled, lowering.graph.op("Mod", places, plane), places


def _places_are_read(node: fx.Node) -> bool:
    """Return whether more than the gradient of a pool needs the positions of its maxima."""
    places = [user for user in node.users if arguments(user)[1] == 1]
    return any(str(reader.target) not in OPERATIONS for part in places for reader in part.users)


def _with_indices(lowering: Lowering, x: fx.Node, windows: _Windows) -> tuple[str, ...]:
    attributes = {**windows.tiles, "pads": windows.pads, "dilations": windows.dilation}
    return lowering.graph.ops("MaxPool", 2, lowering.value(x), **attributes)


def _first_result(node: fx.Node) -> fx.Node:
    """Return the node of the pooled values."""
    for user in node.users:
        if arguments(user)[1] == 0:
            return user
    raise unsupported(node, "must return the pooled values, got indices alone")


def _max_pool_backward(lowering: Lowering, node: fx.Node) -> Value:
    gradient, x = arguments(node)[:2]
    windows = _max_windows(node, x, gradient, 2)
    pool = _pool_of(node)
    if windows.is_tiling and len(windows.kernel) == 2:
        return _tiled(lowering, gradient, x, windows, lowering.output(pool, 0))
    if windows.is_tiling:  # the forward pass has no indices then
        indices = _with_indices(lowering, x, windows)[1]
    else:
        indices = lowering.output(pool, 2)
    return _scattered(lowering, lowering.value(gradient), indices, x)


def _scattered(lowering: Lowering, gradient: str, indices: str, x: fx.Node) -> str:
    """Return the sum of the gradients at their indices in the flat input."""
    graph, value = lowering.graph, lowering.value(x)
    flat, shape = graph.ints([-1]), graph.op("Shape", value)
    zero = graph.constant(np.zeros(1, np.float32))
    zeros = graph.op("Expand", zero, graph.op("Reshape", graph.op("Size", value), graph.ints([1])))
    parts = (graph.op("Reshape", part, flat) for part in (indices, gradient))
    summed = graph.op("ScatterElements", zeros, *parts, axis=0, reduction="add")
    return graph.op("Reshape", summed, shape)


def _tiled(lowering: Lowering, gradient: fx.Node, x: fx.Node, windows: _Windows, most: str) -> str:
    """Assign each window's gradient to the first of its largest inputs, as torch does.

    The k-th input of all windows is one strided slice. The gradient that is not assigned yet
    passes from slice to slice until an input equals the maximum.
    """
    graph, value = lowering.graph, lowering.value(x)
    unassigned, zero = lowering.value(gradient), graph.constant(np.zeros((), np.float32))
    parts = []
    offsets = list(itertools.product(*(range(k) for k in windows.kernel)))
    for offset in offsets:
        is_max = graph.op("Equal", _nth_inputs(lowering, value, windows, offset), most)
        parts.append(graph.op("Where", is_max, unassigned, zero))
        if offset != offsets[-1]:
            unassigned = graph.op("Where", is_max, zero, unassigned)
    return _interleave(lowering, parts, windows, static_shape(x, 1)[0])


def _pool_of(node: fx.Node) -> fx.Node:
    indices: fx.Node = arguments(node)[-1]
    pool: fx.Node = arguments(indices)[0]
    return pool


def _nth_inputs(lowering: Lowering, value: str, windows: _Windows, offset: tuple[int, ...]) -> str:
    stops = [
        o + (n - 1) * k + 1 for o, n, k in zip(offset, windows.outputs, windows.kernel, strict=True)
    ]
    axes = range(2, 2 + len(offset))
    bounds = (lowering.graph.ints(list(n)) for n in (offset, stops, axes, windows.kernel))
    return lowering.graph.op("Slice", value, *bounds)


def _interleave(lowering: Lowering, parts: list[str], windows: _Windows, channels: int) -> str:
    """Interleave the slices of all window positions, shape (B, C, H, W)."""
    graph = lowering.graph
    (rows, columns), (k_rows, k_columns) = windows.outputs, windows.kernel
    wide = graph.ints([-1, channels, rows, 1, columns, 1])
    shaped = [graph.op("Reshape", part, wide) for part in parts]
    lines = [
        graph.op("Concat", *shaped[i * k_columns : (i + 1) * k_columns], axis=5)
        for i in range(k_rows)
    ]
    joined = graph.op("Concat", *lines, axis=3)
    whole = graph.ints([-1, channels, rows * k_rows, columns * k_columns])
    tiled = graph.op("Reshape", joined, whole)
    if any(windows.uncovered):
        tiled = graph.op("Pad", tiled, graph.ints([0, 0, 0, 0, 0, 0, *windows.uncovered]))
    return tiled


@dataclass(frozen=True, slots=True)
class _Means:
    """A pool of means."""

    windows: _Windows
    matrices: list[Any] | None
    """Share of each input in each output along each axis, float32 (outputs, inputs); None if all
    windows have one size, which is the divisor."""


def _means(node: fx.Node, x: fx.Node, pooled: fx.Node, first: int) -> _Means:
    """Read kernel, stride, padding, ceil_mode, count_include_pad, divisor from argument `first`."""
    given = _with_defaults(arguments(node)[first : first + 6], None, [], [0], False, True, None)
    windows = _windows(node, x, pooled, [*given[:3], [1]])
    counts_padding, divisor = bool(given[4]), given[5]
    is_padded = any(windows.padding) and not counts_padding
    if not (is_padded or any(windows.beyond) or divisor is not None):
        return _Means(windows, None)
    matrices = []
    axes = zip(
        *(windows.kernel, windows.stride, windows.padding, windows.sizes, windows.outputs),
        strict=True,
    )
    for kernel, stride, pad, size, count in axes:
        matrix = np.zeros((count, size))
        for at in range(count):
            start = at * stride - pad
            stop = min(start + kernel, size + pad)
            inside = slice(max(0, start), min(stop, size))
            n = stop - start if counts_padding else inside.stop - inside.start
            matrix[at, inside] = 1.0 / (n if divisor is None else 1.0)
        matrices.append(matrix)
    if divisor is not None:
        matrices[0] = matrices[0] / float(divisor)
    return _Means(windows, [matrix.astype(np.float32) for matrix in matrices])


def _adaptive_bounds(size: int, count: int) -> list[tuple[int, int]]:
    """Return first input and end of each window of adaptive pooling."""
    return [(i * size // count, -(-((i + 1) * size) // count)) for i in range(count)]


def _adaptive_means(x: fx.Node, outputs: Sequence[int]) -> _Means:
    sizes, counts = static_shape(x, 2), [int(count) for count in outputs]
    if not any(size % count for size, count in zip(sizes, counts, strict=True)):
        kernel = [size // count for size, count in zip(sizes, counts, strict=True)]
        rank = len(sizes)
        return _Means(_Windows(kernel, kernel, [0] * rank, [1] * rank, sizes, counts), None)
    matrices = []
    for size, count in zip(sizes, counts, strict=True):
        matrix = np.zeros((count, size), np.float32)
        for at, (start, stop) in enumerate(_adaptive_bounds(size, count)):
            matrix[at, start:stop] = 1.0 / (stop - start)
        matrices.append(matrix)
    return _Means(_Windows(counts, counts, [], [], sizes, counts), matrices)


def _along_axes(lowering: Lowering, value: str, matrices: Sequence[NDArray[np.float32]]) -> str:
    """Return a value that is multiplied by a matrix along each spatial axis.

    Args:
        lowering: Receives the operations.
        value: Shape (B, C, ...), with one axis for each matrix.
        matrices: Shape (outputs, inputs) of each axis.
    """
    graph, rank = lowering.graph, len(matrices)
    for axis, matrix in enumerate(matrices):
        constant = graph.constant(matrix)
        if axis == rank - 1:
            turned = graph.constant(np.ascontiguousarray(matrix.T))
            value = graph.op("MatMul", value, turned)
        elif axis == rank - 2:
            value = graph.op("MatMul", constant, value)
        else:
            order = [*range(rank + 2)]
            order[2 + axis], order[-2] = order[-2], order[2 + axis]
            swapped = graph.op("Transpose", value, perm=order)
            value = graph.op("Transpose", graph.op("MatMul", constant, swapped), perm=order)
    return value


def _mean_of(lowering: Lowering, x: fx.Node, means: _Means) -> str:
    if means.matrices is not None:
        return _along_axes(lowering, lowering.value(x), means.matrices)
    return lowering.graph.op(
        "AveragePool",
        lowering.value(x),
        kernel_shape=means.windows.kernel,
        strides=means.windows.stride,
        pads=means.windows.padding * 2,
        count_include_pad=1,
    )


def _spread(lowering: Lowering, gradient: fx.Node, x: fx.Node, means: _Means) -> str:
    """Return the gradient of the input: each window's gradient in equal parts to its inputs.

    It is a transposed convolution of each channel with a constant kernel; `output_padding` adds
    the last rows and columns that no window covers.
    """
    if means.matrices is not None:
        turned = [np.ascontiguousarray(matrix.T) for matrix in means.matrices]
        return _along_axes(lowering, lowering.value(gradient), turned)
    windows, channels = means.windows, static_shape(x, 1)[0]
    share = np.full((channels, 1, *windows.kernel), 1.0 / math.prod(windows.kernel), np.float32)
    return lowering.graph.op(
        "ConvTranspose",
        lowering.value(gradient),
        lowering.graph.constant(share),
        kernel_shape=windows.kernel,
        strides=windows.stride,
        pads=windows.padding * 2,
        output_padding=windows.uncovered,
        group=channels,
    )


def _average_pool(lowering: Lowering, node: fx.Node) -> Value:
    x = arguments(node)[0]
    return _mean_of(lowering, x, _means(node, x, node, 1))


def _average_pool_backward(lowering: Lowering, node: fx.Node) -> Value:
    gradient, x = arguments(node)[:2]
    return _spread(lowering, gradient, x, _means(node, x, gradient, 2))


def _adaptive_average_pool(lowering: Lowering, node: fx.Node) -> Value:
    x, outputs = arguments(node)
    return _mean_of(lowering, x, _adaptive_means(x, outputs))


def _adaptive_average_pool_backward(lowering: Lowering, node: fx.Node) -> Value:
    gradient, x = arguments(node)
    return _spread(lowering, gradient, x, _adaptive_means(x, static_shape(gradient, 2)))


def _adaptive_positions(sizes: Sequence[int], counts: Sequence[int]) -> Any:
    """Return the flat position of each input of each window, shape (windows, inputs).

    A smaller window repeats its last input, which changes no maximum.
    """
    axes = []
    for size, count in zip(sizes, counts, strict=True):
        bounds = _adaptive_bounds(size, count)
        most = max(stop - start for start, stop in bounds)
        rows = [[min(start + i, stop - 1) for i in range(most)] for start, stop in bounds]
        axes.append(np.array(rows, np.int64))
    flat = np.zeros((1, 1), np.int64)
    for size, axis in zip(sizes, axes, strict=True):
        grid = flat[:, None, :, None] * size + axis[None, :, None, :]
        flat = grid.reshape(grid.shape[0] * grid.shape[1], -1)
    return flat


def _adaptive_max_pool(lowering: Lowering, node: fx.Node) -> Value:
    """Return the maxima, and the position of each in its plane."""
    x, outputs = arguments(node)
    channels, *sizes = static_shape(x, 1)
    counts = [int(count) for count in outputs]
    graph, positions = lowering.graph, _adaptive_positions(sizes, counts)
    flat = graph.op("Reshape", lowering.value(x), graph.ints([-1, channels, math.prod(sizes)]))
    inputs = graph.op("Gather", flat, graph.constant(positions), axis=2)
    pooled = graph.op("ReduceMax", inputs, graph.ints([3]), keepdims=0)
    first = graph.op("ArgMax", inputs, axis=3, keepdims=0)
    rows = np.arange(len(positions), dtype=np.int64) * positions.shape[1]
    at = graph.op("Add", first, graph.constant(rows))
    found = graph.op("Gather", graph.constant(positions.ravel()), at, axis=0)
    shape = graph.ints([-1, channels, *counts])
    return tuple(graph.op("Reshape", part, shape) for part in (pooled, found))


def _adaptive_max_pool_backward(lowering: Lowering, node: fx.Node) -> Value:
    gradient, x, indices = arguments(node)
    channels = static_shape(x, 1)[0]
    graph, flat = lowering.graph, lowering.graph.ints([0, channels, -1])
    shape = graph.op("Shape", lowering.value(x))
    zeros = graph.op("Expand", graph.constant(np.zeros(1, np.float32)), shape)
    parts = (
        graph.op("Reshape", part, flat)
        for part in (zeros, lowering.value(indices), lowering.value(gradient))
    )
    summed = graph.op("ScatterElements", *parts, axis=2, reduction="add")
    return graph.op("Reshape", summed, shape)


OPERATIONS: Mapping[str, Handler] = {
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.max_pool2d_with_indices_backward.default": _max_pool_backward,
    "aten.max_pool3d_with_indices.default": _max_pool,
    "aten.max_pool3d_with_indices_backward.default": _max_pool_backward,
    "aten.avg_pool1d.default": _average_pool,
    "aten.avg_pool2d.default": _average_pool,
    "aten.avg_pool2d_backward.default": _average_pool_backward,
    "aten.avg_pool3d.default": _average_pool,
    "aten.avg_pool3d_backward.default": _average_pool_backward,
    "aten._adaptive_avg_pool2d.default": _adaptive_average_pool,
    "aten._adaptive_avg_pool2d_backward.default": _adaptive_average_pool_backward,
    "aten._adaptive_avg_pool3d.default": _adaptive_average_pool,
    "aten._adaptive_avg_pool3d_backward.default": _adaptive_average_pool_backward,
    "aten.adaptive_max_pool2d.default": _adaptive_max_pool,
    "aten.adaptive_max_pool2d_backward.default": _adaptive_max_pool_backward,
    "aten.adaptive_max_pool3d.default": _adaptive_max_pool,
    "aten.adaptive_max_pool3d_backward.default": _adaptive_max_pool_backward,
}
