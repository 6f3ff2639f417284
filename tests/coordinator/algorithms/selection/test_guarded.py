"""A stranger's selector: each way to break the contract is one line that names it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.selection.base import Candidates, Sample, TwoStepSelector
from fairbed.coordinator.algorithms.selection.guarded import GuardedSelector, PluginError, guarded
from tests.coordinator.algorithms.selection.fleet import fleet, outcomes


class Stranger:
    """Answers what it is told to."""

    def __init__(self, says: Callable[[Candidates], Any]) -> None:
        self._says = says
        self.state: Any = {}
        self.debts: Any = np.zeros(4)

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Any:
        return self._says(candidates)

    def observe(self, outcomes: object) -> None:
        raise KeyError("no\nsuch key")

    def queues(self, n: int) -> Any:
        return self.debts

    def to_state(self) -> Any:
        return self.state

    def load_state(self, state: dict[str, Any]) -> None:
        raise TypeError("written by another version")


def select(said: object, k: int = 2) -> list[int]:
    stranger = guarded("my.mod:Policy", Stranger(lambda candidates: said))
    rows = stranger.select(fleet([1.0] * 4, absent=[3]), k, np.random.default_rng(0))
    return [int(row) for row in rows]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (np.array([0, 1, 2]), "must return at most 2 devices, got 3"),
        (np.array([1, 1]), "must return each row once, got 1 twice"),
        (np.array([0, 4]), "must return rows in 0..3, got 4"),
        (np.array([-1]), "must return rows in 0..3, got -1"),
        (np.array([3]), "must return available devices, got row 3"),
        (np.array([0.0, 1.0]), r"integers of shape \(K,\), got float64 \(2,\)"),
        (np.array([[0, 1]]), r"integers of shape \(K,\), got int64 \(1, 2\)"),
        (np.array([True, False]), r"integers of shape \(K,\), got bool \(2,\)"),
        ([0, 1], r"integers of shape \(K,\), got <class 'list'>"),
        (None, r"integers of shape \(K,\), got <class 'NoneType'>"),
    ],
)
def test_what_cannot_be_a_cohort_is_refused_by_name(said: object, why: str) -> None:
    with pytest.raises(PluginError, match=why) as caught:
        select(said)
    line = str(caught.value)
    assert line.startswith("selector my.mod:Policy: select() of round 1 must")
    assert "\n" not in line


@pytest.mark.parametrize("said", [[], [2], [2, 0]])
def test_a_cohort_may_be_small_and_in_any_order_and_of_any_whole_type(said: list[int]) -> None:
    assert select(np.array(said, dtype=np.int32)) == sorted(said)
    assert select(np.array(said, dtype=np.uint8)) == sorted(said)


def test_whatever_it_raises_is_one_line() -> None:
    def stumble(candidates: Candidates) -> object:
        raise RuntimeError("out of\nluck")

    stranger = guarded("pick", Stranger(stumble))
    with pytest.raises(PluginError, match="must not raise, got RuntimeError: out of luck"):
        stranger.select(fleet([1.0]), 1, np.random.default_rng(0))
    with pytest.raises(PluginError, match=r"observe\(\) of round 7 must not raise, got KeyError"):
        stranger.observe(outcomes(1, [0], round_id=7))
    with pytest.raises(PluginError, match=r"load_state\(\) must not raise, got TypeError"):
        stranger.load_state({})


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ([1, 2], "must return a dict, got list"),
        ({"z": np.zeros(3)}, "must be plain numbers and lists"),
        ({"f": len}, "must be plain numbers and lists"),
    ],
)
def test_a_state_that_no_checkpoint_holds_is_refused(state: object, why: str) -> None:
    stranger = Stranger(lambda candidates: None)
    stranger.state = state
    with pytest.raises(PluginError, match=rf"pick: to_state\(\) {why}"):
        guarded("pick", stranger).to_state()


@pytest.mark.parametrize(
    ("debts", "why"),
    [
        (np.zeros(3), r"must return 4 numbers, got \(3,\)"),
        ([0.0] * 4, "must return 4 numbers, got list"),
        (np.array(["a"] * 4), "must return 4 numbers"),
        (np.array([0.0, np.nan, 0.0, 0.0]), "must return finite numbers"),
    ],
)
def test_debts_that_are_none_are_refused(debts: object, why: str) -> None:
    stranger = Stranger(lambda candidates: None)
    stranger.debts = debts
    with pytest.raises(PluginError, match=rf"queues\(\) {why}"):
        guarded("pick", stranger).queues(4)


def test_one_that_lacks_a_verb_is_refused_at_once() -> None:
    class OnlySelects:
        def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> None: ...

    with pytest.raises(PluginError, match="got none of observe, queues, to_state, load_state"):
        guarded("pick", OnlySelects())  # type: ignore[arg-type]  # that is the point


class Asker(Stranger):
    sample: Sample = "all"

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Any:
        return self._says(fleet)


def test_one_that_asks_is_one_that_asks_under_guard_too() -> None:
    asker = guarded("pick", Asker(lambda fleet: np.array([2, 0])))
    plain = guarded("pick", Stranger(lambda fleet: np.array([0])))
    assert isinstance(asker, TwoStepSelector)
    assert not isinstance(plain, TwoStepSelector)
    assert isinstance(plain, GuardedSelector)
    assert asker.candidates(fleet([1.0] * 3), 1, np.random.default_rng(0)).tolist() == [0, 2]


def test_whom_it_asks_is_looked_at_as_well() -> None:
    asker = guarded("pick", Asker(lambda fleet: np.array([0, 0])))
    assert isinstance(asker, TwoStepSelector)
    with pytest.raises(PluginError, match=r"candidates\(\) of round 1 must return each row once"):
        asker.candidates(fleet([1.0] * 3), 1, np.random.default_rng(0))
    odd = Asker(lambda fleet: np.array([0]))
    odd.sample = "some"  # type: ignore[assignment]  # that is the point
    with pytest.raises(PluginError, match="sample must be 'all' or 'batch', got 'some'"):
        guarded("pick", odd)
