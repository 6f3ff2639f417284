"""Changes of shape (views, transpositions, expansions), and arithmetic on the batch size."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from fairbed.coordinator.task.lowering import (
    Handler,
    Lowering,
    Value,
    arguments,
    dtype_of,
    meta,
    operation_name,
    shape_of,
    unsupported,
)

_VIEWS = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")


def _source(node: fx.Node) -> fx.Node:
    source: fx.Node = arguments(node)[0]
    return source


def _view(lowering: Lowering, node: fx.Node) -> Value:
    sizes = shape_of(node)
    symbolic = [size for size in sizes if not isinstance(size, int)]
    if len(symbolic) > 1:
        raise unsupported(node, f"must leave one axis to the batch, got {sizes}")
    target = lowering.graph.ints(_target(sizes))
    return lowering.graph.op("Reshape", lowering.value(viewed(_source(node))), target)


def viewed(node: fx.Node) -> fx.Node:
    """Return the value of which a chain of views shows all numbers in their order."""
    while operation_name(node) in _VIEWS or (
        operation_name(node) == "aten.expand.default"
        and [str(n) for n in shape_of(node)] == [str(n) for n in shape_of(_source(node))]
    ):
        node = _source(node)
    return node


def permutation(node: fx.Node) -> tuple[fx.Node, list[int]]:
    """Return the source of a chain of transpositions, and the axes of their product."""
    axes = list(range(len(shape_of(node))))
    while operation_name(node) == "aten.permute.default":
        own = [dim % len(axes) for dim in arguments(node)[1]]
        axes = [own[axis] for axis in axes]
        node = _source(node)
    return node, axes


def _permute(lowering: Lowering, node: fx.Node) -> Value:
    source, axes = permutation(node)
    if axes == sorted(axes):
        return lowering.value(source)
    return lowering.graph.op("Transpose", lowering.value(source), perm=axes)


def _unsqueeze(lowering: Lowering, node: fx.Node) -> Value:
    axis = lowering.graph.ints([arguments(node)[1]])
    return lowering.graph.op("Unsqueeze", lowering.value(_source(node)), axis)


def _squeeze(lowering: Lowering, node: fx.Node) -> Value:
    source, wanted = arguments(node)
    sizes = shape_of(source)
    axes = [axis % len(sizes) for axis in (wanted if isinstance(wanted, Sequence) else [wanted])]
    ones = sorted(axis for axis in axes if sizes[axis] == 1)
    if not ones:
        return lowering.value(source)
    return lowering.graph.op("Squeeze", lowering.value(source), lowering.graph.ints(ones))


def _expand(lowering: Lowering, node: fx.Node) -> Value:
    """Expand axes of size 1; 1 in the shape of ONNX keeps an axis, such as that of the batch."""
    source, dims, *_ = arguments(node)
    wanted = shape_of(node)
    have = [*[1] * (len(wanted) - len(shape_of(source))), *shape_of(source)]
    kept = [1 if str(old) == str(new) else new for old, new in zip(have, wanted, strict=True)]
    if all(isinstance(size, int) and size == 1 for size in kept):
        value = lowering.value(source)
        missing = list(range(len(wanted) - len(shape_of(source))))
        return (
            lowering.graph.op("Unsqueeze", value, lowering.graph.ints(missing))
            if missing
            else value
        )
    parts = [1 if isinstance(n, int) and n == 1 else dim for n, dim in zip(kept, dims, strict=True)]
    return lowering.graph.op("Expand", lowering.value(source), lowering.sizes(parts, kept))


def _in_order(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Return whether strides read memory in order; those of axes of size 1 do not matter."""
    expected: Any = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if not isinstance(stride, int) or stride != expected:
            return False
        expected = expected * size if isinstance(size, int) else None
    return True


def _as_strided(lowering: Lowering, node: fx.Node) -> Value:
    """Return the source in another shape, where it is read in its own order."""
    source, _, strides, offset = [*arguments(node), 0][:4]
    have, wanted = meta(source), shape_of(node)
    value = lowering.value(source)
    if offset not in (0, None) or not _in_order(wanted, strides):
        raise unsupported(node, f"must read values in their order, got strides {strides}")
    if _in_order(have.shape, have.stride()) and str(have.numel()) == str(meta(node).numel()):
        return lowering.graph.op("Reshape", value, lowering.graph.ints(_target(wanted)))
    raise unsupported(node, f"must read all values in order, got {list(have.shape)} as {wanted}")


def _as_strided_scatter(lowering: Lowering, node: fx.Node) -> Value:
    """Return a flat tensor all of which is replaced by values in their order."""
    source, part, sizes, strides, offset = [*arguments(node), 0][:5]
    is_whole = str(meta(source).numel()) == str(meta(part).numel())
    if offset not in (0, None) or not is_whole or not _in_order(shape_of(part), strides):
        raise unsupported(node, f"must replace all values, got {sizes} with strides {strides}")
    target = lowering.graph.ints(_target(shape_of(node)))
    return lowering.graph.op("Reshape", lowering.value(part), target)


def _target(sizes: Sequence[Any]) -> list[int]:
    return [int(size) if isinstance(size, int) else -1 for size in sizes]


def _getitem(lowering: Lowering, node: fx.Node) -> Value:
    return lowering.output(*arguments(node))


def _count(lowering: Lowering, node: fx.Node) -> str:
    (source,) = arguments(node)
    return lowering.graph.op("Size", lowering.value(source))


def _size(lowering: Lowering, node: fx.Node) -> Value:
    source, axis = arguments(node)
    sizes = lowering.graph.op("Shape", lowering.value(source), start=axis, end=axis + 1)
    return lowering.graph.op("Squeeze", sizes)


def _scalar(kind: str) -> Handler:
    """Return the rule for arithmetic on sizes, which are int64 or float32 scalars."""

    def handler(lowering: Lowering, node: fx.Node) -> Value:
        dtype = dtype_of(node)
        return lowering.graph.op(kind, *(lowering.tensor(arg, dtype) for arg in arguments(node)))

    return handler


OPERATIONS: Mapping[str, Handler] = {
    **dict.fromkeys(_VIEWS, _view),
    "aten.permute.default": _permute,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.dims": _squeeze,
    "aten.squeeze.dim": _squeeze,
    "aten.expand.default": _expand,
    "aten.as_strided.default": _as_strided,
    "aten.as_strided_scatter.default": _as_strided_scatter,
    "getitem": _getitem,
    "aten.sym_size.int": _size,
    "aten.sym_numel.default": _count,
    "add": _scalar("Add"),
    "sub": _scalar("Sub"),
    "mul": _scalar("Mul"),
    "truediv": _scalar("Div"),
    "floordiv": _scalar("Div"),  # of sizes, which are not negative
    "sym_max": _scalar("Max"),
    "sym_min": _scalar("Min"),
}
