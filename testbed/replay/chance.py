"""Chance that depends on what it is asked for, and on nothing else that was asked.

    u = mix(seed, round, row, purpose)        splitmix64, one number for each question

So a device meets the same luck in a round whoever else is chosen, and drawing for a cohort of ten
costs ten numbers, in a fleet of a million too.
"""

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Floats, Ints

_GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""Constants of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
OOPSLA 2014)."""

_MANTISSA = 53
"""Bits of a double."""


def uniforms(seed: int, round_id: int, rows: Ints, purpose: int) -> Floats:
    """Return a number for each row, uniform in (0, 1), shape (K,).

    Args:
        seed: Of the traces.
        round_id: The round; 0 is before the first.
        rows: Whose, shape (K,).
        purpose: What for: another one is another number.
    """
    with np.errstate(over="ignore"):
        state = np.full(len(rows), seed, dtype=np.uint64)
        for word in (np.uint64(round_id), rows.astype(np.uint64), np.uint64(purpose)):
            state = _mixed(state ^ _mixed(word + _GOLDEN))
    shifted = state >> np.uint64(64 - _MANTISSA)
    share: Floats = (shifted.astype(np.float64) + 0.5) / float(1 << _MANTISSA)
    return share


def normals(seed: int, round_id: int, rows: Ints, purpose: int) -> Floats:
    """Return a standard normal number for each row, shape (K,): Box and Muller's of two uniforms.

    `purpose` stands for two in a row: take every second one.
    """
    radius = np.sqrt(-2.0 * np.log(uniforms(seed, round_id, rows, purpose)))
    angle = 2.0 * np.pi * uniforms(seed, round_id, rows, purpose + 1)
    scores: Floats = radius * np.cos(angle)
    return scores


def _mixed(state: "NDArray[np.uint64] | np.uint64") -> NDArray[np.uint64]:
    mixed = np.asarray(state, dtype=np.uint64) + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
