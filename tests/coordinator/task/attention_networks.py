"""Networks of attention and of mixing, for pictures and tokens, small."""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH = 20, 6
"""Of texts; token 0 is padding."""

DROPOUT = 0.1


def encoder(width: int, layers: int, *, heads: int = 2, is_first: bool = False) -> nn.Module:
    """Return transformer layers of torch.

    Args:
        width: Features of a position.
        layers: How many.
        heads: Of attention.
        is_first: Norms come before attention, and not after it.
    """
    layer = nn.TransformerEncoderLayer(
        width,
        heads,
        2 * width,
        dropout=DROPOUT,
        activation="gelu",
        batch_first=True,
        norm_first=is_first,
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class CausalModel(nn.Module):
    """A language model: logits of the next token at each position, by the table of tokens."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.drop, self.body = nn.Dropout(DROPOUT), encoder(width, 2, is_first=True)
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.last.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.table(x) + self.places(torch.arange(x.shape[1])))
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        y: Tensor = self.last(self.norm(self.body(h, mask=mask, is_causal=True)))
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


class DistilBERT(nn.Module):
    """An encoder of padded texts; its first position is classified."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.places, self.norm = nn.Embedding(LENGTH, width), nn.LayerNorm(width, eps=1e-12)
        self.drop, self.body = nn.Dropout(DROPOUT), encoder(width, 2)
        self.last = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 3)
        )
        self.register_buffer("numbers", torch.arange(LENGTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        numbers = self.get_buffer("numbers")
        h = self.drop(self.norm(self.table(x) + self.places(numbers)))
        is_padding = (x == 0) & (numbers > 0)
        y: Tensor = self.last(self.body(h, src_key_padding_mask=is_padding)[:, 0])
        return y


class PaddedEncoder(nn.Module):
    """An encoder that leaves the padding out of attention and of its mean."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.body, self.last = encoder(width, 1), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        is_padding = (x == 0) & (torch.arange(LENGTH) > 0)
        h = self.body(self.table(x), src_key_padding_mask=is_padding)
        w = (~is_padding).unsqueeze(2).to(h.dtype)
        y: Tensor = self.last((h * w).sum(1) / w.sum(1))
        return y


class Patches(nn.Module):
    """Patches of a picture as positions, after a class token, with places."""

    def __init__(self, width: int, size: int = 32, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(h.shape[0], -1, -1), h], 1)
        y: Tensor = self.drop(h + self.places)
        return y


class VisionTransformer(nn.Module):
    """Layers of torch over patches."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patches, self.body = Patches(width), encoder(width, 2, heads=4, is_first=True)
        self.last = nn.Sequential(nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.body(self.patches(x))[:, 0])
        return y


class Attention(nn.Module):
    """Attention with one product for queries, keys and values, and dropout of its weights."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, h: Tensor) -> Tensor:
        n, length, width = h.shape
        parts = self.qkv(h).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        p = DROPOUT if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=p)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return y


class SmallTransformer(nn.Module):
    """Layers written out over patches: norms before, stochastic depth behind."""

    def __init__(self, depth: nn.Module, width: int = 24) -> None:
        super().__init__()
        self.patches, self.depth = Patches(width), depth
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(3))
        self.attention = Attention(width, 3)
        self.within = nn.Sequential(
            nn.Linear(width, 48), nn.GELU(), nn.Dropout(DROPOUT), nn.Linear(48, width)
        )
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x)
        h = h + self.depth(self.attention(self.norms[0](h)))
        h = h + self.depth(self.within(self.norms[1](h)))
        y: Tensor = self.last(self.norms[2](h)[:, 0])
        return y


class Mixer(nn.Module):
    """Mixes positions, then features."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.across = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.within = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = h + self.across(self.norms[0](h).transpose(1, 2)).transpose(1, 2)
        h = h + self.within(self.norms[1](h))
        y: Tensor = self.last(self.norms[2](h).mean(1))
        return y
