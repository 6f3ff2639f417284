"""A contract that cannot be broken says nothing: here is who breaks each property, and how."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Sample
from fairbed.coordinator.algorithms.selection.contract import (
    PROPERTIES,
    check_property,
    check_selector,
)


class Honest:
    """A uniform draw, to be spoiled in one place by each of those below."""

    def __init__(self) -> None:
        self.rounds = 0

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        rows = np.flatnonzero(candidates.is_available).astype(np.int64)
        return np.sort(rng.permutation(rows)[:k])

    def observe(self, outcomes: Outcomes) -> None:
        self.rounds += 1

    def queues(self, n: int) -> Floats:
        return np.zeros(n)

    def to_state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class DrawsFromAll(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        n = len(candidates.is_available)
        return np.sort(rng.permutation(n)[: min(k, int(candidates.is_available.sum()))])


class OneTooFew(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        return super().select(candidates, max(k - 1, min(k, 1)), rng)


class CountsSelections(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        self.rounds += 1
        return super().select(candidates, k, rng)


class SpoilsItsInput(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        candidates.tau_hat_s[:] = 0.0
        return super().select(candidates, k, rng)


class SpoilsOutcomes(Honest):
    def observe(self, outcomes: Outcomes) -> None:
        outcomes.is_aggregated[:] = True


class OwnDice(Honest):
    dice = np.random.default_rng(1)

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        return super().select(candidates, k, self.dice)


class Forgets(Honest):
    """It goes by how often it has observed, and does not say so."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        for _ in range(self.rounds):
            rng.random()
        return super().select(candidates, k, rng)

    def to_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


class ArrayState(Honest):
    def to_state(self) -> dict[str, Any]:
        return {"rounds": np.zeros(3)}


class FixedFleet(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Ints | None = None

    def observe(self, outcomes: Outcomes) -> None:
        if self.counts is None:
            self.counts = np.zeros(len(outcomes.is_selected), dtype=np.int64)
        self.counts += outcomes.is_selected


class NeedsSomebody(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        float(candidates.tau_hat_s[candidates.is_available].max() if k else 0.0)
        return super().select(candidates, k, rng)


class OwnsItsQueues(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.z = np.zeros(99)

    def queues(self, n: int) -> Floats:
        return self.z[:n]


class TakesNan(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        if np.isnan(candidates.tau_hat_s).any():
            raise RuntimeError("what is this?")
        return super().select(candidates, k, rng)


class LowestRowFirst(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        return np.flatnonzero(candidates.is_available)[:k].astype(np.int64)


class LikesRowZero(Honest):
    """Fair where all are alike, but its first draw goes by row where they are not."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        rows = super().select(candidates, k, rng)
        is_flat = bool(np.ptp(candidates.tau_hat_s) == 0.0) if len(candidates.tau_hat_s) else True
        if is_flat or not rows.size or not candidates.is_available[0] or 0 in rows:
            return rows
        return np.sort(np.concatenate([[0], rows[1:]]))


class AsksAndBelieves(Honest):
    sample: Sample = "all"

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        return np.flatnonzero(fleet.is_available).astype(np.int64)


class AsksStrangers(AsksAndBelieves):
    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        return np.arange(len(fleet.is_available), dtype=np.int64)


BROKEN: list[tuple[Callable[[], Honest], str, str]] = [
    (DrawsFromAll, "only available devices, each once", "must return available rows"),
    (AsksStrangers, "only available devices, each once", "candidates() must return available"),
    (OneTooFew, "the right number", "must return"),
    (CountsSelections, "select() changes nothing", "to_state() is another one"),
    (SpoilsItsInput, "select() changes nothing", "changed tau_hat_s"),
    (SpoilsOutcomes, "observe() changes no outcome", "changed is_aggregated"),
    (OwnDice, "the same streams, the same choice", "must select the same"),
    (Forgets, "a checkpoint has the same future", "must bring back the future"),
    (ArrayState, "a checkpoint has the same future", "raised TypeError"),
    (FixedFleet, "the fleet may grow", "raised ValueError"),
    (NeedsSomebody, "nobody available", "raised ValueError"),
    (OwnsItsQueues, "queues are finite and a copy", "must return a copy"),
    (TakesNan, "estimates that are not numbers", "raised RuntimeError: what is this"),
    (AsksAndBelieves, "losses that are not numbers", "is not available"),
    (LowestRowFirst, "ties are broken by chance, not by row", "must be selected alike"),
    (LikesRowZero, "rows do not matter", "must be selected as often"),
]


@pytest.mark.parametrize(("make", "property_", "why"), BROKEN)
def test_who_breaks_a_property_is_told_how(
    make: Callable[[], Honest], property_: str, why: str
) -> None:
    finding = check_property(property_, make, time.perf_counter)
    assert not finding.is_ok
    assert why in finding.found


def test_the_honest_one_keeps_all_of_it() -> None:
    found = list(check_selector(Honest, time.perf_counter))
    assert [finding.name for finding in found] == list(PROPERTIES)
    assert [finding for finding in found if not finding.is_ok] == []


def test_who_is_slow_breaks_the_last_property() -> None:
    ticks = iter(range(99))
    finding = check_property("quick enough", Honest, lambda: float(2 * next(ticks)))
    assert not finding.is_ok
    assert "must take at most 1.0 s, got 2.00" in finding.found


def test_every_property_is_broken_by_somebody() -> None:
    assert {property_ for _, property_, _ in BROKEN} | {"quick enough"} == set(PROPERTIES)
