"""Networks as people train them on devices, small, in the forms of their papers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH = 20, 6

Activation = Callable[[], nn.Module]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network, and what it maps to what."""

    make: Callable[[], nn.Module]
    x_shape: tuple[int, ...] = (3, 32, 32)
    classes: int = 10
    has_tokens: bool = False


def normed(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    activation: Activation | None = nn.ReLU,
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


class Excitation(nn.Module):
    """Scales channels by their own means."""

    def __init__(self, channels: int, gate: Activation = nn.Sigmoid) -> None:
        super().__init__()
        few = max(1, channels // 4)
        squeeze = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, few, 1), nn.ReLU()]
        self.scale = nn.Sequential(*squeeze, nn.Conv2d(few, channels, 1), gate())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.scale(x)
        return y


def block(inputs: int, outputs: int, stride: int = 1, groups: int = 1) -> Residual:
    """Return a basic block of a ResNet."""
    body = nn.Sequential(
        normed(inputs, outputs, 3, stride, groups), normed(outputs, outputs, activation=None)
    )
    is_plain = stride == 1 and inputs == outputs
    skip = None if is_plain else normed(inputs, outputs, 1, stride, activation=None)
    return Residual(body, skip, relu=True)


def resnet() -> nn.Module:
    stem = [normed(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, block(16, 16), block(16, 32, 2), block(32, 32), *head(32))


def bottleneck(groups: int = 1) -> nn.Module:
    def unit(channels: int, width: int) -> Residual:
        body = nn.Sequential(
            normed(channels, width, 1),
            normed(width, width, 3, 1, groups),
            normed(width, channels, 1, activation=None),
        )
        return Residual(body, relu=True)

    return nn.Sequential(normed(3, 32, 3, 2), unit(32, 16), unit(32, 16), *head(32))


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
    activation: Activation = nn.ReLU6,
    gate: Activation | None = None,
) -> nn.Module:
    """Return an inverted residual of a MobileNet."""
    inner = 4 * inputs
    layers = [
        normed(inputs, inner, 1, activation=activation),
        normed(inner, inner, kernel, stride, inner, activation),
        *([Excitation(inner, gate)] if gate else []),
        normed(inner, outputs, 1, activation=None),
    ]
    body = nn.Sequential(*layers)
    return Residual(body) if stride == 1 and inputs == outputs else body


def mobilenet_v1() -> nn.Module:
    layers = [
        nn.Sequential(normed(c, c, 3, s, c), normed(c, 2 * c, 1)) for c, s in ((8, 1), (16, 2))
    ]
    return nn.Sequential(normed(3, 8, 3, 2), *layers, *head(32))


def mobilenet_v2() -> nn.Module:
    stages = [inverted(8, 8), inverted(8, 16, stride=2), inverted(16, 16)]
    return nn.Sequential(normed(3, 8, 3, 2, activation=nn.ReLU6), *stages, *head(16))


def mobilenet_v3() -> nn.Module:
    def stage(inputs: int, outputs: int, stride: int) -> nn.Module:
        return inverted(
            inputs,
            outputs,
            stride=stride,
            kernel=5,
            activation=nn.Hardswish,
            gate=nn.Hardsigmoid,
        )

    stem = normed(3, 8, 3, 2, activation=nn.Hardswish)
    last = [nn.Linear(16, 24), nn.Hardswish(), nn.Linear(24, 10)]
    return nn.Sequential(stem, stage(8, 16, 2), stage(16, 16, 1), *head(16, 16), *last)


def efficientnet() -> nn.Module:
    stages = [
        inverted(8, 8, activation=nn.SiLU, gate=nn.Sigmoid),
        inverted(8, 16, stride=2, kernel=5, activation=nn.SiLU, gate=nn.Sigmoid),
    ]
    return nn.Sequential(normed(3, 8, 3, 2, activation=nn.SiLU), *stages, *head(16))


def mnasnet() -> nn.Module:
    stages = [inverted(8, 16, stride=2, activation=nn.ReLU), inverted(16, 16, kernel=5)]
    return nn.Sequential(normed(3, 8, 3, 2), *stages, *head(16))


class Shuffle(nn.Module):
    """Half of the channels pass, the others are computed; then the channels change places."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            normed(half, half, 1),
            normed(half, half, 3, groups=half, activation=None),
            normed(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, given = x.chunk(2, 1)
        x = torch.cat([kept, self.body(given)], 1)
        n, channels, rows, columns = x.shape
        shuffled = x.view(n, 2, channels // 2, rows, columns).transpose(1, 2)
        return shuffled.reshape(n, channels, rows, columns)


def shufflenet() -> nn.Module:
    stem = [normed(3, 16, 3, 2), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, Shuffle(16), Shuffle(16), *head(16))


def fire(inputs: int, few: int, outputs: int) -> nn.Module:
    wide = (nn.Conv2d(few, outputs, 1), nn.Conv2d(few, outputs, 3, padding=1))
    branches = Parallel(*(nn.Sequential(conv, nn.ReLU()) for conv in wide))
    return nn.Sequential(nn.Conv2d(inputs, few, 1), nn.ReLU(), branches)


def squeezenet() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)]
    last = [nn.Conv2d(32, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(
        *stem, fire(16, 4, 16), nn.MaxPool2d(3, 2, ceil_mode=True), fire(32, 8, 16), *last
    )


def googlenet() -> nn.Module:
    branches = [
        normed(16, 8, 1),
        nn.Sequential(normed(16, 8, 1), normed(8, 8)),
        nn.Sequential(normed(16, 4, 1), normed(4, 8, 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), normed(16, 8, 1)),
    ]
    stem = [normed(3, 16, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True)]
    return nn.Sequential(*stem, Parallel(*branches), *head(32))


class Dense(nn.Module):
    """Each layer reads the outputs of all before it."""

    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + k * growth),
                nn.ReLU(),
                nn.Conv2d(inputs + k * growth, growth, 3, padding=1, bias=False),
            )
            for k in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet() -> nn.Module:
    between = [nn.BatchNorm2d(28), nn.ReLU(), nn.Conv2d(28, 12, 1), nn.AvgPool2d(2)]
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, 2, 1), Dense(12, 8, 2), *between, Dense(12, 8, 2), *head(28)
    )


def vgg() -> nn.Module:
    layers = [
        layer for i, o in ((3, 8), (8, 16), (16, 16)) for layer in (normed(i, o), nn.MaxPool2d(2))
    ]
    last = [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(16 * 49, 24), nn.ReLU()]
    return nn.Sequential(*layers, *last, nn.Linear(24, 10))


def regnet() -> nn.Module:
    body = nn.Sequential(
        normed(16, 32, 1), normed(32, 32, 3, 2, 4), Excitation(32), normed(32, 32, 1)
    )
    return nn.Sequential(normed(3, 16, 3, 2), body, *head(32))


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
    """Scales each feature of the last axis."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((features,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def convnext() -> nn.Module:
    def unit(width: int) -> Residual:
        mixing = ChannelsLast(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            LayerScale(width),
        )
        return Residual(nn.Sequential(nn.Conv2d(width, width, 7, padding=3, groups=width), mixing))

    between = [ChannelsLast(nn.LayerNorm(16)), nn.Conv2d(16, 24, 2, 2)]
    return nn.Sequential(nn.Conv2d(3, 16, 4, 4), unit(16), *between, unit(24), *head(24))


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
    """Down, up by a transposed convolution, and across; its mean is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = normed(3, 8), normed(8, 16)
        self.up, self.joined = nn.ConvTranspose2d(16, 8, 2, 2), normed(16, 8)
        self.last = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        up = self.up(self.coarse(functional.max_pool2d(fine, 2)))
        y: Tensor = self.last(self.joined(torch.cat([fine, up], 1)).mean((2, 3)))
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


def keyword_spotting() -> nn.Module:
    layers = [nn.Sequential(normed(12, 12, groups=12), normed(12, 12, 1)) for _ in range(2)]
    return nn.Sequential(normed(1, 12, 5, 2), *layers, *head(12, 12))


def m5() -> nn.Module:
    layers = [nn.Conv1d(1, 8, 80, 16), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(4)]
    more = [nn.Conv1d(8, 16, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(4)]
    last = [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 10)]
    return nn.Sequential(*layers, *more, *last)


class Causal(nn.Module):
    """A temporal convolutional network: dilated, padded on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(4 if k == 0 else 12, 12, 3, dilation=d))
            for k, d in enumerate((1, 2, 4))
        )
        self.last = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        for layer, dilation in zip(self.layers, (1, 2, 4), strict=True):
            x = functional.relu(layer(functional.pad(x, (2 * dilation, 0))))
        y: Tensor = self.last(x[:, :, -1])
        return y


class PointNet(nn.Module):
    """Points one by one, then their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 1)
        )
        self.last = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.each(x).max(2).values)
        return y


class Tabular(nn.Module):
    """Two categories, embedded, beside numbers; categories come as floats of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, 4) for n in (5, 5))
        self.layers = nn.Sequential(
            nn.Linear(12, 16), nn.BatchNorm1d(16), nn.SELU(), nn.Linear(16, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        numbers = x[:, 2:].to(torch.get_default_dtype()) / VOCABULARY
        found = [table(x[:, k] % 5) for k, table in enumerate(self.embeddings)]
        y: Tensor = self.layers(torch.cat([*found, numbers], 1))
        return y


class Text(nn.Module):
    """Embedded tokens, a body, and a classifier of the mean over positions."""

    def __init__(
        self,
        body: nn.Module,
        width: int = 12,
        classes: int = 3,
        *,
        is_last: bool = False,
        has_positions: bool = False,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width, padding_idx=padding)
        self.body, self.is_last = body, is_last
        shape = (LENGTH, width)
        self.positions = nn.Parameter(torch.randn(shape) * 0.1) if has_positions else None
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        if self.positions is not None:
            h = h + self.positions
        h = self.body(h)
        h = h[0] if isinstance(h, tuple) else h
        y: Tensor = self.last(h[:, -1] if self.is_last else h.mean(1))
        return y


class Bag(nn.Sequential):
    """A linear classifier of the words of a text, in any order."""

    def __init__(self, mode: str, padding: int | None) -> None:
        bag = nn.EmbeddingBag(VOCABULARY, 8, mode=mode, padding_idx=padding)
        super().__init__(bag, nn.Linear(8, 3))


class OverTime(nn.Module):
    """Applies one-dimensional convolutions to sequences with features last."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, h: Tensor) -> Tensor:
        y: Tensor = self.layers(h.transpose(1, 2))
        return y.transpose(1, 2)


class Windows(nn.Module):
    """Convolutions of several widths over words, and the maximum of each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        third = width // 3
        self.convs = nn.ModuleList(nn.Conv1d(width, third, k) for k in (2, 3, 4))

    def forward(self, h: Tensor) -> Tensor:
        turned = h.transpose(1, 2)
        found = [functional.relu(conv(turned)).amax(2) for conv in self.convs]
        return torch.cat(found, 1).unsqueeze(1)


class Attentive(nn.Module):
    """A GRU whose states are weighted by their scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.score = nn.Linear(width, 1)

    def forward(self, h: Tensor) -> Tensor:
        states = self.gru(h)[0]
        y: Tensor = (states * self.score(states).softmax(1)).sum(1, keepdim=True)
        return y


class Decoder(nn.Module):
    """Blocks of a causal transformer with attention of torch and a mask."""

    def __init__(self, width: int, layers: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, h: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        y: Tensor = self.blocks(h, mask=mask, is_causal=True)
        return y


class Rotary(nn.Module):
    """A block as in recent language models: RMS norm, rotary positions, gated units."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        half = width // 4
        angles = torch.outer(torch.arange(LENGTH), 100.0 ** (-torch.arange(half) / half))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def turned(self, h: Tensor) -> Tensor:
        even, odd = h.chunk(2, -1)
        cosine, sine = self.get_buffer("cosine"), self.get_buffer("sine")
        return torch.cat([even * cosine - odd * sine, even * sine + odd * cosine], -1)

    def forward(self, h: Tensor) -> Tensor:
        n, length, width = h.shape
        parts = self.qkv(self.first(h)).view(n, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v, is_causal=True
        )
        h = h + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        z = self.second(h)
        y: Tensor = h + self.down(functional.silu(self.gate(z)) * self.up(z))
        return y


class PaddedEncoder(nn.Module):
    """An encoder that leaves the padding, token 0, out of attention and mean."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 24, dropout=0.0, batch_first=True)
        self.table = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        is_padding = (x == 0) & (torch.arange(LENGTH) > 0)
        h = self.body(self.table(x), src_key_padding_mask=is_padding)
        w = (~is_padding).unsqueeze(2).to(h.dtype)
        y: Tensor = self.last((h * w).sum(1) / w.sum(1))
        return y


class VisionTransformer(nn.Module):
    """Patches, a class token and positions."""

    def __init__(self, width: int = 24, size: int = 32, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(h.shape[0], -1, -1), h], 1) + self.positions
        y: Tensor = self.last(self.body(h)[:, 0])
        return y


class Mixer(nn.Module):
    """Mixes positions, then features."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.across = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.within = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = h + self.across(self.norms[0](h).transpose(1, 2)).transpose(1, 2)
        h = h + self.within(self.norms[1](h))
        y: Tensor = self.last(h.mean(1))
        return y


class Lines(nn.Module):
    """Reads the columns of a picture as a sequence: convolutions, then a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(normed(1, 8), nn.MaxPool2d((4, 2)))
        self.gru, self.last = nn.GRU(16, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.convs(x).flatten(1, 2).transpose(1, 2)
        y: Tensor = self.last(self.gru(h)[0][:, -1])
        return y


def text(make: Callable[[], nn.Module], classes: int = 3) -> Architecture:
    return Architecture(make, (LENGTH,), classes, has_tokens=True)


ARCHITECTURES: dict[str, Architecture] = {
    "ResNet": Architecture(resnet),
    "ResNet with bottlenecks": Architecture(bottleneck),
    "ResNeXt": Architecture(lambda: bottleneck(4)),
    "ResNet with group norm before activations": Architecture(group_normed),
    "MobileNet": Architecture(mobilenet_v1),
    "MobileNetV2": Architecture(mobilenet_v2),
    "MobileNetV3": Architecture(mobilenet_v3),
    "EfficientNet": Architecture(efficientnet),
    "MnasNet": Architecture(mnasnet),
    "ShuffleNetV2": Architecture(shufflenet),
    "SqueezeNet": Architecture(squeezenet),
    "GoogLeNet": Architecture(googlenet),
    "DenseNet": Architecture(densenet),
    "VGG": Architecture(vgg),
    "RegNet": Architecture(regnet),
    "AlexNet": Architecture(alexnet),
    "LeNet": Architecture(lenet, (1, 28, 28)),
    "CNN of FEMNIST": Architecture(femnist, (1, 28, 28), 62),
    "Xception": Architecture(xception),
    "ConvNeXt": Architecture(convnext),
    "ConvMixer": Architecture(convmixer),
    "U-Net": Architecture(UNet, (3, 16, 16)),
    "feature pyramid": Architecture(Pyramid, (3, 16, 16)),
    "DS-CNN": Architecture(keyword_spotting, (1, 49, 10), 12),
    "M5": Architecture(m5, (1, 2000)),
    "temporal convolutions": Architecture(Causal, (4, 24), 6),
    "PointNet": Architecture(PointNet, (3, 20)),
    "CRNN": Architecture(Lines, (1, 8, 12), 5),
    "ViT": Architecture(VisionTransformer),
    "MLP-Mixer": Architecture(Mixer),
    "tabular with categories": text(Tabular),
    "bag of embeddings": text(lambda: Text(nn.Identity(), padding=0)),
    "fastText, mean": text(lambda: Bag("mean", 0)),
    "fastText, sum": text(lambda: Bag("sum", None)),
    "fastText, maximum": text(lambda: Bag("max", None)),
    "text convolutions": text(lambda: Text(OverTime(nn.Conv1d(12, 12, 3, padding=1), nn.ReLU()))),
    "TextCNN": text(lambda: Text(Windows(12))),
    "RNN": text(lambda: Text(nn.RNN(12, 12, batch_first=True))),
    "GRU": text(lambda: Text(nn.GRU(12, 12, batch_first=True))),
    "LSTM": text(lambda: Text(nn.LSTM(12, 12, batch_first=True))),
    "LSTM of both directions": text(
        lambda: Text(nn.LSTM(12, 6, batch_first=True, bidirectional=True))
    ),
    "next character, two LSTM": text(
        lambda: Text(nn.LSTM(12, 12, 2, batch_first=True), classes=VOCABULARY, is_last=True),
        VOCABULARY,
    ),
    "GRU with attention": text(lambda: Text(Attentive(12))),
    "DistilBERT": text(
        lambda: Text(
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(
                    12, 2, 24, dropout=0.0, activation="gelu", batch_first=True
                ),
                2,
                enable_nested_tensor=False,
            ),
            has_positions=True,
        )
    ),
    "encoder with padding": text(PaddedEncoder),
    "causal transformer": text(
        lambda: Text(Decoder(12), classes=VOCABULARY, is_last=True, has_positions=True), VOCABULARY
    ),
    "rotary transformer": text(
        lambda: Text(Rotary(12), classes=VOCABULARY, is_last=True), VOCABULARY
    ),
}
