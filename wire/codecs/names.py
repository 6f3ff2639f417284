"""The codecs by name."""

from typing import Final

from wire.codecs.base import Codec
from wire.codecs.blocks import Int8Blocks
from wire.codecs.half import Half
from wire.codecs.sparse import TopK

CODECS: Final = ("float16", "int8", "top-k", "delta")
"""What a device says that it knows; everybody knows float32. `delta` is a model as int8 changes
of the version before."""


def codec_named(name: str, top_k: int | None = None) -> Codec | None:
    """Return a codec; None for float32, which is the vector as it is.

    Args:
        name: As in `Coding.up` and `Packed.codec`.
        top_k: Values that top-k keeps; only for that.

    Raises:
        ValueError: There is no such codec, or top-k without a k.
    """
    match name:
        case "float32":
            return None
        case "float16":
            return Half()
        case "int8":
            return Int8Blocks()
        case "top-k" if top_k is not None:
            return TopK(top_k)
    raise ValueError(f"codec: must be float32, float16, int8 or top-k with a k, got {name!r}")
