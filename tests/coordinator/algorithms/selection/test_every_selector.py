"""Every built-in selector passes the checks of `fairbed doctor --selector`."""

import inspect
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.contract import check_property
from fairbed.coordinator.algorithms.selection.base import Candidates, Selector, TwoStepSelector
from fairbed.coordinator.algorithms.selection.contract import (
    PROPERTIES,
    TrialFleet,
    check_rows,
    choose,
)
from fairbed.coordinator.policy.factories import make_selector
from tests.coordinator.algorithms.selection.configs import CONFIGS
from tests.coordinator.algorithms.selection.fleet import fleet, outcomes
from tests.strategies import fleets
from tests.tiers import examples

OURS = [name for name in CONFIGS if not CONFIGS[name].is_plugin]

every_selector = pytest.mark.parametrize("name", CONFIGS)


def stream(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@every_selector
@pytest.mark.parametrize("property_", PROPERTIES)
def test_keeps_the_contract(name: str, property_: str) -> None:
    def make() -> Selector:
        return make_selector(CONFIGS[name])

    finding = check_property(PROPERTIES, property_, make, time.perf_counter)
    assert finding.is_ok, finding.found


@every_selector
@settings(max_examples=examples(40))
@given(candidates=fleets(), k=st.integers(0, 14), seed=st.integers(0, 99))
def test_chooses_distinct_available_devices_whatever_the_fleet(
    name: str, candidates: Candidates, k: int, seed: int
) -> None:
    selector, n = make_selector(CONFIGS[name]), len(candidates.is_available)
    rows = choose(selector, TrialFleet(candidates, np.ones(n)), k, seed)
    check_rows(rows, candidates, k)
    there = min(k, int(candidates.is_available.sum()))
    assert rows.tolist() == sorted(rows.tolist())
    assert len(rows) >= (there if getattr(selector, "fills_cohort", True) else min(1, there))


@pytest.mark.parametrize("name", OURS)
def test_refuses_a_negative_cohort(name: str) -> None:
    selector = make_selector(CONFIGS[name])
    with pytest.raises(ValueError, match="k must be >= 0, got -1"):
        choose(selector, TrialFleet(fleet([1.0]), np.ones(1)), -1, 0)


@every_selector
def test_tries_a_device_never_measured(name: str) -> None:
    """It is predicted at 0 s, so three rounds of two devices reach all four."""
    selector, seen = make_selector(CONFIGS[name]), set[int]()
    for t in range(40):
        tau = [0.5 if row in seen else 0.0 for row in range(4)]
        rows = choose(selector, TrialFleet(fleet(tau, round_id=t + 1), np.ones(4)), 2, t).tolist()
        selector.observe(outcomes(4, rows))
        seen |= set(rows)
    assert seen == {0, 1, 2, 3}


LEARNERS = [
    n for n in CONFIGS if n.startswith(("fedcs", "rbcs-f")) and not CONFIGS[n].needs_known_times
]
"""Policies that select by predicted times."""


@pytest.mark.parametrize("name", LEARNERS)
def test_refuses_a_prediction_that_is_not_finite_only_for_available_devices(name: str) -> None:
    selector = make_selector(CONFIGS[name])
    assert 1 not in selector.select(fleet([0.1, np.nan, 0.2, 0.3], absent=[1]), 2, stream(0))
    with pytest.raises(ValueError, match="tau_hat_s of an available device must be finite"):
        selector.select(fleet([0.1, np.nan, 0.2, 0.3]), 2, stream(0))


@pytest.mark.parametrize("name", OURS)
def test_has_a_docstring(name: str) -> None:
    kind = type(make_selector(CONFIGS[name]))
    assert "Source:" in (inspect.getdoc(kind) or "")


def test_only_two_step_selectors_get_losses() -> None:
    asking = [name for name in CONFIGS if isinstance(make_selector(CONFIGS[name]), TwoStepSelector)]
    assert asking == ["pow-d", "cpow-d"]


def test_outcomes_keep_their_shape() -> None:
    rbcs_f = make_selector(CONFIGS["rbcs-f"])
    rbcs_f.observe(outcomes(3, []))
    with pytest.raises(ValueError, match="each of 3 known devices, got 2"):
        rbcs_f.observe(outcomes(2, []))


OORT_CUTS_OFF = {"oort", "oort, eager"}
"""A cut-off by the scores of those available: an absent device may change who passes it."""
FITS_A_DEADLINE = {"fedcs, sequential"}
"""The greedy order depends on all that are available."""


@pytest.mark.parametrize("name", sorted(set(OURS) - OORT_CUTS_OFF - FITS_A_DEADLINE))
def test_a_device_that_is_absent_and_not_selected_changes_nothing_for_the_others(name: str) -> None:
    """Arms of a comparison that share a seed draw the same, also after their clocks differ."""
    for seed in range(40):
        chance = stream(seed)
        n = int(chance.integers(3, 12))
        everyone = fleet(
            chance.choice([0.0, 0.5, 1.0, 2.0], n).tolist(), width_s=chance.random(n).tolist()
        )
        selector = make_selector(CONFIGS[name])
        loss = chance.random(n) if isinstance(selector, TwoStepSelector) else None
        everyone = replace(everyone, n_k=chance.integers(1, 50, n), loss=loss)
        rows = selector.select(everyone, 2, stream(seed))
        is_available = everyone.is_available.copy()
        absent = chance.choice(np.setdiff1d(np.arange(n), rows))
        is_available[absent] = False
        fewer = replace(everyone, is_available=is_available)
        assert selector.select(fewer, 2, stream(seed)).tolist() == rows.tolist(), (seed, absent)
        if isinstance(selector, TwoStepSelector):
            queried = selector.candidates(everyone, 2, stream(seed))
            kept = np.isin(queried, selector.candidates(fewer, 2, stream(seed)))
            assert kept[queried != absent].all()
