"""How files of text, pictures with masks or audio become x and y, for the run and its devices.

A task carries the preparation of its data, so that a device with files of its own makes the same
arrays: the same vocabulary, length and rate.

    text     token 0 is padding. bytes: 1 + the byte. characters, words: 1 is any unit that the
             vocabulary lacks, 2, 3, ... are its units in their order
    masks    the value of a pixel is its label
    audio    samples between -1 and 1, one channel
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

NO_LABEL = -1
"""Class of a position without a label, which counts nowhere: padding, or a masked pixel."""

PADDING, UNKNOWN, FIRST = 0, 1, 2
"""Tokens of padding, of any other unit, and of the first unit of the vocabulary."""

BYTE_TOKENS = 257
"""Padding and the 256 bytes."""

MAX_UNITS = 1 << 18
"""Largest vocabulary: it travels with the task."""

MAX_UNIT = 64
"""Most characters of a word; a longer one is no word, and counts as unknown."""

MAX_LENGTH = 1 << 20
"""Most tokens or, times 64, samples of one example."""

_WORD = re.compile(r"\w+|[^\w\s]")

TextUnit: TypeAlias = Literal["bytes", "characters", "words"]
TextTarget: TypeAlias = Literal["label", "next", "x"]


class _Base(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="of"):
    """Base of the preparations."""


class TextPreparation(_Base, frozen=True, kw_only=True, tag="text"):
    """Tokens of texts, int64, shape (n, length)."""

    unit: TextUnit
    length: Annotated[int, Meta(ge=1, le=MAX_LENGTH)]
    """Tokens of an example; the end of a shorter one is padding."""
    target: TextTarget
    """label: one example per text, cut to the length; next and x: windows of the whole text, whose
    y is the next token, or the same."""
    stride: Annotated[int, Meta(ge=1, le=MAX_LENGTH)]
    """Tokens from the start of a window to that of the next."""
    vocabulary: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=MAX_UNIT)], ...],
        Meta(max_length=MAX_UNITS),
    ] = ()
    """Characters or words in the order of their tokens; empty for bytes."""

    @property
    def x_classes(self) -> int:
        """Number of tokens, with padding and unknown."""
        return BYTE_TOKENS if self.unit == "bytes" else FIRST + len(self.vocabulary)

    def token_text(self, token: int) -> str:
        """Return a token in print."""
        if token == PADDING:
            return "padding"
        if self.unit == "bytes":
            return repr(bytes([token - 1]))[1:]
        if token == UNKNOWN:
            return "unknown"
        unit = self.vocabulary[token - FIRST]
        return unit if self.unit == "words" and unit.isprintable() else repr(unit)


class MaskPreparation(_Base, frozen=True, kw_only=True, tag="masks"):
    """Pictures, and the class of each pixel by the value in a mask."""

    no_label: Annotated[int, Meta(ge=-1, le=255)]
    """Value of a pixel without a label; -1: every pixel has one."""


class AudioPreparation(_Base, frozen=True, kw_only=True, tag="audio"):
    """Recordings, float32, shape (n, 1, samples)."""

    rate_hz: Annotated[int, Meta(ge=1, le=1 << 24)]
    samples: Annotated[int, Meta(ge=1, le=64 * MAX_LENGTH)]
    """Samples of an example: longer ones are cut, and the end of a shorter one is zero."""


Preparation: TypeAlias = TextPreparation | MaskPreparation | AudioPreparation


def units_of(text: str, unit: TextUnit) -> Sequence[str]:
    """Return the characters of a text, or its words in lower case and its punctuation marks."""
    return _WORD.findall(text.lower()) if unit == "words" else text


def tokenizer(preparation: TextPreparation) -> Callable[[str], NDArray[np.int64]]:
    """Return the function that makes tokens, shape (m,), of a text."""
    if preparation.unit == "bytes":
        return lambda text: 1 + np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    places = {unit: FIRST + place for place, unit in enumerate(preparation.vocabulary)}
    unit = preparation.unit

    def tokens(text: str) -> NDArray[np.int64]:
        found = (places.get(part, UNKNOWN) for part in units_of(text, unit))
        return np.fromiter(found, np.int64)

    return tokens


class EmptyText(ValueError):
    """A text has too few tokens; the arguments are its place, and the rule with what to do."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Examples made of texts."""

    x: NDArray[np.int64]
    """Shape (n, length)."""
    y: NDArray[np.int64] | None
    """The next token of each, or x; -1 where none is, shape (n, length). None: they have labels."""
    texts: NDArray[np.int64]
    """Number of the text of each example, shape (n,)."""
    cut: int
    """Texts of which the end is left out."""


def tokens_of(
    preparation: TextPreparation, texts: Sequence[str], check_size: Callable[[int], None]
) -> Tokens:
    """Return the examples in texts.

    Args:
        preparation: Unit, length, target and vocabulary.
        texts: The texts.
        check_size: Called with the bytes of the examples before they are made.

    Raises:
        EmptyText: A text has no token, or none that has a next one.
    """
    encode, length, target = tokenizer(preparation), preparation.length, preparation.target
    least = 2 if target == "next" else 1
    found = []
    for place, text in enumerate(texts):
        tokens = encode(text)
        if len(tokens) < least:
            raise EmptyText(
                place,
                f"must have at least {least} of its {preparation.unit}, got {len(tokens)}",
                "remove it",
            )
        found.append(tokens)
    if target == "label":
        starts = [np.zeros(1, np.int64) for _ in found]
    else:
        # A window that begins where the one before has reached the end has nothing of its own.
        last = [len(tokens) - (least - 1) - length for tokens in found]
        starts = [np.arange(max(0, -(-end // preparation.stride)) + 1) for end in last]
        starts = [places * preparation.stride for places in starts]
    n = sum(map(len, starts))
    check_size(n * length * np.dtype(np.int64).itemsize * (1 if target == "label" else 2))
    x = np.full((n, length), PADDING, np.int64)
    y = None if target == "label" else np.full((n, length), NO_LABEL, np.int64)
    row = 0
    for tokens, places in zip(found, starts, strict=True):
        for start in places.tolist():
            part = tokens[start : start + length]
            if y is not None:
                follows = tokens[start + least - 1 : start + least - 1 + length]
                y[row, : len(follows)] = follows
                part = part[: len(follows)]
            x[row, : len(part)] = part
            row += 1
    owner = np.repeat(np.arange(len(found)), [len(places) for places in starts])
    cut = sum(len(tokens) > length for tokens in found) if target == "label" else 0
    return Tokens(x, y, owner, cut)
