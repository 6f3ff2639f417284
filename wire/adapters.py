"""Puts adapters of low rank into a torch module, and freezes what is not trained.

Coordinator and devices do the same with the module that a factory returns. Names stay: the weight
of a layer with an adapter keeps its name, and its two factors are `lora_a` and `lora_b` beside it.
Only what trains, or exports, a module with `model.trainable` or `model.lora` imports this module.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from fairbed.wire.adaptation import LORA_A, LORA_B, fitting, unused
from fairbed.wire.artifact import Adaptation, Lora

_Forward: TypeAlias = Callable[[Any, torch.Tensor], torch.Tensor]

SHOWN = 8
"""Names of a module that an error shows."""


class AdaptationError(ValueError):
    """What is trained does not fit the module."""


def adapt(module: nn.Module, adaptation: Adaptation) -> None:
    """Freeze what is not trained, and add the adapters, in place.

    The factors A are drawn from torch's generator.

    Raises:
        AdaptationError: A pattern fits nothing, or a layer cannot have an adapter.
    """
    if adaptation.lora is not None:
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        _add_adapters(module, adaptation.lora)
    if not adaptation.trainable:
        return
    named = dict(module.named_parameters())
    if missed := unused(named, adaptation.trainable):
        raise AdaptationError(
            f"model.trainable: {missed[0]} must fit the name of a parameter, got "
            f"{_shown(list(named))}; correct the pattern"
        )
    wanted = fitting(named, adaptation.trainable)
    for name, parameter in named.items():
        is_adapter = name.rpartition(".")[2] in (LORA_A, LORA_B)
        if parameter.is_floating_point():
            parameter.requires_grad_(name in wanted or (is_adapter and parameter.requires_grad))


def merged_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state of a module without its adapters, which are added to the weights."""
    found = {
        name: value.detach().clone()
        for name, value in module.state_dict().items()
        if name.rpartition(".")[2] not in (LORA_A, LORA_B)
    }
    for prefix, layer in module.named_modules():
        if isinstance(layer, _Adapted):
            found[f"{prefix}.{layer.adapted_name}"] = layer.adapted_weight().detach().clone()
    return found


class _Adapted:
    """A layer with an adapter; its class is made from that of the layer."""

    adapted_name: str
    lora_scale: float

    def adapted_weight(self) -> torch.Tensor:
        """Return W + scale B A, in the shape of W."""
        layer: Any = self
        weight: torch.Tensor = layer._parameters[layer.adapted_name]
        product: torch.Tensor = layer._parameters[LORA_B] @ layer._parameters[LORA_A]
        scale: float = layer.lora_scale
        return weight + scale * product.view(weight.shape)


def _linear(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the output of a linear layer, whose input passes the factors one by one."""
    low = functional.linear(x, layer.lora_a)
    added = functional.linear(low, layer.lora_b * layer.lora_scale)
    whole: torch.Tensor = functional.linear(x, layer._parameters["weight"], layer.bias)
    return whole + added


def _convolution(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the output of a convolution; A is one to `rank` channels, B one of size 1."""
    weight = layer._parameters["weight"]
    first = layer.lora_a.view(-1, *weight.shape[1:])
    low = functional.conv2d(x, first, None, layer.stride, layer.padding, layer.dilation)
    last = (layer.lora_b * layer.lora_scale).view(weight.shape[0], -1, 1, 1)
    whole: torch.Tensor = layer._conv_forward(x, weight, layer.bias)
    return whole + functional.conv2d(low, last)


@cache
def _class_of(kind: Any, leaf: str, forward: _Forward | None) -> Any:
    """Return a class of layers in which a weight reads as the adapted one, whoever reads it.

    A layer around may read it, as those of attention and the fast path of
    `torch.nn.TransformerEncoderLayer` do. With `forward` the layer itself does not.
    """
    members: dict[str, Any] = {leaf: property(_Adapted.adapted_weight)}
    if forward is not None:
        members["forward"] = forward
    return type(f"Lora{kind.__name__}", (_Adapted, kind), members)


def _class_for(layer: nn.Module) -> tuple[type[nn.Module], str] | None:
    """Return the class that replaces that of a layer, and the name of its weight; None if none."""
    kind: Any = type(layer)
    if kind is nn.Linear:
        return _class_of(kind, "weight", _linear), "weight"
    if kind is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
        return _class_of(kind, "weight", _convolution), "weight"
    if isinstance(layer, nn.Linear | _ConvNd):
        return _class_of(kind, "weight", None), "weight"
    if isinstance(layer, nn.MultiheadAttention) and layer.in_proj_weight is not None:
        return _class_of(kind, "in_proj_weight", None), "in_proj_weight"
    return None


def _add_adapters(module: nn.Module, lora: Lora) -> None:
    named = {name: layer for name, layer in module.named_modules() if name}
    able = {name: found for name, layer in named.items() if (found := _class_for(layer))}
    if missed := unused(able, lora.on):
        raise AdaptationError(
            f"model.lora: on: {missed[0]} must fit the name of a linear layer or a convolution, "
            f"got {_shown(list(able))}; correct the pattern"
        )
    for name in sorted(fitting(able, lora.on)):
        kind, leaf = able[name]
        layer: Any = named[name]
        weight = layer._parameters.get(leaf)
        if weight is None or not weight.is_floating_point():
            raise AdaptationError(
                f"model.lora: on: {name} must have a weight of its own, got a computed one; leave "
                "it out of the patterns"
            )
        rows, columns = weight.shape[0], weight[0].numel()
        if lora.rank > min(rows, columns):
            raise AdaptationError(
                f"model.lora: rank must be at most {min(rows, columns)}, the rank of {name}.{leaf} "
                f"of shape {tuple(weight.shape)}, got {lora.rank}; lower it, or leave the layer "
                "out of `on`"
            )
        bound = columns**-0.5
        layer.register_parameter(
            LORA_A, nn.Parameter(torch.empty(lora.rank, columns).uniform_(-bound, bound))
        )
        layer.register_parameter(LORA_B, nn.Parameter(torch.zeros(rows, lora.rank)))
        layer.__class__ = kind
        layer.adapted_name, layer.lora_scale = leaf, lora.scale


def _shown(names: list[str]) -> str:
    more = len(names) - SHOWN
    shown = ", ".join(names[:SHOWN]) or "none"
    return f"{shown} and {more} more" if more > 0 else shown
