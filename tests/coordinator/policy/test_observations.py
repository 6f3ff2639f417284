"""The observations of a round as columns."""

import numpy as np

from fairbed.coordinator.algorithms.estimation.base import CONTEXT, PHASES
from fairbed.coordinator.policy.selection import Observation, Observations


def test_columns_hold_the_single_observations() -> None:
    phases_s, context = (1.0, 0.5, 1.5, 0.75, 0.25), np.array([0.5, 1.0, 2.0, 3.0])
    columns = Observations.of(
        [
            Observation(4, 4.0, phases_s, True, False, loss=2.5, context=context),
            Observation(1, None, None, False, True, at_least_s=7.0),
        ]
    )
    assert len(columns) == 2
    assert columns.rows.tolist() == [4, 1]
    np.testing.assert_array_equal(columns.tau_s, [4.0, np.nan])
    np.testing.assert_array_equal(columns.phases_s, [phases_s, [np.nan] * len(PHASES)])
    assert columns.is_aggregated.tolist() == [True, False]
    assert columns.timed_out.tolist() == [False, True]
    np.testing.assert_array_equal(columns.loss, [2.5, np.nan])
    np.testing.assert_array_equal(columns.at_least_s, [np.nan, 7.0])
    np.testing.assert_array_equal(columns.context, [context, [np.nan] * CONTEXT])


def test_a_round_may_have_no_observations() -> None:
    columns = Observations.of([])
    assert len(columns) == 0
    assert columns.phases_s.shape == (0, len(PHASES))
    assert columns.context.shape == (0, CONTEXT)
