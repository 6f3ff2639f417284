"""Policies with the true times: they select by them, and refuse to select without."""

from dataclasses import replace

import numpy as np
import pytest

from fairbed.coordinator.algorithms.selection.oracle import Fastest, OracleTimes
from fairbed.coordinator.policy.config import ORACLE_POLICIES, Policy, SelectionConfig
from fairbed.coordinator.policy.factories import make_selector
from tests.coordinator.algorithms.selection.fleet import fleet


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("policy", ORACLE_POLICIES)
def test_selects_by_true_times_and_not_by_estimates(policy: Policy) -> None:
    wrong = replace(fleet([9.0, 8.0, 1.0, 2.0]), true_tau_s=np.array([1.0, 2.0, 9.0, 8.0]))
    selector = make_selector(SelectionConfig(policy=policy, V=1e6, deadline_s=5.0))
    assert selector.select(wrong, 2, rng()).tolist() == [0, 1]


@pytest.mark.parametrize("policy", ORACLE_POLICIES)
def test_refuses_without_true_times(policy: Policy) -> None:
    blind = replace(fleet([1.0, 2.0]), true_tau_s=None)
    with pytest.raises(ValueError, match="true exchange times must be known"):
        make_selector(SelectionConfig(policy=policy)).select(blind, 1, rng())


def test_the_fastest_are_always_the_same() -> None:
    chosen = {tuple(Fastest().select(fleet([3.0, 1.0, 2.0]), 2, rng(s)).tolist()) for s in range(9)}
    assert chosen == {(1, 2)}


def test_infinite_true_times_are_refused() -> None:
    strange = replace(fleet([1.0, 1.0]), true_tau_s=np.array([np.inf, 1.0]))
    with pytest.raises(ValueError, match="must be finite, got inf at row 0"):
        OracleTimes(Fastest()).select(strange, 1, rng())
