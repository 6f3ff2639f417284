"""What every codec can do: n float32 values to bytes and back, with a bound on the error."""

from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.wire.errors import DecodeError

Vector: TypeAlias = NDArray[np.float32]

# Generators are quoted in signatures: naming the type loads numpy.random, 2.4 MB that an agent
# without a task does not need.


class Codec(Protocol):
    """Encodes values, shape (n,); the size of the result follows from n alone."""

    number: ClassVar[int]
    """What the header of a blob calls it, 1 to 255."""

    def size_bytes(self, n: int) -> int:
        """Return how many bytes n values become."""
        ...

    def encode(self, values: Vector, rng: "np.random.Generator") -> bytes:
        """Return the bytes of finite `values`, shape (n,).

        Raises:
            EncodeError: A value cannot be represented within the codec's bound.
        """
        ...

    def decode(self, data: memoryview, n: int) -> Vector:
        """Return the values, shape (n,), in a memory of their own.

        Raises:
            DecodeError: The bytes are not what `encode` writes, or a value is not finite.
        """
        ...


def check_length(data: memoryview, expected: int, what: str) -> None:
    """Refuse a payload of another length; `what` names the codec.

    Raises:
        DecodeError: It is longer or shorter than the layout says.
    """
    if len(data) != expected:
        raise DecodeError(f"{what}: must hold {expected} bytes, got {len(data)}")


def check_finite(values: Vector, what: str) -> None:
    """Refuse values that are not finite; `what` names them.

    Raises:
        DecodeError: One is not.
    """
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DecodeError(f"{what}: every value must be finite, got {values[at]} at {at}")
