"""GRU and LSTM: their kernels forward, and gradients written step by step.

The gates of all steps are computed at once from the states, which are known after the forward
pass. Only the gradient of a state passes from step to step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
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
from fairbed.coordinator.task.ops.indexing import is_constant

WIDE = 128
"""States of an LSTM from which the products of its gates cost more than the nodes of its steps."""


class _Layer:
    """One layer in one direction: T steps of a batch with H states.

    Args:
        lowering: Receives the operations.
        node: The operation.
        x: Inputs, shape (T, B, I).
        weight: Of the states, shape (gates H, H).
    """

    def __init__(self, lowering: Lowering, node: fx.Node, x: fx.Node, weight: fx.Node) -> None:
        self.graph, self._lowering = lowering.graph, lowering
        length = shape_of(x)[0]
        if not isinstance(length, int):
            raise unsupported(
                node, "must have a fixed number of steps, got the batch; set batch_first=True"
            )
        if not length:
            raise unsupported(node, "must have a step at least, got an empty sequence")
        self._gates, self.width = static_shape(weight)
        self.length, self._x_width = length, static_shape(x, 2)[0]
        self.inputs = lowering.value(x)

    def steps(self, value: str) -> Sequence[str]:
        """Return the part of each step, shape (1, B, .).

        The first axis stays, because a matrix (T B, .) has a size without a name: see `_Shapes`.
        """
        if self.length == 1:
            return (value,)
        return self.graph.ops("Split", self.length, value, axis=0, num_outputs=self.length)

    def parts(self, value: str, *sizes: int, axis: int = 2) -> tuple[str, ...]:
        """Return parts of an axis, with sizes in numbers of states."""
        counts = self.graph.ints([size * self.width for size in sizes])
        return self.graph.ops("Split", len(sizes), value, counts, axis=axis)

    def joined(self, *values: str, axis: int = 2) -> str:
        """Return values side by side."""
        return self.graph.op("Concat", *values, axis=axis) if len(values) > 1 else values[0]

    def before(self, first: str, states: str) -> str:
        """Return the states before each step, of the first one and those after each step."""
        first = self.graph.op("Unsqueeze", first, self.graph.ints([0]))
        if self.length == 1:
            return first
        ints = self.graph.ints
        early = self.graph.op("Slice", states, ints([0]), ints([self.length - 1]), ints([0]))
        return self.joined(first, early, axis=0)

    def product(self, left: str, weight: str, *added: str) -> str:
        """Return left weight^T + added."""
        turned = self.graph.op("Transpose", weight, perm=[1, 0])
        return self.added(self.graph.op("MatMul", left, turned), *added)

    def added(self, *values: str) -> str:
        """Return a sum."""
        found = values[0]
        for value in values[1:]:
            found = self.graph.op("Add", found, value)
        return found

    def slope(self, kind: str, value: str) -> str:
        """Return the derivative of a sigmoid or tanh from its value."""
        one = self.graph.constant(np.ones((), np.float32))
        if kind == "Sigmoid":
            return self.graph.op("Mul", value, self.graph.op("Sub", one, value))
        return self.graph.op("Sub", one, self.graph.op("Mul", value, value))

    def mul(self, *values: str) -> str:
        """Return a product, element by element."""
        found = values[0]
        for value in values[1:]:
            found = self.graph.op("Mul", found, value)
        return found

    def kernel(
        self, kind: str, x: fx.Node, states: Sequence[str], weights: Sequence[Any], **options: int
    ) -> tuple[str, ...]:
        """Return states of all steps, shape (T, B, H), and the last ones, by a kernel of ONNX."""
        graph, first = self.graph, self.graph.ints([0])
        order = (1, 0, 2) if kind == "GRU" else (0, 3, 1, 2)
        ones = [1] * len(order)

        def ordered(weight: fx.Node) -> str:
            parts = self.parts(self._lowering.value(weight), *ones, axis=0)
            return self.joined(*(parts[at] for at in order), axis=0)

        w_ih, w_hh, b_ih, b_hh = (None if w is None else ordered(w) for w in weights)
        bias = (
            ""
            if b_ih is None or b_hh is None
            else graph.op("Unsqueeze", self.joined(b_ih, b_hh, axis=0), first)
        )
        given = [graph.op("Unsqueeze", str(part), first) for part in (w_ih, w_hh)]
        starts = [graph.op("Unsqueeze", state, first) for state in states]
        y, *last = graph.ops(
            kind,
            1 + len(states),
            self._lowering.value(x),
            *given,
            bias,
            "",
            *starts,
            hidden_size=self.width,
            **options,
        )
        found = [graph.op("Squeeze", y, graph.ints([1]))]
        return *found, *(graph.op("Squeeze", part, first) for part in last)

    def gradients(
        self, changes: str, states: str, before: str, w_ih: str
    ) -> tuple[str, str, str, str, str]:
        """Return gradients of inputs and parameters.

        Args:
            changes: Gradient of what the weights of the inputs add to the gates, shape (T, B, .).
            states: The same of the weights of the states.
            before: States before each step.
            w_ih: Weights of the inputs.
        """
        graph, axes = self.graph, self.graph.ints([0, 1])
        dx = graph.op("MatMul", changes, w_ih)
        dw_ih = self._outer(changes, self.inputs, self._x_width)
        dw_hh = self._outer(states, before, self.width)
        sums = [graph.op("ReduceSum", part, axes, keepdims=0) for part in (changes, states)]
        return dx, dw_ih, dw_hh, sums[0], sums[1]

    def _outer(self, left: str, right: str, width: int) -> str:
        """Return the sum over all steps of left^T right."""
        rows = [
            self.graph.op("Reshape", value, self.graph.ints([-1, size]))
            for value, size in ((left, self._gates), (right, width))
        ]
        return self.graph.op("Gemm", *rows, transA=1)


def _optional(lowering: Lowering, *biases: Any) -> list[str]:
    return [lowering.value(bias) for bias in biases if bias is not None]


def _gru(lowering: Lowering, node: fx.Node) -> Value:
    """Return the states, and the gates for the gradient.

    r, z = sigmoid(W x + U h), n = tanh(W_n x + r (U_n h + b)), h' = n + z (h - n)
    """
    x, h, *weights = arguments(node)
    layer, graph = _Layer(lowering, node, x, weights[1]), lowering.graph
    y, _ = layer.kernel("GRU", x, [lowering.value(h)], weights, linear_before_reset=1)
    before = layer.before(lowering.value(h), y)
    w_ih, w_hh, *biases = (
        layer.parts(value, 2, 1, axis=0)
        for value in [*(lowering.value(w) for w in weights[:2]), *_optional(lowering, *weights[2:])]
    )
    both = [graph.op("Add", biases[0][0], biases[1][0])] if biases else []
    mixed = layer.product(before, w_hh[0], layer.product(layer.inputs, w_ih[0], *both))
    gates = graph.op("Sigmoid", mixed)
    given = layer.product(layer.inputs, w_ih[1], *(b[1] for b in biases[:1]))
    linear = layer.product(before, w_hh[1], *(b[1] for b in biases[1:]))
    reset, _ = layer.parts(gates, 1, 1)
    new = graph.op("Tanh", graph.op("Add", given, layer.mul(reset, linear)))
    return y, gates, new, linear


def _gru_backward(lowering: Lowering, node: fx.Node) -> Value:
    """Return the gradients; with D the gradient of a state, all gates' are multiples of D."""
    dy, x, h, w_ih, w_hh, *given = arguments(node)
    layer, graph = _Layer(lowering, node, x, w_hh), lowering.graph
    y, gates, new, linear = (lowering.value(part) for part in given)
    before, weight = layer.before(lowering.value(h), y), lowering.value(w_hh)
    reset, update = layer.parts(gates, 1, 1)
    one = graph.constant(np.ones((), np.float32))
    to_new = layer.mul(graph.op("Sub", one, update), layer.slope("Tanh", new))
    shares = layer.joined(
        layer.mul(to_new, linear, layer.slope("Sigmoid", reset)),
        layer.mul(graph.op("Sub", before, new), layer.slope("Sigmoid", update)),
        layer.mul(to_new, reset),
    )
    incoming = layer.steps(lowering.value(dy))
    kept, factors = layer.steps(update), layer.steps(shares)
    gradient, totals, changes = incoming[-1], list[str](), list[str]()
    for t in reversed(range(layer.length)):
        totals.append(gradient)
        changes.append(layer.mul(layer.joined(*[gradient] * 3), factors[t]))
        rest = [incoming[t - 1]] if t else []
        passed = graph.op("MatMul", changes[-1], weight)
        gradient = layer.added(passed, layer.mul(gradient, kept[t]), *rest)
    of_states = layer.joined(*changes[::-1], axis=0)
    direct = layer.mul(layer.joined(*totals[::-1], axis=0), to_new)
    of_inputs = layer.joined(layer.parts(of_states, 2, 1)[0], direct)
    dx, *rest = layer.gradients(of_inputs, of_states, before, lowering.value(w_ih))
    return dx, graph.op("Squeeze", gradient, graph.ints([0])), *rest


def _lstm(lowering: Lowering, node: fx.Node) -> Value:
    """Return the states, the last cells, and the gates for the gradient.

    i, f, o = sigmoid(W x + U h), g = tanh(W_g x + U_g h), c' = f c + i g, h' = o tanh(c')
    """
    x, h, c, *weights = arguments(node)
    layer, graph = _Layer(lowering, node, x, weights[1]), lowering.graph
    states = [lowering.value(h), lowering.value(c)]
    w_ih, w_hh = (lowering.value(w) for w in weights[:2])
    biases = _optional(lowering, *weights[2:])
    both = [graph.op("Add", *biases)] if biases else []
    mixed = layer.product(layer.inputs, w_ih, *both)
    is_trained = any(arguments(user)[1] > 1 and user.users for user in node.users)
    if is_trained and layer.width >= WIDE:
        return _lstm_steps(layer, mixed, w_hh, states)
    y, _, last = layer.kernel("LSTM", x, states, weights)
    mixed = layer.product(layer.before(states[0], y), w_hh, mixed)
    gates, new, out = layer.parts(mixed, 2, 1, 1)
    gates, new, out = graph.op("Sigmoid", gates), graph.op("Tanh", new), graph.op("Sigmoid", out)
    add, forget = layer.parts(gates, 1, 1)
    added, forgotten = layer.steps(layer.mul(add, new)), layer.steps(forget)
    cell, cells = graph.op("Unsqueeze", states[1], graph.ints([0])), list[str]()
    for t in range(layer.length):
        cell = graph.op("Add", layer.mul(cell, forgotten[t]), added[t])
        cells.append(cell)
    return y, last, gates, new, out, layer.joined(*cells, axis=0)


def _lstm_steps(layer: _Layer, mixed: str, weight: str, states: Sequence[str]) -> Value:
    """Return the same, step by step: the gates are kept, not computed twice."""
    graph, first = layer.graph, layer.graph.ints([0])
    state, cell = (graph.op("Unsqueeze", value, first) for value in states)
    kept: list[tuple[str, ...]] = []
    for given in layer.steps(mixed):
        gates, new, out = layer.parts(layer.product(state, weight, given), 2, 1, 1)
        gates, new = graph.op("Sigmoid", gates), graph.op("Tanh", new)
        out, (add, forget) = graph.op("Sigmoid", out), layer.parts(gates, 1, 1)
        cell = graph.op("Add", layer.mul(cell, forget), layer.mul(add, new))
        state = layer.mul(out, graph.op("Tanh", cell))
        kept.append((state, gates, new, out, cell))
    y, *rest = (layer.joined(*parts, axis=0) for parts in zip(*kept, strict=True))
    return y, graph.op("Squeeze", cell, first), *rest


def _lstm_backward(lowering: Lowering, node: fx.Node) -> Value:
    """Return the gradients; the gates' are multiples of those of a state and its cell."""
    dy, dc, x, h, c, w_ih, w_hh, *given = arguments(node)
    layer, graph = _Layer(lowering, node, x, w_hh), lowering.graph
    y, gates, new, out, cells = (lowering.value(part) for part in given)
    weight = lowering.value(w_hh)
    before = layer.before(lowering.value(h), y)
    cells_before = layer.before(lowering.value(c), cells)
    add, forget = layer.parts(gates, 1, 1)
    shown = graph.op("Tanh", cells)
    to_cell = layer.steps(layer.mul(out, layer.slope("Tanh", shown)))
    shares = layer.joined(
        layer.mul(new, layer.slope("Sigmoid", add)),
        layer.mul(cells_before, layer.slope("Sigmoid", forget)),
        layer.mul(add, layer.slope("Tanh", new)),
        layer.mul(shown, layer.slope("Sigmoid", out)),
    )
    incoming = layer.steps(lowering.value(dy))
    kept, factors = layer.steps(forget), layer.steps(shares)
    gradient, changes = incoming[-1], list[str]()
    axis = graph.ints([0])
    of_cell = "" if is_constant(dc, 0) else graph.op("Unsqueeze", lowering.value(dc), axis)
    for t in reversed(range(layer.length)):
        added = layer.mul(gradient, to_cell[t])
        of_cell = graph.op("Add", of_cell, added) if of_cell else added
        joined = layer.joined(*[of_cell] * 3, gradient)
        changes.append(layer.mul(joined, factors[t]))
        of_cell = layer.mul(of_cell, kept[t])
        rest = [incoming[t - 1]] if t else []
        gradient = layer.added(graph.op("MatMul", changes[-1], weight), *rest)
    of_gates = layer.joined(*changes[::-1], axis=0)
    dx, *rest = layer.gradients(of_gates, of_gates, before, lowering.value(w_ih))
    first = (graph.op("Squeeze", value, axis) for value in (gradient, of_cell))
    return dx, *first, *rest


OPERATIONS: Mapping[str, Handler] = {
    "fairbed.gru.default": _gru,
    "fairbed.gru_backward.default": _gru_backward,
    "fairbed.lstm.default": _lstm,
    "fairbed.lstm_backward.default": _lstm_backward,
}
