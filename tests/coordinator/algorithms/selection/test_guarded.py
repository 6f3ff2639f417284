"""A faulty plug-in selector: each violation of the contract is one line that names it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.algorithms.selection.base import Candidates, Sample, TwoStepSelector
from fairbed.coordinator.algorithms.selection.explanation import Explanation
from fairbed.coordinator.algorithms.selection.guarded import GuardedSelector, guarded
from fairbed.wire.plugins import PluginError
from tests.coordinator.algorithms.selection.fleet import fleet, outcomes


class FakePlugin:
    """Returns given values."""

    def __init__(self, returned: Callable[[Candidates], Any]) -> None:
        self._returned = returned
        self.state: Any = {}
        self.virtual_queues: Any = np.zeros(4)

    def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> Any:
        return self._returned(candidates)

    def observe(self, outcomes: object) -> None:
        raise KeyError("no\nsuch key")

    def queues(self, n: int) -> Any:
        return self.virtual_queues

    def to_state(self) -> Any:
        return self.state

    def load_state(self, state: dict[str, Any]) -> None:
        if state:
            raise TypeError("written by another version")


def select(returned: object, k: int = 2) -> list[int]:
    plugin = guarded("my.mod:Policy", FakePlugin(lambda candidates: returned))
    rows = plugin.select(fleet([1.0] * 4, absent=[3]), k, np.random.default_rng(0))
    return [int(row) for row in rows]


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (np.array([0, 1, 2]), "must return at most 2 devices, got 3"),
        (np.array([1, 1]), "must return each row once, got 1 twice"),
        (np.array([0, 4]), "must return rows in 0..3, got 4"),
        (np.array([-1]), "must return rows in 0..3, got -1"),
        (np.array([3]), "must return available devices, got row 3"),
        (np.array([0.0, 1.0]), r"integers of shape \(K,\), got float64 of shape \(2,\)"),
        (np.array([[0, 1]]), r"integers of shape \(K,\), got int64 of shape \(1, 2\)"),
        (np.array([True, False]), r"integers of shape \(K,\), got bool of shape \(2,\)"),
        ([0, 1], r"integers of shape \(K,\), got list"),
        (None, r"integers of shape \(K,\), got NoneType"),
    ],
)
def test_a_result_that_is_no_cohort_is_refused_by_name(returned: object, why: str) -> None:
    with pytest.raises(PluginError, match=why) as caught:
        select(returned)
    line = str(caught.value)
    assert line.startswith("selector my.mod:Policy: select() of round 1 must")
    assert "\n" not in line


@pytest.mark.parametrize("returned", [[], [2], [2, 0]])
def test_a_cohort_may_be_small_and_in_any_order_and_of_any_whole_type(returned: list[int]) -> None:
    assert select(np.array(returned, dtype=np.int32)) == sorted(returned)
    assert select(np.array(returned, dtype=np.uint8)) == sorted(returned)


def test_an_exception_of_a_plugin_is_one_line() -> None:
    def stumble(candidates: Candidates) -> object:
        raise RuntimeError("out of\nmemory")

    plugin = guarded("pick", FakePlugin(stumble))
    with pytest.raises(PluginError, match="must not raise, got RuntimeError: out of memory"):
        plugin.select(fleet([1.0]), 1, np.random.default_rng(0))
    with pytest.raises(PluginError, match=r"observe\(\) of round 7 must not raise, got KeyError"):
        plugin.observe(outcomes(1, [0], round_id=7))
    with pytest.raises(PluginError, match=r"load_state\(\) must not raise, got TypeError"):
        plugin.load_state({"version": 2})


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ([1, 2], "must return a dict, got list"),
        ({"z": np.zeros(3)}, "must be plain numbers and lists"),
        ({"f": len}, "must be plain numbers and lists"),
    ],
)
def test_a_state_that_no_checkpoint_holds_is_refused(state: object, why: str) -> None:
    plugin = FakePlugin(lambda candidates: None)
    plugin.state = state
    with pytest.raises(PluginError, match=rf"pick: to_state\(\) {why}"):
        guarded("pick", plugin).to_state()


@pytest.mark.parametrize(
    ("queues", "why"),
    [
        (np.zeros(3), r"must return numbers of shape \(4,\), got float64 of shape \(3,\)"),
        ([0.0] * 4, r"must return numbers of shape \(4,\), got list"),
        (np.array(["a"] * 4), r"must return numbers of shape \(4,\), got <U1 of shape"),
        (np.array([0.0, np.nan, 0.0, 0.0]), "must return finite numbers, got nan at 1"),
    ],
)
def test_queues_that_are_not_finite_numbers_are_refused(queues: object, why: str) -> None:
    plugin = FakePlugin(lambda candidates: None)
    plugin.virtual_queues = queues
    with pytest.raises(PluginError, match=rf"queues\(\) {why}"):
        guarded("pick", plugin).queues(4)


def test_a_plugin_that_lacks_a_method_is_refused_at_once() -> None:
    class OnlySelects:
        def select(self, candidates: Candidates, k: int, rng: np.random.Generator) -> None: ...

    with pytest.raises(PluginError, match="but lacks observe, queues, to_state, load_state"):
        guarded("pick", OnlySelects())  # type: ignore[arg-type]  # that is the point


class FakeTwoStep(FakePlugin):
    sample: Sample = "all"

    def candidates(self, fleet: Candidates, k: int, rng: np.random.Generator) -> Any:
        return self._returned(fleet)


def test_a_two_step_plugin_is_a_guarded_two_step_selector() -> None:
    two_step = guarded("pick", FakeTwoStep(lambda fleet: np.array([2, 0])))
    plain = guarded("pick", FakePlugin(lambda fleet: np.array([0])))
    assert isinstance(two_step, TwoStepSelector)
    assert not isinstance(plain, TwoStepSelector)
    assert isinstance(plain, GuardedSelector)
    assert two_step.candidates(fleet([1.0] * 3), 1, np.random.default_rng(0)).tolist() == [0, 2]


def test_the_rows_to_query_are_checked() -> None:
    two_step = guarded("pick", FakeTwoStep(lambda fleet: np.array([0, 0])))
    assert isinstance(two_step, TwoStepSelector)
    with pytest.raises(PluginError, match=r"candidates\(\) of round 1 must return each row once"):
        two_step.candidates(fleet([1.0] * 3), 1, np.random.default_rng(0))
    odd = FakeTwoStep(lambda fleet: np.array([0]))
    odd.sample = "some"  # type: ignore[assignment]  # that is the point
    with pytest.raises(PluginError, match="sample must be 'all' or 'batch', got 'some'"):
        guarded("pick", odd)


def test_a_plugin_that_contains_another_one_passes_its_error_on() -> None:
    inner = guarded("inner", FakePlugin(lambda candidates: None))
    outer = guarded("outer", inner)
    with pytest.raises(PluginError, match=r"^selector inner: select"):
        outer.select(fleet([1.0]), 1, np.random.default_rng(0))


class ExplainingPlugin(FakePlugin):
    """Explains its choice with a given value."""

    def explain(
        self, candidates: Candidates, chosen: object, k: int, rng: np.random.Generator
    ) -> Any:
        return self._returned(candidates)


def explanation_of(returned: object) -> Explanation | None:
    plugin = guarded("my.mod:Policy", ExplainingPlugin(lambda candidates: returned))
    return plugin.explain(fleet([1.0] * 4), np.array([0]), 1, np.random.default_rng(0))


def test_a_plugin_may_explain_its_choice() -> None:
    why = Explanation(np.zeros(4, dtype=np.int64), np.ones(4), np.full(4, np.nan))
    found = explanation_of(why)
    assert found is not None
    assert (found.score.tolist(), found.reason.tolist()) == ([1.0] * 4, [0] * 4)
    assert explanation_of(None) is None
    silent = guarded("my.mod:Policy", FakePlugin(lambda candidates: None))
    assert silent.explain(fleet([1.0]), np.array([0]), 1, np.random.default_rng(0)) is None


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (0.5, "must return an Explanation or None, got float"),
        (
            Explanation(np.zeros(4, dtype=np.int64), np.ones(3), np.ones(4)),
            r"must return a score for each device, \(4,\), got float64 of shape \(3,\)",
        ),
        (
            Explanation(np.array([0, 1, 2, 99]), np.ones(4), np.ones(4)),
            "must return reasons from 0 to 20, got 99",
        ),
    ],
)
def test_an_explanation_that_is_none_is_refused_by_name(returned: object, why: str) -> None:
    with pytest.raises(PluginError, match=why) as caught:
        explanation_of(returned)
    assert str(caught.value).startswith("selector my.mod:Policy: explain() of round 1 must")
