"""The shipped model families as torch modules, for the exporter only."""

import math
from collections import OrderedDict

from torch import nn

from fairbed.coordinator.task.recipes import Recipe

KERNEL = 5
PADDING = 2
POOL = 2


def make_model(recipe: Recipe) -> nn.Module:
    """Return the torch module of a recipe."""
    if recipe.model == "cnn":
        return _cnn(recipe)
    return _dense(math.prod(recipe.x_shape), recipe.widths, recipe.outputs)


def _dense(features: int, widths: tuple[int, ...], outputs: int) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, width in enumerate(widths, start=1):
        layers[f"hidden{i}"] = nn.Linear(features, width)
        layers[f"relu{i}"] = nn.ReLU()
        features = width
    layers["output"] = nn.Linear(features, outputs)
    return nn.Sequential(layers)


def _cnn(recipe: Recipe) -> nn.Sequential:
    channels, height, width = recipe.x_shape
    first, second, hidden = recipe.widths
    features = second * (height // POOL // POOL) * (width // POOL // POOL)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, first, KERNEL, padding=PADDING),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(POOL),
            conv2=nn.Conv2d(first, second, KERNEL, padding=PADDING),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(POOL),
            flatten=nn.Flatten(),
            hidden=nn.Linear(features, hidden),
            relu3=nn.ReLU(),
            output=nn.Linear(hidden, recipe.outputs),
        )
    )
