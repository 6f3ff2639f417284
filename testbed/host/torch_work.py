"""Counts the arithmetic and the memory traffic of a torch module; imported for such tasks only."""

from collections.abc import Callable
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
    """Adds up the bytes that operations read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.moved_bytes = 0

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
        return found


def counted(step: Callable[[], object]) -> StepWork:
    """Return the totals of what a function does."""
    traffic, flops = _Traffic(), FlopCounterMode(display=False)
    with flops, traffic:
        step()
    totals = flops.get_flop_counts().get("Global", {})
    conv = sum(count for op, count in totals.items() if "conv" in str(op))
    return StepWork(
        conv_flops=float(conv),
        matrix_flops=float(sum(totals.values()) - conv),
        moved_bytes=float(traffic.moved_bytes),
    )


def module_step(artifact: Artifact, n: int) -> StepWork:
    """Return the totals of a training step on `n` examples."""
    engine = open_own_engine(artifact)
    vector, x, y = selfcheck_inputs(engine.spec, seed=0, batch=n)
    return counted(lambda: engine.gradient(vector, x, y))
