"""Power-of-Choice: the worked example, and the frequencies of draws."""

from dataclasses import replace

import numpy as np
import pytest

from fairbed.coordinator.algorithms.selection.base import Candidates
from fairbed.coordinator.algorithms.selection.pool import weighted_draw
from fairbed.coordinator.algorithms.selection.power_of_choice import PowerOfChoice
from tests.coordinator.algorithms.selection.fleet import fleet, outcomes


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def with_losses(*losses: float, candidates: int = 99) -> PowerOfChoice:
    policy, n = PowerOfChoice(candidates), len(losses)
    policy.observe(outcomes(n, range(n), loss=losses))
    return policy


def test_worked_example() -> None:
    assert with_losses(0.4, 1.2, 0.9).select(fleet([0.0] * 3), 2, rng()).tolist() == [1, 2]


def test_a_device_without_a_loss_comes_first() -> None:
    assert with_losses(9.0, 8.0).select(fleet([0.0] * 4), 2, rng()).tolist() == [2, 3]


def test_a_loss_that_is_not_finite_is_ignored() -> None:
    policy = with_losses(0.4, 1.2, 0.9)
    policy.observe(outcomes(3, [0], loss=[np.nan, 0.0, 0.0]))
    policy.observe(outcomes(3, [2], loss=[0.0, 0.0, np.inf]))
    assert policy.select(fleet([0.0] * 3), 2, rng()).tolist() == [1, 2]


def test_the_loss_of_an_update_that_was_not_aggregated_is_ignored() -> None:
    policy = with_losses(0.4, 1.2, 0.9)
    policy.observe(outcomes(3, [0], merged=[], loss=[99.0, 0.0, 0.0]))
    assert policy.select(fleet([0.0] * 3), 2, rng()).tolist() == [1, 2]


def test_only_the_candidates_that_were_drawn_are_compared() -> None:
    """With d = k it is a draw by examples for any losses."""
    policy, counts = with_losses(5.0, 1.0, 1.0, 1.0, candidates=1), np.zeros(4)
    for seed in range(400):
        counts[policy.select(fleet([0.0] * 4), 1, rng(seed))] += 1
    assert counts.min() > 60


def test_weights_are_the_probabilities_of_the_first_draw() -> None:
    weights, first = np.array([1.0, 2.0, 0.0, 5.0]), np.zeros(4)
    for seed in range(4000):
        first[weighted_draw(rng(seed), weights, np.arange(4), 1)] += 1
    np.testing.assert_allclose(first / 4000, weights / 8.0, atol=0.025)


def test_a_draw_without_replacement_is_one_after_the_other() -> None:
    """P(second = 1 | first = 0) = w_1 / (w_1 + w_2)."""
    weights, seconds = np.array([6.0, 1.0, 3.0]), list[int]()
    for seed in range(4000):
        drawn = weighted_draw(rng(seed), weights, np.arange(3), 3)
        assert sorted(drawn.tolist()) == [0, 1, 2]
        if drawn[0] == 0:
            seconds.append(int(drawn[1]))
    assert np.mean(np.array(seconds) == 1) == pytest.approx(0.25, abs=0.03)


def test_candidates_without_examples_come_last() -> None:
    no_examples = fleet([0.0] * 3)
    empty = Candidates(
        round=1,
        is_available=no_examples.is_available,
        tau_hat_s=no_examples.tau_hat_s,
        width_s=no_examples.width_s,
        transfer_hat_s=no_examples.transfer_hat_s,
        n_k=np.array([0, 5, 0]),
    )
    assert 1 in PowerOfChoice(1).select(empty, 1, rng())
    assert PowerOfChoice(1).select(empty, 3, rng()).tolist() == [0, 1, 2]


def test_refuses_no_candidates() -> None:
    with pytest.raises(ValueError, match="candidates must be >= 1, got 0"):
        PowerOfChoice(0)


def test_a_round_without_losses_changes_no_state() -> None:
    policy = with_losses(0.4, 1.2, 0.9)
    before = policy.to_state()
    policy.observe(replace(outcomes(3, [0, 1]), loss=None))
    assert policy.to_state() == before
