"""The character LSTM of LEAF: two layers of 256 units predict the next character of a text.

    [model]
    name = "char_lstm:make"

LEAF predicts the character after 80 others; this model predicts the next one at each of 80
positions. Its data are in the folder `shakespeare`, one file per speaker. `load` reads the larger
text of plays that others use.

Source:
    Caldas et al., LEAF, arXiv:1812.01097, for the sizes of the layers and the sequences.
"""

import gzip
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import nn


class CharLSTM(nn.Module):
    """Maps tokens, shape (B, T), to a logit per token at each position, shape (B, T, classes)."""

    def __init__(self, classes: int, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 8)
        self.body = nn.LSTM(8, width, num_layers=2, batch_first=True)
        self.last = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token at each position."""
        states, _ = self.body(self.embedding(x))
        logits: torch.Tensor = self.last(states)
        return logits


def make(classes: int) -> nn.Module:
    """Return the LSTM of LEAF for as many tokens as the text has."""
    return CharLSTM(classes)


def make_small(classes: int) -> nn.Module:
    """Return the same network with 128 units per layer: a quarter of the work."""
    return CharLSTM(classes, width=128)


def load(folder: str) -> dict[str, np.ndarray]:
    """Return the text of each speaker in `tinyshakespeare.txt.gz`, as texts and users.

    Speeches begin with a line `Name:` and end with an empty line. Speakers of one name in two plays
    are one user. Speakers with less than 1,600 characters are left out.
    """
    with gzip.open(Path(folder) / "tinyshakespeare.txt.gz", "rt", encoding="utf-8") as file:
        speeches = file.read().split("\n\n")
    texts = defaultdict[str, list[str]](list)
    for speech in speeches:
        name, _, lines = speech.partition(":\n")
        texts[name.strip()].append(lines)
    joined = {name: "\n".join(lines) for name, lines in sorted(texts.items())}
    kept = {name: text for name, text in joined.items() if len(text) >= 1_600}
    return {"x": np.array(list(kept.values())), "device": np.array(list(kept))}
