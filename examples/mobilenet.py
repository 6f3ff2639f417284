"""A small MobileNetV2 for pictures: inverted residuals with depthwise convolutions.

    [model]
    name = "mobilenet:make"

Source:
    Sandler et al., CVPR 2018, in a width for pictures of 8 x 8 to 32 x 32 pixels.
"""

import torch
from torch import nn


class Inverted(nn.Module):
    """Widens the channels, mixes positions channel by channel, and narrows them again."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, widening: int = 4) -> None:
        super().__init__()
        inner = widening * inputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, stride, padding=1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (B, outputs, height / stride, width / stride)."""
        y: torch.Tensor = self.body(x)
        return x + y if self.is_residual else y


def make(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a module that maps pictures, shape (B, *x_shape), to logits, shape (B, classes)."""
    return nn.Sequential(
        nn.Conv2d(x_shape[0], 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU6(),
        Inverted(16, 16),
        Inverted(16, 24, stride=2),
        Inverted(24, 24),
        Inverted(24, 32, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )
