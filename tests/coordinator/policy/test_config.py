"""Rules between keys of the configuration that no bound of one key can state."""

import numpy as np
import pytest

from fairbed.coordinator.policy.config import (
    AggregationConfig,
    EvaluationConfig,
    RoundConfig,
    SelectionConfig,
    TrainingConfig,
    merge_problem,
    mini_batch_problem,
    rule_problem,
)
from tests.coordinator.lab import make_config

Q_FEDSGD = AggregationConfig(rule="q-fedsgd")


@pytest.mark.parametrize(
    ("batch_size", "got"),
    [(60, ""), (50, "at least the 60 examples"), (20, "got 20: 2 of 3 devices")],
)
def test_q_fedsgd_needs_mini_batches_of_all_examples(batch_size: int, got: str) -> None:
    training = TrainingConfig(batch_size=batch_size)
    problem = mini_batch_problem(Q_FEDSGD, training, np.array([20, 40, 60]))
    assert problem.startswith("training.batch_size must be") == bool(got)
    assert got in problem
    assert mini_batch_problem(AggregationConfig(), training, np.array([60])) == ""


def test_q_fedsgd_needs_one_plain_step() -> None:
    selection = SelectionConfig(per_round=2)
    assert rule_problem(Q_FEDSGD, selection, TrainingConfig(max_steps=1), 10) == ""
    decayed = TrainingConfig(max_steps=1, weight_decay=0.01)
    problem = rule_problem(Q_FEDSGD, selection, decayed, 10)
    assert problem.startswith("training.weight_decay must be 0 with")


def test_k_loss_needs_losses_of_one_model_version() -> None:
    k_loss, late = AggregationConfig(defence="k-loss"), RoundConfig(late="merge")
    assert "choose k-norm or multi-krum" in merge_problem(late, k_loss, SelectionConfig())
    assert merge_problem(RoundConfig(), k_loss, SelectionConfig()) == ""


def test_propfair_takes_its_bound_and_a_plugin_its_options() -> None:
    assert TrainingConfig(rule="propfair", M=4.0).local_options == {"base": 4.0}
    other = TrainingConfig(rule="a:B", rule_options={"rate": 0.5})
    assert other.local_options == {"rate": 0.5}


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(None, 42.0), (5.0, 5.0)])
def test_a_test_on_devices_lasts_as_long_as_a_round_unless_it_has_a_limit(
    timeout_s: float | None, limit_s: float
) -> None:
    evaluation = EvaluationConfig(timeout_s=timeout_s)
    config = make_config(round=RoundConfig(deadline_s=42.0), evaluation=evaluation)
    assert config.test_timeout_s == limit_s
