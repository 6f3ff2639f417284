"""Models of published times, as torch modules with random parameters.

Source:
    He et al., CVPR 2016 (ResNet); Sandler et al., CVPR 2018 (MobileNetV2); Dosovitskiy et al., ICLR
    2021 (ViT); all with 1,000 classes. Caldas et al., LEAF, arXiv:1812.01097 (its network for
    FEMNIST, and its LSTM for Shakespeare).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

CLASSES = 1000


class _Residual(nn.Module):
    """A body with a shortcut around it."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut, self.last = body, shortcut, last

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.body(x) + self.shortcut(x))
        return found


def _conv(n_in: int, n_out: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(n_in, n_out, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(n_out)]


def _shortcut(n_in: int, n_out: int, stride: int) -> nn.Module:
    if stride == 1 and n_in == n_out:
        return nn.Identity()
    return nn.Sequential(*_conv(n_in, n_out, 1, stride))


def _resnet(depths: tuple[int, ...], *, is_deep: bool) -> nn.Module:
    layers: list[nn.Module] = [*_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    n_in = 64
    for number, depth in enumerate(depths):
        width = 64 << number
        n_out = 4 * width if is_deep else width
        for block in range(depth):
            stride = 2 if number > 0 and block == 0 else 1
            body = [*_conv(n_in, width, 1), nn.ReLU()] if is_deep else []
            body += [*_conv(width if is_deep else n_in, width, 3, stride), nn.ReLU()]
            body += _conv(width, n_out, 1 if is_deep else 3)
            layers.append(
                _Residual(nn.Sequential(*body), _shortcut(n_in, n_out, stride), nn.ReLU())
            )
            n_in = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, CLASSES))


def _mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [*_conv(3, 32, 3, 2), nn.ReLU6()]
    n_in = 32
    shapes = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2))
    for widening, n_out, depth, first in (*shapes, (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(depth):
            stride, width = first if block == 0 else 1, widening * n_in
            body = [] if widening == 1 else [*_conv(n_in, width, 1), nn.ReLU6()]
            body += [*_conv(width, width, 3, stride, groups=width), nn.ReLU6()]
            body += _conv(width, n_out, 1)
            unit: nn.Module = nn.Sequential(*body)
            if stride == 1 and n_in == n_out:
                unit = _Residual(unit, nn.Identity(), nn.Identity())
            layers.append(unit)
            n_in = n_out
    layers += [*_conv(n_in, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, CLASSES))


class _Vit(nn.Module):
    """A vision transformer on patches of 16 x 16 pixels; the mean of all tokens is classified."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(12)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        found: Tensor = self.head(x.mean(1))
        return found


def _leaf_cnn() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(7 * 7 * 64, 2048), nn.ReLU(), nn.Linear(2048, 62))


class _LeafLstm(nn.Module):
    """Two LSTMs of 256 units over 80 characters of 8 numbers each."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = nn.LSTMCell(8, 256), nn.LSTMCell(256, 256)
        self.head = nn.Linear(256, 80)

    def forward(self, x: Tensor) -> Tensor:
        lower = upper = None
        for t in range(x.shape[1]):
            lower = self.lower(x[:, t], lower)
            upper = self.upper(lower[0], upper)
        assert upper is not None
        found: Tensor = self.head(upper[0])
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet-18": lambda: _resnet((2, 2, 2, 2), is_deep=False),
    "resnet-34": lambda: _resnet((3, 4, 6, 3), is_deep=False),
    "resnet-50": lambda: _resnet((3, 4, 6, 3), is_deep=True),
    "mobilenet-v2": _mobilenet_v2,
    "vit-tiny": lambda: _Vit(192, 3),
    "vit-small": lambda: _Vit(384, 6),
    "vit-base": lambda: _Vit(768, 12),
    "leaf-cnn": _leaf_cnn,
    "shakespeare-lstm": _LeafLstm,
}

SHAPES: dict[str, tuple[int, ...]] = {"leaf-cnn": (1, 28, 28), "shakespeare-lstm": (80, 8)}
"""Of an example; the others have images of 224 x 224 pixels."""


def training_step(name: str, batch_size: int) -> Callable[[], object]:
    """Return a function that computes loss and gradients of a batch."""
    module, inputs = _made(name, batch_size)
    labels = torch.zeros(batch_size, dtype=torch.int64)

    def step() -> None:
        module.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    return step


def forward_pass(name: str, batch_size: int) -> Callable[[], object]:
    """Return a function that computes the outputs of a batch, without gradients."""
    module, inputs = _made(name, batch_size)

    def step() -> None:
        with torch.no_grad():
            module(inputs)

    return step


def _made(name: str, batch_size: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return MODELS[name](), torch.rand(batch_size, *SHAPES.get(name, (3, 224, 224)))
