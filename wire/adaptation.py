"""What of a network is trained: patterns of names, and adapters of low rank (LoRA).

The adapted weight of a layer is W + (alpha / rank) B A, with A of shape (rank, n) and B of shape
(m, rank), for W as a matrix of shape (m, n): a linear layer, or a convolution whose kernel is
flattened to rows. W is frozen. A is drawn, and B begins at 0, so that a model begins as it was.

Source:
    Hu et al., ICLR 2022, section 4.1 (arXiv:2106.09685).
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

LORA_A, LORA_B = "lora_a", "lora_b"
"""Names of the two factors in a layer with an adapter."""


def fitting(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Return the names that fit one of the patterns, as file names do: `*` fits dots, too."""
    given = tuple(patterns)
    return {name for name in names if any(fnmatchcase(name, each) for each in given)}


def unused(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the patterns that no name fits."""
    known = list(names)
    return [each for each in patterns if not any(fnmatchcase(name, each) for name in known)]
