"""A faulty selector for each property of the contract, and the finding about it."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.contract import check_contract, check_property
from fairbed.coordinator.algorithms.selection.base import Candidates, Outcomes, Reason, Sample
from fairbed.coordinator.algorithms.selection.contract import NO_REASONS, PROPERTIES
from fairbed.coordinator.algorithms.selection.explanation import Explanation


class Honest:
    """A correct uniform draw; each class below adds one fault."""

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
    """Its selection depends on the number of rounds, which its state lacks."""

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


class NeedsOneAvailable(Honest):
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
    """Uniform if all devices are equal, otherwise it prefers row 0."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        rows = super().select(candidates, k, rng)
        is_flat = bool(np.ptp(candidates.tau_hat_s) == 0.0) if len(candidates.tau_hat_s) else True
        if is_flat or not rows.size or not candidates.is_available[0] or 0 in rows:
            return rows
        return np.sort(np.concatenate([[0], rows[1:]]))


class ReturnsList(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Any:
        return super().select(candidates, k, rng).tolist()


class SelectsTwice(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        rows = super().select(candidates, k, rng)
        return np.concatenate([rows, rows])


class SelectsAll(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        return np.flatnonzero(candidates.is_available)


class NeverEmpty(Honest):
    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        rows = super().select(candidates, k, rng)
        return rows if rows.size else np.zeros(1, dtype=np.int64)


class NegativeQueues(Honest):
    def queues(self, n: int) -> Floats:
        return np.full(n, -1.0)


class IgnoresLosses(Honest):
    sample: Sample = "all"

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        return np.flatnonzero(fleet.is_available).astype(np.int64)


class QueriesAbsent(IgnoresLosses):
    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Ints:
        return np.arange(len(fleet.is_available), dtype=np.int64)


class NeedsNoLoss(IgnoresLosses):
    """It leaves out devices without a loss, unless no device has one."""

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Ints:
        assert candidates.loss is not None
        has_loss = np.isfinite(candidates.loss)
        known = replace(candidates, is_available=candidates.is_available & has_loss)
        return super().select(known if has_loss.any() else candidates, k, rng)


class SwapsReasons(Honest):
    """It calls the devices in its cohort outranked, and the others ranked."""

    reasons = Reason.OUTRANKED, Reason.RANKED
    margin = 0.0

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> Explanation | None:
        n = len(candidates.is_available)
        inside, outside = self.reasons
        reason = np.where(np.isin(np.arange(n), chosen), inside, outside)
        return Explanation(reason, np.zeros(n), np.full(n, self.margin))


class NegativeMargins(SwapsReasons):
    reasons = Reason.RANKED, Reason.OUTRANKED
    margin = -1.0


class CountsExplanations(SwapsReasons):
    reasons = Reason.RANKED, Reason.OUTRANKED

    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> Explanation | None:
        self.rounds += 1
        return super().explain(candidates, chosen, k, rng)


class ExplainsNothing(Honest):
    def explain(
        self, candidates: Candidates, chosen: Ints, k: int, rng: np.random.Generator
    ) -> Explanation | None:
        return None


BROKEN: list[tuple[Callable[[], Honest], str, str]] = [
    (DrawsFromAll, "only available devices, each once", "must return available rows"),
    (QueriesAbsent, "only available devices, each once", "candidates() must return available"),
    (ReturnsList, "only available devices, each once", "must return int64 of shape (K,)"),
    (SelectsTwice, "only available devices, each once", "must return each row once"),
    (SelectsAll, "only available devices, each once", "must return at most"),
    (OneTooFew, "the right number", "must return"),
    (CountsSelections, "select() changes nothing", "to_state() differs after it"),
    (SpoilsItsInput, "select() changes nothing", "changed tau_hat_s"),
    (SwapsReasons, "explain() agrees with select()", "in the cohort, got"),
    (CountsExplanations, "explain() agrees with select()", "explain() must change no state"),
    (NegativeMargins, "explain() agrees with select()", "must return margins >= 0, got -1"),
    (SpoilsOutcomes, "observe() changes no outcome", "changed is_aggregated"),
    (OwnDice, "the same streams, the same selection", "must select the same rows"),
    (Forgets, "a restored selector selects the same", "after load_state() the selector must"),
    (ArrayState, "a restored selector selects the same", "raised TypeError"),
    (FixedFleet, "the fleet may grow", "raised ValueError"),
    (NeedsOneAvailable, "no device available", "raised ValueError"),
    (NeverEmpty, "no device available", "so no row may be selected"),
    (NegativeQueues, "queues are finite and a copy", "must be 5 finite numbers >= 0"),
    (OwnsItsQueues, "queues are finite and a copy", "must return a copy"),
    (TakesNan, "estimates that are not finite", "raised RuntimeError: what is this"),
    (IgnoresLosses, "losses that are not finite", "without a finite loss must not be selected"),
    (NeedsNoLoss, "losses that are not finite", "no device reported a loss"),
    (LowestRowFirst, "ties are broken at random, not by row", "must be selected equally often"),
    (LikesRowZero, "the order of rows has no effect", "must be selected as often"),
]


@pytest.mark.parametrize(("make", "property_", "why"), BROKEN)
def test_a_violated_property_is_found_with_its_reason(
    make: Callable[[], Honest], property_: str, why: str
) -> None:
    finding = check_property(PROPERTIES, property_, make, time.perf_counter)
    assert not finding.is_ok
    assert why in finding.found


def test_a_correct_selector_has_every_property() -> None:
    found = list(check_contract(PROPERTIES, Honest, time.perf_counter))
    assert [finding.name for finding in found] == list(PROPERTIES)
    assert [finding for finding in found if not finding.is_ok] == []


def test_a_selector_may_explain_nothing() -> None:
    for make in (Honest, ExplainsNothing):
        property_ = "explain() agrees with select()"
        finding = check_property(PROPERTIES, property_, make, time.perf_counter)
        assert (finding.is_ok, finding.found) == (True, NO_REASONS)


def test_a_slow_selector_violates_the_last_property() -> None:
    ticks = iter(range(99))
    finding = check_property(
        PROPERTIES, "a round is fast enough", Honest, lambda: float(2 * next(ticks))
    )
    assert not finding.is_ok
    assert "must take at most 1.0 s, got 2.00" in finding.found


def test_every_property_has_a_selector_that_violates_it() -> None:
    violated = {property_ for _, property_, _ in BROKEN} | {"a round is fast enough"}
    assert violated == set(PROPERTIES)
