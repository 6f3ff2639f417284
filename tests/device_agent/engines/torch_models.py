"""Torch models of the tests: a device imports this module, and never its source over a link."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def smooth(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model that both engines can train, with running statistics."""
    size = math.prod(x_shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, classes)
    )


def one_logit(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model of the logit of class 1 of two."""
    return smooth(x_shape, classes - 1)


def flat(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model without buffers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(x_shape), classes))


def dropping(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model with dropout."""
    size = math.prod(x_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.Dropout(0.4), nn.Linear(8, classes))


class Recurrent(nn.Module):
    """A recurrent network with dropout, which no graph expresses: it takes the size of a batch."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.cells = nn.GRU(features, 6, batch_first=True)
        self.output = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Any:
        """Return logits, shape (B, classes)."""
        states, _ = self.cells(x.reshape(len(x), -1, self.cells.input_size))
        return self.output(functional.dropout(states[:, -1], 0.5, self.training))


def recurrent(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model that draws random numbers in training mode."""
    return Recurrent(x_shape[-1], classes)


class Bessel(nn.Module):
    """A Bessel function, an operation that the exporter refuses."""

    def forward(self, x: Tensor) -> Tensor:
        """Return values in the shape of x."""
        y: Tensor = torch.special.i0(x)
        return y


def bessel(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model of Bessel functions."""
    return nn.Sequential(Bessel(), nn.Flatten(), nn.Linear(math.prod(x_shape), classes))


def falling(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Raise."""
    raise RuntimeError("no layers\nat all")
