"""Reductions along axes: sums, means, maxima, softmax."""

from collections.abc import Mapping

from torch import fx

from fairbed.coordinator.task.lowering import (
    Handler,
    Lowering,
    Value,
    arguments,
    dtype_of,
    shape_of,
)


def _reduce(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        source, *options = arguments(node)
        dims = options[0] if options else []
        keep = len(options) > 1 and options[1]
        inputs = [lowering.tensor(source, dtype_of(node))]
        if dims:
            rank = len(shape_of(source))
            inputs.append(lowering.graph.ints(sorted(dim % rank for dim in dims)))
        return lowering.graph.op(kind, *inputs, keepdims=int(keep))

    return handler


def _softmax(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        source, axis, _ = arguments(node)
        return lowering.graph.op(kind, lowering.tensor(source, dtype_of(node)), axis=axis)

    return handler


def _argmax(lowering: Lowering, node: fx.Node) -> Value:
    source, axis, *keep = arguments(node)
    keepdims = int(keep[0]) if keep else 0
    return lowering.graph.op("ArgMax", lowering.value(source), axis=axis, keepdims=keepdims)


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
