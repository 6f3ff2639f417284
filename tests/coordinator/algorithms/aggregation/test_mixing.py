"""AAggFF as a rule: the weights of a round follow from its own losses."""

from dataclasses import replace

import numpy as np
import pytest

from fairbed.coordinator.algorithms.aggregation.aaggff import (
    AAggFF,
    AAggFFD,
    AAggFFS,
    responses,
)
from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.weighting import weights_of
from tests.coordinator.algorithms.aggregation.rounds import Reports, merged, reports, vector

SENT = vector(1, 0, 0)
FIRST = replace(
    reports([[0.8, 0, 1], [1.1, 0, 2]], losses=[1.0, 3.0], rows=[0, 2], n_k=[3, 1]), registered=4
)
SECOND = replace(FIRST, rows=np.array([1, 2]), loss_before=np.array([2.0, 2.0]))


def test_worked_example_with_the_weights_of_this_round() -> None:
    """Round t merges with the weights after its update; those before give a plain mean."""
    rule = Aggregator(AAggFF("d", per_round=2))
    first, second = merged(rule, SENT, 2, FIRST), merged(rule, SENT, 2, SECOND)
    assert first.weights.tolist() == pytest.approx([0.456276, 0.543724], abs=1e-6)
    assert first.vector[:2].tolist() == pytest.approx([1.0 - 0.0368831, 0.0], abs=1e-6)
    assert second.weights.tolist() == pytest.approx([0.482112, 0.517888], abs=1e-6)


def test_buffers_are_averaged_with_the_same_weights() -> None:
    merge = merged(Aggregator(AAggFF("d", per_round=2)), SENT, 2, FIRST)
    assert merge.vector[2] == pytest.approx(1.543724, abs=1e-6)


def test_a_missing_silo_has_the_mean_response() -> None:
    rule, alone = Aggregator(AAggFF("s", "normal")), AAggFFS(4)
    merge = merged(rule, SENT, 2, FIRST)
    seen = responses(np.array([1.0, 3.0]), "normal", 0.25)
    alone.learn(np.array([seen[0], seen.mean(), seen[1], seen.mean()]))
    np.testing.assert_allclose(merge.weights, weights_of(alone.p, np.array([0, 2])), rtol=1e-12)
    assert merge.weights[1] > merge.weights[0]


def test_a_faulty_report_counts_as_not_drawn() -> None:
    spoilt = replace(
        FIRST,
        rows=np.array([0, 2, 3]),
        n_k=np.array([3, 1, 1]),
        models=[*FIRST.models, vector(np.nan, 0, 0)],
        loss_before=np.array([1.0, 3.0, 9.0]),
    )
    rule, clean = (Aggregator(AAggFF("d", per_round=3)) for _ in range(2))
    weights = merged(rule, SENT, 2, spoilt).weights
    assert weights.tolist() == [*merged(clean, SENT, 2, FIRST).weights.tolist(), 0.0]
    assert rule.to_state() == clean.to_state()


def test_a_seldom_aggregated_device_counts_more_with_n_over_pi() -> None:
    """Rows 0 and 1 have equal losses; row 1 reports in one round of four."""
    ends = {}
    for weights in ("equal", "n_over_pi"):
        rule = Aggregator(AAggFF("d", per_round=2, weights=weights))
        for at in range(12):
            rows = np.array([1 if at % 4 == 3 else 0, 2])
            merged(rule, SENT, 2, replace(FIRST, rows=rows, loss_before=np.array([3.0, 1.0])))
        ends[weights] = rule.rule.to_state()["rule"]["p"]
    assert ends["equal"][0] > ends["equal"][1]
    assert ends["n_over_pi"][1] / ends["n_over_pi"][0] > ends["equal"][1] / ends["equal"][0]


@pytest.mark.parametrize("kind", ["s", "d"])
def test_a_device_that_joins_later_gets_an_equal_share(kind: str) -> None:
    rule = Aggregator(AAggFF(kind))  # type: ignore[arg-type]
    merged(rule, SENT, 2, FIRST)
    merged(rule, SENT, 2, replace(SECOND, registered=6))
    p = rule.rule.to_state()["rule"]["p"]
    assert len(p) == 6
    assert p[4] == p[5] > 0.0
    assert sum(p) == pytest.approx(1.0)


def test_the_largest_row_implies_the_number_of_devices() -> None:
    rule = Aggregator(AAggFF("d"))
    merged(rule, SENT, 2, replace(FIRST, registered=0))
    assert len(rule.rule.to_state()["rule"]["p"]) == 3


def test_weights_of_zero_are_replaced_by_equal_ones() -> None:
    assert weights_of(np.array([0.0, 1.0, 0.0]), np.array([0, 2])).tolist() == [0.5, 0.5]


def test_losses_with_an_infinite_sum_are_usable() -> None:
    huge = replace(FIRST, loss_before=np.array([1.7e308, 1.7e308]))
    for kind in ("s", "d"):
        rule = Aggregator(AAggFF(kind))
        assert merged(rule, SENT, 2, huge).weights.tolist() == pytest.approx([0.5, 0.5])


def test_missing_losses_are_refused() -> None:
    silent = Reports(FIRST.rows, FIRST.n_k, FIRST.models, None, 0.1)
    with pytest.raises(ValueError, match="loss_before must be given"):
        merged(Aggregator(AAggFF("d"), "equal"), SENT, 2, silent)


def test_the_state_contains_the_weights() -> None:
    rule = Aggregator(AAggFF("d", per_round=2))
    merged(rule, SENT, 2, FIRST)
    alone = AAggFFD(4, 2)
    alone.learn(FIRST.rows, responses(np.array([1.0, 3.0]), "weibull", 0.5))
    assert rule.rule.to_state()["rule"] == alone.to_state()
