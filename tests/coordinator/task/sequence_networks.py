"""Networks for signals, texts, tables and points, small."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.coordinator.task.attention_networks import LENGTH, VOCABULARY
from tests.coordinator.task.convolutional_networks import head, normed

CATEGORIES = 5
"""Of each column of a table that has categories."""


def keyword_spotting() -> nn.Module:
    stem = [nn.Conv2d(1, 12, (10, 4), 2, (5, 1), bias=False), nn.BatchNorm2d(12), nn.ReLU()]
    layers = [nn.Sequential(normed(12, 12, groups=12), normed(12, 12, 1)) for _ in range(2)]
    return nn.Sequential(*stem, nn.Dropout(0.2), *layers, nn.Dropout(0.4), *head(12, 12))


def m5() -> nn.Module:
    layers = list[nn.Module]()
    for inputs, outputs, kernel, stride in ((1, 8, 80, 4), (8, 8, 3, 1), (8, 16, 3, 1)):
        convolution = nn.Conv1d(inputs, outputs, kernel, stride)
        layers += [convolution, nn.BatchNorm1d(outputs), nn.ReLU(), nn.MaxPool1d(4)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 10))


class CausalConvolutions(nn.Module):
    """Two dilated convolutions that read only what came before, beside their input."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.cut = 2 * dilation
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(
                nn.Conv1d(size, outputs, 3, padding=self.cut, dilation=dilation)
            )
            for size in (inputs, outputs)
        )
        self.drop = nn.Dropout(0.2)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.layers:
            h = self.drop(functional.relu(layer(h)[:, :, : -self.cut]))
        return functional.relu(h + self.skip(x))


class Temporal(nn.Module):
    """A temporal convolutional network; its last step is classified."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [CausalConvolutions(4, 12, 1), CausalConvolutions(12, 12, 2)]
        self.body, self.last = nn.Sequential(*blocks), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.body(x)[:, :, -1])
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
    """A perceptron of numbers beside two embedded categories, all columns of one table."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(CATEGORIES, 4) for _ in range(2))
        first = [nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1)]
        self.layers = nn.Sequential(*first, nn.Linear(16, 8), nn.SELU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        found = [table(x[:, k].long()) for k, table in enumerate(self.embeddings)]
        y: Tensor = self.layers(torch.cat([*found, x[:, 2:]], 1))
        return y


class Text(nn.Module):
    """Embedded tokens, a body, and a classifier of the mean over positions.

    Args:
        body: Maps (B, T, width) to the same, or to a pair with it.
        width: Features of a position.
        classes: How many.
        read: What is classified: the mean over positions, the last one, or each.
        padding: The token that is no text.
        dropout: Of what is classified.
    """

    def __init__(
        self,
        body: nn.Module,
        width: int = 12,
        classes: int = 3,
        *,
        read: str = "mean",
        padding: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width, padding_idx=padding)
        self.body, self.read, self.drop = body, read, nn.Dropout(dropout)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.table(x))
        h = h[0] if isinstance(h, tuple) else h
        if self.read != "each":
            h = h[:, -1] if self.read == "last" else h.mean(1)
        y: Tensor = self.last(self.drop(h))
        return y


class PaddedText(Text):
    """A classifier of the mean state over the tokens that are no padding."""

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.body(self.drop(self.table(x)))
        is_text = ((x != 0) | (torch.arange(LENGTH) == 0)).unsqueeze(2).to(states.dtype)
        y: Tensor = self.last(self.drop((states * is_text).sum(1) / is_text.sum(1)))
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
