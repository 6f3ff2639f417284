"""Networks in the sizes in which devices train them, as torch modules with random parameters.

Source:
    Sandler et al., CVPR 2018 (MobileNetV2); He et al., CVPR 2016 (ResNet); Zhang et al.,
    arXiv:1711.07128 (DS-CNN); Caldas et al., arXiv:1812.01097 (CNN of FEMNIST, character LSTM);
    Vaswani et al., NeurIPS 2017 (transformer); Dosovitskiy et al., ICLR 2021 (ViT).
"""

import torch
from torch import Tensor, nn

from benchmarks._vision import MODELS
from tests.coordinator.task.architectures import Architecture


class _Tokens(nn.Module):
    """Embedded tokens, a body over positions, and a classifier of the last position."""

    def __init__(self, tokens: int, width: int, out: int, classes: int, body: nn.Module) -> None:
        super().__init__()
        self.table, self.body, self.last = (
            nn.Embedding(tokens, width),
            body,
            nn.Linear(out, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.table(x))
        h = h[0] if isinstance(h, tuple) else h
        y: Tensor = self.last(h[:, -1])
        return y


class _Patches(nn.Module):
    """A vision transformer whose patches are averaged."""

    def __init__(self, width: int, patch: int, count: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, count, width) * 0.02)
        self.body, self.last = _encoder(width, layers), nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        y: Tensor = self.last(self.body(h).mean(1))
        return y


def _encoder(width: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def _ds_cnn() -> nn.Module:
    def normed(conv: nn.Module) -> list[nn.Module]:
        return [conv, nn.BatchNorm2d(64), nn.ReLU()]

    layers = normed(nn.Conv2d(1, 64, (10, 4), (2, 2), (4, 1), bias=False))
    for _ in range(4):
        layers += normed(nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False))
        layers += normed(nn.Conv2d(64, 64, 1, bias=False))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12))


def _femnist() -> nn.Module:
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 62))


NETWORKS: dict[str, Architecture] = {
    "MobileNetV2 1.0, 96 x 96": Architecture(MODELS["mobilenet-v2"], (3, 96, 96), 1000),
    "ResNet-18, 96 x 96": Architecture(MODELS["resnet-18"], (3, 96, 96), 1000),
    "DS-CNN, 49 x 10": Architecture(_ds_cnn, (1, 49, 10), 12),
    "CNN of FEMNIST, 28 x 28": Architecture(_femnist, (1, 28, 28), 62),
    "character LSTM, 2 x 256, T = 80": Architecture(
        lambda: _Tokens(90, 8, 256, 90, nn.LSTM(8, 256, 2, batch_first=True)),
        (80,),
        90,
        x_classes=90,
    ),
    "GRU, 2 x 64, T = 64": Architecture(
        lambda: _Tokens(2000, 64, 64, 4, nn.GRU(64, 64, 2, batch_first=True)),
        (64,),
        4,
        x_classes=2000,
    ),
    "transformer encoder, 128 x 4, T = 64": Architecture(
        lambda: _Tokens(2000, 128, 128, 4, _encoder(128, 4)), (64,), 4, x_classes=2000
    ),
    "ViT, 192 x 4, 96 x 96": Architecture(lambda: _Patches(192, 8, 144, 4), (3, 96, 96), 100),
}
