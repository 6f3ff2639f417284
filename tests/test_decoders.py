"""Every decoder takes its corpus and mutations of it: decoded, or refused as its callers expect.

`fairbed bench fuzz` does the same with millions of inputs.
"""

import time

import pytest

from benchmarks._fuzz.decoders import CORPUS, DECODERS, Decoder
from benchmarks._fuzz.engine import feed_mutations
from benchmarks.fuzz import feed_here

SLOW = {"experiments", "own-data", "profiles", "replicas", "run-stores"}
"""Decoders of files: their corpus alone takes a second."""

CORPUS_LIMIT_BYTES = 300_000

INPUTS = 300


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.full] if x in SLOW else []) for x in DECODERS],
)
def test_no_mutation_of_the_corpus_crashes_a_decoder(name: str) -> None:
    inputs = 20 if name in SLOW else INPUTS
    fed = feed_here(DECODERS[name], inputs, seed=0)
    assert [(finding.error, finding.data) for finding in fed.findings.values()] == []
    assert fed.crashes == 0
    assert fed.inputs >= inputs


@pytest.mark.parametrize("name", sorted(set(DECODERS) - SLOW))
def test_the_corpus_has_an_input_that_is_accepted(name: str) -> None:
    decoder = DECODERS[name]
    with_corpus_alone = feed_here(decoder, 1, seed=0)
    assert with_corpus_alone.accepted >= 1


def test_the_corpus_in_the_repository_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} <= set(DECODERS)
    assert sum(path.stat().st_size for path in files) <= CORPUS_LIMIT_BYTES


def test_the_same_seed_gives_the_same_inputs() -> None:
    inputs: list[list[bytes]] = []
    for seed in (3, 3, 4):
        inputs.append([])
        decoder = Decoder("any", inputs[-1].append, (), lambda: iter([b"abcdef" * 9]))
        feed_mutations(decoder, 12, seed)
    # The slowest inputs so far are timed again.
    first, again, other = (list(dict.fromkeys(x)) for x in inputs)
    assert first == again
    assert first != other


def test_an_input_that_waits_for_the_disk_or_the_processor_is_not_slow() -> None:
    decoder = Decoder("any", lambda _: time.sleep(0.02), (), lambda: iter([b"a"]))
    assert feed_mutations(decoder, 1, seed=1).slowest_s < 0.01


def test_a_crash_is_reported_with_its_input_once_for_each_place() -> None:
    def decode(data: bytes) -> None:
        if b"x" in data:
            raise IndexError("no such byte")
        raise ValueError("refused")

    decoder = Decoder("any", decode, (ValueError,), lambda: iter([b"axb", b"ab", b"xx"]))
    fed = feed_mutations(decoder, 3, seed=1)
    (finding,) = fed.findings.values()
    assert finding.data == b"axb"
    assert finding.error.endswith("no such byte")
    assert fed.crashes == 2
    assert fed.accepted == 0
