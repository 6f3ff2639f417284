"""A small causal transformer that predicts the next character of a text.

    [model]
    name = "transformer:make"

Embedding and output share one matrix; dropout draws its masks on the device.

Source:
    Vaswani et al., NeurIPS 2017, with layer norm before each part and learned positions.
"""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attends to earlier positions, then transforms each position."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Return features, shape (B, T, width)."""
        n, length, width = h.shape
        parts = self.queries(self.first(h)).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        h = h + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        y: torch.Tensor = h + self.body(self.second(h))
        return y


class Transformer(nn.Module):
    """Maps tokens, shape (B, T), to a logit per token at each position, shape (B, T, classes)."""

    def __init__(self, length: int, classes: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, 4, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, classes, bias=False)
        self.last.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token at each position."""
        h = self.drop(self.embedding(x) + self.positions)
        logits: torch.Tensor = self.last(self.norm(self.blocks(h)))
        return logits


def make(x_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a transformer with two blocks of width 64 for texts of x_shape[0] tokens."""
    return Transformer(x_shape[0], classes, width=64, layers=2, dropout=0.1)
