"""A small network for images; one training step takes a processor about a millisecond."""

from collections import OrderedDict

from torch import nn

FIRST, SECOND = 8, 16
"""Channels of the two convolutions."""
KERNEL = 3


def small_cnn(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return two 3x3 convolutions of stride 2 with ReLU, and a linear layer.

    With strides instead of pooling and few channels, a step needs a fortieth of the
    multiplications of the shipped `cnn`. 9,098 parameters for 28x28 grey pixels, 11,642 for 32x32
    in colour; height and width must be multiples of four.
    """
    channels, height, width = x_shape
    features = SECOND * (height // 4) * (width // 4)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, FIRST, KERNEL, stride=2, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(FIRST, SECOND, KERNEL, stride=2, padding=1),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            output=nn.Linear(features, classes),
        )
    )
