"""Codecs that compress vectors, with bounds on their error."""

from fairbed.wire.codecs.base import Codec, Vector
from fairbed.wire.codecs.half import Half
from fairbed.wire.codecs.int8 import Int8Blocks
from fairbed.wire.codecs.packing import (
    codec_named,
    encode_with_feedback,
    pack,
    packed_bytes,
    unpack,
)
from fairbed.wire.codecs.top_k import TopK

__all__ = [
    "Codec",
    "Half",
    "Int8Blocks",
    "TopK",
    "Vector",
    "codec_named",
    "encode_with_feedback",
    "pack",
    "packed_bytes",
    "unpack",
]
