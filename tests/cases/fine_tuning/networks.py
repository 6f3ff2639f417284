"""Networks of a user that are fine-tuned: convolutions with batch norm, and attention."""

import torch
from torch import nn


class Pictures(nn.Module):
    """Dense, strided and depthwise convolutions, batch norm, and a head."""

    def __init__(self, x_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(x_shape[0], 32, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1, groups=64),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.body(x).mean((2, 3)))
        return output


class Rows(nn.Module):
    """A transformer over the rows of a picture."""

    def __init__(self, x_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.rows = nn.Linear(x_shape[-1], 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.encoder(self.rows(x.flatten(1, 2))).mean(1))
        return output


class Unused(Pictures):
    """A layer that does not affect the output."""

    def __init__(self, x_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(x_shape, classes)
        self.spare = nn.Linear(8, 8)
