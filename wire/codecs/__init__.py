"""How vectors are made smaller for the wire, and what that costs in exactness."""

from wire.codecs.base import Codec, Vector
from wire.codecs.blob import pack, packed_bytes, unpack
from wire.codecs.blocks import Int8Blocks
from wire.codecs.feedback import encode_with_feedback
from wire.codecs.half import Half
from wire.codecs.names import CODECS, codec_named
from wire.codecs.sparse import TopK

__all__ = [
    "CODECS",
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
