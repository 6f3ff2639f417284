"""Seed sequences, many at once: numpy's own numbers, bit for bit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.random_streams import (
    MANY,
    first_word,
    first_words,
    seed_words,
    streams,
)

WORD = st.integers(0, 2**32 - 1)


@given(
    before=st.lists(st.integers(0, 2**100), max_size=5),
    column=st.lists(WORD, min_size=1, max_size=4),
    after=st.lists(st.integers(0, 2**40), max_size=3),
    n_words=st.integers(1, 9),
)
def test_words_are_those_of_each_sequence_alone(
    before: list[int], column: list[int], after: list[int], n_words: int
) -> None:
    found = seed_words([*before, np.array(column), *after], n_words)
    alone = [
        np.random.SeedSequence([*before, number, *after]).generate_state(n_words)
        for number in column
    ]
    assert found.tolist() == [words.tolist() for words in alone]


def test_without_a_column_there_is_one_sequence() -> None:
    alone = np.random.SeedSequence([7, 2**70]).generate_state(3)
    assert seed_words([7, 2**70], 3).tolist() == [alone.tolist()]


@given(column=st.lists(WORD, min_size=1, max_size=4))
def test_first_words_are_those_of_each_sequence_alone(column: list[int]) -> None:
    found = first_words([3, np.array(column), 1])
    assert found.dtype == np.int64
    assert found.tolist() == [first_word([3, number, 1]) for number in column]


@given(seeds=st.lists(WORD, min_size=1, max_size=4) | st.lists(WORD, min_size=MANY, max_size=MANY))
def test_streams_are_those_of_each_seed_alone(seeds: list[int]) -> None:
    for seed, stream in zip(seeds, streams(np.array(seeds)), strict=True):
        alone = np.random.Generator(np.random.PCG64(seed))
        assert stream.bit_generator.state == alone.bit_generator.state
        assert stream.permutation(30).tolist() == alone.permutation(30).tolist()
