"""The length of a step: as rule and pseudo-gradient are published, or that of the mean."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from fairbed.coordinator.algorithms.aggregation.aggregator import RunningMerge, StoredMerge
from fairbed.coordinator.algorithms.aggregation.base import rescales_step
from fairbed.coordinator.algorithms.aggregation.fedavg import FedAvg
from fairbed.coordinator.algorithms.aggregation.guarded import (
    guarded_pseudo_gradient,
    guarded_rule,
)
from fairbed.coordinator.algorithms.aggregation.pseudo_gradient import Average
from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import RULES, AggregationConfig, TrainingConfig
from fairbed.coordinator.policy.factories import (
    make_aggregator,
    make_rule,
    rescaling_parts,
    step_problem,
)
from fairbed.wire.plugins import PluginError
from tests.coordinator.algorithms.aggregation.rounds import Reports, begin, merged, reports, vector
from tests.strategies import client_models
from tests.tiers import examples

SENT = vector(0.5, -1.0, 2.0, 0.0, 1.0)
N_PARAMS = 3
TRAINING = TrainingConfig(epochs=2, batch_size=5, momentum=0.5)

COMBINED = [
    *({"rule": rule, "M": 30.0, "gamma": 0.001} for rule in RULES),
    {"rule": "q-fedavg", "q": 5.0, "max_weight": 0.6},
    {"rule": "fedavg", "pseudo_gradient": "fednova"},
    {"rule": "term", "pseudo_gradient": "fednova"},
    {"rule": "fedavg", "pseudo_gradient": "median"},
    {"rule": "fedavg", "pseudo_gradient": "trimmed-mean"},
    {"rule": "fedavg", "pseudo_gradient": "geometric-median"},
    {"rule": "corefed", "M": 1.0, "defence": "clip"},
    {"rule": "fedavg", "defence": "k-norm"},
]
combined = pytest.mark.parametrize(
    "keys", COMBINED, ids=lambda keys: ", ".join(map(str, keys.values()))
)


def moved(given_: Reports, step: str, **keys: Any) -> Floats:
    """Return the change of the parameters."""
    made = make_aggregator(AggregationConfig(step=step, **keys), TRAINING)  # type: ignore[arg-type]
    after = merged(made, SENT, N_PARAMS, given_).vector
    return np.asarray((after - SENT)[:N_PARAMS], dtype=np.float64)


def mean_change(given_: Reports, scale: Floats | None = None) -> Floats:
    changes = np.array(given_.models, dtype=np.float64)[:, :N_PARAMS] - SENT[:N_PARAMS]
    scale = np.ones(len(changes)) if scale is None else scale
    kept = scale > 0.0
    return np.asarray((changes * scale[:, None])[kept].mean(axis=0))


@combined
@settings(max_examples=examples(30))
@given(given_=client_models())
def test_a_normalised_step_has_the_direction_of_the_rule_and_the_length_of_the_mean(
    keys: dict[str, Any], given_: Reports
) -> None:
    published, normalised = (moved(given_, step, **keys) for step in ("as-published", "normalised"))
    made = make_aggregator(AggregationConfig(**keys), TRAINING)
    scale = merged(made, SENT, N_PARAMS, given_).scale
    mean = float(np.linalg.norm(mean_change(given_, scale)))
    length = float(np.linalg.norm(published))
    if length < 1e-3:
        return  # rounding of float32 hides the direction
    np.testing.assert_allclose(normalised, published * mean / length, rtol=1e-2, atol=1e-5)
    assert np.linalg.norm(normalised) == pytest.approx(mean, rel=1e-5, abs=1e-5)


def test_buffers_are_averaged_whatever_the_length_of_the_step() -> None:
    given_ = reports([[1, 2, 3, 4, 5], [3, 2, 1, 0, -1]], losses=[1.0, 2.0])
    published, normalised = (
        make_aggregator(AggregationConfig(rule="corefed")),
        make_aggregator(AggregationConfig(rule="corefed", step="normalised")),
    )
    buffers = merged(published, SENT, N_PARAMS, given_).vector[N_PARAMS:]
    after = merged(normalised, SENT, N_PARAMS, given_).vector[N_PARAMS:]
    np.testing.assert_array_equal(after, buffers)


@pytest.mark.parametrize("rule", ["term", "afl", "fedmgda+"])
def test_updates_whose_mean_is_0_leave_the_model(rule: str) -> None:
    """The mean has no length that the step could have."""
    change = np.array([0.25, -0.5, 0.125, 0, 0])
    opposite = reports([(SENT + change).tolist(), (SENT - change).tolist()], losses=[0.1, 3.0])
    assert moved(opposite, "normalised", rule=rule).tolist() == [0.0] * N_PARAMS


def test_a_step_without_a_direction_stays_0() -> None:
    """Medians of these changes are 0, and their means are not."""
    apart = reports((SENT + np.eye(5)[:N_PARAMS]).tolist())
    keys = {"rule": "fedavg", "pseudo_gradient": "median"}
    assert np.linalg.norm(mean_change(apart)) > 0.5
    assert moved(apart, "normalised", **keys).tolist() == [0.0] * N_PARAMS


def test_the_server_step_moves_by_the_normalised_change() -> None:
    given_ = reports([[1, 2, 3, 4, 5], [3, 2, 1, 0, -1]], losses=[1.0, 2.0])
    whole = moved(given_, "normalised", rule="corefed")
    half = moved(given_, "normalised", rule="corefed", server_learning_rate=0.5)
    np.testing.assert_allclose(half, whole / 2.0, rtol=1e-6)


def test_only_a_normalised_step_has_a_second_sum() -> None:
    given_ = reports([[1, 2, 3, 4, 5]])
    for step, has_sum in (("as-published", False), ("normalised", True)):
        made = make_aggregator(AggregationConfig(rule="corefed", step=step))  # type: ignore[arg-type]
        merge = begin(made, SENT, N_PARAMS, given_)
        assert isinstance(merge, RunningMerge)
        assert (merge._equal is not None) is has_sum
    stored = make_aggregator(AggregationConfig(rule="afl", step="normalised"))
    assert isinstance(begin(stored, SENT, N_PARAMS, given_), StoredMerge)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_declares_whether_its_weights_sum_to_1(rule: str) -> None:
    given_ = reports([[1, 2], [3, 0], [0, 1]], losses=[0.5, 1.0, 2.0], n_k=[1, 2, 6])
    made = make_aggregator(AggregationConfig(rule=rule))
    total = merged(made, vector(0.5, 0), 2, given_).weights.sum()
    assert rescales_step(made.rule) == (abs(total - 1.0) > 1e-6)
    capped = AggregationConfig(rule=rule, max_weight=0.9)
    assert rescales_step(make_rule(capped, 2)) == rescales_step(made.rule)


def test_q_0_is_a_mean() -> None:
    assert not rescales_step(make_rule(AggregationConfig(rule="q-fedavg", q=0.0), 2))
    sgd = AggregationConfig(rule="q-fedsgd", q=0.0, lipschitz=3.0)
    assert rescales_step(make_rule(sgd, 2))


@pytest.mark.parametrize(
    ("aggregation", "training", "expected"),
    [
        ({}, {}, []),
        ({"rule": "corefed"}, {}, ['rule "corefed"']),
        ({"rule": "corefed", "step": "normalised"}, {}, []),
        ({"pseudo_gradient": "fednova"}, {}, ['pseudo_gradient "fednova"']),
        ({"pseudo_gradient": "median"}, {}, []),
        ({}, {"rule": "propfair"}, ['training.rule "propfair"']),
        ({"step": "normalised"}, {"rule": "propfair"}, ['training.rule "propfair"']),
        ({"rule": "no.such:Rule", "pseudo_gradient": "fednova"}, {}, ['pseudo_gradient "fednova"']),
        ({"rule": f"{__name__}:Doubles"}, {}, [f'rule "{__name__}:Doubles"']),
    ],
)
def test_parts_that_set_the_length_of_a_step_are_named(
    aggregation: dict[str, Any], training: dict[str, Any], expected: list[str]
) -> None:
    found = rescaling_parts(AggregationConfig(**aggregation), TrainingConfig(**training))
    assert found == expected


class Doubles(FedAvg):
    """A plug-in that sets the length of the step."""

    rescales_step = True


def test_a_plug_in_may_declare_that_it_sets_the_length() -> None:
    assert rescales_step(guarded_rule("mine", Doubles()))
    assert not rescales_step(guarded_rule("mine", FedAvg()))
    assert not rescales_step(guarded_pseudo_gradient("mine", Average()))
    wrong = Doubles()
    wrong.rescales_step = "yes"  # type: ignore[assignment]
    with pytest.raises(PluginError, match="rescales_step must be True or False, got 'yes'"):
        guarded_rule("mine", wrong)


def test_fednova_is_refused_for_a_rule_with_its_own_step() -> None:
    config = AggregationConfig(rule="corefed", pseudo_gradient="fednova")
    assert "sets the length of the step itself" in step_problem(config, TrainingConfig())
