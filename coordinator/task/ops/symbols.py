"""Arithmetic on the batch size: int64 or float32 scalars."""

from collections.abc import Mapping

from torch import fx

from fairbed.coordinator.task.lowering import Handler, Lowering, Value, arguments, dtype_of


def _size(lowering: Lowering, node: fx.Node) -> Value:
    source, axis = arguments(node)
    sizes = lowering.graph.op("Shape", lowering.value(source), start=axis, end=axis + 1)
    return lowering.graph.op("Squeeze", sizes)


def _arithmetic(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        dtype = dtype_of(node)
        return lowering.graph.op(kind, *(lowering.tensor(arg, dtype) for arg in arguments(node)))

    return handler


OPERATIONS: Mapping[str, Handler] = {
    "aten.sym_size.int": _size,
    "add": _arithmetic("Add"),
    "sub": _arithmetic("Sub"),
    "mul": _arithmetic("Mul"),
    "truediv": _arithmetic("Div"),
}
