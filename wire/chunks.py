"""Blobs on the wire: how one is cut into chunks, and how one chunk looks.

    magic "FB" | version u8 | 0 u8 | blob id 16 bytes | index u32 | crc32 u32 | payload

All integers are big-endian; the crc32 is that of the payload.
"""

import hashlib
import struct
import zlib
from dataclasses import dataclass

from wire.errors import DecodeError
from wire.messages import MAX_CHUNK_BYTES, PROTOCOL_VERSION, BlobKind, Manifest

_HEADER = struct.Struct(">2sBx16sII")
_MAGIC = b"FB"
HEADER_BYTES = _HEADER.size

DEFAULT_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """One verified piece of a blob."""

    blob: bytes
    """Id of the blob, 16 bytes."""
    index: int
    payload: memoryview


def encode_chunk(blob: bytes, index: int, payload: bytes | memoryview) -> bytes:
    """Return the frame of one chunk."""
    header = _HEADER.pack(_MAGIC, PROTOCOL_VERSION, blob, index, zlib.crc32(payload))
    return b"".join((header, payload))


def decode_chunk(frame: bytes) -> Chunk:
    """Return the chunk in `frame`; its payload is a view, not a copy.

    Raises:
        DecodeError: The frame is malformed, of another protocol version, or its crc is wrong.
    """
    if len(frame) <= HEADER_BYTES or len(frame) > HEADER_BYTES + MAX_CHUNK_BYTES:
        raise DecodeError(f"chunk: must hold 1 to {MAX_CHUNK_BYTES} bytes, got frame {len(frame)}")
    magic, version, blob, index, crc = _HEADER.unpack_from(frame)
    if magic != _MAGIC or version != PROTOCOL_VERSION:
        raise DecodeError(
            f"chunk: must start with {_MAGIC!r} {PROTOCOL_VERSION}, got {magic!r} {version}"
        )
    payload = memoryview(frame)[HEADER_BYTES:]
    if zlib.crc32(payload) != crc:
        raise DecodeError(f"chunk {index}: crc32 does not match its payload; ask again")
    return Chunk(blob=blob, index=index, payload=payload)


def manifest_of(
    data: bytes | memoryview, kind: BlobKind, chunk_bytes: int = DEFAULT_CHUNK_BYTES
) -> Manifest:
    """Return the manifest of a blob to download; its id is the head of its sha256."""
    digest = hashlib.sha256(data).digest()
    return Manifest(
        id=digest[:16],
        kind=kind,
        size_bytes=len(data),
        chunk_bytes=chunk_bytes,
        sha256=digest,
    )


def chunk_slice(manifest: Manifest, index: int) -> slice:
    """Return where chunk `index` lies in the blob."""
    start = index * manifest.chunk_bytes
    return slice(start, min(start + manifest.chunk_bytes, manifest.size_bytes))
