"""Where each tensor of a torch module lies in the flat vector, and how it starts."""

import math
from typing import Literal, TypeAlias

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from wire.tensors import Layout, Tensor

Role: TypeAlias = Literal["param", "buffer"]
Start: TypeAlias = Literal["zeros", "ones", "uniform"]


def make_layout(model: nn.Module) -> Layout:
    """Return the layout of a module: parameters, then float buffers, in the module's order.

    Linear and convolution layers start as torch starts them, weight and bias uniform in
    +-1/sqrt(fan_in). Other tensors that are all 0 or all 1 start so; the rest starts uniform
    with the standard deviation that the module's own values have.
    """
    bounds = _uniform_bounds(model)
    named: list[tuple[str, torch.Tensor, Role]] = [
        (name, tensor, "param") for name, tensor in model.named_parameters()
    ]
    named += [
        (name, tensor, "buffer")
        for name, tensor in model.named_buffers()
        if tensor.dtype == torch.float32
    ]
    tensors: list[Tensor] = []
    offset = 0
    for name, values, role in named:
        tensor = _tensor(name, values.detach(), offset, role, bounds.get(name))
        tensors.append(tensor)
        offset += tensor.size
    return Layout(tensors=tuple(tensors))


def _uniform_bounds(model: nn.Module) -> dict[str, float]:
    """Return 1/sqrt(fan_in) of every weight and bias that torch starts so, by name."""
    bounds = {}
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Linear | _ConvNd):
            fan_in = math.prod(module.weight.shape[1:])
            for leaf, _ in module.named_parameters(recurse=False):
                bounds[f"{prefix}.{leaf}" if prefix else leaf] = 1.0 / math.sqrt(fan_in)
    return bounds


def _tensor(
    name: str, values: torch.Tensor, offset: int, role: Role, bound: float | None
) -> Tensor:
    start: Start = "uniform"
    if bound is None and bool((values == 0).all()):
        start = "zeros"
    elif bound is None and bool((values == 1).all()):
        start = "ones"
    elif bound is None:
        bound = math.sqrt(3.0) * float(values.double().std(correction=0))
    return Tensor(
        name=name,
        shape=tuple(values.shape),
        offset=offset,
        role=role,
        init=start,
        init_bound=bound or 0.0,
    )
