"""An example of a torch model: a small network with batch normalisation for pictures.

    [model]
    name = "own_model:make"

Name the folder of this file in `PYTHONPATH`, or install it.
"""

from torch import nn


def make(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a module that maps x, shape (B, *x_shape), to logits, shape (B, classes)."""
    channels, height, width = x_shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, kernel_size=3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * (height // 2) * (width // 2), classes),
    )
