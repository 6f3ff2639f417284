"""A residual network of wide layers, whose frozen part is about 100 MB."""

import math

import torch
from torch import nn

WIDTH, BLOCKS = 2500, 4


class Wide(nn.Module):
    """One layer in, `BLOCKS` square ones with a residual path, one layer out."""

    def __init__(self, x_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(math.prod(x_shape), WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (B, classes)."""
        found = torch.relu(self.first(x.flatten(1)))
        for block in self.blocks:
            found = found + 0.1 * torch.relu(block(found))
        output: torch.Tensor = self.head(found)
        return output
