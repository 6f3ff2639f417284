"""A shard is decoded as encoded, and invalid examples are refused."""

from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairbed.wire.errors import DecodeError
from fairbed.wire.shard import (
    LEAST_VALIDATION,
    Shard,
    decode_shard,
    encode_shard,
    make_shard,
    split,
    split_validation,
    strata,
)

LABELS = np.array([2, 0, 1])
FEATURES = np.arange(12, dtype=np.float32).reshape(3, 4)
PIXELS = np.arange(12, dtype=np.uint8).reshape(3, 2, 2) * 20
TOKENS = np.arange(6).reshape(3, 2)


def _back(x: NDArray[Any], y: NDArray[Any] = LABELS) -> tuple[NDArray[Any], NDArray[Any]]:
    return decode_shard(encode_shard(make_shard(x, y))).arrays()


def test_features_come_back_as_float32() -> None:
    for kind in (np.float32, np.float64, ">f4"):
        x, y = _back(FEATURES.astype(kind))
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        np.testing.assert_array_equal(x, FEATURES)
        np.testing.assert_array_equal(y, LABELS)


def test_pixels_are_sent_as_bytes_and_decoded_between_0_and_1() -> None:
    assert len(make_shard(PIXELS, LABELS).x) == PIXELS.size
    x, _ = _back(PIXELS)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, PIXELS.astype(np.float32) / np.float32(255))


def test_tokens_come_back_as_int64() -> None:
    for kind in (np.int64, np.int32, np.int8):
        x, _ = _back(TOKENS.astype(kind))
        assert x.dtype == np.int64
        np.testing.assert_array_equal(x, TOKENS)


def test_decoded_arrays_are_writable() -> None:
    for x in (FEATURES, PIXELS, TOKENS):
        arrays = _back(x)
        assert all(array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (FEATURES > 3, LABELS),
        (FEATURES.astype(np.uint16), LABELS),
        (FEATURES.astype(np.complex64), LABELS),
        (FEATURES, LABELS[:2]),
        (FEATURES[:0], LABELS[:0]),
    ],
)
def test_refuses_arrays_that_a_shard_cannot_hold(x: NDArray[Any], y: NDArray[Any]) -> None:
    with pytest.raises(
        ValueError, match=r"^shard: x must be float, uint8 or int, one row per label"
    ):
        make_shard(x, y)


def _changed(**fields: Any) -> bytes:
    shard = msgspec.structs.asdict(make_shard(FEATURES, LABELS))
    return msgspec.msgpack.encode({**shard, **fields})


NAN_FEATURES = np.full((3, 4), np.nan, dtype="<f4").tobytes()

MALFORMED = [
    (_changed(n=0), "shard: Expected `int` >= 1 - at `$.n`"),
    (_changed(n=-1), "shard: Expected `int` >= 1 - at `$.n`"),
    (_changed(n=2), "shard: cannot reshape array of size 12 into shape (2,4)"),
    (_changed(x_shape=[-1]), "shard: Expected `int` >= 1 - at `$.x_shape[0]`"),
    (_changed(x_shape=[5]), "shard: cannot reshape array of size 12 into shape (3,5)"),
    (_changed(x=b"odd"), "shard: buffer size must be a multiple of element size"),
    (_changed(y=bytes(16)), "shard: cannot reshape array of size 2 into shape (3,)"),
    (
        _changed(y=np.array([0, -1, 2], "<i8").tobytes()),
        "shard: every label must be >= 0, got -1",
    ),
    (
        _changed(y=np.array([0, np.inf, 2], "<f4").tobytes(), y_dtype="float32"),
        "shard: every target must be finite, got NaN or infinity",
    ),
    (_changed(x=NAN_FEATURES), "shard: every feature must be finite, got NaN or infinity"),
    (_changed(x_dtype="float64"), "shard: Invalid enum value 'float64' - at `$.x_dtype`"),
    (_changed(owner="me"), "shard: Object contains unknown field `owner`"),
    (b"", "shard: Input data was truncated"),
]


@pytest.mark.parametrize(("blob", "line"), MALFORMED, ids=[line for _, line in MALFORMED])
def test_each_fault_has_its_one_line_message(blob: bytes, line: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_shard(blob).arrays()
    assert str(caught.value) == line


def test_refuses_every_truncated_prefix() -> None:
    blob = encode_shard(make_shard(FEATURES, LABELS))
    for length in range(len(blob)):
        with pytest.raises(DecodeError, match=r"^shard: "):
            decode_shard(blob[:length])


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(1, 9), st.integers(1, 9))
def test_random_content_raises_nothing_but_decode_error(x: bytes, y: bytes, n: int, d: int) -> None:
    shard = Shard(n=n, x_shape=(d,), x_dtype="float32", x=x, y=y)
    with suppress(DecodeError):
        arrays = decode_shard(encode_shard(shard)).arrays()
        assert arrays[0].shape == (n, d)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda s: sum(s) >= 2),
    fraction=st.floats(0.001, 0.999),
    seed=st.integers(0, 100),
)
def test_split_keeps_every_class_in_proportion(
    sizes: list[int], fraction: float, seed: int
) -> None:
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = np.arange(len(y)) + 1000
    train, test = split(rows, y, fraction, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), rows)
    assert len(train) >= 1
    assert len(test) == min(max(1, round(fraction * len(y))), len(y) - 1)
    share = len(test) / len(y)
    held_out = np.bincount(y[test - 1000], minlength=len(sizes))
    assert (abs(held_out - share * np.array(sizes)) < 1.0).all()


def test_split_depends_on_its_generator_only() -> None:
    y = np.random.default_rng(0).integers(0, 10, 200)
    first, again, other = (
        split(np.arange(200), y, 0.2, np.random.default_rng(seed))[1] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert set(first) != set(other)


def test_strata_are_the_labels_or_the_tenths_of_the_targets() -> None:
    np.testing.assert_array_equal(strata(LABELS), LABELS)
    targets = np.random.default_rng(0).permutation(np.arange(100, dtype=np.float32))
    np.testing.assert_array_equal(strata(targets), (targets // 10).astype(np.int64))


@given(st.lists(st.sampled_from([-1.5, 0.0, 0.25, 3.0, 1e6]), min_size=1, max_size=50))
def test_strata_of_targets_keep_their_order_and_have_no_gap(targets: list[float]) -> None:
    y = np.array(targets, np.float32)
    found, order = strata(y), np.argsort(y)
    assert (np.diff(found[order]) >= 0).all()
    assert all(len(np.unique(found[y == value])) == 1 for value in targets)
    assert np.unique(found).tolist() == list(range(found.max() + 1))


def test_targets_of_any_shape_come_back_with_positions_without_a_label() -> None:
    labels = np.array([[2, -1, 0], [0, 1, -1], [-1, -1, 1]])
    x, y = _back(TOKENS, labels)
    assert x.dtype == y.dtype == np.int64
    np.testing.assert_array_equal(y, labels)
    pictures = FEATURES.reshape(3, 1, 2, 2)
    _, y = _back(pictures, pictures)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, pictures)
    assert make_shard(pictures, pictures).count_positions() == 12
    assert make_shard(TOKENS, labels).count_positions() == 5
    assert make_shard(TOKENS, LABELS).count_positions() == 0
    assert _back(TOKENS)[1].shape == (3,)


def test_refuses_an_example_whose_mask_covers_everything_and_other_negative_labels() -> None:
    covered = make_shard(TOKENS, np.array([[0, 1], [-1, -1], [-1, 0]]))
    with pytest.raises(DecodeError, match=r"label at one position, got -1 at all of example 1$"):
        covered.arrays()
    with pytest.raises(DecodeError, match=r"^shard: every label must be >= -1, got -2$"):
        make_shard(TOKENS, np.array([[0, 1], [-2, -1], [-1, 0]])).arrays()


@given(st.integers(2, 60), st.floats(0.05, 0.9), st.integers(0, 2**31), st.integers(1, 4))
def test_few_validation_examples_are_folds_and_many_are_one_part(
    n: int, share: float, seed: int, classes: int
) -> None:
    rows = np.arange(n) + 100
    y = np.random.default_rng(seed).integers(0, classes, n)
    size = min(max(1, round(share * n)), n - 1)
    folds = [
        split_validation(rows, y, share, fold, np.random.default_rng(seed)) for fold in range(n)
    ]
    for train, validation in folds:
        assert len(train) >= 1
        np.testing.assert_array_equal(np.sort(np.concatenate([train, validation])), rows)
        assert abs(len(validation) - size) <= max(1, size)
    if size >= LEAST_VALIDATION:
        assert all(len(validation) == size for _, validation in folds)
        assert len({validation.tobytes() for _, validation in folds}) == 1
    else:
        count = min(max(2, round(n / size)), n)
        found = np.concatenate([validation for _, validation in folds[:count]])
        np.testing.assert_array_equal(np.sort(found), rows)
        for _, validation in folds[:count]:
            counts = np.bincount(y[validation - 100], minlength=classes)
            assert np.all(np.abs(counts - np.bincount(y, minlength=classes) / count) < 1.0)


def test_one_example_alone_is_for_training() -> None:
    rows = np.array([5])
    train, validation = split_validation(rows, rows * 0, 0.5, 3, np.random.default_rng(0))
    assert (train.tolist(), validation.tolist()) == ([5], [])
