"""Along axes: sums, means, maxima, softmax."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from coordinator.task.lowering import Handler, Lowering, Value, dtype_of, shape_of


def _argument(node: fx.Node, index: int, default: Any) -> Any:
    return node.args[index] if len(node.args) > index else default


def _reduce(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        dims = _argument(node, 1, None)
        keep = bool(_argument(node, 2, False))
        inputs = [lowering.tensor(source, dtype_of(node))]
        if isinstance(dims, Sequence) and dims:
            rank = len(shape_of(source))
            inputs.append(lowering.graph.ints(sorted(int(dim) % rank for dim in dims)))
        return lowering.graph.op(kind, *inputs, keepdims=int(keep))

    return handler


def _softmax(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        value = lowering.tensor(node.args[0], dtype_of(node))
        return lowering.graph.op(kind, value, axis=int(str(node.args[1])))

    return handler


def _argmax(lowering: Lowering, node: fx.Node) -> Value:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    axis = int(str(node.args[1]))
    keep = bool(_argument(node, 2, False))
    return lowering.graph.op("ArgMax", lowering.value(source), axis=axis, keepdims=int(keep))


OPERATIONS: Mapping[str, Handler] = {
    "aten.sum.default": _reduce("ReduceSum"),
    "aten.sum.dim_IntList": _reduce("ReduceSum"),
    "aten.mean.default": _reduce("ReduceMean"),
    "aten.mean.dim": _reduce("ReduceMean"),
    "aten.amax.default": _reduce("ReduceMax"),
    "aten._log_softmax.default": _softmax("LogSoftmax"),
    "aten._softmax.default": _softmax("Softmax"),
    "aten.argmax.default": _argmax,
}
