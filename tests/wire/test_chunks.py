"""A chunk is decoded as encoded, or refused."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.chunks import (
    HEADER_BYTES,
    chunk_slice,
    decode_chunk,
    encode_chunk,
    manifest_of,
    stable_chunk_bytes,
    suitable_chunk_bytes,
)
from fairbed.wire.codec import decode, encode
from fairbed.wire.errors import DecodeError, EncodeError, VersionError
from fairbed.wire.messages import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, Intent
from tests.wire.messages import MODEL, SHARD

BLOB = bytes(range(16))
FRAME = encode_chunk(BLOB, 3, b"payload")


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1), st.binary(min_size=1))
def test_a_decoded_chunk_equals_the_encoded_one(blob: bytes, index: int, payload: bytes) -> None:
    chunk = decode_chunk(encode_chunk(blob, index, payload))
    assert (chunk.blob, chunk.index, bytes(chunk.payload)) == (blob, index, payload)


def test_its_payload_is_a_view() -> None:
    frame = encode_chunk(BLOB, 3, b"payload")
    assert decode_chunk(frame).payload.obj is frame


def test_the_largest_stays_below_one_megabyte() -> None:
    assert len(encode_chunk(BLOB, 0, bytes(MAX_CHUNK_BYTES))) < 1_000_000


@pytest.mark.parametrize("at", range(len(FRAME)))
def test_refuses_a_flipped_bit_anywhere(at: int) -> None:
    for bit in range(8):
        damaged = bytearray(FRAME)
        damaged[at] ^= 1 << bit
        with pytest.raises(DecodeError, match=r"^chunk"):
            decode_chunk(bytes(damaged))


MALFORMED = [
    (b"", "chunk: must hold 1 to 983040 bytes after a header of 28, got 0 in total"),
    (FRAME[:28], "chunk: must hold 1 to 983040 bytes after a header of 28, got 28 in total"),
    (
        FRAME + bytes(MAX_CHUNK_BYTES),
        "chunk: must hold 1 to 983040 bytes after a header of 28, got 983075 in total",
    ),
    (b"XY" + FRAME[2:], "chunk: must start with b'FB', got b'XY'"),
    (FRAME[:3] + b"\x01" + FRAME[4:], "chunk 3: flags must be 0, got 1"),
    (FRAME[:-1] + b"!", "chunk 3: crc32 must match the bytes, got a damaged frame"),
]


@pytest.mark.parametrize(("frame", "line"), MALFORMED, ids=[line for _, line in MALFORMED])
def test_each_fault_has_its_one_line_message(frame: bytes, line: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_chunk(frame)
    assert str(caught.value) == line


def test_a_version_error_names_the_side_to_update() -> None:
    with pytest.raises(VersionError, match=r"got 2; update fairbed on this side$"):
        decode_chunk(FRAME[:2] + b"\x02" + FRAME[3:])
    with pytest.raises(VersionError, match=r"got 0; update fairbed on the sender$"):
        decode_chunk(FRAME[:2] + b"\x00" + FRAME[3:])


@given(st.binary(max_size=100))
def test_random_bytes_raise_nothing_but_decode_error(tail: bytes) -> None:
    for frame in (tail, FRAME[:4] + tail):
        with pytest.raises(DecodeError):
            decode_chunk(frame)


@pytest.mark.parametrize(
    ("blob", "payload"), [(b"short", b"x"), (BLOB, b""), (BLOB, bytes(MAX_CHUNK_BYTES + 1))]
)
def test_encodes_no_frame_that_decoding_would_refuse(blob: bytes, payload: bytes) -> None:
    with pytest.raises(EncodeError, match=r"^chunk 0: must hold 1 to 983040 bytes"):
        encode_chunk(blob, 0, payload)


@given(st.integers(1, 10_000), st.integers(MIN_CHUNK_BYTES, 4096))
def test_the_slices_cover_the_blob_without_overlap(size: int, chunk_bytes: int) -> None:
    blob = bytes(size)
    manifest = manifest_of(blob, "model", chunk_bytes)
    ends = [chunk_slice(manifest, index) for index in range(manifest.chunk_count)]
    assert [s.start for s in ends] == [0, *(s.stop for s in ends[:-1])]
    assert ends[-1].stop == size
    assert all(s.stop - s.start == chunk_bytes for s in ends[:-1])


@pytest.mark.parametrize("index", [-1, 4])
def test_refuses_an_index_beyond_the_last_chunk(index: int) -> None:
    with pytest.raises(DecodeError) as caught:
        chunk_slice(MODEL, index)
    assert str(caught.value) == f"chunk: index must be below 4, got {index}"


def test_a_blob_of_one_byte_is_one_chunk() -> None:
    assert (SHARD.chunk_count, chunk_slice(SHARD, 0)) == (1, slice(0, 1))


def test_a_manifest_names_the_blob_by_its_hash() -> None:
    manifest = manifest_of(b"data", "task")
    assert manifest.sha256 == sha256(b"data").digest()
    assert manifest.id == manifest.sha256[:16]
    assert decode(encode(Intent(manifest=manifest, boot=1))) == Intent(manifest=manifest, boot=1)


def test_refuses_an_empty_blob_and_a_chunk_size_out_of_range() -> None:
    with pytest.raises(EncodeError, match=r"^task: must hold 1 to 2147483648 bytes, got 0$"):
        manifest_of(b"", "task")
    with pytest.raises(EncodeError, match=r"^task: chunks must hold 1024 to 983040 bytes, got 10$"):
        manifest_of(b"data", "task", 10)


def test_the_header_is_28_bytes() -> None:
    assert HEADER_BYTES == 28


def test_a_chunk_takes_about_half_a_second_on_a_slow_link() -> None:
    assert suitable_chunk_bytes(1e3, 10**7) == 32 * 1024
    assert suitable_chunk_bytes(1e6, 10**7) == 61 * 1024
    assert suitable_chunk_bytes(10e6, 10**7) == 256 * 1024
    assert suitable_chunk_bytes(None, 10**7) == 256 * 1024


def test_a_fast_link_has_larger_chunks_if_the_blob_holds_two() -> None:
    assert suitable_chunk_bytes(100e6, 10**7) == 610 * 1024
    assert suitable_chunk_bytes(1e9, 10**7) == MAX_CHUNK_BYTES
    assert suitable_chunk_bytes(1e9, 10**6) == 489 * 1024
    assert 2 * 489 * 1024 >= 10**6
    assert suitable_chunk_bytes(1e9, 10**5) == 256 * 1024
    assert suitable_chunk_bytes(1e9, 10**7, 480 * 1024) == 480 * 1024


def test_the_chunk_size_is_kept_within_a_factor_of_two() -> None:
    assert stable_chunk_bytes(None, 300) == 300
    assert [stable_chunk_bytes(300, other) for other in (150, 299, 600)] == [300] * 3
    assert [stable_chunk_bytes(300, other) for other in (149, 601)] == [149, 601]


@pytest.mark.parametrize("rate_bps", [None, 1e3, 10e6, 1e9])
def test_no_chunk_is_larger_than_the_limit_of_the_broker(rate_bps: float | None) -> None:
    limit_bytes = 112 * 1024
    assert suitable_chunk_bytes(rate_bps, 10**7, limit_bytes) <= limit_bytes


@given(st.floats(1.0, 1e12) | st.none(), st.integers(1, 2**31))
def test_every_suitable_chunk_size_is_valid(rate_bps: float | None, size_bytes: int) -> None:
    chunk_bytes = suitable_chunk_bytes(rate_bps, size_bytes)
    assert MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES
