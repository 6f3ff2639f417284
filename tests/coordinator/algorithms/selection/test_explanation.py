"""Explanations of selections: by hand, against every exchange tried one by one, and per policy."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.selection.base import WORDS, Candidates, Reason
from fairbed.coordinator.algorithms.selection.explanation import (
    ExplainingSelector,
    Explanation,
    exchanges,
)
from fairbed.coordinator.algorithms.selection.fedcs import FedCs
from fairbed.coordinator.algorithms.selection.oort import Oort, OortSettings
from fairbed.coordinator.algorithms.selection.oracle import Fastest, OracleTimes
from fairbed.coordinator.algorithms.selection.pow_d import PowD
from fairbed.coordinator.algorithms.selection.power_of_choice import PowerOfChoice
from fairbed.coordinator.algorithms.selection.rbcs_f import RbcsF, solve_p4
from fairbed.coordinator.algorithms.selection.uniform import Uniform
from fairbed.coordinator.algorithms.selection.weighted import Weighted
from fairbed.examples.longest_waiting import LongestWaiting
from tests.coordinator.algorithms.selection.fleet import fleet, outcomes
from tests.strategies import P4Instance, p4_instances
from tests.tiers import examples


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def explained(
    selector: ExplainingSelector, at: Candidates, k: int, seed: int = 0
) -> tuple[list[int], Explanation]:
    chosen = selector.select(at, k, stream(seed))
    why = selector.explain(at, chosen, k, stream(seed))
    assert why is not None
    return chosen.tolist(), why


def words(why: Explanation) -> list[str]:
    return WORDS[why.reason].tolist()  # type: ignore[no-any-return]  # numpy: object elements


def objective(x: P4Instance, chosen: set[int]) -> float:
    at = sorted(chosen)
    return float(x.V * x.tau_bar_s[at].max() - x.queues[at].sum())


@settings(max_examples=examples(300))
@given(p4_instances())
def test_margins_are_those_of_every_exchange_tried_one_by_one(x: P4Instance) -> None:
    chosen = set(solve_p4(x.tau_bar_s, x.queues, x.k, x.V).tolist())
    n = len(x.queues)
    found = exchanges(x.V * x.tau_bar_s, x.queues, np.isin(np.arange(n), sorted(chosen)))
    best = objective(x, chosen)
    raised = {
        (r, j): objective(x, chosen - {r} | {j}) - best
        for r in chosen
        for j in set(range(n)) - chosen
    }
    assert found.objective == pytest.approx(best, abs=1e-9)
    if not raised:
        assert (found.alternative, found.best) == (None, None)
        assert np.isnan(found.margin).all()
        return
    assert min(raised.values()) >= -1e-9  # no exchange is better than the best cohort
    for device in range(n):
        of_device = min(d for pair, d in raised.items() if device in pair)
        assert found.margin[device] == pytest.approx(of_device, abs=1e-9)
    assert found.best is not None
    assert raised[found.best] == pytest.approx(min(raised.values()), abs=1e-9)
    assert found.alternative == pytest.approx(best + min(raised.values()), abs=1e-9)


def with_queues(queues: list[float], V: float) -> RbcsF:
    selector = RbcsF(beta=0.15, V=V)
    n = len(queues)
    state = dict.fromkeys(("selected", "aggregated", "rounds", "failures"), [0] * n)
    selector.load_state({"queues": queues, **state})
    return selector


@pytest.mark.parametrize(
    ("V", "last_queue", "cohort", "value"),
    [
        (1.0, 2.5, [2, 3], 0.9),
        (1.0, 1.0, [0, 1], 1.7),
        (10.0, 2.5, [0, 1], 19.7),
        (0.0, 2.5, [2, 3], -3.1),
    ],
)
def test_the_objective_is_that_of_the_specification(
    V: float, last_queue: float, cohort: list[int], value: float
) -> None:
    """spec/algorithms.md, section 1.2, the examples of P4."""
    selector = with_queues([0.0, 0.3, 0.6, last_queue], V)
    chosen, why = explained(selector, fleet([1.0, 2.0, 3.0, 4.0]), 2)
    assert chosen == cohort
    assert why.objective == pytest.approx(value, abs=1e-6)


def test_rbcs_f_by_hand() -> None:
    """V = 10: with device 2 for 0 the round takes 30, queues 0.3 + 0.6: 29.1 for 19.7."""
    selector = with_queues([0.0, 0.3, 0.6, 2.5], 10.0)
    _, why = explained(selector, fleet([1.0, 2.0, 3.0, 4.0]), 2)
    assert words(why) == ["ranked", "ranked", "outranked", "outranked"]
    assert why.score.tolist() == pytest.approx([10.0, 19.7, 29.4, 37.5])
    assert why.alternative == pytest.approx(29.1)
    assert why.exchange == (0, 2)
    # Without 0: 2 enters, 30 - 0.9. Without 1: 2 enters, 30 - 0.6. With 3 for 0: 40 - 2.8.
    assert why.margin.tolist() == pytest.approx([9.4, 9.7, 9.4, 17.5])


def test_a_cohort_of_all_candidates_has_no_alternative() -> None:
    selector = with_queues([0.0, 0.3, 0.6, 2.5], 10.0)
    chosen, why = explained(selector, fleet([1.0, 2.0, 3.0, 4.0], absent=[1, 3]), 2)
    assert chosen == [0, 2]
    assert why.objective == pytest.approx(29.4)
    assert (why.alternative, why.exchange) == (None, None)
    assert [words(why)[row] for row in chosen] == ["needed", "needed"]


def test_a_random_draw_has_a_probability_and_no_objective() -> None:
    chosen, why = explained(Uniform(), fleet([1.0] * 5, absent=[4]), 2)
    assert why.score[:4].tolist() == [0.5] * 4
    assert sorted(words(why)[:4]) == ["drawn", "drawn", "not drawn", "not drawn"]
    assert [words(why)[row] for row in chosen] == ["drawn", "drawn"]
    assert why.objective is None
    _, why = explained(Weighted([3.0, 1.0, 0.0, 4.0]), fleet([1.0] * 4, absent=[3]), 1)
    assert why.score[:3].tolist() == [0.75, 0.25, 0.0]


def test_fedcs_states_the_seconds_beyond_the_deadline() -> None:
    chosen, why = explained(FedCs(deadline_s=3.0), fleet([1.0, 2.5, 2.0, 4.2]), 2)
    assert chosen == [0, 2]
    assert words(why) == ["ranked", "outranked", "ranked", "over deadline"]
    assert why.margin[[1, 3]].tolist() == pytest.approx([0.5, 1.2])
    assert (why.objective, why.alternative, why.exchange) == (2.0, 2.5, (2, 1))


def test_fedcs_explains_the_fastest_device_where_none_meets_the_deadline() -> None:
    both: tuple[Literal["parallel", "sequential"], ...] = ("parallel", "sequential")
    for uploads in both:
        selector = FedCs(deadline_s=0.5, uploads=uploads)
        chosen, why = explained(selector, fleet([1.0, 2.5, 2.0]), 2)
        assert chosen == [0]
        assert words(why) == ["fallback", "over deadline", "over deadline"]
        assert why.margin[1:].tolist() == pytest.approx([2.0, 1.5])


def test_fedcs_with_sequential_uploads_by_hand() -> None:
    """Transfers of 1 s each way after 1, 2 and 3 s of training: rounds end at 3, 4 and 5 s."""
    selector = FedCs(deadline_s=4.5, uploads="sequential")
    at = fleet([3.0, 4.0, 5.0, 9.0], transfer_s=[2.0] * 4)
    chosen, why = explained(selector, at, 3)
    assert chosen == [0, 1]
    assert why.objective == pytest.approx(4.0)
    assert words(why) == ["needed", "needed", "over deadline", "over deadline"]
    assert why.margin[2:].tolist() == pytest.approx([0.5, 4.5])
    chosen, why = explained(FedCs(deadline_s=6.0, uploads="sequential"), at, 2)
    assert chosen == [0, 1]
    assert words(why) == ["ranked", "ranked", "outranked", "over deadline"]
    assert why.alternative == pytest.approx(5.0)
    assert why.exchange == (1, 2)


def test_rpow_d_tells_a_small_loss_from_a_device_that_was_not_drawn() -> None:
    selector = PowerOfChoice(candidates=3)
    selector.observe(outcomes(5, [0, 1, 2, 3, 4], loss=[0.1, 0.2, 0.3, 0.4, 0.5]))
    chosen, why = explained(selector, fleet([1.0] * 5), 2)
    by_reason = {word: words(why).count(word) for word in set(words(why))}
    assert by_reason == {"ranked": 2, "outranked": 1, "not drawn": 2}
    out = words(why).index("outranked")
    worst = min(chosen)  # losses grow with the row
    assert why.margin[out] == pytest.approx(0.1 * (worst - out))
    assert why.objective == pytest.approx(0.1 * (sum(chosen) + 2))
    assert why.exchange == (worst, out)


def test_rpow_d_has_no_objective_while_devices_are_tried_first() -> None:
    selector = PowerOfChoice(candidates=4)
    selector.observe(outcomes(4, [0, 1], loss=[0.5, 0.6, 0.0, 0.0]))
    chosen, why = explained(selector, fleet([1.0] * 4), 3)
    assert {2, 3} <= set(chosen)
    assert why.objective is None
    assert np.isnan(why.score[2:]).all()


def test_pow_d_ranks_by_the_queried_losses() -> None:
    at = fleet([1.0] * 4)
    at = Candidates(
        round=1,
        is_available=at.is_available,
        tau_hat_s=at.tau_hat_s,
        width_s=at.width_s,
        transfer_hat_s=at.transfer_hat_s,
        n_k=at.n_k,
        loss=np.array([2.0, 1.5, np.nan, 0.5]),
    )
    chosen, why = explained(PowD(candidates=3), at, 1)
    assert chosen == [0]
    assert words(why) == ["ranked", "outranked", "not drawn", "outranked"]
    assert why.margin[[0, 1, 3]].tolist() == pytest.approx([0.5, 0.5, 1.5])
    assert (why.objective, why.alternative, why.exchange) == (2.0, 1.5, (0, 1))


def test_pow_d_explains_nothing_without_losses() -> None:
    chosen = np.array([0], dtype=np.int64)
    assert PowD(candidates=3).explain(fleet([1.0] * 4), chosen, 1, stream()) is None


def test_true_times_explain_what_the_policy_explains() -> None:
    at = replace(fleet([2.0, 1.0]), true_tau_s=np.array([1.0, 2.0]))
    chosen, why = explained(OracleTimes(Fastest()), at, 1)
    assert (chosen, why.score.tolist()) == ([0], [1.0, 2.0])
    silent = OracleTimes(LongestWaiting())
    assert silent.explain(at, np.array([0], dtype=np.int64), 1, stream()) is None


def test_oort_states_the_distance_from_the_cut_off() -> None:
    never = OortSettings(exploration=0.0, exploration_min=0.0)
    selector = Oort(never)
    n = 6
    selector.observe(outcomes(n, [0, 1, 2, 3, 4], loss=[5.0, 5.0, 4.9, 0.1, 0.2, 0.0]))
    at = fleet([1.0] * n, round_id=2)
    chosen, why = explained(selector, at, 2)
    assert set(chosen) <= {0, 1, 2}
    assert words(why)[3:] == ["outranked", "outranked", "not drawn"]
    rows: Ints = np.arange(5)
    score = selector.score(rows, 2)
    assert why.score[:5].tolist() == score.tolist()
    cut_off = 0.95 * np.sort(score)[::-1][2]
    assert why.margin[3] == pytest.approx(cut_off - score[3])
    assert np.isnan(why.score[5])


def test_oort_names_the_devices_that_it_tries() -> None:
    selector = Oort(OortSettings(exploration=1.0, exploration_decay=1.0))
    chosen, why = explained(selector, fleet([1.0] * 4), 2)
    assert [words(why)[row] for row in chosen] == ["explored", "explored"]


def test_every_reason_has_a_word_of_its_own() -> None:
    assert len(set(WORDS)) == len(Reason)
    assert WORDS[Reason.OVER_DEADLINE] == "over deadline"
