"""The k largest values and their indices.

Format: k indices u32, ascending | k values float32.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairbed.wire.codecs.base import Vector, check_finite, check_length
from fairbed.wire.errors import DecodeError, EncodeError


@dataclass(frozen=True, slots=True)
class TopK:
    """The k values of largest magnitude, exactly; all others become 0.

        |x' - x|^2 <= (1 - k/n) |x|^2

    The encoder adds the omitted values to its next vector (`wire.codecs.packing`: error feedback).

    Source:
        Stich et al., NeurIPS 2018, Definition 2.1 and Lemma A.1 (arXiv:1809.07599).
    """

    number: ClassVar[int] = 3

    k: int

    def size_bytes(self, n: int) -> int:
        """Return 8 k, or 8 n if n is smaller."""
        return 8 * min(self.k, n)

    def encode(self, values: Vector, rng: "np.random.Generator") -> bytes:
        """Return indices and values; `rng` is not used.

        Raises:
            EncodeError: A value is not finite.
        """
        k = min(self.k, len(values))
        if k == 0:
            return b""
        indices = np.argpartition(np.abs(values), len(values) - k)[len(values) - k :]
        indices.sort()
        kept = values[indices]
        if not np.isfinite(kept).all():  # NaN and infinity count as the largest
            raise EncodeError("top-k: every value must be finite; lower learning_rate")
        return indices.astype("<u4").tobytes() + kept.astype("<f4").tobytes()

    def decode(self, data: memoryview, n: int) -> Vector:
        """Return the values, shape (n,), mostly 0.

        Raises:
            DecodeError: The length is wrong, the indices do not ascend or are out of range, or a
                value is not finite.
        """
        check_length(data, self.size_bytes(n), "top-k")
        k = min(self.k, n)
        indices = np.frombuffer(data[: 4 * k], dtype="<u4")
        kept = np.frombuffer(data[4 * k :], dtype="<f4")
        if k and (int(indices[-1]) >= n or not (indices[1:] > indices[:-1]).all()):
            raise DecodeError(f"top-k: indices must ascend and stay below {n}")
        check_finite(kept, "top-k")
        values = np.zeros(n, dtype=np.float32)
        values[indices] = kept
        return values
