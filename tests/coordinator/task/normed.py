"""A network with batch normalisation for the tests of `[model] batch_norm`."""

import math

from torch import nn


def make(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a layer, batch norm and a classifier."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(x_shape), 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, classes),
    )


def plain(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a classifier without normalisation."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(x_shape), classes))
