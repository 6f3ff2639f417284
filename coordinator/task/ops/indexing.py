"""Parts of tensors: slices, joins, pads, and values at indices, with their gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from fairbed.coordinator.task.lowering import (
    NUMPY_TYPES,
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
from fairbed.coordinator.task.ops import elementwise

LAST = 2**63 - 1
"""A bound after the end of each axis, in torch and in ONNX."""


def _axis(node: fx.Node, dim: int) -> int:
    return int(dim) % max(1, len(shape_of(node)))


def _padded(given: Sequence[Any], *defaults: Any) -> list[Any]:
    return [*given, *defaults[len(given) :]]


def _bounds(node: fx.Node, source: fx.Node, first: int) -> tuple[int, int, int, int]:
    """Return axis, start, stop and step of a slice, from argument `first` on."""
    given = _padded(arguments(node)[first:], 0, None, None, 1)
    dim, start, stop, step = given
    axis = _axis(source, dim)
    size = shape_of(source)[axis]
    low, high = 0 if start is None else start, LAST if stop is None else stop
    if isinstance(size, int) and isinstance(low, int) and isinstance(high, int):
        low, high, _ = slice(low, high).indices(size)
        return axis, low, max(low, high), int(step)
    if low == 0 and step == 1 and isinstance(high, int) and high == LAST:
        return axis, 0, LAST, 1
    raise unsupported(node, f"must not cut the batch, got the slice {low}:{high}")


def _slice(lowering: Lowering, node: fx.Node) -> Value:
    source = arguments(node)[0]
    axis, start, stop, step = _bounds(node, source, 1)
    value, size = lowering.value(source), shape_of(source)[axis]
    if start == 0 and step == 1 and stop in (LAST, size):
        return value
    bounds = (lowering.graph.ints([n]) for n in (start, stop, axis, step))
    return lowering.graph.op("Slice", value, *bounds)


def _select(lowering: Lowering, node: fx.Node) -> Value:
    source, dim, index = arguments(node)
    at = lowering.graph.constant(np.array(int(index), np.int64))
    return lowering.graph.op("Gather", lowering.value(source), at, axis=_axis(source, dim))


def _select_backward(lowering: Lowering, node: fx.Node) -> Value:
    """Return a gradient in its place, and zeros in all others."""
    gradient, _, dim, index = arguments(node)
    axis, rank = _axis(node, dim), len(shape_of(node))
    size = shape_of(node)[axis]
    if not isinstance(size, int):
        raise unsupported(node, "must not select examples of the batch")
    wide = lowering.graph.op("Unsqueeze", lowering.value(gradient), lowering.graph.ints([axis]))
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = int(index) % size, size - 1 - int(index) % size
    return lowering.graph.op("Pad", wide, lowering.graph.ints(pads)) if any(pads) else wide


def _add(lowering: Lowering, node: fx.Node) -> Value:
    """Add; gradients of all places of an axis are joined instead."""
    parts = _placed(node)
    first = next(iter(parts.values()), node)
    if len(parts) < 2 or len(parts) < int(
        shape_of(node)[axis := _axis(first, arguments(first)[2])]
    ):
        return elementwise.OPERATIONS["aten.add.Tensor"](lowering, node)
    over = lowering.graph.ints([axis])
    wide = (
        lowering.graph.op("Unsqueeze", lowering.value(arguments(parts[at])[0]), over)
        for at in sorted(parts)
    )
    return lowering.graph.op("Concat", *wide, axis=axis)


def _placed(node: fx.Node) -> dict[int, fx.Node]:
    """Return gradients of single places of one axis, by place; empty if a sum has other terms."""
    found: dict[int, fx.Node] = {}
    terms: list[Any] = [node]
    while terms:
        term = terms.pop()
        kind = operation_name(term) if isinstance(term, fx.Node) else ""
        if kind == "aten.add.Tensor" and not term.kwargs:
            terms += term.args[:2]
            continue
        if kind != "aten.select_backward.default":
            return {}
        axis = _axis(term, term.args[2])
        first = next(iter(found.values()), term)
        size = shape_of(term)[axis]
        is_alike = axis == _axis(first, arguments(first)[2]) and shape_of(term) == shape_of(node)
        if not isinstance(size, int) or not is_alike or int(term.args[3]) % size in found:
            return {}
        found[int(term.args[3]) % size] = term
    return found


def _slice_scatter(lowering: Lowering, node: fx.Node) -> Value:
    """Return the source with a slice replaced; onto zeros, as in gradients, it is a pad."""
    source, part = arguments(node)[:2]
    axis, start, stop, step = _bounds(node, source, 2)
    if stop == LAST:
        return lowering.value(part)
    return _replaced(lowering, source, lowering.value(part), axis, (start, stop, step))


def _select_scatter(lowering: Lowering, node: fx.Node) -> Value:
    source, part, dim, index = arguments(node)
    axis = _axis(source, dim)
    wide = lowering.graph.op("Unsqueeze", lowering.value(part), lowering.graph.ints([axis]))
    at = int(index) % static_shape(source, axis)[0]
    return _replaced(lowering, source, wide, axis, (at, at + 1, 1))


def _replaced(
    lowering: Lowering, source: fx.Node, part: str, axis: int, bounds: tuple[int, int, int]
) -> str:
    graph, (start, stop, step) = lowering.graph, bounds
    size, rank = int(shape_of(source)[axis]), len(shape_of(source))
    if step > 1:  # zeros between the rows: one axis more
        count = len(range(start, stop, step))
        wide = graph.op("Unsqueeze", part, graph.ints([axis + 1]))
        pads = [0] * (2 * rank + 2)
        pads[rank + 1 + axis + 1] = step - 1
        spread = graph.op("Pad", wide, graph.ints(pads))
        part = graph.op("Reshape", spread, graph.ints(_sizes(source, axis, count * step)))
        cut = (graph.ints([n]) for n in (0, (count - 1) * step + 1, axis, 1))
        part = graph.op("Slice", part, *cut)
        stop = start + (count - 1) * step + 1
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = start, size - stop
    inserted = graph.op("Pad", part, graph.ints(pads)) if any(pads) else part
    if is_constant(source, 0):
        return inserted
    is_new = np.zeros(size, np.bool_)
    is_new[start:stop:step] = True
    mask = is_new.reshape([size if at == axis else 1 for at in range(rank)])
    return graph.op("Where", graph.constant(mask), inserted, lowering.value(source))


def _sizes(source: fx.Node, axis: int, size: int) -> list[int]:
    """Return the shape of a source with another size of an axis; -1 for the batch."""
    return [
        size if at == axis else int(have) if isinstance(have, int) else -1
        for at, have in enumerate(shape_of(source))
    ]


FILLED = ("aten.full.default", "aten.full_like.default", "aten.scalar_tensor.default")
EMPTY = ("aten.empty.memory_format", "aten.new_empty.default", "aten.empty_like.default")


def is_constant(node: Any, number: float) -> bool:
    """Return whether all values of an argument are one number."""
    if not isinstance(node, fx.Node):
        return bool(node == number)
    kind = str(node.target)
    if kind in EMPTY:
        return number == 0
    return kind in FILLED and bool(node.args[-1] == number)


def _cat(lowering: Lowering, node: fx.Node) -> Value:
    given = arguments(node)
    parts = [part for part in given[0] if shape_of(part) != [0]]
    axis = _axis(node, given[1] if len(given) > 1 else 0)
    inner = [part for part in parts if not is_constant(part, 0)]
    if len(inner) == 1 and len(parts) > 1 and dtype_of(inner[0]) == dtype_of(node):
        return _bordered(lowering, node, parts, parts.index(inner[0]), axis)
    values = [lowering.tensor(part, dtype_of(node)) for part in parts]
    return values[0] if len(values) == 1 else lowering.graph.op("Concat", *values, axis=axis)


def _bordered(
    lowering: Lowering, node: fx.Node, parts: Sequence[fx.Node], at: int, axis: int
) -> str:
    """Return one part with zeros before and after it."""
    sizes = [static_shape(part, axis)[0] for part in parts]
    pads = [0] * (2 * len(shape_of(node)))
    pads[axis], pads[len(shape_of(node)) + axis] = sum(sizes[:at]), sum(sizes[at + 1 :])
    return lowering.graph.op("Pad", lowering.value(parts[at]), lowering.graph.ints(pads))


def _split(lowering: Lowering, node: fx.Node) -> Value:
    source, sizes, *dim = arguments(node)
    axis = _axis(source, dim[0] if dim else 0)
    static_shape(source, axis)
    if isinstance(sizes, int):
        size = int(shape_of(source)[axis])
        sizes = [min(sizes, size - at) for at in range(0, size, sizes)]
    counts = lowering.graph.ints([int(size) for size in sizes])
    if len(sizes) == 1:
        return (lowering.value(source),)
    return lowering.graph.ops("Split", len(sizes), lowering.value(source), counts, axis=axis)


def _unbind(lowering: Lowering, node: fx.Node) -> Value:
    source, *dim = arguments(node)
    axis = _axis(source, dim[0] if dim else 0)
    count, value = static_shape(source, axis)[0], lowering.value(source)
    at = [lowering.graph.constant(np.array(i, np.int64)) for i in range(count)]
    return tuple(lowering.graph.op("Gather", value, i, axis=axis) for i in at)


def _pad(lowering: Lowering, node: fx.Node) -> Value:
    source, sizes, *value = arguments(node)
    rank, number = len(shape_of(source)), value[0] if value else 0
    begins, ends = [0] * rank, [0] * rank
    for at in range(len(sizes) // 2):
        begins[rank - 1 - at], ends[rank - 1 - at] = int(sizes[2 * at]), int(sizes[2 * at + 1])
    fill = [] if number == 0 else [lowering.tensor(number, dtype_of(node))]
    pads = lowering.graph.ints([*begins, *ends])
    return lowering.graph.op("Pad", lowering.value(source), pads, *fill)


def _flip(lowering: Lowering, node: fx.Node) -> Value:
    source, dims = arguments(node)
    axes = [_axis(source, dim) for dim in dims]
    ones, far = [-1] * len(axes), [-LAST] * len(axes)
    bounds = (lowering.graph.ints(part) for part in (ones, far, axes, ones))
    return lowering.graph.op("Slice", lowering.value(source), *bounds)


def _repeat(lowering: Lowering, node: fx.Node) -> Value:
    source, counts = arguments(node)
    value, missing = lowering.value(source), len(counts) - len(shape_of(source))
    graph = lowering.graph
    if missing:
        value = graph.op("Unsqueeze", value, graph.ints(list(range(missing))))
    if all(count == 1 for count in counts):
        return value
    times = lowering.sizes(counts, [_plain(count) for count in counts])
    return graph.op("Tile", value, times)


def _plain(size: Any) -> Any:
    return size.meta["val"] if isinstance(size, fx.Node) else size


def _index_select(lowering: Lowering, node: fx.Node) -> Value:
    source, dim, index = arguments(node)
    values = lowering.value(source), lowering.value(index)
    return lowering.graph.op("Gather", *values, axis=_axis(source, dim))


def _gather(lowering: Lowering, node: fx.Node) -> Value:
    source, dim, index = arguments(node)[:3]
    values = lowering.value(source), lowering.value(index)
    return lowering.graph.op("GatherElements", *values, axis=_axis(source, dim))


def _scatter(reduction: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        source, dim, index, part = arguments(node)[:4]
        graph, places = lowering.graph, lowering.value(index)
        if isinstance(part, fx.Node):
            updates = lowering.tensor(part, dtype_of(node))
            if shape_of(part) != shape_of(index):
                raise unsupported(node, "must have one value per index")
        else:
            number = graph.constant(np.array(part, NUMPY_TYPES[dtype_of(node)]))
            updates = graph.op("Expand", number, graph.op("Shape", places))
        attributes = {"reduction": reduction} if reduction else {}
        values = (lowering.value(source), places, updates)
        return graph.op("ScatterElements", *values, axis=_axis(source, dim), **attributes)

    return handler


def _embedding(lowering: Lowering, node: fx.Node) -> Value:
    weight, index = arguments(node)[:2]
    return lowering.graph.op("Gather", lowering.value(weight), lowering.value(index), axis=0)


def _embedding_backward(lowering: Lowering, node: fx.Node) -> Value:
    """Add the gradient of each token to its row; that of the padding row is zero."""
    gradient, index, rows, padding, scales = arguments(node)
    if scales:
        raise unsupported(node, "must have scale_grad_by_freq=False, got True")
    graph, width = lowering.graph, static_shape(node)[1]
    value = graph.op("Reshape", lowering.value(gradient), graph.ints([-1, width]))
    places = graph.op("Reshape", lowering.value(index), graph.ints([-1, 1]))
    if 0 <= padding < rows:
        is_padding = graph.op("Equal", places, graph.constant(np.array(padding, np.int64)))
        value = graph.op("Where", is_padding, graph.constant(np.zeros((), np.float32)), value)
    zeros = graph.op("Expand", graph.constant(np.zeros(1, np.float32)), graph.ints([rows, width]))
    return graph.op("ScatterND", zeros, places, value, reduction="add")


class _Places:
    """Indices of `x[i, :, j]`: which axes they are of, and where their own axes go.

    Args:
        lowering: Receives the operations.
        node: The operation.
        source: The tensor that is indexed.
        indices: Of each axis, None for a whole one.
    """

    def __init__(
        self, lowering: Lowering, node: fx.Node, source: fx.Node, indices: Sequence[Any]
    ) -> None:
        rank = len(shape_of(source))
        self.axes = [axis for axis, index in enumerate(indices) if index is not None]
        self.given = [indices[axis] for axis in self.axes]
        if any(dtype_of(index) == torch.bool for index in self.given):
            raise unsupported(node, "must have integers as indices, got booleans")
        rest = [axis for axis in range(rank) if axis not in self.axes]
        self.order = [*self.axes, *rest]
        self.depth = max(len(shape_of(index)) for index in self.given)
        is_joined = self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))
        first = self.axes[0] if is_joined else 0
        own = list(range(self.depth))
        others = list(range(self.depth, self.depth + len(rest)))
        self.placed = [*others[:first], *own, *others[first:]]
        self._lowering = lowering

    def stacked(self) -> str:
        """Return all indices, shape (..., axes)."""
        graph, last = self._lowering.graph, self._lowering.graph.ints([-1])
        values = [self._lowering.value(index) for index in self.given]
        if len(values) > 1:
            shape = values[0]
            for value in values[1:]:
                shape = graph.op("Add", shape, value)
            size = graph.op("Shape", shape)
            values = [graph.op("Expand", value, size) for value in values]
        parts = [graph.op("Unsqueeze", value, last) for value in values]
        return parts[0] if len(parts) == 1 else graph.op("Concat", *parts, axis=-1)


def _index(lowering: Lowering, node: fx.Node) -> Value:
    source, indices = arguments(node)
    places, graph = _Places(lowering, node, source, indices), lowering.graph
    value = lowering.value(source)
    if len(places.axes) == 1:
        return graph.op("Gather", value, lowering.value(places.given[0]), axis=places.axes[0])
    if places.order != sorted(places.order):
        value = graph.op("Transpose", value, perm=places.order)
    found = graph.op("GatherND", value, places.stacked())
    if places.placed == sorted(places.placed):
        return found
    return graph.op("Transpose", found, perm=places.placed)


def _index_put(lowering: Lowering, node: fx.Node) -> Value:
    source, indices, part, *accumulate = arguments(node)
    places, graph = _Places(lowering, node, source, indices), lowering.graph
    base, stacked = lowering.value(source), places.stacked()
    if places.order != sorted(places.order):
        base = graph.op("Transpose", base, perm=places.order)
    updates = lowering.tensor(part, dtype_of(node))
    rank = places.depth + len(places.order) - len(places.axes)
    wanted = graph.op("Shape", graph.op("GatherND", base, stacked))
    if len(shape_of(part)) == rank:
        back = [places.placed.index(axis) for axis in range(rank)]
        if back != sorted(back):  # to the order of ScatterND: indices first
            updates = graph.op("Transpose", updates, perm=back)
    updates = graph.op("Expand", updates, wanted)
    attributes = {"reduction": "add"} if accumulate and accumulate[0] else {}
    found = graph.op("ScatterND", base, stacked, updates, **attributes)
    if places.order == sorted(places.order):
        return found
    return graph.op("Transpose", found, perm=list(np.argsort(places.order)))


OPERATIONS: Mapping[str, Handler] = {
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.select_backward.default": _select_backward,
    "aten.add.Tensor": _add,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.cat.default": _cat,
    "aten.split_with_sizes.default": _split,
    "aten.split.Tensor": _split,
    "aten.unbind.int": _unbind,
    "aten.constant_pad_nd.default": _pad,
    "aten.flip.default": _flip,
    "aten.repeat.default": _repeat,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.scatter.src": _scatter(""),
    "aten.scatter.value": _scatter(""),
    "aten.scatter_add.default": _scatter("add"),
    "aten.embedding.default": _embedding,
    "aten.embedding_dense_backward.default": _embedding_backward,
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index_put,
    "aten._unsafe_index.Tensor": _index,
    "aten._unsafe_index_put.default": _index_put,
}
