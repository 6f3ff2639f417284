"""Codecs that compress vectors, with bounds on their error; each is imported when it is used."""

from fairbed.wire.codecs.base import Codec, Vector
from fairbed.wire.codecs.packing import (
    codec_named,
    encode_with_feedback,
    pack,
    packed_bytes,
    unpack,
)

__all__ = [
    "Codec",
    "Vector",
    "codec_named",
    "encode_with_feedback",
    "pack",
    "packed_bytes",
    "unpack",
]
