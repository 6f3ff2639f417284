"""Convolutions and their three gradients, for any number of spatial axes."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    shape_of,
    static_shape,
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
    added: list[int]
    """Rows and columns at the end of the result of a transposed convolution."""
    groups: int
    is_transposed: bool

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of a convolution of ONNX."""
        return {
            "kernel_shape": self.kernel,
            "strides": self.stride,
            "pads": self.padding * 2,
            "dilations": self.dilation,
            **({"group": self.groups} if self.groups > 1 else {}),
        }


def _window(node: fx.Node, weight: fx.Node, first: int) -> _Window:
    """Read stride, padding, dilation, transposed, output_padding, groups from argument `first`."""
    stride, padding, dilation, transposed, added, groups = arguments(node)[first : first + 6]
    kernel = static_shape(weight, 2)

    def each(values: Any) -> list[int]:
        numbers = [int(value) for value in values]
        return numbers * len(kernel) if len(numbers) == 1 else numbers

    return _Window(
        kernel,
        each(stride),
        each(padding),
        each(dilation),
        each(added),
        int(groups),
        is_transposed=bool(transposed),
    )


def _convolution(lowering: Lowering, node: fx.Node) -> Value:
    x, weight, bias = arguments(node)[:3]
    window = _window(node, weight, 3)
    inputs = [lowering.value(arg) for arg in (x, weight, bias) if arg is not None]
    if _is_spread(window, weight, x, node):
        return _spread_convolution(lowering, inputs[2:], x, weight, node, window)
    if not window.is_transposed:
        limits = JOINED_FORWARD_PAIRS, JOINED_FORWARD_POSITIONS
        is_joined = max(window.stride) == 1 and _is_joined(
            window, static_shape(weight), shape_of(x)[2:], *limits
        )
        if is_joined:
            return _joined_convolution(lowering, inputs, x, node, window)
        return lowering.graph.op("Conv", *inputs, **window.attributes)
    attributes = {**window.attributes, "output_padding": window.added}
    return lowering.graph.op("ConvTranspose", *inputs, **attributes)


def _joined_convolution(
    lowering: Lowering, inputs: Sequence[str], x: fx.Node, node: fx.Node, window: _Window
) -> str:
    """Return a convolution of stride 1; the rows of zeros are the padding of both neighbours."""
    first, *rest = window.padding
    last = window.dilation[0] * (window.kernel[0] - 1) - first
    attributes = {**window.attributes, "pads": [first, *rest, last, *rest]}
    have, wanted = static_shape(x, 1), static_shape(node, 1)
    return _joined(lowering, "Conv", inputs, have, wanted, first, 1, **attributes)


def _convolution_backward(lowering: Lowering, node: fx.Node) -> Value:
    gradient, x, weight = arguments(node)[:3]
    mask = arguments(node)[10]
    window = _window(node, weight, 4)
    is_spread = _is_spread(window, weight, x, gradient)
    of_x = _spread_x_gradient if is_spread else _x_gradient
    of_weight = _spread_weight_gradient if is_spread else _weight_gradient
    return (
        of_x(lowering, gradient, x, weight, window) if mask[0] else "",
        of_weight(lowering, gradient, x, weight, window) if mask[1] else "",
        _bias_gradient(lowering, gradient) if mask[2] else "",
    )


def _x_gradient(
    lowering: Lowering, gradient: fx.Node, x: fx.Node, weight: fx.Node, window: _Window
) -> str:
    """Return the gradient of the input: a transposed convolution of the output's gradient.

    `output_padding` adds the last rows and columns that no window covers, if the stride does not
    divide the size. The gradient of a transposed convolution is a plain one.
    """
    graph = lowering.graph
    inputs = (lowering.value(gradient), lowering.value(weight))
    if window.is_transposed:
        return graph.op("Conv", *inputs, **window.attributes)
    if window.groups == 1 and max(window.kernel) == max(window.stride) == 1:
        axes = [1, 0, *range(2, len(window.kernel) + 2)]
        turned = graph.op("Transpose", inputs[1], perm=axes)
        if not any(window.padding):
            return graph.op("Conv", inputs[0], turned, **window.attributes)
    have, given = static_shape(x, 2), static_shape(gradient, 2)
    sizes = zip(have, given, strict=True)
    uncovered = [
        have - ((out - 1) * stride + dilation * (kernel - 1) + 1 - 2 * pad)
        for (have, out), kernel, stride, pad, dilation in zip(
            sizes, window.kernel, window.stride, window.padding, window.dilation, strict=True
        )
    ]
    shape = static_shape(weight)
    if not _is_joined(window, shape, given, JOINED_PAIRS, JOINED_POSITIONS):
        return graph.op("ConvTranspose", *inputs, **window.attributes, output_padding=uncovered)
    # Row 0 of a picture is row `rows n` of the result, and its rows end before those of the next.
    stride, (first, *rest) = window.stride[0], window.padding
    reach = window.dilation[0] * (window.kernel[0] - 1)
    rows = max(have[0] + first, stride * (given[0] - 1) + reach + 1 - first)
    gap = -(-rows // stride) - given[0]
    last = reach + 1 - stride - first
    attributes = {**window.attributes, "pads": [first, *rest, max(0, last), *rest]}
    attributes["output_padding"] = [max(0, -last), *uncovered[1:]]
    maps, wanted = [shape[0], *given], [shape[1], *have]
    return _joined(lowering, "ConvTranspose", inputs, maps, wanted, gap, stride, **attributes)


JOINED_PAIRS, JOINED_POSITIONS = 1 << 12, 49
"""A dense kernel with at least as many pairs of channels, on maps with at most as many positions:
the transposed convolution of joined pictures takes 0.25 (2 x 2) to 0.98 (7 x 7) of the time."""

JOINED_FORWARD_PAIRS, JOINED_FORWARD_POSITIONS = 1 << 15, 9
"""The same of a plain convolution: 0.45 (2 x 2) to 0.93 (3 x 3) of the time."""


def _is_joined(
    window: _Window, weight: Sequence[int], sizes: Sequence[Any], pairs: int, positions: int
) -> bool:
    """Return whether a convolution over maps of these sizes reads all pictures as one."""
    if window.groups > 1 or not all(isinstance(size, int) for size in sizes):
        return False
    is_reached = window.padding[0] <= window.dilation[0] * (window.kernel[0] - 1)
    return is_reached and math.prod(weight[:2]) >= pairs and math.prod(sizes) <= positions


def _joined(
    lowering: Lowering,
    kind: str,
    inputs: Sequence[str],
    have: Sequence[int],
    wanted: Sequence[int],
    gap: int,
    by: int,
    **attributes: Any,
) -> str:
    """Return a convolution of all pictures as one, above each other with rows of zeros between.

    The kernels of the runtime compute one matrix product per picture. On small maps it has few
    columns, and its time is that of reading the weights: here they are read once.

    Args:
        lowering: Receives the operations.
        kind: `Conv` or `ConvTranspose`.
        inputs: The maps, shape (B, C, *sizes), the weight, and a bias or none.
        have: Shape of the maps without the batch.
        wanted: That of the result.
        gap: Rows of zeros below each picture.
        by: Rows of the result per row.
        attributes: Of the convolution.
    """
    graph, rank = lowering.graph, len(have) + 1
    swapped = [1, 0, *range(2, rank)]
    turned = graph.op("Transpose", inputs[0], perm=swapped)
    below = [*[0] * (rank + 2), gap, *[0] * (rank - 3)]
    apart = graph.op("Pad", turned, graph.ints(below))
    one = graph.op("Reshape", apart, graph.ints([1, have[0], -1, *have[2:]]))
    found = graph.op(kind, one, *inputs[1:], **attributes)
    rows = by * (have[1] + gap)
    found = graph.op("Reshape", found, graph.ints([wanted[0], -1, rows, *wanted[2:]]))
    if rows > wanted[1]:
        ends = ([0], [wanted[1]], [2])
        found = graph.op("Slice", found, *(graph.ints(part) for part in ends))
    return graph.op("Transpose", found, perm=swapped)


def _weight_gradient(
    lowering: Lowering, gradient: fx.Node, x: fx.Node, weight: fx.Node, window: _Window
) -> str:
    """Return the gradient of the weight.

    In a transposed convolution input and gradient have changed their roles.
    """
    images, maps = (gradient, x) if window.is_transposed else (x, gradient)
    positions = math.prod(static_shape(maps, 2))
    if window.groups == 1 and static_shape(weight)[0] < PER_POSITION * positions:
        return _dense_weight_gradient(lowering, maps, images, weight, window)
    if static_shape(weight)[1] == 1 and len(window.kernel) == 2:
        return _band_weight_gradient(lowering, maps, images, weight, window)
    return _grouped_weight_gradient(lowering, maps, images, weight, window)


PER_POSITION = 10
"""Output channels per position of a map from which the inputs are written in the order of the
weight, and not the product: it is larger."""


class _Shifts:
    """Inputs at an offset of the kernel, for all its positions.

    Args:
        lowering: Receives the operations.
        maps: The gradient that has a value per position of the kernel.
        window: The kernel.
    """

    def __init__(self, lowering: Lowering, maps: fx.Node, window: _Window) -> None:
        self._graph, self._window = lowering.graph, window
        self._sizes = static_shape(maps, 2)

    def padded(self, value: str) -> str:
        """Return images, shape (., ., ...), with zeros around them, all that positions need."""
        pads = [0, 0, *self._window.padding] * 2
        return self._graph.op("Pad", value, self._graph.ints(pads)) if any(pads) else value

    def along(self, value: str, axis: int, offset: int) -> str:
        """Return the values at an offset of the kernel along a spatial axis."""
        start = offset * self._window.dilation[axis]
        stop = start + (self._sizes[axis] - 1) * self._window.stride[axis] + 1
        bounds = (start, stop, axis + 2, self._window.stride[axis])
        return self._graph.op("Slice", value, *(self._graph.ints([n]) for n in bounds))

    def at(self, value: str, offsets: Sequence[int]) -> str:
        """Return the values at an offset of the kernel."""
        for axis, offset in enumerate(offsets):
            value = self.along(value, axis, offset)
        return value


def _channels_first(lowering: Lowering, node: fx.Node) -> str:
    axes = [1, 0, *range(2, len(shape_of(node)))]
    return lowering.graph.op("Transpose", lowering.value(node), perm=axes)


def _dense_weight_gradient(
    lowering: Lowering, maps: fx.Node, images: fx.Node, weight: fx.Node, window: _Window
) -> str:
    """Return products of the output's gradient with shifted inputs.

        dW[o, c, i, j] = sum_{n, h, w} G[n, o, h, w] Xpad[n, c, s h + d i, s w + d j]

    Offsets along the last axis are stacked as channels. With many channels, each offset along the
    other axes is one matrix product (O, N h w) x (N h w, k C). With few channels, these offsets
    are stacked, too, and there is one product in total.
    """
    graph, shifts = lowering.graph, _Shifts(lowering, maps, window)
    out_channels, channels = (int(size) for size in static_shape(weight)[:2])
    rank = len(window.kernel)
    g = graph.op("Reshape", _channels_first(lowering, maps), graph.ints([out_channels, -1]))
    padded = shifts.padded(_channels_first(lowering, images))
    last = rank - 1
    columns = [shifts.along(padded, last, i) for i in range(window.kernel[last])]
    stacked = _concat(lowering, columns, 0)
    rows = [
        shifts.at(stacked, offsets)
        for offsets in itertools.product(*(range(k) for k in window.kernel[:last]))
    ]
    if channels < FEW_CHANNELS:
        rows = [_concat(lowering, rows, 0)]
    height = channels * math.prod(window.kernel) // len(rows)
    flat = graph.ints([height, -1])
    products = [graph.op("Gemm", g, graph.op("Reshape", row, flat), transB=1) for row in rows]
    product = _concat(lowering, products, 1)
    spread = graph.op("Reshape", product, graph.ints([out_channels, *window.kernel, channels]))
    return graph.op("Transpose", spread, perm=[0, rank + 1, *range(1, rank + 1)])


def _grouped_weight_gradient(
    lowering: Lowering, maps: fx.Node, images: fx.Node, weight: fx.Node, window: _Window
) -> str:
    """Return the same for groups of channels, also one, by a batched product over the groups g.

    (g, O/g, N h w) x (g, N h w, k C/g): all offsets of the kernel are stacked.
    """
    graph, shifts, groups = lowering.graph, _Shifts(lowering, maps, window), window.groups
    out_channels, channels = (int(size) for size in static_shape(weight)[:2])
    per_group, count = out_channels // groups, math.prod(window.kernel)
    g = graph.op("Reshape", _channels_first(lowering, maps), graph.ints([groups, per_group, -1]))
    padded = shifts.padded(_channels_first(lowering, images))
    flat = graph.ints([groups, channels, 1, -1])
    columns = [
        graph.op("Reshape", shifts.at(padded, offsets), flat)
        for offsets in itertools.product(*(range(k) for k in window.kernel))
    ]
    stacked = graph.op(
        "Reshape",
        _concat(lowering, columns, 2),
        graph.ints([groups, channels * count, -1]),
    )
    turned = graph.op("Transpose", stacked, perm=[0, 2, 1])
    product = graph.op("MatMul", g, turned)
    return graph.op("Reshape", product, graph.ints(static_shape(weight)))


def _band_weight_gradient(
    lowering: Lowering, maps: fx.Node, images: fx.Node, weight: fx.Node, window: _Window
) -> str:
    """Return the gradient of one input channel per group, by products over whole lines.

        M_i[c, u, w] = sum_{n, h} X[n, c, s h + d i - p, u] G[n, c, h, w]
        dW[c, i, j] = sum_w M_i[c, s w + d j - p, w]

    Lines and columns outside the pictures are left out. A constant of zeros and ones sums the band
    of M_i. The product has more multiplications than are needed, but is a matrix product.
    """
    graph, groups = lowering.graph, window.groups
    out_channels, per_group = static_shape(weight)[0], static_shape(weight)[0] // groups
    (height, width), (have, wide) = static_shape(maps, 2), static_shape(images, 2)
    g, x = _channels_first(lowering, maps), _channels_first(lowering, images)

    def lines(value: str, axes: Sequence[int], start: int, count: int, step: int, of: int) -> str:
        bounds = start, start + step * (count - 1) + 1, 2, step
        if (start, count, step) != (0, of, 1):
            value = graph.op("Slice", value, *(graph.ints([n]) for n in bounds))
        return graph.op("Reshape", value, graph.ints(axes))

    bands = []
    for i in range(window.kernel[0]):
        step, shift = window.stride[0], window.dilation[0] * i - window.padding[0]
        first, end = max(0, -(shift // step)), min(height, (have - 1 - shift) // step + 1)
        if first >= end:
            nothing = np.zeros((groups, per_group, wide, width), np.float32)
            bands.append(graph.constant(nothing))
            continue
        count, start = end - first, first * step + shift
        of_x = lines(x, [groups, 1, -1, wide], start, count, step, have)
        of_g = lines(g, [groups, per_group, -1, width], first, count, 1, height)
        turned = graph.op("Transpose", of_x, perm=[0, 1, 3, 2])
        bands.append(graph.op("MatMul", turned, of_g))
    rows, columns = window.kernel
    stacked = graph.op(
        "Reshape", _concat(lowering, bands, 2), graph.ints([out_channels * rows, wide * width])
    )
    offset = np.arange(wide)[:, None, None] - window.stride[1] * np.arange(width)[:, None]
    selector = offset == window.dilation[1] * np.arange(columns) - window.padding[1]
    flat = selector.reshape(wide * width, columns).astype(np.float32)
    product = graph.op("MatMul", stacked, graph.constant(flat))
    return graph.op("Reshape", product, graph.ints([out_channels, 1, rows, columns]))


SPREAD_PAIRS = 1296
"""Pairs of a position of the input and one of the result, up to which a kernel of one input channel
per group is spread: with 16 pictures the three convolutions then take 0.2 (3 x 3) to 0.5 (6 x 6) of
the time, as the runtime's own are one tiny product per picture and channel. A step of MobileNetV2
on 96 x 96 takes 0.79 of its time with 16 pictures, 0.92 with 4, and 1.29 with one."""


def _is_spread(window: _Window, weight: fx.Node, x: fx.Node, result: fx.Node) -> bool:
    """Return whether a convolution is computed by the matrices of `_spread`."""
    if window.is_transposed or window.groups == 1 or static_shape(weight)[1] != 1:
        return False
    sizes = [*shape_of(x)[2:], *shape_of(result)[2:]]
    return all(isinstance(n, int) for n in sizes) and math.prod(map(int, sizes)) <= SPREAD_PAIRS


def _places(
    lowering: Lowering, window: _Window, x: fx.Node, result: fx.Node, *, is_turned: bool = False
) -> str:
    """Return 1 where an offset of the kernel joins a position of the input to one of the result.

    Shape (offsets of the kernel, positions of the result * positions of the input); turned, the
    positions of the input come first.
    """
    places = np.ones((1, 1, 1), np.bool_)
    have, wanted = static_shape(x, 2), static_shape(result, 2)
    for axis, (size, out) in enumerate(zip(have, wanted, strict=True)):
        offsets = window.dilation[axis] * np.arange(window.kernel[axis]) - window.padding[axis]
        reached = offsets[:, None] + window.stride[axis] * np.arange(out)
        here = reached[..., None] == np.arange(size)
        joined = np.einsum("kou,jpv->kjopuv", places, here)
        places = joined.reshape(-1, places.shape[1] * out, places.shape[2] * size)
    if is_turned:
        places = np.ascontiguousarray(places.transpose(0, 2, 1))
    flat = lowering.graph.constant(places.reshape(len(places), -1))  # a byte each
    return lowering.graph.op("Cast", flat, to=ELEMENT_TYPES[torch.float32])


def _spread(
    lowering: Lowering,
    x: fx.Node,
    weight: fx.Node,
    result: fx.Node,
    window: _Window,
    *,
    is_turned: bool = False,
) -> str:
    """Return the matrix of each group, by which a picture as a column gives the result as one.

    Shape (groups, outputs per group * positions of the result, positions of the input); turned, for
    one output per group, (groups, positions of the input, positions of the result). The batch is
    the last axis of what is multiplied, so that products have as many columns as pictures.
    """
    graph, offsets = lowering.graph, math.prod(window.kernel)
    flat = graph.op("Reshape", lowering.value(weight), graph.ints([-1, offsets]))
    places = _places(lowering, window, x, result, is_turned=is_turned)
    spread = graph.op("MatMul", flat, places)
    columns = _positions(result if is_turned else x)
    return graph.op("Reshape", spread, graph.ints([window.groups, -1, columns]))


def _columns(lowering: Lowering, node: fx.Node, groups: int) -> str:
    """Return pictures as columns of a matrix per group, shape (groups, values of a group, B)."""
    graph = lowering.graph
    flat = graph.op("Reshape", lowering.value(node), graph.ints([-1, _values(node)]))
    turned = graph.op("Transpose", flat, perm=[1, 0])
    return graph.op("Reshape", turned, graph.ints([groups, _values(node) // groups, -1]))


def _pictures(lowering: Lowering, columns: str, like: fx.Node) -> str:
    """Return columns as pictures of the shape of a node."""
    graph = lowering.graph
    flat = graph.op("Reshape", columns, graph.ints([_values(like), -1]))
    turned = graph.op("Transpose", flat, perm=[1, 0])
    return graph.op("Reshape", turned, graph.ints([-1, *static_shape(like, 1)]))


def _values(node: fx.Node) -> int:
    return math.prod(static_shape(node, 1))


def _positions(node: fx.Node) -> int:
    return math.prod(static_shape(node, 2))


def _spread_convolution(
    lowering: Lowering,
    bias: Sequence[str],
    x: fx.Node,
    weight: fx.Node,
    node: fx.Node,
    window: _Window,
) -> str:
    graph, spread = lowering.graph, _spread(lowering, x, weight, node, window)
    product = graph.op("MatMul", spread, _columns(lowering, x, window.groups))
    found = _pictures(lowering, product, node)
    for each in bias:
        column = graph.ints([1, -1, *[1] * len(window.kernel)])
        found = graph.op("Add", found, graph.op("Reshape", each, column))
    return found


def _spread_x_gradient(
    lowering: Lowering, gradient: fx.Node, x: fx.Node, weight: fx.Node, window: _Window
) -> str:
    graph = lowering.graph
    if static_shape(weight)[0] == window.groups:
        # A matrix of its own: that of the forward pass would be kept until here, 90 MB of a
        # MobileNetV2 on 96 x 96.
        turned = _spread(lowering, x, weight, gradient, window, is_turned=True)
    else:
        spread = _spread(lowering, x, weight, gradient, window)
        turned = graph.op("Transpose", spread, perm=[0, 2, 1])
    columns = _columns(lowering, gradient, window.groups)
    return _pictures(lowering, graph.op("MatMul", turned, columns), x)


def _spread_weight_gradient(
    lowering: Lowering, gradient: fx.Node, x: fx.Node, weight: fx.Node, window: _Window
) -> str:
    """Return the sums, over the places of each offset, of the gradient of the spread kernel."""
    graph, groups = lowering.graph, window.groups
    turned = graph.op("Transpose", _columns(lowering, x, groups), perm=[0, 2, 1])
    product = graph.op("MatMul", _columns(lowering, gradient, groups), turned)
    flat = graph.op("Reshape", product, graph.ints([static_shape(weight)[0], -1]))
    summed = graph.op("Gemm", flat, _places(lowering, window, x, gradient), transB=1)
    return graph.op("Reshape", summed, graph.ints(static_shape(weight)))


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
