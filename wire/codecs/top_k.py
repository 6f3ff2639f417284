"""Only the k largest values, with their places.

k places u32, rising | k values float32
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

    What is left out is owed: an encoder adds it to its next vector (`wire.codecs.packing`).

    Source:
        Stich et al., NeurIPS 2018, Definition 2.1 and Lemma A.1 (arXiv:1809.07599).
    """

    number: ClassVar[int] = 3

    k: int

    def size_bytes(self, n: int) -> int:
        """Return 8 k; of fewer than k values all are kept."""
        return 8 * min(self.k, n)

    def encode(self, values: Vector, rng: "np.random.Generator") -> bytes:
        """Return places and values; nothing is random about them.

        Raises:
            EncodeError: A value is not finite.
        """
        k = min(self.k, len(values))
        if k == 0:
            return b""
        places = np.argpartition(np.abs(values), len(values) - k)[len(values) - k :]
        places.sort()
        kept = values[places]
        if not np.isfinite(kept).all():  # NaN and infinity count as the largest
            raise EncodeError("top-k: every value must be finite; lower learning_rate")
        return places.astype("<u4").tobytes() + kept.astype("<f4").tobytes()

    def decode(self, data: memoryview, n: int) -> Vector:
        """Return the values, shape (n,), mostly 0.

        Raises:
            DecodeError: Wrong length, places that do not rise or lie outside, or a value that is
                not finite.
        """
        check_length(data, self.size_bytes(n), "top-k")
        k = min(self.k, n)
        places = np.frombuffer(data[: 4 * k], dtype="<u4")
        kept = np.frombuffer(data[4 * k :], dtype="<f4")
        if k and (int(places[-1]) >= n or not (places[1:] > places[:-1]).all()):
            raise DecodeError(f"top-k: places must rise and stay below {n}")
        check_finite(kept, "top-k")
        values = np.zeros(n, dtype=np.float32)
        values[places] = kept
        return values
