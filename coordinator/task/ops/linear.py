"""Matrix products; transpositions of the operands become attributes of Gemm."""

from collections.abc import Mapping
from typing import Any

from torch import fx

from fairbed.coordinator.task.lowering import Handler, Lowering, Value, arguments
from fairbed.coordinator.task.ops.shape import permutation


def _mm(lowering: Lowering, node: fx.Node) -> Value:
    left, right = arguments(node)
    return _gemm(lowering, left, right)


def _addmm(lowering: Lowering, node: fx.Node) -> Value:
    bias, left, right = arguments(node)
    scale: dict[str, Any] = dict(node.kwargs)  # alpha and beta mean the same in Gemm
    return _gemm(lowering, left, right, lowering.value(bias), **scale)


def _gemm(lowering: Lowering, left: fx.Node, right: fx.Node, *bias: str, **scale: float) -> str:
    (a, a_axes), (b, b_axes) = permutation(left), permutation(right)
    return lowering.graph.op(
        "Gemm",
        lowering.value(a),
        lowering.value(b),
        *bias,
        transA=int(a_axes == [1, 0]),
        transB=int(b_axes == [1, 0]),
        **scale,
    )


def _bmm(lowering: Lowering, node: fx.Node) -> Value:
    left, right = arguments(node)
    return lowering.graph.op("MatMul", lowering.value(left), lowering.value(right))


OPERATIONS: Mapping[str, Handler] = {
    "aten.mm.default": _mm,
    "aten.addmm.default": _addmm,
    "aten.bmm.default": _bmm,
}
