"""Convolutional networks for pictures, small: each has all kinds of blocks of its paper."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

Layers = Callable[[], nn.Module]


def normed(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    activation: Layers | None = nn.ReLU,
) -> nn.Sequential:
    """Return a convolution with batch norm."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


def head(features: int, classes: int = 10) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)]


class Residual(nn.Module):
    """x + body(x), or a projection of x."""

    def __init__(self, body: nn.Module, skip: nn.Module | None = None, *, relu: bool = False):
        super().__init__()
        self.body, self.skip, self.relu = body, skip or nn.Identity(), relu

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.skip(x) + self.body(x)
        return functional.relu(y) if self.relu else y


class Parallel(nn.Module):
    """Joins the channels of several branches."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class StochasticDepth(nn.Module):
    """Leaves out a branch for some examples, in training."""

    def __init__(self, keep: float = 0.8) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        is_kept = x.new_empty([x.shape[0]] + [1] * (x.ndim - 1)).bernoulli_(self.keep)
        return x * is_kept.div_(self.keep)


class Excitation(nn.Module):
    """Scales channels by their own means."""

    def __init__(
        self, channels: int, few: int, activation: Layers = nn.ReLU, gate: Layers = nn.Sigmoid
    ) -> None:
        super().__init__()
        squeeze = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, few, 1), activation()]
        self.scale = nn.Sequential(*squeeze, nn.Conv2d(few, channels, 1), gate())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.scale(x)
        return y


def _skip(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    is_plain = stride == 1 and inputs == outputs
    return None if is_plain else normed(inputs, outputs, 1, stride, activation=None)


def basic(inputs: int, outputs: int, stride: int = 1) -> Residual:
    """Return a block of a ResNet with two convolutions."""
    body = nn.Sequential(
        normed(inputs, outputs, 3, stride), normed(outputs, outputs, activation=None)
    )
    return Residual(body, _skip(inputs, outputs, stride), relu=True)


def bottleneck(inputs: int, width: int, stride: int = 1, groups: int = 1) -> Residual:
    """Return a block of a ResNet with narrow convolutions between those of single pixels."""
    body = nn.Sequential(
        normed(inputs, width, 1),
        normed(width, width, 3, stride, groups),
        normed(width, 4 * width, 1, activation=None),
    )
    return Residual(body, _skip(inputs, 4 * width, stride), relu=True)


def resnet18() -> nn.Module:
    stem = [normed(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1)]
    blocks = [basic(8, 8), basic(8, 8)]
    for width in (8, 16, 24):
        blocks += [basic(width, width + 8, 2), basic(width + 8, width + 8)]
    return nn.Sequential(*stem, *blocks, *head(32))


def resnet50(groups: int = 1) -> nn.Module:
    stem = [normed(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1)]
    blocks = [bottleneck(8, 8, 1, groups), bottleneck(32, 8, 1, groups)]
    blocks += [bottleneck(32, 12, 2, groups), bottleneck(48, 12, 1, groups)]
    return nn.Sequential(*stem, *blocks, *head(48))


def group_normed() -> nn.Module:
    def unit(channels: int) -> Residual:
        return Residual(
            nn.Sequential(
                nn.GroupNorm(4, channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            )
        )

    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), unit(16), unit(16), *head(16))


def inverted(
    inputs: int,
    outputs: int,
    *,
    stride: int = 1,
    kernel: int = 3,
    expansion: int = 4,
    activation: Layers = nn.ReLU6,
    excite: Callable[[int], nn.Module] | None = None,
    has_depth: bool = False,
) -> nn.Module:
    """Return an inverted residual of a MobileNet."""
    inner = expansion * inputs
    layers = [
        *([normed(inputs, inner, 1, activation=activation)] if expansion > 1 else []),
        normed(inner, inner, kernel, stride, inner, activation),
        *([excite(inner)] if excite else []),
        normed(inner, outputs, 1, activation=None),
        *([StochasticDepth()] if has_depth else []),
    ]
    body = nn.Sequential(*layers)
    return Residual(body) if stride == 1 and inputs == outputs else body


def mobilenet_v1() -> nn.Module:
    layers = [
        nn.Sequential(normed(c, c, 3, s, c), normed(c, 2 * c, 1)) for c, s in ((8, 1), (16, 2))
    ]
    return nn.Sequential(normed(3, 8, 3, 2), *layers, *head(32))


def classified(inputs: int, features: int, activation: Layers) -> list[nn.Module]:
    """Return a last convolution, the mean of its map, dropout and a classifier."""
    last = [normed(inputs, features, 1, activation=activation), nn.AdaptiveAvgPool2d(1)]
    return [*last, nn.Flatten(), nn.Dropout(0.2, inplace=True), nn.Linear(features, 10)]


def mobilenet_v2() -> nn.Module:
    stem = [normed(3, 8, 3, 2, activation=nn.ReLU6), inverted(8, 8, expansion=1)]
    stages = [inverted(8, 12, stride=2, expansion=6), inverted(12, 12, expansion=6)]
    return nn.Sequential(*stem, *stages, *classified(12, 24, nn.ReLU6))


def _excited(channels: int) -> nn.Module:
    return Excitation(channels, max(8, channels // 4), gate=nn.Hardsigmoid)


def _mobilenet_v3(stages: Sequence[nn.Module]) -> nn.Module:
    stem = normed(3, 8, 3, 2, activation=nn.Hardswish)
    pooled = [normed(12, 24, 1, activation=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    last = [nn.Linear(24, 32), nn.Hardswish(inplace=True), nn.Dropout(0.2, inplace=True)]
    return nn.Sequential(stem, *stages, *pooled, *last, nn.Linear(32, 10))


def mobilenet_v3_small() -> nn.Module:
    swish = partial(inverted, kernel=5, activation=nn.Hardswish, excite=_excited)
    first = inverted(8, 8, stride=2, expansion=1, activation=nn.ReLU, excite=_excited)
    plain = inverted(8, 8, activation=nn.ReLU)
    return _mobilenet_v3([first, plain, swish(8, 12, stride=2), swish(12, 12)])


def mobilenet_v3_large() -> nn.Module:
    relu = partial(inverted, activation=nn.ReLU)
    stages = [relu(8, 8, expansion=1), relu(8, 8, stride=2)]
    stages += [relu(8, 8, kernel=5, excite=_excited)]
    stages += [inverted(8, 12, stride=2, activation=nn.Hardswish)]
    stages += [inverted(12, 12, kernel=5, activation=nn.Hardswish, excite=_excited)]
    return _mobilenet_v3(stages)


def efficientnet() -> nn.Module:
    unit = partial(inverted, activation=nn.SiLU, has_depth=True)

    def excited(few: int) -> Callable[[int], nn.Module]:
        return lambda channels: Excitation(channels, few, nn.SiLU)

    stages = [unit(8, 8, expansion=1, excite=excited(2))]
    stages += [unit(8, 12, stride=2, kernel=5, expansion=6, excite=excited(2))]
    stages += [unit(12, 12, kernel=5, expansion=6, excite=excited(3))]
    stem = normed(3, 8, 3, 2, activation=nn.SiLU)
    return nn.Sequential(stem, *stages, *classified(12, 24, nn.SiLU))


def mnasnet() -> nn.Module:
    stages = [inverted(8, 16, stride=2, activation=nn.ReLU), inverted(16, 16, kernel=5)]
    return nn.Sequential(normed(3, 8, 3, 2), *stages, *head(16))


def shuffled(x: Tensor) -> Tensor:
    """Interleave the channels of both halves."""
    n, channels, rows, columns = x.shape
    turned = x.view(n, 2, channels // 2, rows, columns).transpose(1, 2)
    return turned.reshape(n, channels, rows, columns)


class Shuffle(nn.Module):
    """Half of the channels pass, the others are computed; then the channels change places.

    With a stride all are computed, in two ways.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        half, given = outputs // 2, inputs if stride > 1 else inputs // 2
        self.skip = None
        if stride > 1:
            way = normed(inputs, inputs, 3, stride, inputs, None)
            self.skip = nn.Sequential(way, normed(inputs, half, 1))
        self.body = nn.Sequential(
            normed(given, half, 1),
            normed(half, half, 3, stride, half, None),
            normed(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.skip is not None:
            return shuffled(torch.cat([self.skip(x), self.body(x)], 1))
        kept, given = x.chunk(2, 1)
        return shuffled(torch.cat([kept, self.body(given)], 1))


class OfMeans(nn.Module):
    """A linear classifier of the means of a map."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.last = nn.Linear(features, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(x.mean([2, 3]))
        return y


def shufflenet() -> nn.Module:
    stem = [normed(3, 8, 3, 2), nn.MaxPool2d(3, 2, 1)]
    units = [Shuffle(8, 16, 2), Shuffle(16, 16)]
    return nn.Sequential(*stem, *units, normed(16, 24, 1), OfMeans(24))


def fire(inputs: int, few: int, outputs: int) -> nn.Module:
    wide = (nn.Conv2d(few, outputs, 1), nn.Conv2d(few, outputs, 3, padding=1))
    branches = Parallel(*(nn.Sequential(conv, nn.ReLU()) for conv in wide))
    return nn.Sequential(nn.Conv2d(inputs, few, 1), nn.ReLU(), branches)


def squeezenet() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)]
    fires = [fire(16, 4, 16), nn.MaxPool2d(3, 2, ceil_mode=True), fire(32, 8, 16)]
    last = [nn.Dropout(0.5), nn.Conv2d(32, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*stem, *fires, *last, nn.Flatten())


def inception(inputs: int) -> nn.Module:
    return Parallel(
        normed(inputs, 8, 1),
        nn.Sequential(normed(inputs, 8, 1), normed(8, 8)),
        nn.Sequential(normed(inputs, 4, 1), normed(4, 8, 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), normed(inputs, 8, 1)),
    )


def googlenet() -> nn.Module:
    stem = [normed(3, 8, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), normed(8, 8, 1), normed(8, 16)]
    body = [inception(16), inception(32), nn.MaxPool2d(2, 2, ceil_mode=True), inception(32)]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 10)]
    return nn.Sequential(*stem, *body, *last)


def _before(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    """Return batch norm and an activation before a convolution."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    return [nn.BatchNorm2d(inputs), nn.ReLU(), convolution]


class Dense(nn.Module):
    """Each layer reads the outputs of all before it."""

    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        sizes = [inputs + k * growth for k in range(layers)]
        self.layers = nn.ModuleList(
            nn.Sequential(*_before(size, 2 * growth, 1), *_before(2 * growth, growth, 3))
            for size in sizes
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet() -> nn.Module:
    stem = [normed(3, 12, 7, 2), nn.MaxPool2d(3, 2, 1)]
    between = [*_before(28, 12, 1), nn.AvgPool2d(2)]
    last = [nn.BatchNorm2d(28), nn.ReLU(), *head(28)]
    return nn.Sequential(*stem, Dense(12, 8, 2), *between, Dense(12, 8, 2), *last)


def vgg() -> nn.Module:
    layers = list[nn.Module]()
    for inputs, outputs in ((3, 8), (8, 12), (12, 12)):
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    last = [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(12 * 49, 24), nn.ReLU()]
    more = [nn.Dropout(), nn.Linear(24, 24), nn.ReLU(), nn.Dropout(), nn.Linear(24, 10)]
    return nn.Sequential(*layers, *last, *more)


def regnet() -> nn.Module:
    def unit(inputs: int, width: int, stride: int) -> Residual:
        body = nn.Sequential(
            normed(inputs, width, 1),
            normed(width, width, 3, stride, width // 8),
            Excitation(width, inputs // 4),
            normed(width, width, 1, activation=None),
        )
        return Residual(body, _skip(inputs, width, stride), relu=True)

    units = [unit(16, 16, 2), unit(16, 16, 1), unit(16, 24, 2)]
    return nn.Sequential(normed(3, 16, 3, 2), *units, *head(24))


def alexnet() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2)]
    more = [nn.Conv2d(16, 32, 5, padding=2, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    return nn.Sequential(*layers, *more, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))


def lenet() -> nn.Module:
    layers = [nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)]
    more = [nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, *more, nn.Linear(400, 84), nn.Tanh(), nn.Linear(84, 10))


def femnist() -> nn.Module:
    layers = [nn.Conv2d(1, 8, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
    more = [nn.Conv2d(8, 16, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, *more, nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 62))


def xception() -> nn.Module:
    def separable(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    body = nn.Sequential(separable(16, 32), nn.ReLU(), separable(32, 32), nn.MaxPool2d(3, 2, 1))
    skip = normed(16, 32, 1, 2, activation=None)
    return nn.Sequential(normed(3, 16, 3, 2), Residual(body, skip), *head(32))


class ChannelsLast(nn.Module):
    """Applies layers of the last axis to the channels of pictures."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x.permute(0, 2, 3, 1))
        return y.permute(0, 3, 1, 2)


class LayerScale(nn.Module):
    """Scales each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def convnext() -> nn.Module:
    def unit(width: int) -> Residual:
        mixing = ChannelsLast(
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        first = nn.Conv2d(width, width, 7, padding=3, groups=width)
        return Residual(nn.Sequential(first, mixing, LayerScale(width), StochasticDepth()))

    def norm(width: int) -> nn.Module:
        return ChannelsLast(nn.LayerNorm(width, eps=1e-6))

    stem = [nn.Conv2d(3, 16, 4, 4), norm(16), unit(16)]
    last = [nn.AdaptiveAvgPool2d(1), norm(24), nn.Flatten(), nn.Linear(24, 10)]
    return nn.Sequential(*stem, norm(16), nn.Conv2d(16, 24, 2, 2), unit(24), *last)


def convmixer() -> nn.Module:
    def unit(width: int) -> nn.Module:
        spatial = nn.Sequential(
            nn.Conv2d(width, width, 5, groups=width, padding="same"),
            nn.GELU(),
            nn.BatchNorm2d(width),
        )
        return nn.Sequential(Residual(spatial), nn.Conv2d(width, width, 1), nn.GELU())

    return nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.GELU(), unit(16), unit(16), *head(16))


class UNet(nn.Module):
    """Down, up by a transposed convolution, and across: logits of three classes at each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(normed(3, 8), normed(8, 8))
        self.coarse = nn.Sequential(nn.MaxPool2d(2), normed(8, 16), normed(16, 16))
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Sequential(normed(16, 8), nn.Conv2d(8, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        y: Tensor = self.last(torch.cat([fine, self.up(self.coarse(fine))], 1))
        return y


class Pyramid(nn.Module):
    """Adds features of two sizes, the smaller one enlarged."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = normed(3, 8, 3, 2), normed(8, 8, 3, 2)
        self.last = nn.Sequential(*head(8))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        up = functional.interpolate(self.coarse(fine), scale_factor=2.0, mode="nearest")
        y: Tensor = self.last(fine + up)
        return y


def autoencoder() -> nn.Module:
    down = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(4, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2), nn.Sigmoid()]
    return nn.Sequential(*down, *up)
