"""RBCS-F: bounds, queues and the guarantee, with worked examples."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.fairness import rate_slack
from fairbed.coordinator.algorithms.selection.rbcs_f import RbcsF, TheoryAlpha
from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.coordinator.policy.factories import make_selector
from tests.coordinator.algorithms.selection.fleet import fleet, outcomes

BETA = 0.15


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def with_queues(selector: RbcsF, queues: list[float]) -> RbcsF:
    n = len(queues)
    counts = {name: [0] * n for name in ("selected", "aggregated", "rounds", "failures")}
    selector.load_state({"queues": queues, **counts})
    return selector


@pytest.mark.parametrize(
    ("V", "queues", "absent", "expected"),
    [
        (1.0, [0.0, 0.3, 0.6, 2.5], [], [2, 3]),
        (10.0, [0.0, 0.3, 0.6, 2.5], [], [0, 1]),
        (10.0, [0.0, 0.3, 0.6, 2.5], [1], [0, 2]),
        (10.0, [0.0, 0.3, 0.6, 2.5], [0, 1, 3], [2]),
    ],
)
def test_worked_examples_of_the_selection(
    V: float, queues: list[float], absent: list[int], expected: list[int]
) -> None:
    selector = with_queues(RbcsF(beta=BETA, V=V), queues)
    candidates = fleet([1.0, 2.0, 3.0, 4.0], absent=absent)
    assert selector.select(candidates, 2, rng()).tolist() == expected


def test_worked_example_of_the_queue() -> None:
    selector, seen = RbcsF(beta=BETA, V=1.0), []
    for x in (0, 0, 1, 0, 0, 0, 0, 1):
        selector.observe(outcomes(1, [0] if x else []))
        seen.append(float(selector.queues(1)[0]))
    assert seen == pytest.approx([0.15, 0.30, 0.0, 0.15, 0.30, 0.45, 0.60, 0.0])


def test_the_queue_of_an_absent_device_grows_too() -> None:
    selector = RbcsF(beta=BETA, V=1.0)
    rows = selector.select(fleet([1.0, 1.0], absent=[1]), 2, rng())
    selector.observe(outcomes(2, rows.tolist()))
    assert selector.queues(2).tolist() == [0.0, BETA]


def test_a_device_that_joins_late_starts_with_an_empty_queue() -> None:
    selector = RbcsF(beta=BETA, V=1.0)
    for _ in range(4):
        selector.observe(outcomes(1, []))
    selector.observe(outcomes(2, []))
    assert selector.queues(3) == pytest.approx([5 * BETA, BETA, 0.0])
    assert selector.to_state()["rounds"] == [5, 1]


def test_the_bound_is_a_lower_one_and_floored_at_zero() -> None:
    """Uncertainty makes a device look faster, never slower, and never below 0 s."""
    uncertain = fleet([2.0, 2.0, 2.0], width_s=[0.0, 1.0, 0.0])
    assert RbcsF(beta=0.0, V=1.0, alpha=0.5).select(uncertain, 1, rng()).tolist() == [1]
    contexts = fleet([0.0, 0.0], width_s=[1.0, 5.0])
    floored = {int(RbcsF(beta=0.0, V=1.0).select(contexts, 1, rng(s))[0]) for s in range(20)}
    unbounded = {
        int(RbcsF(beta=0.0, V=1.0, lcb_floor_s=None).select(contexts, 1, rng(s))[0])
        for s in range(20)
    }
    assert floored == {0, 1}, "both count as 0 s: a random draw decides"
    assert unbounded == {1}, "pure optimism: the slower context looks faster"


def test_the_configuration_names_the_papers_form_without_a_floor() -> None:
    contexts = fleet([0.0, 0.0], width_s=[1.0, 5.0])
    for floor, rows in (("none", {1}), (0.0, {0, 1}), (-0.3, {1}), (-0.05, {0, 1})):
        raw = {"policy": "rbcs-f", "beta": 0.0, "V": 1.0, "lcb_floor": floor}
        selector = make_selector(msgspec.convert(raw, SelectionConfig))
        assert {int(selector.select(contexts, 1, rng(s))[0]) for s in range(20)} == rows
    with pytest.raises(msgspec.ValidationError, match="lcb_floor"):
        msgspec.convert({"lcb_floor": "None"}, SelectionConfig)


def test_the_theory_schedule_follows_its_formula() -> None:
    theory = TheoryAlpha(ridge_lambda=2.0, noise_s=0.3, context_norm=1.5, theta_norm=4.0, delta=0.1)
    radius = 0.3 * math.sqrt(3 * math.log((1 + 7 * 1.5**2 / 2.0) / 0.1))
    assert theory.at(7) == pytest.approx(radius + math.sqrt(2.0) * 4.0)
    assert theory.at(100) > theory.at(10)
    selector = RbcsF(beta=0.0, V=1.0, alpha=TheoryAlpha(noise_s=0.1, theta_norm=1.0))
    tight_and_loose = fleet([3.0, 4.0], width_s=[0.0, 1.0], round_id=10)
    assert selector.select(tight_and_loose, 1, rng()).tolist() == [1]


def test_counting_aggregated_updates_keeps_the_queue_of_a_failure() -> None:
    paper, strict = RbcsF(beta=BETA, V=1.0), RbcsF(beta=BETA, V=1.0, counts="aggregated")
    for selector in (paper, strict):
        selector.observe(outcomes(2, [0, 1], merged=[0]))
    assert paper.queues(2).tolist() == [0.0, 0.0]
    assert strict.queues(2).tolist() == [0.0, BETA]


def test_a_queue_freezes_after_five_failures_in_a_row_and_thaws_with_a_success() -> None:
    selector = RbcsF(beta=BETA, V=1.0, counts="aggregated")
    for _ in range(4):
        selector.observe(outcomes(2, [0], merged=[]))
        selector.observe(outcomes(2, [], merged=[]))
    assert selector.frozen.tolist() == []
    selector.observe(outcomes(2, [0], merged=[]))
    assert selector.frozen.tolist() == [0]
    queue = selector.queues(2)[0]
    for _ in range(3):
        selector.observe(outcomes(2, [0, 1], merged=[1]))
    assert selector.queues(2)[0] == queue == pytest.approx(8 * BETA)
    selector.observe(outcomes(2, [0], merged=[0]))
    assert selector.frozen.tolist() == []
    assert selector.queues(2)[0] == pytest.approx(queue + BETA - 1.0)


def test_nothing_freezes_when_the_paper_counts() -> None:
    selector = RbcsF(beta=BETA, V=1.0)
    for _ in range(9):
        selector.observe(outcomes(1, [0], merged=[]))
    assert selector.frozen.tolist() == []


def test_a_cap_bounds_the_queue() -> None:
    selector = RbcsF(beta=BETA, V=1.0, z_max=0.4)
    for _ in range(9):
        selector.observe(outcomes(1, []))
    assert selector.queues(1).tolist() == [0.4]


def test_rates_count_from_the_round_a_row_appeared() -> None:
    selector = RbcsF(beta=BETA, V=1.0)
    selector.observe(outcomes(1, [0]))
    selector.observe(outcomes(2, [0, 1], merged=[0]))
    selected, merged = selector.rates(3)
    assert selected.tolist() == [1.0, 1.0, 0.0]
    assert merged.tolist() == [1.0, 0.0, 0.0]


@given(
    cohorts=st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=60),
    beta=st.sampled_from([0.0, 0.15, 1 / 3, 1.0]),
)
def test_every_device_has_its_rate_minus_its_queue_always(
    cohorts: list[set[int]], beta: float
) -> None:
    selector = RbcsF(beta=beta, V=1.0)
    for cohort in cohorts:
        selector.observe(outcomes(6, sorted(cohort)))
    state = selector.to_state()
    slack = rate_slack(
        np.array(state["selected"]), np.array(state["rounds"]), beta, selector.queues(6)
    )
    assert slack.min() >= -1e-9


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beta": 1.5}, r"beta must be in \[0, 1\], got 1.5"),
        ({"beta": math.nan}, r"beta must be in \[0, 1\], got nan"),
        ({"V": -1.0}, "V must be finite and >= 0, got -1.0"),
        ({"V": math.inf}, "V must be finite and >= 0, got inf"),
        ({"freeze_after": 0}, "freeze_after must be >= 1, got 0"),
    ],
)
def test_refuses_parameters_out_of_range(wrong: dict[str, float], message: str) -> None:
    parameters: dict[str, float] = {"beta": BETA, "V": 1.0} | wrong
    with pytest.raises(ValueError, match=message):
        RbcsF(**parameters)  # type: ignore[arg-type]  # freeze_after is an int, the others floats
