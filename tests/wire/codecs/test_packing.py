"""A packed vector decodes as specified, or raises one DecodeError."""

import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.codecs import Codec, Vector, codec_named, pack, packed_bytes, unpack
from fairbed.wire.codecs.int8 import BLOCK
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import CODECS as NAMES
from tests.wire.codecs.vectors import CODECS, layout_of, rng_of, vectors

N, BUFFERS = 2 * BLOCK + 7, 3
LAYOUT = layout_of(N, BUFFERS)
HEADER = 12
PARAMS = rng_of(1).standard_normal(N).astype(np.float32)
BASE = rng_of(2).standard_normal(N + BUFFERS).astype(np.float32)
BUFFER_VALUES = np.array([1e30, -2.0, 1e-40], np.float32)


def packed(codec: Codec, params: Vector = PARAMS, buffers: Vector = BUFFER_VALUES) -> bytearray:
    return bytearray(pack(codec, len(params), codec.encode(params, rng_of(3)), buffers))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(params=vectors(limit=6e4), n_buffers=st.integers(0, 20))
def test_buffers_are_not_encoded(codec: Codec, params: Vector, n_buffers: int) -> None:
    buffers = rng_of(5).standard_normal(n_buffers).astype(np.float32)
    layout = layout_of(len(params), n_buffers)
    blob = packed(codec, params, buffers)
    assert len(blob) == packed_bytes(codec, layout)
    vector = unpack(blob, codec, layout)
    assert vector.dtype == np.float32
    np.testing.assert_array_equal(vector[len(params) :], buffers)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_changes_are_added_to_their_base(codec: Codec) -> None:
    blob, base = packed(codec), BASE.copy()
    change = unpack(blob, codec, LAYOUT)
    whole = unpack(blob, codec, LAYOUT, base)
    np.testing.assert_array_equal(whole[:N], BASE[:N] + change[:N])
    np.testing.assert_array_equal(whole[N:], BUFFER_VALUES)
    np.testing.assert_array_equal(base, BASE)


def test_float32_has_no_codec() -> None:
    assert codec_named("float32") is None
    assert packed_bytes(None, LAYOUT) == LAYOUT.size_bytes


def test_every_name_but_delta_is_a_codec() -> None:
    for name in set(NAMES) - {"delta"}:
        assert codec_named(name, top_k=3) is not None
    for name in ("delta", "zip", "top-k"):
        with pytest.raises(ValueError, match="codec: must be"):
            codec_named(name)


Damage = Callable[[bytearray], None]


def write(at: int, form: str, *values: float) -> Damage:
    """Overwrite the bytes at a position."""
    return lambda blob: struct.pack_into(form, blob, at, *values)


DAMAGED: dict[str, tuple[str, Damage, str]] = {
    "magic": ("int8", write(0, "2s", b"FB"), "start with"),  # type: ignore[arg-type]
    "version": ("int8", write(2, "B", 9), "protocol"),
    "another codec": ("int8", write(3, "B", 1), "codec, parameters and buffers"),
    "more parameters": ("int8", write(4, ">I", 1 << 31), "codec, parameters and buffers"),
    "more buffers": ("int8", write(8, ">I", 1 << 31), "codec, parameters and buffers"),
    "buffer nan": ("int8", write(-4, "<f", np.nan), "finite"),
    "half inf": ("float16", write(HEADER, "<e", np.inf), "finite"),
    "half nan": ("float16", write(HEADER + 8, "<e", np.nan), "finite"),
    "scale inf": ("int8", write(HEADER, "<f", np.inf), "scale must be finite"),
    "scale nan": ("int8", write(HEADER + 4, "<f", np.nan), "scale must be finite"),
    "scale negative": ("int8", write(HEADER + 8, "<f", -1.0), "scale must be finite"),
    "scale too large": ("int8", write(HEADER, "<f", 3e38), "finite"),
    "level -128": ("int8", write(HEADER + 12 + N - 1, "b", -128), "level must be within 127"),
    "place beyond": ("top-k", write(HEADER + 16, "<I", N), "stay below"),
    "place far beyond": ("top-k", write(HEADER + 16, "<I", (1 << 32) - 1), "stay below"),
    "place twice": ("top-k", write(HEADER, "<II", 5, 5), "indices must ascend"),
    "indices falling": ("top-k", write(HEADER, "<II", 9, 5), "indices must ascend"),
    "value nan": ("top-k", write(HEADER + 20, "<f", np.nan), "finite"),
    "value inf": ("top-k", write(HEADER + 36, "<f", -np.inf), "finite"),
}


@pytest.mark.parametrize(("name", "damage", "why"), DAMAGED.values(), ids=DAMAGED)
def test_each_fault_has_its_one_line_message(name: str, damage: Damage, why: str) -> None:
    codec = CODECS[name]
    blob = packed(codec)
    damage(blob)
    with pytest.raises(DecodeError, match=why) as caught:
        unpack(blob, codec, LAYOUT, BASE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("cut", [0, 1, HEADER - 1, HEADER, -1])
def test_a_truncated_blob_is_refused(codec: Codec, cut: int) -> None:
    with pytest.raises(DecodeError, match="must hold"):
        unpack(packed(codec)[:cut], codec, LAYOUT)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_blob_that_is_too_long_is_refused_before_memory_is_allocated(codec: Codec) -> None:
    blob = packed(codec) + bytes(5_000_000)
    tracemalloc.start()
    with pytest.raises(DecodeError, match="must hold"):
        unpack(blob, codec, LAYOUT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(data=st.data())
def test_garbage_of_the_right_size_is_a_vector_or_a_decode_error(
    codec: Codec, data: st.DataObject
) -> None:
    blob = packed(codec)
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at] = data.draw(st.integers(0, 255))
    try:
        vector = unpack(blob, codec, LAYOUT, BASE)
    except DecodeError:
        return
    assert vector.shape == (N + BUFFERS,)
    assert np.isfinite(vector).all()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_same_generator_gives_the_same_bytes(codec: Codec) -> None:
    assert packed(codec) == packed(codec)
