"""What a right engine computes: the torch module itself, in float64."""

import copy
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from wire.selfcheck import Examples
from wire.tensors import Layout

Doubles: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one gradient computation."""

    loss: float
    """Mean loss, nats."""
    gradient: Doubles
    """Over all parameters, shape (n_params,)."""
    buffers: Doubles
    """After the forward pass, shape (n_values - n_params,)."""


class TorchReference:
    """Loss, gradient and evaluation of a module at any flat vector, in float64.

    Args:
        model: The module; not changed.
        layout: Its tensors, by the module's names.
    """

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self._model = copy.deepcopy(model).double()
        self._layout = layout
        self._tensors: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        self._tensors.update(self._model.named_buffers())

    def step(self, vector: NDArray[np.float32], x: Examples, y: NDArray[np.int64]) -> Step:
        """Return the mean loss of a mini-batch in training mode, and its gradient."""
        self._load(vector)
        self._model.train()
        self._model.zero_grad()
        loss = functional.cross_entropy(self._model(_tensor(x)), torch.from_numpy(y))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return Step(loss.item(), self._flat("param"), self._flat("buffer"))

    def evaluate(
        self, vector: NDArray[np.float32], x: Examples, y: NDArray[np.int64]
    ) -> tuple[float, int]:
        """Return the summed loss and the number of correct answers in eval mode."""
        self._load(vector)
        self._model.eval()
        target = torch.from_numpy(y)
        with torch.no_grad():
            logits = self._model(_tensor(x))
            loss = functional.cross_entropy(logits, target, reduction="sum")
            return loss.item(), int((logits.argmax(1) == target).sum())

    def _load(self, vector: NDArray[np.float32]) -> None:
        with torch.no_grad():
            for name, view in self._layout.views(vector).items():
                self._tensors[name].copy_(torch.from_numpy(view))

    def _flat(self, role: str) -> Doubles:
        """Return all gradients (of parameters) or values (of buffers), end to end."""
        wanted = [self._tensors[t.name] for t in self._layout.tensors if t.role == role]
        if role == "param":
            wanted = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
        flat = [tensor.detach().numpy().astype(np.float64).ravel() for tensor in wanted]
        return np.concatenate([np.zeros(0), *flat])


def _tensor(x: Examples) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float64) if x.dtype == np.float32 else x)
