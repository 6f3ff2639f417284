"""Feeds one decoder: counts crashes and times, and keeps what reaches something new."""

import random
import re
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from benchmarks._fuzz.decoders import Decoder
from benchmarks._fuzz.mutations import mutated

REPEATS = 5
"""A slow input is timed again, and its shortest time counts: the first one may fill caches."""

MAX_FINDINGS = 20
"""Crashes of a decoder that are kept, one for each place in the code."""

MAX_KEPT = 2_000
"""Inputs that mutations begin with, at most."""

_VALUES = re.compile(r"[0-9]+|b?'.*?'|b?\".*?\"|`[^$`]*`")
"""What an error quotes of its input; a path such as `$.model.id` stays."""

FROM_SEEDS = 0.5
"""Share of the mutations that begin with a seed: those of mutations become less and less valid."""


@dataclass(slots=True)
class Finding:
    """An input that crashed a decoder."""

    decoder: str
    error: str
    """Type, message and place of the exception."""
    data: bytes


@dataclass(slots=True)
class Fed:
    """What became of the inputs of one decoder."""

    decoder: str
    inputs: int = 0
    accepted: int = 0
    outcomes: int = 0
    """Different errors and successes."""
    crashes: int = 0
    slowest_s: float = 0.0
    """Processor time of the slowest input."""
    slowest: bytes = b""
    findings: dict[str, Finding] = field(default_factory=dict)
    """By the place in the code."""
    rare: list[bytes] = field(default_factory=list)
    """Mutations that reached something new."""


class Feeder:
    """Feeds inputs to one decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self.fed = Fed(decoder.name)
        self._decoder = decoder
        self._seen = set[str]()

    def feed(self, data: bytes) -> bool:
        """Decode an input; return whether its outcome is new."""
        fed = self.fed
        fed.inputs += 1
        begun = time.thread_time()
        outcome = self._outcome(data)
        took = time.thread_time() - begun
        if took > fed.slowest_s:
            took = min(took, *(self._time(data) for _ in range(REPEATS)))
            if took > fed.slowest_s:
                fed.slowest_s, fed.slowest = took, data
        if outcome in self._seen:
            return False
        self._seen.add(outcome)
        fed.outcomes += 1
        return True

    def _outcome(self, data: bytes) -> str:
        try:
            result = self._decoder.decode(data)
        except self._decoder.expected as exc:
            return f"{type(exc).__name__} {_VALUES.sub('', str(exc)[:120])}"
        except Exception as exc:  # a crash of the decoder is what is looked for
            self._add_crash(exc, data)
            return f"crash {type(exc).__name__}"
        self.fed.accepted += 1
        return f"accepted {result}" if isinstance(result, str) else "accepted"

    def _add_crash(self, exc: Exception, data: bytes) -> None:
        fed = self.fed
        fed.crashes += 1
        last = traceback.extract_tb(exc.__traceback__)[-1]
        place = f"{type(exc).__name__} at {last.filename}:{last.lineno}"
        if place not in fed.findings and len(fed.findings) < MAX_FINDINGS:
            fed.findings[place] = Finding(fed.decoder, f"{place}: {str(exc)[:200]}", data)

    def _time(self, data: bytes) -> float:
        begun = time.thread_time()
        with suppress(Exception):  # counted by `feed`
            self._decoder.decode(data)
        return time.thread_time() - begun


def feed_mutations(decoder: Decoder, inputs: int, seed: int) -> Fed:
    """Feed the corpus of a decoder, and mutations of it.

    An input with an outcome that no other one had joins the corpus for further mutations. The same
    seed gives the same inputs.

    Args:
        decoder: The decoder.
        inputs: Number of inputs; at least the corpus.
        seed: Seed of the mutations.
    """
    rng, feeder = random.Random(f"{seed} {decoder.name}"), Feeder(decoder)
    seeds = decoder.corpus()
    corpus, limit = list(seeds), longest(seeds)
    for data in seeds:
        feeder.feed(data)
    while feeder.fed.inputs < inputs:
        data = mutated(seeds if rng.random() < FROM_SEEDS else corpus, rng, limit)
        if feeder.feed(data) and len(corpus) < MAX_KEPT:
            corpus.append(data)
            feeder.fed.rare.append(data)
    return feeder.fed


def longest(corpus: Sequence[bytes]) -> int:
    """Return how long an input may become: half as long again as the longest of a corpus."""
    return 64 + 3 * max(map(len, corpus)) // 2
