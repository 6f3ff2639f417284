"""Blobs on the wire: their division into chunks, and the format of a chunk.

    magic "FB" | version u8 | 0 u8 | blob id 16 bytes | index u32 | crc32 u32 | payload

All integers are big-endian; the crc32 covers all other bytes, header first.
"""

import hashlib
import struct
import zlib
from dataclasses import dataclass

from fairbed.wire.codec import Buffer, check_version
from fairbed.wire.errors import DecodeError, EncodeError
from fairbed.wire.messages import (
    MAX_CHUNK_BYTES,
    MAX_VECTOR_BYTES,
    MIN_CHUNK_BYTES,
    PROTOCOL_VERSION,
    BlobKind,
    Manifest,
)

_HEADER = struct.Struct(">2sBB16sI")
_CRC = struct.Struct(">I")
_MAGIC = b"FB"
_ID_BYTES = 16
HEADER_BYTES = _HEADER.size + _CRC.size

SLOW_CHUNK_BYTES = 32 * 1024
DEFAULT_CHUNK_BYTES = 256 * 1024

RETAINED_CHUNK_BYTES = 480 * 1024
"""Largest chunk of a public blob: NATS 2.15 loses larger retained messages with twenty readers."""

CHUNK_TIME_S = 0.5
"""Longest time of a chunk on a slow link; a window of four then takes 2 s."""

FAST_CHUNK_TIME_S = 0.05
"""Longest time of a chunk above the default size: control messages wait behind a window."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One verified piece of a blob."""

    blob: bytes
    """Id of the blob, 16 bytes."""
    index: int
    payload: memoryview


def encode_chunk(blob: bytes, index: int, payload: bytes | memoryview) -> bytes:
    """Return the frame of one chunk.

    Raises:
        EncodeError: The id is not 16 bytes, or the payload is empty or too large.
    """
    if len(blob) != _ID_BYTES or not 0 < len(payload) <= MAX_CHUNK_BYTES:
        raise EncodeError(
            f"chunk {index}: must hold 1 to {MAX_CHUNK_BYTES} bytes under an id of {_ID_BYTES}, "
            f"got {len(payload)} under {len(blob)}"
        )
    header = _HEADER.pack(_MAGIC, PROTOCOL_VERSION, 0, blob, index)
    return b"".join((header, _CRC.pack(zlib.crc32(payload, zlib.crc32(header))), payload))


def decode_chunk(frame: Buffer) -> Chunk:
    """Return the chunk in `frame`; its payload is a view, not a copy.

    Raises:
        DecodeError: The frame is malformed, of another protocol version, or its crc is wrong.
    """
    if not HEADER_BYTES < len(frame) <= HEADER_BYTES + MAX_CHUNK_BYTES:
        raise DecodeError(
            f"chunk: must hold 1 to {MAX_CHUNK_BYTES} bytes after a header of {HEADER_BYTES}, "
            f"got {len(frame)} in total"
        )
    magic, version, flags, blob, index = _HEADER.unpack_from(frame)
    if magic != _MAGIC:
        raise DecodeError(f"chunk: must start with {_MAGIC!r}, got {magic!r}")
    check_version(version, "chunk")
    if flags != 0:
        raise DecodeError(f"chunk {index}: flags must be 0, got {flags}")
    payload = memoryview(frame)[HEADER_BYTES:]
    (crc,) = _CRC.unpack_from(frame, _HEADER.size)
    if zlib.crc32(payload, zlib.crc32(memoryview(frame)[: _HEADER.size])) != crc:
        raise DecodeError(f"chunk {index}: crc32 must match the bytes, got a damaged frame")
    return Chunk(blob=blob, index=index, payload=payload)


def manifest_of(
    data: bytes | memoryview, kind: BlobKind, chunk_bytes: int = DEFAULT_CHUNK_BYTES
) -> Manifest:
    """Return the manifest of a blob to download; its id is the first 16 bytes of its sha256.

    Raises:
        EncodeError: The size of the blob or of its chunks is out of range.
    """
    if not 0 < len(data) <= MAX_VECTOR_BYTES:
        raise EncodeError(f"{kind}: must hold 1 to {MAX_VECTOR_BYTES} bytes, got {len(data)}")
    if not MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES:
        raise EncodeError(
            f"{kind}: chunks must hold {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES} bytes, "
            f"got {chunk_bytes}"
        )
    digest = hashlib.sha256(data).digest()
    return Manifest(
        id=digest[:_ID_BYTES],
        kind=kind,
        size_bytes=len(data),
        chunk_bytes=chunk_bytes,
        sha256=digest,
    )


def suitable_chunk_bytes(
    rate_bps: float | None, size_bytes: int, limit_bytes: int = MAX_CHUNK_BYTES
) -> int:
    """Return the chunk size of a blob on a link: 32 to 256 KiB, up to 960 KiB on a fast one.

    Small chunks keep the window of a slow link short and its resends cheap. Large chunks save
    processor time on a fast link, which each chunk costs; a blob still has at least two
    (docs/exchange.md).

    Args:
        rate_bps: Measured rate of the link, bit/s; None is unknown and gives 256 KiB.
        size_bytes: Size of the blob.
        limit_bytes: Largest chunk that the broker accepts.
    """
    if rate_bps is None:
        return min(DEFAULT_CHUNK_BYTES, limit_bytes)
    bytes_per_s = rate_bps / 8.0
    slow = min(max(bytes_per_s * CHUNK_TIME_S, SLOW_CHUNK_BYTES), DEFAULT_CHUNK_BYTES)
    half = -(-size_bytes // 2048) * 1024
    fast = min(bytes_per_s * FAST_CHUNK_TIME_S, half)
    return int(min(max(slow, fast), limit_bytes)) // 1024 * 1024


def stable_chunk_bytes(last_bytes: int | None, suitable_bytes: int) -> int:
    """Return the chunk size of the next blob of a kind: the last size, within a factor of two.

    A change of the chunk size fragments the heap of a broker (docs/exchange.md).
    """
    if last_bytes is not None and last_bytes / 2 <= suitable_bytes <= last_bytes * 2:
        return last_bytes
    return suitable_bytes


def chunk_slice(manifest: Manifest, index: int) -> slice:
    """Return the range of chunk `index` in the blob.

    Raises:
        DecodeError: The blob has no such chunk.
    """
    if not 0 <= index < manifest.chunk_count:
        raise DecodeError(f"chunk: index must be below {manifest.chunk_count}, got {index}")
    start = index * manifest.chunk_bytes
    return slice(start, min(start + manifest.chunk_bytes, manifest.size_bytes))
