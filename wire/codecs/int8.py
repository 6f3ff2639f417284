"""Eight bits per value, with one scale per block and stochastic rounding.

Format: scales float32, one per block | levels int8, one per value.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairbed.wire.codecs.base import Vector, check_finite, check_length
from fairbed.wire.errors import DecodeError, EncodeError

BLOCK = 1024
"""Values per scale: an outlier affects only its own block; scales cost 0.4 % of the bytes."""

LEVELS = 127

SMALLEST_SCALE = 2.0**-126
"""The smallest normal float32: some processors treat a subnormal scale as zero."""

_PART_VALUES = 64 * BLOCK
"""Values processed at a time, to keep temporary arrays small."""


@dataclass(frozen=True, slots=True)
class Int8Blocks:
    """Signed bytes times the scale of their block of 1024 values, with stochastic rounding.

        s = max(max |x| / 127, 2^-126),   q = floor(x / s + u),  u uniform in [0, 1),   x' = s q

        |x' - x| <= s (1 + 2^-15)      E[x'] = x      E[(x' - x)^2] <= s^2 / 4

    The expectations hold up to float32 rounding (2^-15 s). A block of zeros has scale 0.

    Source:
        Alistarh et al., NeurIPS 2017 (QSGD), section 3.1 and Lemma 3.1 (arXiv:1610.02132).
    Deviates:
        The scale is the largest magnitude of the block instead of its L2 norm, as the paper
        proposes in section 4 (bucketing, max-norm): finer levels for the same bytes. No Elias
        coding.
    """

    number: ClassVar[int] = 2

    def size_bytes(self, n: int) -> int:
        """Return n plus 4 bytes per block."""
        return n + 4 * _blocks(n)

    def encode(self, values: Vector, rng: "np.random.Generator") -> bytes:
        """Return scales and levels; `rng` draws the rounding.

        Raises:
            EncodeError: A value is not finite, or so large that the last level overflows.
        """
        n = len(values)
        scales = np.empty(_blocks(n), dtype="<f4")
        levels = np.empty(n, dtype=np.int8)
        for part, part_blocks in _parts(n):
            x = np.zeros(-(-(part.stop - part.start) // BLOCK) * BLOCK, dtype=np.float32)
            x[: part.stop - part.start] = values[part]
            blocks = x.reshape(-1, BLOCK)
            scale = _scales(blocks)
            scales[part_blocks] = scale
            np.divide(blocks, scale[:, None], out=blocks, where=scale[:, None] > 0.0)
            x += rng.random(len(x), dtype=np.float32)
            np.clip(np.floor(x, out=x), -LEVELS, LEVELS, out=x)
            # The padding of the last block, and blocks of zeros, became floor(u) = 0.
            levels[part] = x[: part.stop - part.start]
        return scales.tobytes() + levels.tobytes()

    def decode(self, data: memoryview, n: int) -> Vector:
        """Return the values, shape (n,).

        Raises:
            DecodeError: The length is wrong, a scale is negative or not finite, or a level is -128.
        """
        check_length(data, self.size_bytes(n), "int8")
        head = 4 * _blocks(n)
        scales = np.frombuffer(data[:head], dtype="<f4")
        levels = np.frombuffer(data[head:], dtype=np.int8)
        if not (np.isfinite(scales).all() and (scales >= 0.0).all()):
            bad = scales[~(np.isfinite(scales) & (scales >= 0.0))][0]
            raise DecodeError(f"int8: every scale must be finite and at least 0, got {bad}")
        if n and levels.min() < -LEVELS:
            raise DecodeError(f"int8: every level must be within {LEVELS}, got {levels.min()}")
        values = levels.astype(np.float32)
        whole = n // BLOCK * BLOCK
        with np.errstate(over="ignore"):
            values[:whole].reshape(-1, BLOCK)[:] *= scales[: n // BLOCK, None]
            if whole < n:
                values[whole:] *= scales[-1]
        check_finite(values, "int8")
        return values


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _parts(n: int) -> Iterator[tuple[slice, slice]]:
    """Yield the range of the values of each part, and the range of its blocks."""
    for start in range(0, n, _PART_VALUES):
        end = min(start + _PART_VALUES, n)
        yield slice(start, end), slice(start // BLOCK, _blocks(end))


def _scales(blocks: Vector) -> Vector:
    """Return the scale of each row, shape (rows,), in float32."""
    largest = np.abs(blocks).max(axis=1)
    scales = np.maximum(largest / np.float32(LEVELS), np.float32(SMALLEST_SCALE))
    scales[largest == 0.0] = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        is_representable = np.isfinite(scales * np.float32(LEVELS)).all()
    if not is_representable:
        raise EncodeError(
            f"int8: every value must be finite and within 3.4e38, got {largest.max():g}"
        )
    result: Vector = scales
    return result
