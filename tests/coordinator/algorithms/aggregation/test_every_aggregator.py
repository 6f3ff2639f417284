"""The contract of an aggregation rule, checked for every rule."""

import copy
import inspect
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.base import Merge
from fairbed.coordinator.algorithms.aggregation.guard import normalised
from fairbed.coordinator.policy.config import AggregationConfig
from fairbed.coordinator.policy.factories import make_aggregator
from tests.coordinator.algorithms.aggregation import rounds
from tests.coordinator.algorithms.aggregation.rounds import Reports, reports, vector
from tests.strategies import client_models
from tests.tiers import examples

STREAMED = {
    "fedavg": AggregationConfig(rule="fedavg"),
    "fedavg, equal": AggregationConfig(rule="fedavg", weights="equal"),
    "fedavg, n/pi": AggregationConfig(rule="fedavg", weights="n_over_pi"),
    "q-fedavg": AggregationConfig(rule="q-fedavg", q=1.0),
    "q-fedavg, q=0": AggregationConfig(rule="q-fedavg", q=0.0, weights="equal"),
    "q-fedavg, q=0.1": AggregationConfig(rule="q-fedavg", q=0.1, weights="equal"),
    "q-fedavg, q=15": AggregationConfig(rule="q-fedavg", q=15.0),
    "q-fedavg, n/pi": AggregationConfig(rule="q-fedavg", q=1.0, weights="n_over_pi"),
    "q-fedsgd": AggregationConfig(rule="q-fedsgd", q=1.0, lipschitz=2.0),
    "term": AggregationConfig(rule="term", tilt=1.0),
    "term, t=-300": AggregationConfig(rule="term", tilt=-300.0, weights="equal"),
    "term, t=1000": AggregationConfig(rule="term", tilt=1000.0),
    "propfair": AggregationConfig(rule="propfair", M=10.0),
    "propfair, equal": AggregationConfig(rule="propfair", M=30.0, weights="equal"),
    "corefed": AggregationConfig(rule="corefed", M=30.0),
    "corefed, normalised": AggregationConfig(rule="corefed", M=30.0, step="normalised"),
    "term, normalised": AggregationConfig(rule="term", step="normalised"),
    "corefed, n": AggregationConfig(rule="corefed", M=30.0, weights="n"),
    "corefed, n/pi": AggregationConfig(rule="corefed", M=30.0, weights="n_over_pi"),
}
GATHERED = {
    "aaggff-s": AggregationConfig(rule="aaggff-s", cdf="normal"),
    "aaggff-s, beta": AggregationConfig(rule="aaggff-s", beta_cap=0.5),
    "aaggff-d": AggregationConfig(rule="aaggff-d"),
    "aaggff-d, before": AggregationConfig(rule="aaggff-d", impute="previous_mean"),
    "aaggff-d, n/pi": AggregationConfig(rule="aaggff-d", weights="n_over_pi"),
    "afl": AggregationConfig(rule="afl", gamma=0.01),
    "afl, gamma=10": AggregationConfig(rule="afl", gamma=10.0),
    "fedmgda+": AggregationConfig(rule="fedmgda+", epsilon=0.1),
    "fedmgda+, epsilon=1": AggregationConfig(rule="fedmgda+", epsilon=1.0),
    "fedmgda+, normalised": AggregationConfig(rule="fedmgda+", step="normalised"),
    "fedavg, capped": AggregationConfig(rule="fedavg", max_weight=0.4),
    "q-fedavg, capped": AggregationConfig(rule="q-fedavg", q=5.0, max_weight=0.4),
    "afl, capped": AggregationConfig(rule="afl", max_weight=0.5),
}
CONFIGS = STREAMED | GATHERED
NORMALISED = tuple(name for name, config in CONFIGS.items() if config.step == "normalised")
LEAVES_THE_HULL = ("q-fedsgd", "fedmgda+", "fedmgda+, epsilon=1", *NORMALISED)
"""Rules whose weights may sum to more than 1, or whose step is lengthened after them."""
SENT = vector(0.5, -1.0, 2.0, 0.0, 1.0)
N_PARAMS = 3

every_rule = pytest.mark.parametrize("name", CONFIGS)


def reordered(given_: Reports, order: list[int]) -> Reports:
    assert given_.loss_before is not None
    return replace(
        given_,
        rows=given_.rows[order],
        n_k=given_.n_k[order],
        models=[given_.models[at] for at in order],
        loss_before=given_.loss_before[order],
    )


def merged(name: str, given_: Reports, rule: Aggregator | None = None) -> Merge:
    return rounds.merged(rule or make_aggregator(CONFIGS[name]), SENT, N_PARAMS, given_)


@every_rule
@settings(max_examples=examples(40))
@given(given_=client_models())
def test_weights_explain_the_parameters(name: str, given_: Reports) -> None:
    merge = merged(name, given_)
    assert merge.vector.dtype == np.float32
    assert merge.vector.shape == SENT.shape
    assert merge.weights.shape == given_.rows.shape
    assert merge.weights.min() >= 0.0
    assert merge.weights.sum() <= 1.0 + 1e-9 or name in LEAVES_THE_HULL
    moves = np.array([model - SENT for model in given_.models], dtype=np.float64)[:, :N_PARAMS]
    step = merge.weights @ moves
    if name in NORMALISED and np.linalg.norm(step) > 1e-6:
        step *= np.linalg.norm(moves.mean(axis=0)) / np.linalg.norm(step)
    expected = SENT[:N_PARAMS] + step
    np.testing.assert_allclose(merge.vector[:N_PARAMS], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - set(LEAVES_THE_HULL)))
@settings(max_examples=examples(40))
@given(given_=client_models())
def test_stays_inside_the_hull_of_the_sent_and_the_trained_models(
    name: str, given_: Reports
) -> None:
    points = np.array([SENT, *given_.models])
    after = merged(name, given_).vector
    assert np.all(after >= points.min(axis=0) - 1e-5)
    assert np.all(after <= points.max(axis=0) + 1e-5)


@every_rule
@settings(max_examples=examples(40))
@given(given_=client_models(), data=st.data())
def test_ignores_client_order_to_the_last_bit(
    name: str, given_: Reports, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(given_.rows))))
    first, second = merged(name, given_), merged(name, reordered(given_, order))
    np.testing.assert_array_equal(second.weights, first.weights[order])
    np.testing.assert_array_equal(second.vector, first.vector)


@every_rule
@settings(max_examples=examples(40))
@given(data=st.data())
def test_ignores_the_rows_that_devices_have(name: str, data: st.DataObject) -> None:
    """Devices that register before the same round may get their rows in any order."""
    joined = sorted(data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=6), "joined"))
    joined[0] = 0
    row_of = list(range(len(joined)))
    for when in set(joined):
        rows = [row for row, at in enumerate(joined) if at == when]
        for old, new in zip(rows, data.draw(st.permutations(rows)), strict=True):
            row_of[old] = new
    first, second = make_aggregator(CONFIGS[name]), make_aggregator(CONFIGS[name])
    for at in range(6):
        registered = sum(when <= at for when in joined)
        present = data.draw(
            st.lists(st.integers(0, registered - 1), min_size=1, unique=True), f"round {at}"
        )
        losses = data.draw(st.lists(st.floats(0.1, 5.0), min_size=6, max_size=6), "losses")
        given_ = reports(
            [[row, at, 1, 2, 3] for row in present],
            n_k=[1 + row for row in present],
            losses=losses[: len(present)],
            rows=present,
            registered=registered,
        )
        renamed = replace(given_, rows=np.array([row_of[row] for row in present]))
        ours, theirs = merged(name, given_, first), merged(name, renamed, second)
        if name.startswith("fedmgda+"):  # these changes are dependent: only their sum is unique
            np.testing.assert_allclose(ours.vector, theirs.vector, rtol=1e-5, atol=1e-6)
            continue
        np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-9)
        if name in STREAMED:
            np.testing.assert_array_equal(ours.weights, theirs.weights)
            np.testing.assert_array_equal(ours.vector, theirs.vector)


@every_rule
@settings(max_examples=examples(40))
@given(given_=client_models())
def test_does_not_change_its_input(name: str, given_: Reports) -> None:
    before, sent = copy.deepcopy(given_), SENT.copy()
    merge = merged(name, given_)
    merge.vector[:] = 77.0
    np.testing.assert_array_equal(sent, SENT)
    for mine, theirs in zip(given_.models, before.models, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(given_.n_k, before.n_k)


@every_rule
def test_a_faulty_report_is_dropped_and_the_rest_merged(name: str) -> None:
    good = reports([[1, 2, 3, 4, 5], [3, 2, 1, 0, -1]], losses=[1.0, 2.0], n_k=[3, 4], rows=[4, 6])
    faults = [
        replace(good, models=[vector(1, np.nan, 3, 4, 5), good.models[1]]),
        replace(good, models=[vector(1, 2, np.inf, 4, 5), good.models[1]]),
        replace(good, models=[vector(1, 2), good.models[1]]),
        replace(good, n_k=np.array([0, 4])),
    ]
    if make_aggregator(CONFIGS[name]).needs_loss:
        faults += [
            replace(good, loss_before=np.array([loss, 2.0]))
            for loss in (np.nan, np.inf, -np.inf, -0.1)
        ]
    alone = merged(name, reordered(good, [1]))
    for faulty in faults:
        merge = merged(name, faulty)
        np.testing.assert_array_equal(merge.vector, alone.vector)
        assert merge.weights.tolist() == [0.0, alone.weights[0]]


@every_rule
def test_a_round_without_a_usable_report_changes_nothing(name: str) -> None:
    rule = make_aggregator(CONFIGS[name])
    state = rule.to_state()
    for nothing in (reports([]), reports([[np.nan] * 5])):
        merge = merged(name, nothing, rule)
        np.testing.assert_array_equal(merge.vector, SENT)
        assert merge.weights.tolist() == [0.0] * len(nothing.models)
        assert merge.vector is not SENT
    assert rule.to_state() == state


@every_rule
def test_clients_that_did_not_move_leave_the_model_where_it_is(name: str) -> None:
    still = reports([SENT.tolist(), SENT.tolist()], n_k=[1, 9], losses=[0.3, 4.0])
    np.testing.assert_allclose(merged(name, still).vector, SENT, rtol=1e-6)


@every_rule
@settings(max_examples=examples(40))
@given(given_=st.lists(client_models(), min_size=2, max_size=4))
def test_a_restored_rule_continues_the_same(name: str, given_: list[Reports]) -> None:
    original, resumed = make_aggregator(CONFIGS[name]), make_aggregator(CONFIGS[name])
    merged(name, given_[0], original)
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state())))
    for one in given_[1:]:
        mine, theirs = merged(name, one, original), merged(name, one, resumed)
        np.testing.assert_array_equal(mine.vector, theirs.vector)
    assert original.to_state() == resumed.to_state()


@every_rule
def test_a_state_from_before_the_first_round_is_restored(name: str) -> None:
    fresh, resumed = make_aggregator(CONFIGS[name]), make_aggregator(CONFIGS[name])
    merged(name, reports([[1.0] * 5, [2.0] * 5]), resumed)
    resumed.load_state(fresh.to_state())
    assert resumed.to_state() == fresh.to_state()


@every_rule
def test_has_a_docstring(name: str) -> None:
    assert "Source:" in (inspect.getdoc(type(make_aggregator(CONFIGS[name]).rule)) or "")


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -0.5], [np.nan, 1.0], [np.inf, 1.0]])
def test_weights_that_are_no_distribution_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be >= 0 and not all 0"):
        normalised(np.array(weights))
