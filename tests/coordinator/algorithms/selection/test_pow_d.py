"""pow-d and cpow-d: the worked example, frequencies of queries, and devices never selected."""

from dataclasses import replace

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.selection.base import Candidates, TwoStepSelector
from fairbed.coordinator.algorithms.selection.pow_d import PowD
from tests.coordinator.algorithms.selection.fleet import fleet

NAN, INF = float("nan"), float("inf")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def with_losses(*losses: float, absent: tuple[int, ...] = ()) -> Candidates:
    candidates = fleet([0.0] * len(losses), absent=absent)
    return replace(candidates, loss=np.array(losses, dtype=np.float64))


def test_worked_example() -> None:
    assert PowD(3).select(with_losses(0.4, 1.2, 0.9), 2, rng()).tolist() == [1, 2]


def test_it_queries_losses_before_it_selects() -> None:
    policy = PowD(3, "batch")
    assert isinstance(policy, TwoStepSelector)
    assert (policy.sample, PowD(3).sample) == ("batch", "all")
    with pytest.raises(ValueError, match="losses must be queried before the selection"):
        policy.select(fleet([0.0] * 3), 2, rng())


def test_a_device_without_a_finite_loss_is_not_selected() -> None:
    assert PowD(9).select(with_losses(0.1, NAN, 9.0, INF, 0.2), 3, rng()).tolist() == [0, 2, 4]
    assert PowD(9).select(with_losses(0.1, 9.0, 0.2, absent=(1,)), 2, rng()).tolist() == [0, 2]
    assert PowD(9).select(with_losses(NAN, NAN), 1, rng()).size == 0


def test_all_are_queried_if_fewer_than_d_are_available() -> None:
    assert PowD(9).candidates(fleet([0.0] * 5, absent=[2]), 2, rng()).tolist() == [0, 1, 3, 4]


def test_at_least_k_devices_are_queried() -> None:
    assert len(PowD(2).candidates(fleet([0.0] * 9), 4, rng())) == 4
    assert PowD(2).candidates(fleet([0.0] * 9), 0, rng()).size == 0


def test_candidates_are_drawn_in_proportion_to_their_examples() -> None:
    examples: Ints = np.array([100, 200, 0, 500])
    candidates, counts = replace(fleet([0.0] * 4), n_k=examples), np.zeros(4)
    for seed in range(4000):
        counts[PowD(1).candidates(candidates, 1, rng(seed))] += 1.0
    np.testing.assert_allclose(counts / 4000, examples / 800.0, atol=0.025)


def test_ties_are_broken_at_random() -> None:
    counts = np.zeros(5)
    for seed in range(1000):
        counts[PowD(5).select(with_losses(1.0, 1.0, 1.0, 1.0, 0.5), 1, rng(seed))] += 1.0
    assert counts[4] == 0.0
    assert counts[:4].min() > 200


def test_with_d_equal_to_k_it_is_a_draw_by_examples_whatever_the_losses() -> None:
    """Then every device queried is selected."""
    policy, losses = PowD(2), np.array([5.0, 1.0, 1.0, 0.0])
    for seed in range(20):
        candidates = fleet([0.0] * 4)
        queried = policy.candidates(candidates, 2, rng(seed))
        loss = np.full(4, NAN)
        loss[queried] = losses[queried]
        chosen = policy.select(replace(candidates, loss=loss), 2, rng(seed))
        assert chosen.tolist() == queried.tolist()


def test_refuses_no_candidates() -> None:
    with pytest.raises(ValueError, match="candidates must be >= 1, got 0"):
        PowD(0)
