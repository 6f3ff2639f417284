"""Packed vectors: a model or an update as one blob of encoded parameters and plain buffers.

    magic "FC" | version u8 | codec u8 | parameters u32 | buffers u32 | payload | buffers float32

All integers are big-endian, payloads little-endian. The size follows from codec and layout; a blob
of another size is refused before it is decoded. The module also selects codecs by name, and
computes error feedback: the values that a codec omitted are added to the next update.
"""

import struct
from typing import get_args

import numpy as np

from fairbed.wire.codec import check_version
from fairbed.wire.codecs.base import Codec, Vector, check_finite, check_length
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import PROTOCOL_VERSION, UpCodec
from fairbed.wire.tensors import BYTES_PER_VALUE, Layout, vector_to_bytes


def codec_named(name: str, top_k: int | None = None) -> Codec | None:
    """Return a codec; None for float32, which is not encoded.

    Args:
        name: As in `Coding.up` and `Packed.codec`.
        top_k: Values that top-k keeps; ignored by other codecs.

    Raises:
        ValueError: There is no such codec, or `top_k` is missing for top-k.
    """
    match name:
        case "float32":
            return None
        case "float16":
            from fairbed.wire.codecs.half import Half

            return Half()
        case "int8":
            from fairbed.wire.codecs.int8 import Int8Blocks

            return Int8Blocks()
        case "top-k" if top_k is not None:
            from fairbed.wire.codecs.top_k import TopK

            return TopK(top_k)
    known = ", ".join(name for name in get_args(UpCodec) if name != "top-k")
    raise ValueError(f"codec: must be {known} or top-k with a k, got {name!r}")


def encode_with_feedback(
    codec: Codec, update: Vector, residual: Vector | None, rng: "np.random.Generator"
) -> tuple[bytes, Vector]:
    """Encode an update plus the residual; return the bytes and the next residual.

        p_t = u_t + e_t,   sent_t = C(p_t),   e_{t+1} = p_t - sent_t

    The sent values and the residual add up to the true updates, except for one float32 rounding
    per value and round:

        sum_t sent_t + e_T = sum_t u_t

    With a codec that keeps a share k/n of the squared norm, |e_t| stays within a constant times
    the largest update: 2 (n/k) max |u|.

    Args:
        codec: C.
        update: u_t, shape (n,).
        residual: e_t, shape (n,); None is zero.
        rng: For codecs with stochastic rounding.

    Raises:
        EncodeError: A value cannot be represented within the codec's bound.

    Source:
        Stich et al., NeurIPS 2018, Algorithm 1 (arXiv:1809.07599); Karimireddy et al., ICML
        2019, Algorithm 2 and Lemma 3 (arXiv:1901.09847).
    """
    with np.errstate(over="ignore"):  # the codec refuses values that are not finite
        corrected = update if residual is None else update + residual
    payload = codec.encode(corrected, rng)
    return payload, corrected - codec.decode(memoryview(payload), len(corrected))


_HEADER = struct.Struct(">2sBBII")
_MAGIC = b"FC"


def packed_bytes(codec: Codec | None, layout: Layout) -> int:
    """Return the size of a packed vector; codec None is float32 without a header."""
    if codec is None:
        return layout.size_bytes
    n_buffers = layout.n_values - layout.n_params
    return _HEADER.size + codec.size_bytes(layout.n_params) + n_buffers * BYTES_PER_VALUE


def pack(codec: Codec, n_params: int, payload: bytes, buffers: Vector) -> bytes:
    """Return the blob of a packed vector.

    Args:
        codec: The codec that encoded the payload.
        n_params: Number of values in the payload.
        payload: Result of `Codec.encode`.
        buffers: The values after the parameters, shape (n_buffers,).
    """
    header = _HEADER.pack(_MAGIC, PROTOCOL_VERSION, codec.number, n_params, len(buffers))
    return b"".join((header, payload, vector_to_bytes(buffers)))


def unpack(
    data: bytes | bytearray | memoryview, codec: Codec, layout: Layout, base: Vector | None = None
) -> Vector:
    """Return the vector in a blob as a new array, shape (n_values,).

    Args:
        data: A blob of `pack`.
        codec: The expected codec.
        layout: Layout of the vector; determines the expected size.
        base: Model that the parameters are changes of, shape (n_values,); None if they are not
            changes.

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
