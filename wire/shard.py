"""One device's training data as it travels: private, sent once, cached by content hash."""

from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from wire.errors import DecodeError


class Shard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training examples of one device."""

    n: int
    """Number of examples."""
    x_shape: tuple[int, ...]
    """Shape of one example."""
    x_dtype: Literal["float32", "uint8", "int64"]
    """uint8 stands for pixels and becomes float32 / 255 on the device."""
    x: bytes
    """n examples, little-endian, C order."""
    y: bytes
    """n labels, little-endian int64."""

    def arrays(self) -> tuple[NDArray[np.float32] | NDArray[np.int64], NDArray[np.int64]]:
        """Return x, shape (n, *x_shape), and y, shape (n,), ready for the engine.

        Raises:
            DecodeError: The bytes do not fit the shapes.
        """
        try:
            x = np.frombuffer(self.x, np.dtype(self.x_dtype).newbyteorder("<"))
            x = x.reshape((self.n, *self.x_shape))
            y = np.frombuffer(self.y, "<i8").reshape((self.n,)).astype(np.int64)
        except ValueError as exc:
            raise DecodeError(f"shard: {exc}") from exc
        if self.x_dtype == "int64":
            return x.astype(np.int64), y
        if self.x_dtype == "uint8":
            return x.astype(np.float32) / np.float32(255.0), y
        if not np.isfinite(x).all():
            raise DecodeError("shard: every feature must be finite, got NaN or infinity")
        return x.astype(np.float32), y


_DECODER = msgspec.msgpack.Decoder(Shard)


def make_shard(x: NDArray[np.generic], y: NDArray[np.generic]) -> Shard:
    """Return the shard of examples x, shape (n, ...), float32, uint8 or int64, and labels y."""
    kind = {"f": "float32", "u": "uint8", "i": "int64"}.get(x.dtype.kind)
    if kind is None or (kind == "uint8" and x.dtype != np.uint8) or len(x) != len(y):
        raise ValueError(
            f"shard: x must be float, uint8 or int, one per y, got {x.dtype} {x.shape}"
        )
    return Shard(
        n=len(x),
        x_shape=tuple(x.shape[1:]),
        x_dtype=kind,  # type: ignore[arg-type]  # the table above yields only the literals
        x=np.ascontiguousarray(x, np.dtype(kind).newbyteorder("<")).tobytes(),
        y=np.ascontiguousarray(y, "<i8").tobytes(),
    )


def encode_shard(shard: Shard) -> bytes:
    """Return the blob of a shard."""
    return msgspec.msgpack.encode(shard)


def decode_shard(blob: bytes | bytearray | memoryview) -> Shard:
    """Return the shard in `blob`.

    Raises:
        DecodeError: It is not a shard.
    """
    try:
        return _DECODER.decode(blob)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise DecodeError(f"shard: {exc}") from exc
