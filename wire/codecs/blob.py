"""A model or an update as one blob: a header, the encoded parameters, the buffers as they are.

    magic "FC" | version u8 | codec u8 | parameters u32 | buffers u32 | payload | buffers float32

All integers are big-endian, payloads little-endian. The size follows from codec and layout, so a
blob of any other size is refused before it is read.
"""

import struct

import numpy as np

from wire.codec import check_version
from wire.codecs.base import Codec, Vector, check_finite, check_length
from wire.errors import DecodeError
from wire.messages import PROTOCOL_VERSION
from wire.tensors import BYTES_PER_VALUE, Layout, vector_to_bytes

_HEADER = struct.Struct(">2sBBII")
_MAGIC = b"FC"


def packed_bytes(codec: Codec | None, layout: Layout) -> int:
    """Return the size of a packed vector; None is float32 without a header."""
    if codec is None:
        return layout.size_bytes
    n_buffers = layout.n_values - layout.n_params
    return _HEADER.size + codec.size_bytes(layout.n_params) + n_buffers * BYTES_PER_VALUE


def pack(codec: Codec, n_params: int, payload: bytes, buffers: Vector) -> bytes:
    """Return the blob of `n_params` parameters that `codec` made into `payload`.

    Args:
        codec: Goes into the header.
        n_params: How many values the payload holds.
        payload: What `Codec.encode` returned.
        buffers: What comes after the parameters, shape (n_buffers,).
    """
    header = _HEADER.pack(_MAGIC, PROTOCOL_VERSION, codec.number, n_params, len(buffers))
    return b"".join((header, payload, vector_to_bytes(buffers)))


def unpack(
    data: bytes | bytearray | memoryview, codec: Codec, layout: Layout, base: Vector | None = None
) -> Vector:
    """Return the vector in a blob, shape (n_values,), in a memory of its own.

    Args:
        data: What `pack` wrote.
        codec: The one that was agreed on.
        layout: Of the vector; decides how many bytes there must be.
        base: What the parameters are changes of, shape (n_values,); None if they are whole.

    Raises:
        DecodeError: The blob is malformed, or a value is not finite.
    """
    view = memoryview(data)
    check_length(view, packed_bytes(codec, layout), "packed vector")
    magic, version, number, n_params, n_buffers = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise DecodeError(f"packed vector: must start with {_MAGIC!r}, got {magic!r}")
    check_version(version, "packed vector")
    expected = (codec.number, layout.n_params, layout.n_values - layout.n_params)
    if (number, n_params, n_buffers) != expected:
        raise DecodeError(
            f"packed vector: codec, parameters and buffers must be {expected}, "
            f"got {(number, n_params, n_buffers)}"
        )
    end = len(view) - n_buffers * BYTES_PER_VALUE
    vector = np.empty(layout.n_values, dtype=np.float32)
    vector[:n_params] = codec.decode(view[_HEADER.size : end], n_params)
    if base is not None:
        with np.errstate(over="ignore"):
            vector[:n_params] += base[:n_params]
    vector[n_params:] = np.frombuffer(view[end:], dtype="<f4")
    check_finite(vector, "packed vector")
    return vector
