"""Random streams keyed by seed, round, row and purpose: independent of call order.

    u = mix(seed, round, row, purpose)        splitmix64, one number for each key

A device therefore gets the same numbers in a round whichever other devices are selected, and a
draw for a cohort of ten costs ten numbers, also in a fleet of a million.
"""

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats, Ints

_GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""Constants of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
OOPSLA 2014)."""

_WORD_BITS = 64
_MANTISSA_BITS = 53
"""Mantissa of a double."""
_SEED_BITS = 40
"""Size of a seed in a message (`wire.messages.Count`)."""


def seeds(seed: int, round_id: int, rows: Ints, purpose: int) -> Ints:
    """Return a seed for each row, uniform in 0 .. 2^40 - 1, shape (K,); see `uniforms`."""
    shifted = _words(seed, round_id, rows, purpose) >> np.uint64(_WORD_BITS - _SEED_BITS)
    drawn: Ints = shifted.astype(np.int64)
    return drawn


def uniforms(seed: int, round_id: int, rows: Ints, purpose: int) -> Floats:
    """Return a number for each row, uniform in (0, 1), shape (K,).

    Args:
        seed: Seed of the run, 0 .. 2^64 - 1.
        round_id: Number of the round; 0 is before the first.
        rows: Device rows, shape (K,).
        purpose: Number of the stream; each purpose has its own.
    """
    shifted = _words(seed, round_id, rows, purpose) >> np.uint64(_WORD_BITS - _MANTISSA_BITS)
    share: Floats = (shifted.astype(np.float64) + 0.5) / float(1 << _MANTISSA_BITS)
    return share


def normals(seed: int, round_id: int, rows: Ints, purpose: int) -> Floats:
    """Return a standard normal number for each row, shape (K,), by the Box-Muller transform.

    It uses the streams `purpose` and `purpose + 1`.
    """
    radius = np.sqrt(-2.0 * np.log(uniforms(seed, round_id, rows, purpose)))
    angle = 2.0 * np.pi * uniforms(seed, round_id, rows, purpose + 1)
    scores: Floats = radius * np.cos(angle)
    return scores


def _words(seed: int, round_id: int, rows: Ints, purpose: int) -> NDArray[np.uint64]:
    """Return 64 random bits for each row, shape (K,)."""
    with np.errstate(over="ignore"):
        state = np.full(len(rows), seed, dtype=np.uint64)
        for word in (np.uint64(round_id), rows.astype(np.uint64), np.uint64(purpose)):
            state = _mixed(state ^ _mixed(word + _GOLDEN))
    return state


def _mixed(state: "NDArray[np.uint64] | np.uint64") -> NDArray[np.uint64]:
    mixed = np.asarray(state, dtype=np.uint64) + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
