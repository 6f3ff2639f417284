"""The quickstart's CNN as a torch module that agents import."""

from torch import nn


def make(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return two 5x5 convolutions, each with ReLU and 2x2 max-pooling, and a hidden layer."""
    channels, height, width = x_shape
    return nn.Sequential(
        *[nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 128), nn.ReLU()],
        nn.Linear(128, classes),
    )
