"""Vision models of published training times, as torch modules with random parameters.

Source:
    He et al., CVPR 2016 (ResNet); Sandler et al., CVPR 2018 (MobileNetV2); 1,000 classes.
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


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet-18": lambda: _resnet((2, 2, 2, 2), is_deep=False),
    "resnet-34": lambda: _resnet((3, 4, 6, 3), is_deep=False),
    "resnet-50": lambda: _resnet((3, 4, 6, 3), is_deep=True),
    "mobilenet-v2": _mobilenet_v2,
}


def training_step(name: str, batch_size: int) -> Callable[[], object]:
    """Return a function that computes loss and gradients of images of 224 x 224 pixels."""
    torch.manual_seed(0)
    module = MODELS[name]()
    images, labels = torch.rand(batch_size, 3, 224, 224), torch.zeros(batch_size, dtype=torch.int64)

    def step() -> None:
        module.zero_grad()
        loss = nn.functional.cross_entropy(module(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    return step
