"""Every codec keeps the bound in its docstring, for any vector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.codecs import Codec, Vector, encode_with_feedback
from fairbed.wire.codecs.half import Half
from fairbed.wire.codecs.int8 import BLOCK, LEVELS, SMALLEST_SCALE, Int8Blocks
from fairbed.wire.codecs.top_k import TopK
from fairbed.wire.errors import EncodeError
from tests.wire.codecs.vectors import CODECS, rng_of, vectors

seeds = st.integers(0, 2**32 - 1)


def sent(codec: Codec, values: Vector, seed: int = 0) -> Vector:
    """Return `values` after encoding and decoding."""
    return codec.decode(memoryview(codec.encode(values, rng_of(seed))), len(values))


def scales_of(values: Vector) -> Vector:
    """Return the scale that each value shares with its block, float64."""
    padded = np.zeros(-(-len(values) // BLOCK) * BLOCK)
    padded[: len(values)] = np.abs(values)
    largest = padded.reshape(-1, BLOCK).max(axis=1)
    scales = np.where(largest > 0.0, np.maximum(largest / LEVELS, SMALLEST_SCALE), 0.0)
    return np.repeat(scales, BLOCK)[: len(values)]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(values=vectors(limit=6e4), seed=seeds)
def test_the_size_follows_from_the_number_of_values(
    codec: Codec, values: Vector, seed: int
) -> None:
    before = values.copy()
    assert len(codec.encode(values, rng_of(seed))) == codec.size_bytes(len(values))
    np.testing.assert_array_equal(values, before)


@given(values=vectors(limit=65504.0))
def test_float16_has_an_error_of_half_a_unit_in_the_last_place(values: Vector) -> None:
    exact = values.astype(np.float64)
    error = np.abs(sent(Half(), values) - exact)
    assert (error <= np.maximum(2.0**-11 * np.abs(exact), 2.0**-25)).all()


@given(values=vectors(limit=65504.0))
def test_float16_of_float16_is_exact(values: Vector) -> None:
    once = sent(Half(), values)
    np.testing.assert_array_equal(sent(Half(), once), once)


@pytest.mark.parametrize("value", [65520.0, -7e4, 3e38, np.inf, np.nan])
def test_float16_refuses_values_out_of_range(value: float) -> None:
    with pytest.raises(EncodeError, match="within 65504, got"):
        sent(Half(), np.array([1.0, value], np.float32))
    assert sent(Half(), np.array([65519.0], np.float32))[0] == 65504.0


@given(values=vectors(), seed=seeds)
def test_int8_has_an_error_below_one_level(values: Vector, seed: int) -> None:
    error = np.abs(sent(Int8Blocks(), values, seed).astype(np.float64) - values)
    assert (error <= scales_of(values) * (1.0 + 2.0**-15)).all()


@given(values=vectors(limit=1e30, max_size=300), seed=seeds)
def test_int8_is_unbiased(values: Vector, seed: int) -> None:
    # The mean of 400 tries of a variance of at most s^2/4 each: five of its deviations.
    rng, tries = rng_of(seed), 400
    codec = Int8Blocks()
    total = np.zeros(len(values))
    for _ in range(tries):
        total += codec.decode(memoryview(codec.encode(values, rng)), len(values))
    scales = scales_of(values)
    # Of 300 values none may be off by more than 6 deviations, once in a million times.
    bound = scales * (6.0 * 0.5 / np.sqrt(tries) + 2.0**-15)
    assert (np.abs(total / tries - values) <= bound).all()


def test_int8_has_a_standard_deviation_of_at_most_half_a_level() -> None:
    values = rng_of(3).standard_normal(5 * BLOCK).astype(np.float32)
    rng, codec = rng_of(4), Int8Blocks()
    squared = np.zeros(len(values))
    for _ in range(200):
        got = codec.decode(memoryview(codec.encode(values, rng)), len(values))
        squared += np.square(got.astype(np.float64) - values)
    assert (squared / 200).mean() <= (scales_of(values) ** 2).mean() / 4


def test_int8_keeps_zeros_and_the_blocks_beside_an_outlier() -> None:
    values = np.zeros(3 * BLOCK, np.float32)
    values[BLOCK] = 1e30
    values[2 * BLOCK :] = 127.0
    got = sent(Int8Blocks(), values)
    assert not got[:BLOCK].any()
    np.testing.assert_array_equal(got[2 * BLOCK :], 127.0)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("codec", [Int8Blocks(), TopK(2)], ids=["int8", "top-k"])
def test_values_that_are_not_finite_are_refused(codec: Codec, value: float) -> None:
    with pytest.raises(EncodeError, match="must be finite"):
        sent(codec, np.array([0.0, value, 1.0], np.float32))


@given(values=vectors(limit=1e18), k=st.integers(1, 4000))
def test_top_k_keeps_its_share_of_the_norm(values: Vector, k: int) -> None:
    got, n = sent(TopK(k), values), len(values)
    exact = values.astype(np.float64)
    kept = got != 0.0
    np.testing.assert_array_equal(got[kept], values[kept])
    assert kept.sum() <= min(k, n)
    lost, whole = np.square(exact - got).sum(), np.square(exact).sum()
    assert lost <= (1.0 - min(k, n) / n) * whole * (1.0 + 1e-12)


@given(updates=st.integers(1, 12), size=st.integers(1, 500), k=st.integers(1, 60), seed=seeds)
@pytest.mark.parametrize("name", ["top-k", "int8"])
def test_with_feedback_sent_values_and_residual_add_up_to_the_updates(
    name: str, updates: int, size: int, k: int, seed: int
) -> None:
    rng = rng_of(seed)
    codec: Codec = TopK(k) if name == "top-k" else Int8Blocks()
    true, arrived, largest = np.zeros(size), np.zeros(size), 0.0
    owed: Vector = np.zeros(size, np.float32)
    for _ in range(updates):
        update = rng.standard_normal(size).astype(np.float32)
        payload, owed = encode_with_feedback(codec, update, owed, rng)
        true += update
        arrived += codec.decode(memoryview(payload), size)
        largest = max(largest, float(np.abs(true).max()), float(np.abs(arrived).max()))
    # One rounding for the sum and one for the residual, each of a value of at most this size.
    slack = 2.0 * updates * 2.0**-24 * (largest + float(np.abs(owed).max()) + 8.0)
    np.testing.assert_allclose(arrived + owed, true, rtol=0.0, atol=slack)


def test_a_sum_beyond_float32_is_refused() -> None:
    huge = np.full(4, 3e38, np.float32)
    with pytest.raises(EncodeError, match="must be finite"):
        encode_with_feedback(TopK(2), huge, huge, rng_of(0))


@given(size=st.integers(2, 300), seed=seeds)
def test_the_residual_of_top_k_stays_bounded(size: int, seed: int) -> None:
    rng = rng_of(seed)
    codec = TopK(max(1, size // 10))
    share = min(codec.k, size) / size
    owed: Vector | None = None
    largest = 0.0
    for _ in range(60):
        update = rng.standard_normal(size).astype(np.float32)
        largest = max(largest, float(np.linalg.norm(update)))
        _, owed = encode_with_feedback(codec, update, owed, rng)
        assert np.linalg.norm(owed) <= 2.0 / share * largest


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_an_empty_vector_has_no_bytes(codec: Codec) -> None:
    empty = np.zeros(0, dtype=np.float32)
    assert codec.encode(empty, rng_of(0)) == b""
    assert sent(codec, empty).tolist() == []
