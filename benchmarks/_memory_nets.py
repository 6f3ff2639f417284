"""Networks in the sizes of their papers, whose memory in training is measured."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

Shape = tuple[int, ...]

EXPANSIONS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""MobileNetV2: expansion, channels, blocks and stride of each stage (Sandler et al., CVPR 2018,
Table 2)."""

BASIC_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""ResNet-18: channels and stride of each stage of two blocks (He et al., CVPR 2016, Table 1)."""


def _batch_normed(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] = nn.Identity,
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), activation())


class _Sum(nn.Module):
    """skip(x) + body(x), with or without a ReLU."""

    def __init__(self, body: nn.Module, skip: nn.Module, *, has_relu: bool) -> None:
        super().__init__()
        self.body, self.skip, self.has_relu = body, skip, has_relu

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.skip(x) + self.body(x)
        return functional.relu(found) if self.has_relu else found


def _basic(inputs: int, outputs: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        _batch_normed(inputs, outputs, 3, stride, activation=nn.ReLU),
        _batch_normed(outputs, outputs, 3),
    )
    is_same = stride == 1 and inputs == outputs
    skip = nn.Identity() if is_same else _batch_normed(inputs, outputs, 1, stride)
    return _Sum(body, skip, has_relu=True)


def resnet18(x_shape: Shape, classes: int) -> nn.Module:
    """Return a ResNet-18 with batch normalisation."""
    layers: list[nn.Module] = [
        _batch_normed(x_shape[0], 64, 7, 2, activation=nn.ReLU),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for outputs, stride in BASIC_STAGES:
        layers += [_basic(inputs, outputs, stride), _basic(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _inverted(inputs: int, outputs: int, expansion: int, stride: int) -> nn.Module:
    inner = inputs * expansion
    wide = [] if expansion == 1 else [_batch_normed(inputs, inner, 1, activation=nn.ReLU6)]
    body = nn.Sequential(
        *wide,
        _batch_normed(inner, inner, 3, stride, inner, nn.ReLU6),
        _batch_normed(inner, outputs, 1),
    )
    is_same = stride == 1 and inputs == outputs
    return _Sum(body, nn.Identity(), has_relu=False) if is_same else body


def mobilenet_v2(x_shape: Shape, classes: int, width: float = 1.0) -> nn.Module:
    """Return a MobileNetV2 with a multiple of its channels."""

    def scaled(channels: int) -> int:
        near = max(8, int(channels * width + 4) // 8 * 8)
        return near + 8 if near < 0.9 * channels * width else near

    inputs, last = scaled(32), scaled(1280) if width > 1.0 else 1280
    layers: list[nn.Module] = [_batch_normed(x_shape[0], inputs, 3, 2, activation=nn.ReLU6)]
    for expansion, channels, blocks, stride in EXPANSIONS:
        for block in range(blocks):
            outputs = scaled(channels)
            layers.append(_inverted(inputs, outputs, expansion, stride if block == 0 else 1))
            inputs = outputs
    layers.append(_batch_normed(inputs, last, 1, activation=nn.ReLU6))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes))


narrow_mobilenet_v2 = partial(mobilenet_v2, width=0.35)
"""A MobileNetV2 with 0.35 of its channels."""


class _Encoder(nn.Module):
    """Transformer encoder over a sequence of vectors, with their mean."""

    def __init__(self, x_shape: Shape, classes: int) -> None:
        super().__init__()
        width = 128
        self.embed = nn.Linear(x_shape[-1], width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.output(self.blocks(self.embed(x)).mean(1))
        return found


def transformer(x_shape: Shape, classes: int) -> nn.Module:
    """Return an encoder of 4 layers with 128 values per position, for x of shape (T, C)."""
    return _Encoder(x_shape, classes)
