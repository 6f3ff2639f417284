"""IEEE 754 half precision: two bytes per value."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairbed.wire.codecs.base import Vector, check_finite, check_length
from fairbed.wire.errors import EncodeError


@dataclass(frozen=True, slots=True)
class Half:
    """float16, rounded to the nearest, ties to even.

        |x' - x| <= max(2^-11 |x|, 2^-25)        for |x| <= 65504

    A value that would round beyond 65504 (|x| >= 65520) is refused, not clipped: a missing update
    is better than an unbounded error. Decoding is exact.

    Source:
        IEEE 754-2019, binary16: 11 significant bits, smallest subnormal 2^-24.
    """

    number: ClassVar[int] = 1

    def size_bytes(self, n: int) -> int:
        """Return 2 n."""
        return 2 * n

    def encode(self, values: Vector, rng: "np.random.Generator") -> bytes:
        """Return the float16 values, little-endian; `rng` is not used.

        Raises:
            EncodeError: A value is out of range.
        """
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        if not np.isfinite(halves).all():
            worst = float(values[np.argmax(np.abs(values))])
            raise EncodeError(
                f"float16: every value must lie within 65504, got {worst:g}; use another codec"
            )
        return halves.tobytes()

    def decode(self, data: memoryview, n: int) -> Vector:
        """Return the values, shape (n,).

        Raises:
            DecodeError: The length is wrong, or a value is not finite.
        """
        check_length(data, self.size_bytes(n), "float16")
        values = np.frombuffer(data, dtype="<f2").astype(np.float32)
        check_finite(values, "float16")
        return values
