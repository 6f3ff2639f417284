"""Buckets: lengths of sequences, mini-batches of about equal ones, and the choice of lengths."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.buckets import best_buckets, count_batches, cut_batches, sequence_lengths

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)


def test_a_sequence_ends_with_its_last_token_or_label() -> None:
    x = np.array([[3, 0, 4, 0], [5, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    y = np.array([[1, 1, 1, -1], [2, 0, -1, -1], [-1, -1, -1, -1], [1, 1, 1, 1]])
    assert sequence_lengths(x, y, has_labels=True).tolist() == [3, 2, 0, 4]
    assert sequence_lengths(x, y[:, 0], has_labels=False).tolist() == [3, 1, 0, 4]
    assert sequence_lengths(x[..., np.newaxis], y[:, 0], has_labels=False).tolist() == [3, 1, 0, 4]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.integers(1, 9), st.integers(0, 99))
def test_an_epoch_has_each_example_once_and_few_mixed_batches(
    places: list[int], size: int, seed: int
) -> None:
    buckets = np.array(places)
    order = np.random.default_rng(seed).permutation(len(buckets))
    batches = cut_batches(order, buckets, size)
    assert len(batches) == -(-len(order) // size)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(order)))
    assert sorted(map(len, batches)) == sorted(map(len, cut_batches(order, None, size)))
    mixed = sum(len(np.unique(buckets[batch])) - 1 for batch in batches)
    assert mixed <= len(np.unique(buckets)) - 1
    # The counts that costs are made of are those of the mini-batches.
    padded = [int(buckets[batch].max()) for batch in batches]
    counts = np.bincount(buckets, minlength=4)[np.newaxis]
    per_bucket, examples = count_batches(counts, size)
    assert per_bucket[0].tolist() == np.bincount(padded, minlength=4).tolist()
    of = [sum(len(b) for b, at in zip(batches, padded, strict=True) if at == k) for k in range(4)]
    assert examples[0].tolist() == of


def test_one_bucket_changes_no_order() -> None:
    order = np.random.default_rng(1).permutation(23)
    same = cut_batches(order, np.zeros(23, np.int64), 5)
    for got, wanted in zip(same, cut_batches(order, None, 5), strict=True):
        assert got.tolist() == wanted.tolist()


@given(LENGTHS, st.integers(1, 4), st.integers(0, 3))
def test_the_best_buckets_need_the_least_padding(values: list[int], count: int, more: int) -> None:
    lengths, longest = np.array(values), max(values) + more
    found = best_buckets(lengths, count, longest)
    assert found[-1] == longest
    assert [*found] == sorted(set(found))
    assert len(found) <= count

    def padded(buckets: tuple[int, ...]) -> int:
        return int(np.array(buckets)[np.searchsorted(buckets, lengths)].sum())

    others = itertools.combinations(range(1, longest), len(found) - 1)
    if longest <= 12 or count <= 3:
        assert padded(found) == min(padded((*some, longest)) for some in others)


def test_many_lengths_are_chosen_from_quantiles() -> None:
    lengths = np.random.default_rng(2).integers(1, 5000, 20_000)
    found = best_buckets(lengths, 4, 5000)
    assert len(found) == 4
    padded = np.array(found)[np.searchsorted(found, lengths)].mean()
    assert padded == pytest.approx(5000 * 5 / 8, rel=0.02)  # of equal parts
