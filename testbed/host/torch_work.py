"""Counts the arithmetic and the memory traffic of a torch module; imported for such tasks only.

Convolutions are counted here: torch's own counter takes the gradient of the weights of a depthwise
convolution for that of a dense one, which is as many times more as it has channels.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from fairbed.device_agent.engines.choose import open_own_engine
from fairbed.testbed.emulation.work import StepWork
from fairbed.wire.artifact import Artifact
from fairbed.wire.selfcheck import selfcheck_inputs


class _Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Adds up the bytes that operations read and write, and the operations of convolutions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.moved_bytes = 0
        self.flops = defaultdict[str, float](float)
        """By field of `StepWork`."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view and "detach" not in str(func):
            tensors = [*tree_leaves((args, kwargs)), *tree_leaves(found)]
            self.moved_bytes += sum(
                leaf.numel() * leaf.element_size()
                for leaf in tensors
                if isinstance(leaf, torch.Tensor)
            )
        name = str(func).removeprefix("aten.").partition(".")[0]
        if name in ("convolution", "convolution_backward"):
            self._add_convolution(name, args, found)
        return found

    def _add_convolution(self, name: str, args: Sequence[Any], found: Any) -> None:
        if name == "convolution":
            (x, weight), made, times = args[:2], found, 1
            is_transposed, groups = args[6], args[8]
        else:  # as often as one of the gradients of input and weights is computed
            made, x, weight = args[:3]
            is_transposed, groups = args[7], args[9]
            times = sum(args[10][:2])
        kind = "conv_flops"
        if groups > 1:
            per_group = weight.shape[0] // groups if is_transposed else weight.shape[1]
            kind = "depthwise_flops" if per_group == 1 else "grouped_flops"
        positions = x if is_transposed else made
        self.flops[kind] += 2.0 * times * positions.numel() * math.prod(weight.shape[1:])


def counted(step: Callable[[], object]) -> StepWork:
    """Return the totals of what a function does."""
    traffic, flops = _Traffic(), FlopCounterMode(display=False)
    with flops, traffic:
        step()
    totals = flops.get_flop_counts().get("Global", {})
    products = sum(count for op, count in totals.items() if "conv" not in str(op))
    return StepWork(
        **traffic.flops, matrix_flops=float(products), moved_bytes=float(traffic.moved_bytes)
    )


def module_step(artifact: Artifact, n: int) -> StepWork:
    """Return the totals of a training step on `n` examples."""
    engine = open_own_engine(artifact)
    vector, x, y = selfcheck_inputs(engine.spec, seed=0, batch=n)
    return counted(lambda: engine.gradient(vector, x, y))
