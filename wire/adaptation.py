"""What of a network is trained: patterns of names, and adapters of low rank (LoRA).

The adapted weight of a layer is W + (alpha / rank) B A, with A of shape (rank, n) and B of shape
(m, rank), for W as a matrix of shape (m, n): a linear layer, or a convolution whose kernel is
flattened to rows. W is frozen. A is drawn, and B begins at 0, so that a model begins as it was.

Source:
    Hu et al., ICLR 2022, section 4.1 (arXiv:2106.09685).
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta, Struct

Pattern = Annotated[str, Meta(min_length=1, max_length=256)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=256)]

LORA_A, LORA_B = "lora_a", "lora_b"
"""Names of the two factors in a layer with an adapter."""


class Lora(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapters of low rank, `model.lora`."""

    rank: Annotated[int, Meta(ge=1, le=4096)]
    """Rank of each adapter."""
    on: Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=256)]
    """Patterns of names of layers, such as `*.attention.*`: each linear layer, convolution or
    `torch.nn.MultiheadAttention` whose name fits one gets an adapter."""
    alpha: Annotated[float, Meta(gt=0.0, le=1e6)] | None = None
    """Scale: an adapter adds alpha / rank times the product; not set: the rank, so 1 times."""

    @property
    def scale(self) -> float:
        """Factor of the product B A."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class Adaptation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What of a module is trained; a device that imports the module does the same with it."""

    trainable: Patterns = ()
    """Patterns of names of trained parameters; empty: those that the module leaves trainable, or,
    with adapters, the adapters alone."""
    lora: Lora | None = None


def fitting(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Return the names that fit one of the patterns, as file names do: `*` fits dots, too."""
    given = tuple(patterns)
    return {name for name in names if any(fnmatchcase(name, each) for each in given)}


def unused(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the patterns that no name fits."""
    known = list(names)
    return [each for each in patterns if not any(fnmatchcase(name, each) for name in known)]
