"""Changes of shape (views, transpositions, expansions), and arithmetic on the batch size."""

from collections.abc import Mapping, Sequence

from torch import fx

from fairbed.coordinator.task.lowering import (
    Handler,
    Lowering,
    Value,
    arguments,
    dtype_of,
    operation_name,
    shape_of,
    unsupported,
)


def _source(node: fx.Node) -> fx.Node:
    source: fx.Node = arguments(node)[0]
    return source


def _view(lowering: Lowering, node: fx.Node) -> Value:
    sizes = shape_of(node)
    symbolic = [size for size in sizes if not isinstance(size, int)]
    if len(symbolic) > 1:
        raise unsupported(node, f"must leave one axis to the batch, got {sizes}")
    target = [int(size) if isinstance(size, int) else -1 for size in sizes]
    return lowering.graph.op("Reshape", lowering.value(_source(node)), lowering.graph.ints(target))


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
    have, wanted = shape_of(source), shape_of(node)
    have = [1] * (len(wanted) - len(have)) + have
    kept = [1 if str(old) == str(new) else new for old, new in zip(have, wanted, strict=True)]
    if all(isinstance(size, int) and size == 1 for size in kept):
        value = lowering.value(source)
        missing = list(range(len(wanted) - len(shape_of(source))))
        return lowering.graph.op("Unsqueeze", value, lowering.graph.ints(missing)) if missing else value
    parts = [1 if isinstance(n, int) and n == 1 else dim for n, dim in zip(kept, dims, strict=True)]
    return lowering.graph.op("Expand", lowering.value(source), lowering.sizes(parts, kept))


def _getitem(lowering: Lowering, node: fx.Node) -> Value:
    return lowering.output(*arguments(node))


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
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    "aten.reshape.default": _view,
    "aten.permute.default": _permute,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.dims": _squeeze,
    "aten.squeeze.dim": _squeeze,
    "aten.expand.default": _expand,
    "getitem": _getitem,
    "aten.sym_size.int": _size,
    "add": _scalar("Add"),
    "sub": _scalar("Sub"),
    "mul": _scalar("Mul"),
    "truediv": _scalar("Div"),
}
