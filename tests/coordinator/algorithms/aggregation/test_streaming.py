"""Merging as updates arrive: any order, no effect before the end, constant memory."""

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.aggregation.aggregator import Aggregator
from fairbed.coordinator.algorithms.aggregation.base import (
    Accumulator,
    Merge,
    Report,
    Stack,
    Updates,
)
from fairbed.coordinator.algorithms.aggregation.corefed import corefed_weights
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.aggregation.q_ffl import QFedAvg, q_ffl_weights
from fairbed.coordinator.algorithms.aggregation.running_sum import BLOCK
from fairbed.coordinator.algorithms.arrays import Floats, Vector
from fairbed.coordinator.policy.factories import make_aggregator
from tests.coordinator.algorithms.aggregation import rounds
from tests.coordinator.algorithms.aggregation.rounds import Kept, Reports, reports, vector
from tests.coordinator.algorithms.aggregation.test_every_aggregator import (
    CONFIGS,
    GATHERED,
    N_PARAMS,
    SENT,
    STREAMED,
    merged,
)
from tests.strategies import client_models
from tests.tiers import examples

every_rule = pytest.mark.parametrize("name", STREAMED)


def streaming(name: str) -> Aggregator:
    rule = make_aggregator(CONFIGS[name])
    assert rule.is_streaming
    return rule


def begin(
    rule: Aggregator, sent: Vector = SENT, n_params: int = N_PARAMS, learning_rate: float = 0.1
) -> Accumulator:
    return rule.begin(sent, n_params, learning_rate, Kept)


def streamed(rule: Aggregator, arrivals: list[Report], learning_rate: float = 0.1) -> Merge:
    merge = begin(rule, learning_rate=learning_rate)
    for report in arrivals:
        merge.add(report)
    return merge.finish()


@every_rule
@settings(max_examples=examples(40))
@given(given_=client_models(), data=st.data())
def test_streaming_in_any_order_equals_the_batch(
    name: str, given_: Reports, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(given_.rows))))
    arrivals = list(given_.one_by_one())
    stream = streamed(streaming(name), [arrivals[at] for at in order], given_.learning_rate)
    batch = merged(name, given_)
    np.testing.assert_array_equal(stream.vector, batch.vector)
    np.testing.assert_array_equal(stream.weights, batch.weights[order])


@every_rule
@settings(max_examples=examples(40))
@given(given_=client_models(), data=st.data())
def test_a_stack_is_its_reports_one_after_the_other(
    name: str, given_: Reports, data: st.DataObject
) -> None:
    k, losses = len(given_.rows), given_.loss_before
    assert losses is not None
    models = np.stack(given_.models)
    models[data.draw(st.integers(0, k - 1)), 0] = data.draw(st.sampled_from([0.5, np.nan, np.inf]))
    cut = data.draw(st.integers(0, k))
    merge = begin(streaming(name), learning_rate=given_.learning_rate)
    for part in (slice(0, cut), slice(cut, k)):
        merge.add_all(Stack(given_.rows[part], given_.n_k[part], models[part], losses[part]))
    stacked = merge.finish()
    arrivals = list(replace(given_, models=list(models)).one_by_one())
    stream = streamed(streaming(name), arrivals, given_.learning_rate)
    np.testing.assert_array_equal(stacked.vector, stream.vector)
    np.testing.assert_array_equal(stacked.weights, stream.weights)


@every_rule
def test_the_order_changes_no_bit_of_a_large_model(name: str) -> None:
    """Fifty devices, two blocks of values that span 12 orders of magnitude, losses 13."""
    rng = np.random.default_rng(5)
    size = BLOCK + 100
    scale = 10.0 ** rng.uniform(-6, 6, size)
    sent = (scale * rng.standard_normal(size)).astype(np.float32)
    arrivals = [
        Report(
            row=row,
            n_k=int(rng.integers(1, 5000)),
            model=(sent + 0.1 * scale * rng.standard_normal(size)).astype(np.float32),
            loss_before=float(10.0 ** rng.uniform(-10, 3)),
        )
        for row in range(50)
    ]
    vectors = []
    for order in (range(50), range(49, -1, -1), rng.permutation(50).tolist()):
        merge = begin(streaming(name), sent, size - 50, 0.01)
        for at in order:
            merge.add(arrivals[at])
        vectors.append(merge.finish().vector)
    assert vectors[0].tobytes() == vectors[1].tobytes() == vectors[2].tobytes()


@every_rule
def test_agrees_with_the_plain_float64_formula(name: str) -> None:
    rng = np.random.default_rng(6)
    count, config = 20, CONFIGS[name]
    given_ = reports(
        rng.standard_normal((count, 5)).tolist(),
        losses=rng.uniform(0.1, 3.0, count).tolist(),
        n_k=rng.integers(1, 900, count).tolist(),
    )
    models = np.array(given_.models, dtype=np.float64)
    share = given_.n_k / given_.n_k.sum()
    p = np.full(count, 1.0 / count) if config.weighting == "equal" else share
    expected = p @ models
    if config.rule in ("term", "propfair"):
        assert given_.loss_before is not None
        tilted = config.tilt * given_.loss_before
        by_loss = np.exp(tilted - tilted.max())
        if config.rule == "propfair":
            by_loss = 1.0 / (config.M - given_.loss_before)
        expected = p * by_loss / (p * by_loss).sum() @ models
    if config.rule in ("q-fedavg", "q-fedsgd"):
        assert given_.loss_before is not None
        sent = SENT[:N_PARAMS].astype(np.float64)
        norms = np.square(models[:, :N_PARAMS] - sent).sum(axis=1)
        slope = 1.0 / given_.learning_rate
        lipschitz = config.lipschitz if config.rule == "q-fedsgd" else None
        a = q_ffl_weights(norms, given_.loss_before, p, config.q, slope, lipschitz)
        expected = a / a.sum() @ models
        expected[:N_PARAMS] = sent + a @ (models[:, :N_PARAMS] - sent)
    if config.rule == "corefed":
        assert given_.loss_before is not None
        sent = SENT[:N_PARAMS].astype(np.float64)
        a = corefed_weights(given_.loss_before, config.M, p)
        expected = a / a.sum() @ models
        expected[:N_PARAMS] = sent + a @ (models[:, :N_PARAMS] - sent)
    if config.step == "normalised":
        sent = SENT[:N_PARAMS].astype(np.float64)
        d, mean = expected[:N_PARAMS] - sent, models[:, :N_PARAMS].mean(axis=0) - sent
        expected[:N_PARAMS] = sent + d * np.linalg.norm(mean) / np.linalg.norm(d)
    np.testing.assert_allclose(merged(name, given_).vector, expected, rtol=1e-6, atol=1e-7)


@every_rule
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_never_enter(name: str, bad: float) -> None:
    good = list(reports([[1, 2, 3, 4, 5], [3, 2, 1, 0, -1]], losses=[1.0, 2.0]).one_by_one())
    poison = replace(good[0], row=9, model=vector(0, 0, 0, 0, bad))
    clean = streamed(streaming(name), good)
    for at in range(3):
        merge = streamed(streaming(name), [*good[:at], poison, *good[at:]])
        np.testing.assert_array_equal(merge.vector, clean.vector)
        assert merge.weights[at] == 0.0


@every_rule
def test_an_abandoned_round_has_no_effect(name: str) -> None:
    given_up, untouched = streaming(name), streaming(name)
    first = list(reports([[1, 2, 3, 4, 5]], rows=[3]).one_by_one())
    later = list(reports([[0, 1, 0, 1, 0], [2, 2, 2, 2, 2]], rows=[0, 3]).one_by_one())
    abandoned = begin(given_up)
    abandoned.add(first[0])
    assert given_up.to_state() == untouched.to_state()
    mine, theirs = streamed(given_up, later), streamed(untouched, later)
    np.testing.assert_array_equal(mine.vector, theirs.vector)
    assert given_up.to_state() == untouched.to_state()


@every_rule
def test_a_model_is_released_once_it_is_added(name: str) -> None:
    merge = begin(streaming(name))
    model = vector(1, 2, 3, 4, 5)
    gone = weakref.ref(model)
    merge.add(Report(row=0, n_k=4, model=model, loss_before=1.0))
    del model
    assert gone() is None
    assert merge.finish().weights.shape == (1,)


@pytest.mark.parametrize("q", [0.5, 15.0, 1000.0])
@pytest.mark.parametrize("losses", [[1e-9, 1.0, 1e3, 1e9], [1e9, 1e3, 1.0, 0.0]])
def test_a_much_larger_loss_may_arrive_at_any_time(q: float, losses: list[float]) -> None:
    """The powers span up to 10^19000; terms far below the largest change no bit."""
    rng = np.random.default_rng(7)
    given_ = reports(rng.standard_normal((4, 5)).tolist(), losses=losses)
    merge = rounds.merged(Aggregator(QFedAvg(q), "equal"), SENT, 5, given_)
    models = np.array(given_.models, dtype=np.float64)
    norms = np.square(models - SENT).sum(axis=1)
    a = q_ffl_weights(norms, np.array(losses), np.ones(4), q, 10.0)
    np.testing.assert_allclose(merge.vector, SENT + a @ (models - SENT), rtol=1e-6)
    np.testing.assert_allclose(merge.weights, a, rtol=1e-12)


class Median:
    """A pseudo-gradient that needs all changes at once; the weights are not used."""

    def combine(self, updates: Updates, a: Floats) -> Floats:
        """Return the coordinate-wise median."""
        assert updates.changes is not None
        median: Floats = np.median([change for change in updates.changes], axis=0)
        return median

    def to_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the empty state."""


@pytest.mark.parametrize("name", GATHERED)
def test_the_other_rules_need_every_loss_before_any_weight(name: str) -> None:
    assert not make_aggregator(CONFIGS[name]).is_streaming


@pytest.mark.parametrize("name", GATHERED)
def test_stored_in_any_order_they_equal_the_batch(name: str) -> None:
    rng = np.random.default_rng(8)
    given_ = replace(reports(rng.random((4, 5)).tolist(), losses=[1, 2, 5, 0.1]), registered=9)
    batch = merged(name, given_)
    for order in ([3, 0, 2, 1], [1, 2, 3, 0]):
        merge = make_aggregator(CONFIGS[name]).begin(SENT, N_PARAMS, 0.1, Kept, 9)
        arrivals = list(given_.one_by_one())
        for at in order:
            merge.add(arrivals[at])
        done = merge.finish()
        np.testing.assert_array_equal(done.vector, batch.vector)
        np.testing.assert_array_equal(done.weights, batch.weights[order])


def test_a_pseudo_gradient_that_needs_all_changes_gets_them() -> None:
    given_ = reports([[1, 9], [2, 8], [7, 3]], rows=[4, 0, 2], n_k=[5, 6, 7])
    rule = Aggregator(FedAvg(), pseudo_gradient=Median())
    assert not rule.is_streaming
    done = rounds.merged(rule, vector(0, 0), 2, given_)
    assert done.vector.tolist() == [2.0, 8.0]
    assert done.weights.tolist() == [5 / 18, 6 / 18, 7 / 18]
