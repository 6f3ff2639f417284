"""Weights of stale updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.base import Report
from fairbed.coordinator.algorithms.aggregation.staleness import StalenessRule
from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from tests.coordinator.algorithms.aggregation.rounds import Kept

N_PARAMS = 3


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(("staleness", "weight"), [(0, 1.0), (3, 0.5), (8, 1 / 3), (99, 0.1)])
def test_the_weight_falls_with_the_root_of_staleness(staleness: int, weight: float) -> None:
    assert StalenessRule().weight(staleness) == pytest.approx(weight, rel=1e-12)


def test_the_exponent_sets_the_effect_of_staleness() -> None:
    assert StalenessRule(exponent=2.0).weight(1) == 0.25
    assert StalenessRule(exponent=0.0).weight(7) == 1.0
    assert StalenessRule(staleness="constant").weight(7) == 1.0


def test_a_negative_staleness_is_refused() -> None:
    with pytest.raises(ValueError, match="staleness: must be >= 0, got -1"):
        StalenessRule().weight(-1)


def test_a_stale_update_is_weighted_and_added_to_the_current_model() -> None:
    """By hand: a(3) = 1/2; params 10 + (1.5 - 1) / 2, buffer halfway from 4 to 8."""
    made = StalenessRule().rebased(
        vector(1.5, 2.0, 3.0, 8.0),
        base=vector(1.0, 2.0, 5.0, 6.0),
        now=vector(10.0, 20.0, 30.0, 4.0),
        n_params=N_PARAMS,
        staleness=3,
    )
    np.testing.assert_array_equal(made, vector(10.25, 20.0, 29.0, 6.0))


@given(
    st.lists(
        st.tuples(
            st.integers(1, 50),
            st.integers(0, 6),
            st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 1000),
)
def test_stale_updates_move_the_model_by_their_weighted_changes(
    updates: list[tuple[int, int, list[float]]], seed: int
) -> None:
    """FedBuff, Algorithm 1, with n_k for 1: w' = w + sum_k n_k a(s_k) D_k / sum_k n_k."""
    rng = np.random.default_rng(seed)
    now = rng.standard_normal(4).astype(np.float32)
    rule = make_aggregator(AggregationConfig(rule="fedavg"))
    merge = rule.begin(now, N_PARAMS, 0.1, Kept)
    moved, total = np.zeros(N_PARAMS), 0
    for row, (n_k, staleness, change) in enumerate(updates):
        base = rng.standard_normal(4).astype(np.float32)
        model = base + np.array(change, dtype=np.float32)
        made = StalenessRule().rebased(
            model, base=base, now=now, n_params=N_PARAMS, staleness=staleness
        )
        merge.add(Report(row=row, n_k=n_k, model=made, loss_before=None))
        change_k = (model.astype(np.float64) - base)[:N_PARAMS]
        moved += n_k * (1.0 + staleness) ** -0.5 * change_k
        total += n_k
    np.testing.assert_allclose(
        merge.finish().vector[:N_PARAMS], now[:N_PARAMS] + moved / total, atol=1e-6
    )


def test_inputs_stay_as_they_are() -> None:
    model, base, now = vector(1, 2, 3, 4), vector(0, 0, 0, 0), vector(5, 5, 5, 5)
    StalenessRule().rebased(model, base=base, now=now, n_params=N_PARAMS, staleness=2)
    np.testing.assert_array_equal(model, vector(1, 2, 3, 4))
    np.testing.assert_array_equal(base, vector(0, 0, 0, 0))
    np.testing.assert_array_equal(now, vector(5, 5, 5, 5))
