"""numpy's seed sequences, many at once: thousands of devices need a seed each, every round."""

from collections.abc import Callable, Sequence
from itertools import count, pairwise

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from fairbed.coordinator.algorithms.arrays import Ints

Words = NDArray[np.uint32]

_POOL = 4
"""Words of entropy that a sequence keeps."""
_PCG64_WORDS = 4
"""Words of 64 bits that seed a `numpy.random.PCG64`."""
MANY = 20
"""Seeds of which it is quicker to draw the words together than one after the other."""
_MASK = 0xFFFFFFFF
_INIT_A, _MULT_A, _INIT_B, _MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_SHIFT = np.uint32(16)
"""Constants of `numpy.random.SeedSequence` (O'Neill, Developing a seed_seq Alternative, 2015)."""


def seed_words(entropy: Sequence[int | Ints], n_words: int) -> Words:
    """Return what `SeedSequence(e).generate_state(n_words)` does for each of K lists e.

    Args:
        entropy: The numbers of every list in their order, none negative; those in which the lists
            differ as columns of shape (K,), below 2^32.
        n_words: 32-bit words wanted of each.

    Returns:
        Shape (K, n_words); K is 1 without a column.

    Source:
        numpy/random/bit_generator.pyx, whose numbers numpy promises to keep (NEP 19).
    """
    words = [word for number in entropy for word in _words_of(number)]
    words += [np.zeros(1, dtype=np.uint32)] * (_POOL - len(words))
    hashed = _hash(_INIT_A, _MULT_A)
    pool = [hashed(word) for word in words[:_POOL]]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = _mixed(pool[target], hashed(pool[source]))
    for word in words[_POOL:]:
        pool = [_mixed(each, hashed(word)) for each in pool]
    hashed = _hash(_INIT_B, _MULT_B)
    state = [hashed(pool[at % _POOL]) for at in range(n_words)]
    return np.stack(np.broadcast_arrays(*state), axis=1)


def first_word(entropy: Sequence[int]) -> int:
    """Return the first word of one sequence."""
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])


def first_words(entropy: Sequence[int | Ints]) -> Ints:
    """Return `first_word` of each of K lists, shape (K,); see `seed_words`."""
    return seed_words(entropy, 1)[:, 0].astype(np.int64)


def streams(seeds: Ints) -> list[np.random.Generator]:
    """Return `Generator(PCG64(seed))` of each of K seeds, shape (K,); of many in half the time."""
    if len(seeds) < MANY:
        return [np.random.Generator(np.random.PCG64(seed)) for seed in seeds.tolist()]
    words = seed_words([seeds], 2 * _PCG64_WORDS).astype("<u4").view("<u8").astype(np.uint64)
    return [
        np.random.Generator(np.random.PCG64(_Known(state)))  # type: ignore[arg-type]  # a narrow stub
        for state in words
    ]


class _Known(ISeedSequence):
    """A seed sequence whose words were drawn already: as many as a PCG64 asks for."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(
        self, n_words: int, dtype: DTypeLike = np.uint32
    ) -> NDArray[np.uint32 | np.uint64]:
        """Return the words."""
        assert (n_words, dtype) == (_PCG64_WORDS, np.uint64), "this is what a PCG64 asks for"
        return self._words


def _words_of(number: int | Ints) -> list[Words]:
    """Return a number in words of 32 bits, the lowest first; 0 has one."""
    if isinstance(number, np.ndarray):
        return [number.astype(np.uint32)]
    words = [number & _MASK]
    while number := number >> 32:
        words.append(number & _MASK)
    return [np.array([word], dtype=np.uint32) for word in words]


def _hash(start: int, factor: int) -> Callable[[Words], Words]:
    """Return a hash whose two constants are other ones each time it is called."""
    powers = (np.uint32(start * pow(factor, at, 1 << 32) & _MASK) for at in count())
    constants = pairwise(powers)

    def hashed(word: Words) -> Words:
        before, after = next(constants)
        return _folded((word ^ before) * after)

    return hashed


def _mixed(one: Words, other: Words) -> Words:
    return _folded(one * _MIX_L - other * _MIX_R)


def _folded(value: Words) -> Words:
    folded: Words = value ^ (value >> _SHIFT)
    return folded
