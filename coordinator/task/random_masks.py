"""Random masks of a recorded module: dropout and stochastic depth, as inputs of its graph.

A draw that a graph can have is a Bernoulli mask: that of dropout, `bernoulli`, or uniform numbers
that are only compared with a constant. A device draws the mask (`wire.artifact.draw_masks`). The
graph, and torch in the check, get torch's numbers from it: two values, one for True, one for False.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from fairbed.coordinator.task.lowering import (
    Handler,
    Lowering,
    Value,
    arguments,
    operation_name,
    unsupported,
)
from fairbed.wire.artifact import CHANCES, RandomMask

DROPOUT = "aten.native_dropout.default"
_BERNOULLI = ("aten.bernoulli.p", "aten.bernoulli.default")
_UNIFORM = ("aten.rand.default", "aten.rand_like.default", "aten.uniform.default")
_BELOW = ("aten.lt.Scalar", "aten.le.Scalar", "aten.lt.Tensor", "aten.le.Tensor")
_ABOVE = ("aten.gt.Scalar", "aten.ge.Scalar", "aten.gt.Tensor", "aten.ge.Tensor")
_ADD = ("aten.add.Tensor", "aten.add.Scalar")
_FLOOR = "aten.floor.default"
_FULL = ("aten.full.default", "aten.full_like.default")
_SAME = ("aten._to_copy.default", "aten.expand.default", "aten.clone.default")
_PRODUCT = ("aten.mul.Tensor", "aten.mul.Scalar")

_DRAWING = ("bernoulli", "rand", "rand_like", "uniform")
"""Operations of torch by which a running module draws masks, without the overload."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A random mask, and torch's numbers that it stands for."""

    mask: RandomMask
    values: tuple[float, float]
    """Torch's number where the mask is True, and where it is False."""
    axis: int = 0
    """Axis of torch's tensor that the batch is on."""
    rest: tuple[int, ...] | None = None
    """Sizes of torch's tensor without that axis; None: those of the mask, in its order."""

    def placed(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask in the shape of torch's tensor."""
        if self.rest is None:
            return mask
        return np.moveaxis(mask.reshape(-1, *self.rest), 0, self.axis)

    def lowered(self, lowering: Lowering, name: str) -> str:
        """Return the value of a graph's input in the shape of torch's tensor."""
        if self.rest is None:
            return name
        graph, axes = lowering.graph, list(range(1, len(self.rest) + 1))
        if self.mask.shape != self.rest:
            name = graph.op("Reshape", name, graph.ints([-1, *self.rest]))
        axes.insert(self.axis, 0)
        return graph.op("Transpose", name, perm=axes) if self.axis else name


def find_draws(graph: fx.Graph) -> dict[fx.Node, Draw]:
    """Return the draws of a recorded program that are masks, in its order."""
    found = {}
    for node in graph.nodes:
        if node.op == "call_function" and (draw := _draw(node)) is not None:
            found[node] = draw
    return found


def _draw(node: fx.Node) -> Draw | None:
    """Return the draw of a node; None if it is none, or no mask."""
    name, keep = operation_name(node), None
    values = (1.0, 0.0)
    if name == DROPOUT:
        keep = 1.0 - float(arguments(node)[1])
    elif name in _BERNOULLI:
        keep = _constant(node.args[1] if len(node.args) > 1 else node.args[0])
    elif name in _UNIFORM:
        known = _compared(node)
        if known is not None:
            keep, values = known
    if keep is None or not 0.0 <= keep <= 1.0:
        return None
    tensor = node if name != DROPOUT else node.args[0]
    chances = round(keep * CHANCES)
    if 0.0 < keep < 1.0:
        chances = min(max(chances, 1), CHANCES - 1)
    return _placed(tensor, chances, values)


def _constant(value: Any) -> float | None:
    """Return a number, or that of which a node is full; None if there is none."""
    if not isinstance(value, fx.Node):
        return float(value) if isinstance(value, int | float) else None
    if value.op != "call_function":
        return None
    name = operation_name(value)
    if name in _FULL:
        return _constant(value.args[1])
    if name in _SAME:
        return _constant(value.args[0])
    if name in _PRODUCT:
        one, other = map(_constant, value.args[:2])
        return None if one is None or other is None else one * other
    return None


def _compared(node: fx.Node) -> tuple[float, tuple[float, float]] | None:
    """Return the probability of 1 of compared uniform numbers, and the two numbers to compare."""
    if operation_name(node) == "aten.uniform.default" and node.args[1:] not in ((), (0, 1)):
        return None
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    name = operation_name(user) if user.op == "call_function" else ""
    if name not in (*_BELOW, *_ABOVE, *_ADD) or user.args[0] is not node:
        return None
    at = _constant(user.args[1])
    if at is None or not 0.0 <= at <= 1.0:
        return None
    low, high = at / 2.0, (1.0 + at) / 2.0
    if name in _BELOW:
        return at, (low, high)
    if name in _ABOVE:
        return 1.0 - at, (high, low)
    floors = [operation_name(after) == _FLOOR for after in user.users]
    if name in _ADD and floors == [True]:
        return at, (1.0 - at / 2.0, (1.0 - at) / 2.0)
    return None


def _placed(node: Any, keep: int, values: tuple[float, float]) -> Draw | None:
    """Return a draw with the shape of a tensor; None if that is no multiple of the batch."""
    shape = node.meta["val"].shape
    axes = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
    if not axes:
        mask = RandomMask(shape=tuple(map(int, shape)), keep=keep, is_per_example=False)
        return Draw(mask, values)
    if len(axes) > 1:
        return None
    [axis] = axes
    expression = shape[axis].node.expr
    [symbol] = expression.free_symbols
    factor = expression / symbol
    if not factor.is_Integer:
        return None
    rest = tuple(int(size) for at, size in enumerate(shape) if at != axis)
    of_example = rest if factor == 1 else (int(factor), *rest)
    is_plain = axis == 0 and factor == 1
    mask = RandomMask(shape=of_example, keep=keep)
    return Draw(mask, values, axis, None if is_plain else rest)


def mask_rules(names: Mapping[fx.Node, str], draws: Mapping[fx.Node, Draw]) -> dict[str, Handler]:
    """Return the rules of operations that draw, for `Lowering`.

    Args:
        names: The input of the graph for each draw.
        draws: Those of `find_draws`.
    """

    def mask_of(lowering: Lowering, node: fx.Node) -> str:
        if node not in draws:
            raise unsupported(
                node,
                "must be a random mask of training with a row per example, as dropout draws, got "
                "another use",
            )
        return draws[node].lowered(lowering, names[node])

    def dropout(lowering: Lowering, node: fx.Node) -> Value:
        mask, graph = mask_of(lowering, node), lowering.graph
        x, p = arguments(node)[:2]
        factors = _chosen(lowering, mask, (1.0 / (1.0 - p) if p < 1.0 else 0.0, 0.0))
        return graph.op("Mul", lowering.value(x), factors), mask

    def numbers(lowering: Lowering, node: fx.Node) -> Value:
        mask = mask_of(lowering, node)
        return _chosen(lowering, mask, draws[node].values)

    return {DROPOUT: dropout, **dict.fromkeys((*_BERNOULLI, *_UNIFORM), numbers)}


def _chosen(lowering: Lowering, mask: str, values: tuple[float, float]) -> str:
    one, other = (lowering.graph.constant(np.array(value, np.float32)) for value in values)
    return lowering.graph.op("Where", mask, one, other)


class Drawn(TorchDispatchMode):
    """Gives a running module the numbers of some masks instead of random ones, in their order.

    Args:
        draws: Those of the recorded module.
        masks: A mask for each, as `draw_masks` returns them.
    """

    def __init__(self, draws: Sequence[Draw], masks: Sequence[NDArray[np.bool_]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._left = list(zip(draws, masks, strict=True))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation; one that draws returns the numbers of the next mask."""
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        if name not in _DRAWING:
            return made
        if not self._left:
            raise RuntimeError("draws more random numbers than its recording")
        draw, mask = self._left.pop(0)
        placed = torch.from_numpy(np.ascontiguousarray(draw.placed(mask)))
        if placed.shape != made.shape:
            shapes = tuple(made.shape), tuple(placed.shape)
            raise RuntimeError(f"draws {shapes[0]}, and its recording {shapes[1]}")
        values = (1.0, 0.0) if name == "bernoulli" else draw.values
        one, other = (torch.tensor(value, dtype=made.dtype) for value in values)
        made.copy_(torch.where(placed, one, other))
        return made
