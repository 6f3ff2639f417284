"""The codec interface: n float32 values to bytes and back, with a bound on the error."""

from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.errors import DecodeError

Vector: TypeAlias = NDArray[np.float32]

# `np.random.Generator` is quoted in signatures: evaluating it loads numpy.random, 2.4 MB that a
# decoder does not need.


class Codec(Protocol):
    """Encodes values, shape (n,); the size of the result follows from n alone."""

    number: ClassVar[int]
    """Number of the codec in the header of a blob, 1 to 255."""

    def size_bytes(self, n: int) -> int:
        """Return the encoded size of n values."""
        ...

    def encode(self, values: Vector, rng: "np.random.Generator") -> bytes:
        """Return the bytes of finite `values`, shape (n,).

        Raises:
            EncodeError: A value cannot be represented within the codec's bound.
        """
        ...

    def decode(self, data: memoryview, n: int) -> Vector:
        """Return the values as a new array, shape (n,).

        Raises:
            DecodeError: The bytes are malformed, or a value is not finite.
        """
        ...


def check_length(data: memoryview, expected: int, name: str) -> None:
    """Check the length of a payload; `name` names the codec.

    Raises:
        DecodeError: The payload is longer or shorter than `expected`.
    """
    if len(data) != expected:
        raise DecodeError(f"{name}: must hold {expected} bytes, got {len(data)}")


def check_finite(values: Vector, name: str) -> None:
    """Check that all values are finite; `name` names them.

    Raises:
        DecodeError: A value is not finite.
    """
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DecodeError(f"{name}: every value must be finite, got {values[at]} at {at}")
