"""Gives all floats of a torch module one type, alike at the coordinator and on a device.

Vectors and graphs are float32. A module of another type, or of several, is cast, and so is what its
`forward` computes: `x.half()`, `dtype=torch.float64` or a float64 constant mean the type of its
parameters. This module does not import torch: the module that it gets has done so.
"""

import sys
from collections.abc import Callable
from typing import Any

CAST = ("float16", "bfloat16", "float64")
"""Types that are cast to float32."""


def cast_floats(module: Any) -> list[str]:
    """Cast the floats of a module to float32 in place, if it has others.

    A later cast of the module, such as `.double()`, changes the type of its computation, too.

    Args:
        module: A `torch.nn.Module` that has not been used yet.

    Returns:
        The tensors that were of another type, each as `name: type`, parameters first.
    """
    torch: Any = sys.modules["torch"]
    others = {getattr(torch, name): name for name in CAST}
    named = [*module.named_parameters(), *module.named_buffers()]
    found = [f"{name}: {others[tensor.dtype]}" for name, tensor in named if tensor.dtype in others]
    if found:
        module._apply(lambda tensor: tensor.float() if tensor.dtype in others else tensor)
        compute_in_one_type(module)
    return found


def compute_in_one_type(module: Any) -> None:
    """Let a module compute in the type of its first parameter, whatever types it names."""
    torch: Any = sys.modules["torch"]
    kind, mode = type(module), _one_type()

    def call(self: Any, *args: Any, **options: Any) -> Any:
        floats = (t.dtype for t in self.parameters() if t.is_floating_point())
        with mode(next(floats, torch.float32)):
            return kind.__call__(self, *args, **options)

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def _one_type() -> Callable[[Any], Any]:
    """Return a mode of torch in which all floats have one type."""
    torch: Any = sys.modules["torch"]
    floats = {torch.float32, *(getattr(torch, name) for name in CAST)}
    casts = {getattr(torch.Tensor, name) for name in ("half", "bfloat16", "double", "float")}

    class OneType(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # of no static type
        """Replaces types in the arguments of functions, and casts tensors of another type."""

        def __init__(self, dtype: Any) -> None:
            super().__init__()
            self.dtype = dtype

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in casts:
                return args[0].to(self.dtype)
            given = {name: self._cast(value) for name, value in (kwargs or {}).items()}
            return func(*self._cast(args), **given)

        def _cast(self, value: Any) -> Any:
            if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
                return type(value)(self._cast(item) for item in value)
            if isinstance(value, torch.dtype):
                return self.dtype if value in floats else value
            if isinstance(value, torch.Tensor) and value.dtype in floats:
                return value if value.dtype == self.dtype else value.to(self.dtype)
            return value

    return OneType
