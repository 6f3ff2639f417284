"""Elementwise operations: arithmetic, comparisons, activations, casts and constants."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import fx

from fairbed.coordinator.task.lowering import (
    ELEMENT_TYPES,
    NUMPY_TYPES,
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

UNARY = {
    "relu": "Relu",
    "exp": "Exp",
    "log": "Log",
    "neg": "Neg",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "sign": "Sign",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "reciprocal": "Reciprocal",
    "bitwise_not": "Not",
    "erf": "Erf",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "logical_not": "Not",
}
ARITHMETIC = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}
COMPARISONS = {
    "eq": ("Equal", False),
    "ne": ("Equal", True),
    "le": ("LessOrEqual", False),
    "lt": ("Less", False),
    "ge": ("GreaterOrEqual", False),
    "gt": ("Greater", False),
}


Expression: TypeAlias = Callable[..., str]
"""Writes the value of an operation: of `Terms`, x, and the other arguments of the operation."""


def _unary(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        return lowering.graph.op(kind, lowering.tensor(node.args[0], dtype_of(node)))

    return handler


def _arithmetic(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        left, right = _operands(lowering, node, dtype_of(node))
        if (factor := node.kwargs.get("alpha", 1)) != 1:
            right = lowering.graph.op("Mul", right, lowering.tensor(factor, dtype_of(node)))
        if rounding := node.kwargs.get("rounding_mode"):
            quotient = lowering.graph.op(kind, left, right)
            return _rounded(lowering, node, quotient, str(rounding))
        return lowering.graph.op(kind, left, right)

    return handler


def _rounded(lowering: Lowering, node: fx.Node, value: str, rounding: str) -> str:
    if dtype_of(node) != torch.float32:
        raise unsupported(node, f"must divide floats to round them, got {dtype_of(node)}")
    if rounding == "floor":
        return lowering.graph.op("Floor", value)
    return _trunc(Terms(lowering, torch.float32), value)


def _comparison(kind: str, is_negated: bool) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        samples = [meta(a) if isinstance(a, fx.Node) else a for a in arguments(node)]
        left, right = _operands(lowering, node, torch.result_type(samples[0], samples[1]))
        result = lowering.graph.op(kind, left, right)
        return lowering.graph.op("Not", result) if is_negated else result

    return handler


def _operands(lowering: Lowering, node: fx.Node, dtype: torch.dtype) -> list[str]:
    """Return both operands as the dtype, without expansions that broadcasting replaces."""
    result = shape_of(node)
    operands = arguments(node)[:2]
    for i, operand in enumerate(operands):
        other = operands[1 - i]
        if _is_expand(operand) and isinstance(other, fx.Node) and shape_of(other) == result:
            operands[i] = operand.args[0]
    return [lowering.tensor(operand, dtype) for operand in operands]


def _is_expand(arg: Any) -> bool:
    return isinstance(arg, fx.Node) and operation_name(arg) == "aten.expand.default"


def _where(lowering: Lowering, node: fx.Node) -> Value:
    condition, yes, no = arguments(node)
    dtype = dtype_of(node)
    active = _relu_output(condition)
    if active is not None and _is_zero(yes) and shape_of(active) == shape_of(node):
        # Backward of relu: where(y <= 0, 0, g) = g [y != 0], since y is never negative. Casts take
        # less time than a comparison, Where or Sign.
        is_active = lowering.graph.op("Cast", lowering.value(active), to=ELEMENT_TYPES[torch.bool])
        factor = lowering.graph.op("Cast", is_active, to=ELEMENT_TYPES[dtype])
        return lowering.graph.op("Mul", lowering.tensor(no, dtype), factor)
    return lowering.graph.op(
        "Where",
        lowering.tensor(condition, torch.bool),
        lowering.tensor(yes, dtype),
        lowering.tensor(no, dtype),
    )


def _relu_output(condition: Any) -> fx.Node | None:
    """Return y if `condition` is y <= 0 and y is the output of a relu."""
    if not isinstance(condition, fx.Node) or operation_name(condition) != "aten.le.Scalar":
        return None
    source: Any = condition.args[0]
    while isinstance(source, fx.Node) and operation_name(source) in ALIASES:
        source = source.args[0]
    if not isinstance(source, fx.Node) or operation_name(source) != "aten.relu.default":
        return None
    return source if _is_zero(condition.args[1]) else None


def _is_zero(arg: Any) -> bool:
    if not isinstance(arg, fx.Node):
        return bool(arg == 0)
    return operation_name(arg) == "aten.scalar_tensor.default" and _is_zero(arg.args[0])


def _of(expression: Expression) -> Handler:
    """Return the rule of an operation that other operations of the graph express."""

    def handler(lowering: Lowering, node: fx.Node) -> Value:
        given = arguments(node)
        terms = Terms(lowering, dtype_of(node))
        x = lowering.tensor(given[0], dtype_of(node))
        return expression(terms, x, *given[1:], **node.kwargs)

    return handler


class Terms:
    """Writes arithmetic on values and numbers of one dtype.

    Args:
        lowering: Receives the operations.
        dtype: Of all numbers.
    """

    def __init__(self, lowering: Lowering, dtype: torch.dtype) -> None:
        self._lowering, self._dtype = lowering, dtype

    def op(self, kind: str, *operands: str | float, **attributes: float) -> str:
        """Return the result of an ONNX operation; a number becomes a constant."""
        values = [
            x if isinstance(x, str) else self._lowering.tensor(x, self._dtype) for x in operands
        ]
        return self._lowering.graph.op(kind, *values, **attributes)

    def remainder(self, x: str, divisor: float, *, is_fmod: bool) -> str:
        """Return x modulo a number, with the sign of x, or of the number."""
        graph, number = self._lowering.graph, self._lowering.tensor(divisor, self._dtype)
        if is_fmod or self._dtype == torch.int64:
            return graph.op("Mod", x, number, fmod=int(is_fmod))
        whole = graph.op("Floor", graph.op("Div", x, number))
        return graph.op("Sub", x, graph.op("Mul", whole, number))


def _leaky_relu(t: Terms, x: str, slope: float = 0.01) -> str:
    return t.op("Where", t.op("Greater", x, 0.0), x, t.op("Mul", x, slope))


def _elu(t: Terms, x: str, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0) -> str:
    low = t.op("Mul", _expm1(t, t.op("Mul", x, inner)), alpha * scale)
    return t.op("Where", t.op("Greater", x, 0.0), t.op("Mul", x, scale), low)


def _clamp(t: Terms, x: str, low: float | None = None, high: float | None = None) -> str:
    found = x if low is None else t.op("Where", t.op("Less", x, low), low, x)
    return found if high is None else t.op("Where", t.op("Greater", x, high), high, found)


def _hardtanh(t: Terms, x: str, low: float = -1.0, high: float = 1.0) -> str:
    return t.op("Clip", x, low, high)


def _expm1(t: Terms, x: str) -> str:
    return t.op("Sub", t.op("Exp", x), 1.0)


def _log1p(t: Terms, x: str) -> str:
    return t.op("Log", t.op("Add", x, 1.0))


def _trunc(t: Terms, x: str) -> str:
    return t.op("Mul", t.op("Sign", x), t.op("Floor", t.op("Abs", x)))


def _exp2(t: Terms, x: str) -> str:
    return t.op("Exp", t.op("Mul", x, math.log(2.0)))


def _log2(t: Terms, x: str) -> str:
    return t.op("Mul", t.op("Log", x), 1.0 / math.log(2.0))


def _log10(t: Terms, x: str) -> str:
    return t.op("Mul", t.op("Log", x), 1.0 / math.log(10.0))


def _fmod(t: Terms, x: str, divisor: float) -> str:
    return t.remainder(x, divisor, is_fmod=True)


def _remainder(t: Terms, x: str, divisor: float) -> str:
    return t.remainder(x, divisor, is_fmod=False)


def _gelu_backward(t: Terms, gradient: str, x: str, approximate: str = "none") -> str:
    """G (Phi(x) + x phi(x)), or the derivative of the form with tanh."""
    if approximate == "tanh":
        square = t.op("Mul", x, x)
        inner = t.op("Add", x, t.op("Mul", t.op("Mul", square, x), 0.044715))
        bell = t.op("Tanh", t.op("Mul", inner, math.sqrt(2.0 / math.pi)))
        slope = t.op("Add", t.op("Mul", square, 3 * 0.044715), 1.0)
        slope = t.op("Mul", slope, math.sqrt(2.0 / math.pi))
        rest = t.op("Sub", 1.0, t.op("Mul", bell, bell))
        curved = t.op("Mul", t.op("Mul", t.op("Mul", rest, slope), x), 0.5)
    else:
        # Each operation is a pass through the memory. x exp(-x^2 / 2) is x / exp(s^2), which is 0
        # where the divisor is infinite.
        scaled = t.op("Mul", x, math.sqrt(0.5))
        bell = t.op("Erf", scaled)
        sloped = t.op("Div", x, t.op("Exp", t.op("Mul", scaled, scaled)))
        curved = t.op("Mul", sloped, 1.0 / math.sqrt(2.0 * math.pi))
    half = t.op("HardSigmoid", bell, alpha=0.5, beta=0.5)  # (1 + bell) / 2, which is in 0 .. 1
    return t.op("Mul", gradient, t.op("Add", half, curved))


def _rsqrt(t: Terms, x: str) -> str:
    return t.op("Reciprocal", t.op("Sqrt", x))


def _pow(t: Terms, x: str, exponent: float) -> str:
    return t.op("Mul", x, x) if exponent == 2 else t.op("Pow", x, exponent)


EXPRESSIONS: Mapping[str, Expression] = {
    "leaky_relu.default": _leaky_relu,
    "elu.default": _elu,
    "hardtanh.default": _hardtanh,
    "clamp.default": _clamp,
    "expm1.default": _expm1,
    "log1p.default": _log1p,
    "rsqrt.default": _rsqrt,
    "pow.Tensor_Scalar": _pow,
    "exp2.default": _exp2,
    "log2.default": _log2,
    "log10.default": _log10,
    "trunc.default": _trunc,
    "fmod.Scalar": _fmod,
    "remainder.Scalar": _remainder,
}


def _gelu(lowering: Lowering, node: fx.Node) -> Value:
    """Return x Phi(x), or its form with tanh: one operation, which reads the memory once."""
    kind = str(node.kwargs.get("approximate", "none"))
    given = {"approximate": kind} if kind != "none" else {}
    return lowering.graph.op("Gelu", lowering.value(arguments(node)[0]), **given)


def _gelu_gradient(lowering: Lowering, node: fx.Node) -> Value:
    gradient, x = (lowering.value(arg) for arg in arguments(node)[:2])
    return _gelu_backward(
        Terms(lowering, dtype_of(node)), gradient, x, str(node.kwargs.get("approximate", "none"))
    )


def _hardtanh_gradient(lowering: Lowering, node: fx.Node) -> Value:
    """Return g between the bounds and 0 elsewhere; the result is compared, so x is needed less."""
    gradient, source, low, high = arguments(node)
    terms = Terms(lowering, dtype_of(node))
    y = _hardtanh(terms, lowering.value(source), low, high)
    is_between = terms.op("And", terms.op("Greater", y, low), terms.op("Less", y, high))
    factor = lowering.graph.op("Cast", is_between, to=ELEMENT_TYPES[dtype_of(node)])
    return terms.op("Mul", lowering.value(gradient), factor)


def _binary(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        return lowering.graph.op(kind, *_operands(lowering, node, dtype_of(node)))

    return handler


def _clamp_by(lowering: Lowering, node: fx.Node) -> Value:
    """Clamp to bounds that are tensors."""
    source, *bounds = arguments(node)
    value = lowering.tensor(source, dtype_of(node))
    for kind, bound in zip(("Max", "Min"), bounds, strict=False):
        if bound is not None:
            value = lowering.graph.op(kind, value, lowering.tensor(bound, dtype_of(node)))
    return value


def _power(lowering: Lowering, node: fx.Node) -> Value:
    left, right = (lowering.tensor(arg, dtype_of(node)) for arg in arguments(node)[:2])
    return lowering.graph.op("Pow", left, right)


def _logical(kind: str) -> Handler:
    def handler(lowering: Lowering, node: fx.Node) -> Value:
        if dtype_of(node) != torch.bool:
            raise unsupported(node, f"must be of booleans, got {dtype_of(node)}")
        return lowering.graph.op(kind, *(lowering.tensor(x, torch.bool) for x in arguments(node)))

    return handler


def _empty(lowering: Lowering, node: fx.Node) -> Value:
    """Return zeros for memory that torch fills before it reads it."""
    return _fill(0, arguments(node)[0], lowering, node)


def _empty_beside(lowering: Lowering, node: fx.Node) -> Value:
    """Return zeros for the memory of a gradient of what changed in place."""
    return _fill(0, arguments(node)[1], lowering, node)


def _alias(lowering: Lowering, node: fx.Node) -> Value:
    return lowering.value(arguments(node)[0])


def _copied(lowering: Lowering, node: fx.Node) -> Value:
    """Return the second argument, in the shape and type of the first."""
    target, source = arguments(node)[:2]
    value = lowering.tensor(source, dtype_of(node))
    if shape_of(source) == shape_of(target):
        return value
    return lowering.graph.op("Expand", value, lowering.graph.op("Shape", lowering.value(target)))


def _cast(lowering: Lowering, node: fx.Node) -> Value:
    return lowering.tensor(node.args[0], dtype_of(node))


def _fill(number: Any, sizes: Sequence[Any], lowering: Lowering, node: fx.Node) -> Value:
    if not isinstance(number, int | float):
        raise unsupported(node, f"must be filled with a number, got {number}")
    scalar = np.array(number, NUMPY_TYPES[dtype_of(node)])
    shape = shape_of(node)
    if not shape:
        return lowering.graph.constant(scalar)
    return lowering.graph.op(
        "Expand", lowering.graph.constant(scalar), lowering.sizes(sizes, shape)
    )


def _full(lowering: Lowering, node: fx.Node) -> Value:
    sizes, number = arguments(node)
    return _fill(number, sizes, lowering, node)


def _full_like(lowering: Lowering, node: fx.Node) -> Value:
    source, number = arguments(node)
    if all(isinstance(size, int) for size in shape_of(node)):
        return _fill(number, shape_of(node), lowering, node)
    scalar = lowering.graph.constant(np.array(number, NUMPY_TYPES[dtype_of(node)]))
    return lowering.graph.op("Expand", scalar, lowering.graph.op("Shape", lowering.value(source)))


def _scalar_tensor(lowering: Lowering, node: fx.Node) -> Value:
    return _fill(node.args[0], (), lowering, node)


def _arange(lowering: Lowering, node: fx.Node) -> Value:
    given = arguments(node)
    if all(isinstance(a, int | float) for a in given):
        return lowering.graph.constant(np.arange(*given).astype(NUMPY_TYPES[dtype_of(node)]))
    start, stop, step = [0, *given, 1] if len(given) == 1 else [*given, 1][:3]
    bounds = (lowering.tensor(bound, torch.int64) for bound in (start, stop, step))
    found = lowering.graph.op("Range", *bounds)
    if dtype_of(node) == torch.int64:
        return found
    return lowering.graph.op("Cast", found, to=ELEMENT_TYPES[dtype_of(node)])


def _nothing(lowering: Lowering, node: fx.Node) -> Value:
    return ()


ALIASES = {
    "aten.alias.default",
    "aten.clone.default",
    "aten.detach.default",
    "aten.lift_fresh_copy.default",
}

OPERATIONS: Mapping[str, Handler] = {
    **{f"aten.{name}.default": _unary(kind) for name, kind in UNARY.items()},
    **{f"aten.{name}.Tensor": _arithmetic(kind) for name, kind in ARITHMETIC.items()},
    **{f"aten.{name}.Scalar": _arithmetic(kind) for name, kind in ARITHMETIC.items()},
    **{f"aten.{name}.Tensor": _comparison(*rule) for name, rule in COMPARISONS.items()},
    **{f"aten.{name}.Scalar": _comparison(*rule) for name, rule in COMPARISONS.items()},
    **{f"aten.{name}": _of(expression) for name, expression in EXPRESSIONS.items()},
    **dict.fromkeys(ALIASES, _alias),
    "aten.bitwise_and.Tensor": _logical("And"),
    "aten.bitwise_or.Tensor": _logical("Or"),
    "aten.logical_and.default": _logical("And"),
    "aten.logical_or.default": _logical("Or"),
    "aten.logical_xor.default": _logical("Xor"),
    "aten.bitwise_xor.Tensor": _logical("Xor"),
    "aten.maximum.default": _binary("Max"),
    "aten.minimum.default": _binary("Min"),
    "aten.clamp.Tensor": _clamp_by,
    "aten.pow.Tensor_Tensor": _power,
    "aten.pow.Scalar": _power,
    "aten.div.Tensor_mode": _arithmetic("Div"),
    "aten.gelu.default": _gelu,
    "aten.gelu_backward.default": _gelu_gradient,
    "aten.hardtanh_backward.default": _hardtanh_gradient,
    "aten.empty_permuted.default": _empty,
    "aten.empty.memory_format": _empty,
    "aten.new_empty_strided.default": _empty_beside,
    "aten.copy.default": _copied,
    "aten._to_copy.default": _cast,
    "aten.where.self": _where,
    "aten.full.default": _full,
    "aten.full_like.default": _full_like,
    "aten.scalar_tensor.default": _scalar_tensor,
    "aten.arange.start_step": _arange,
    "aten.arange.default": _arange,
    "aten._assert_tensor_metadata.default": _nothing,
}
