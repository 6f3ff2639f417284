"""Convolutions and their three gradients, for any number of spatial axes."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from fairbed.coordinator.task.lowering import (
    Handler,
    Lowering,
    Value,
    arguments,
    shape_of,
    static_shape,
    unsupported,
)

FEW_CHANNELS = 8
"""With fewer channels, one matrix product over all kernel offsets is faster than one per row."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Size and steps of a kernel; one number per spatial axis."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]


def _window(node: fx.Node, weight: fx.Node, first: int) -> _Window:
    """Read stride, padding, dilation, transposed, output_padding, groups from argument `first`."""
    stride, padding, dilation, transposed, _, groups = arguments(node)[first : first + 6]
    if transposed or groups != 1:
        raise unsupported(node, f"must be plain, got transposed={transposed}, groups={groups}")
    kernel = static_shape(weight, 2)

    def each(values: Any) -> list[int]:
        numbers = [int(value) for value in values]
        return numbers * len(kernel) if len(numbers) == 1 else numbers

    return _Window(kernel, each(stride), each(padding), each(dilation))


def _convolution(lowering: Lowering, node: fx.Node) -> Value:
    x, weight, bias = arguments(node)[:3]
    window = _window(node, weight, 3)
    inputs = [lowering.value(arg) for arg in (x, weight, bias) if arg is not None]
    return lowering.graph.op(
        "Conv",
        *inputs,
        kernel_shape=window.kernel,
        strides=window.stride,
        pads=window.padding * 2,
        dilations=window.dilation,
    )


def _convolution_backward(lowering: Lowering, node: fx.Node) -> Value:
    gradient, x, weight = arguments(node)[:3]
    mask = arguments(node)[10]
    window = _window(node, weight, 4)
    return (
        _x_gradient(lowering, gradient, x, weight, window) if mask[0] else "",
        _weight_gradient(lowering, gradient, x, weight, window) if mask[1] else "",
        _bias_gradient(lowering, gradient) if mask[2] else "",
    )


def _x_gradient(
    lowering: Lowering, gradient: fx.Node, x: fx.Node, weight: fx.Node, window: _Window
) -> str:
    """Return the gradient of the input: a transposed convolution of the output's gradient.

    `output_padding` adds the last rows and columns that no window covers, if the stride does not
    divide the size.
    """
    sizes = zip(static_shape(x, 2), static_shape(gradient, 2), strict=True)
    uncovered = [
        have - ((out - 1) * stride + dilation * (kernel - 1) + 1 - 2 * pad)
        for (have, out), kernel, stride, pad, dilation in zip(
            sizes, window.kernel, window.stride, window.padding, window.dilation, strict=True
        )
    ]
    return lowering.graph.op(
        "ConvTranspose",
        lowering.value(gradient),
        lowering.value(weight),
        kernel_shape=window.kernel,
        strides=window.stride,
        pads=window.padding * 2,
        dilations=window.dilation,
        output_padding=uncovered,
    )


def _weight_gradient(
    lowering: Lowering, gradient: fx.Node, x: fx.Node, weight: fx.Node, window: _Window
) -> str:
    """Return the gradient of the weight: products of the output's gradient with shifted inputs.

        dW[o, c, i, j] = sum_{n, h, w} G[n, o, h, w] Xpad[n, c, s h + d i, s w + d j]

    Offsets along the last axis are stacked as channels. With many channels, each offset along the
    other axes is one matrix product (O, N h w) x (N h w, k C). With few channels, these offsets
    are stacked, too, and there is one product in total.
    """
    graph = lowering.graph
    out_channels, channels = (int(size) for size in static_shape(weight)[:2])
    sizes = static_shape(gradient, 2)
    rank = len(sizes)
    front = [1, 0, *range(2, rank + 2)]
    g = graph.op("Transpose", lowering.value(gradient), perm=front)
    g = graph.op("Reshape", g, graph.ints([out_channels, -1]))
    moved = graph.op("Transpose", lowering.value(x), perm=front)
    pads = [0, 0, *window.padding] * 2
    padded = graph.op("Pad", moved, graph.ints(pads)) if any(pads) else moved

    def shifted(value: str, axis: int, offset: int) -> str:
        start = offset * window.dilation[axis]
        stop = start + (sizes[axis] - 1) * window.stride[axis] + 1
        bounds = (graph.ints([n]) for n in (start, stop, axis + 2, window.stride[axis]))
        return graph.op("Slice", value, *bounds)

    last = rank - 1
    stacked = _concat(lowering, [shifted(padded, last, i) for i in range(window.kernel[last])], 0)
    rows = []
    for offsets in itertools.product(*(range(k) for k in window.kernel[:last])):
        row = stacked
        for axis, offset in enumerate(offsets):
            row = shifted(row, axis, offset)
        rows.append(row)
    if channels < FEW_CHANNELS:
        rows = [_concat(lowering, rows, 0)]
    height = channels * math.prod(window.kernel) // len(rows)
    flat = graph.ints([height, -1])
    products = [graph.op("Gemm", g, graph.op("Reshape", row, flat), transB=1) for row in rows]
    product = _concat(lowering, products, 1)
    spread = graph.op("Reshape", product, graph.ints([out_channels, *window.kernel, channels]))
    return graph.op("Transpose", spread, perm=[0, rank + 1, *range(1, rank + 1)])


def _bias_gradient(lowering: Lowering, gradient: fx.Node) -> str:
    axes = [0, *range(2, len(shape_of(gradient)))]
    return lowering.graph.op(
        "ReduceSum", lowering.value(gradient), lowering.graph.ints(axes), keepdims=0
    )


def _concat(lowering: Lowering, values: Sequence[str], axis: int) -> str:
    if len(values) == 1:
        return values[0]
    return lowering.graph.op("Concat", *values, axis=axis)


OPERATIONS: Mapping[str, Handler] = {
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
}
