"""One contract, held by every selector."""

import copy
import inspect

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.algorithms.selection import make_selector
from coordinator.algorithms.selection.base import Candidates, Selector
from coordinator.config import OortConfig, SelectionConfig
from tests.coordinator.algorithms.selection.fleet import fleet, outcomes
from tests.strategies import fleets

CONFIGS = {
    "uniform": SelectionConfig(policy="uniform"),
    "weighted": SelectionConfig(policy="weighted", weights=(1.0, 4.0, 0.5, 2.0)),
    "weighted, n_k": SelectionConfig(policy="weighted"),
    "fedcs": SelectionConfig(policy="fedcs", deadline_s=1e6),
    "fedcs, tight": SelectionConfig(policy="fedcs", deadline_s=0.6),
    "fedcs, sequential": SelectionConfig(policy="fedcs", deadline_s=1.0, uploads="sequential"),
    "oort": SelectionConfig(policy="oort"),
    "oort, eager": SelectionConfig(
        policy="oort", oort=OortConfig(exploration=0.4, exploration_min=0.4, pacer_step=2)
    ),
    "power-of-choice": SelectionConfig(policy="power-of-choice", candidates=4),
    "power-of-choice, all": SelectionConfig(policy="power-of-choice", candidates=100),
    "fastest-known": SelectionConfig(policy="fastest-known"),
    "fedcs-oracle": SelectionConfig(policy="fedcs-oracle", deadline_s=1e6),
    "rbcs-f-known": SelectionConfig(policy="rbcs-f-known"),
    "rbcs-f": SelectionConfig(policy="rbcs-f"),
    "rbcs-f, V=0": SelectionConfig(policy="rbcs-f", V=0.0),
    "rbcs-f, theory": SelectionConfig(policy="rbcs-f", alpha="theory", lcb_floor=None),
    "rbcs-f, aggregated": SelectionConfig(policy="rbcs-f", counts="aggregated", z_max=2.0),
}
FILLS_THE_COHORT = [name for name in CONFIGS if "tight" not in name and "sequential" not in name]

every_selector = pytest.mark.parametrize("name", CONFIGS)


def stream(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def lived(selector: Selector, candidates: Candidates, rounds: int, seed: int) -> list[list[int]]:
    """Return what the selector chooses over some rounds; the odd positions of each fail."""
    n, chosen = len(candidates.is_available), []
    for t in range(rounds):
        rows = selector.select(candidates, 3, stream(seed + t)).tolist()
        selector.observe(outcomes(n, rows, rows[::2], t + 1))
        chosen.append(rows)
    return chosen


@every_selector
@settings(max_examples=40)
@given(candidates=fleets(), k=st.integers(0, 14), seed=st.integers(0, 99))
def test_chooses_distinct_available_devices_and_at_most_k(
    name: str, candidates: Candidates, k: int, seed: int
) -> None:
    available = set(np.flatnonzero(candidates.is_available).tolist())
    rows = make_selector(CONFIGS[name]).select(candidates, k, stream(seed))
    assert rows.dtype == np.int64
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert set(rows.tolist()) <= available
    assert min(1, k, len(available)) <= len(rows) <= min(k, len(available))
    if name in FILLS_THE_COHORT:
        assert len(rows) == min(k, len(available))


@every_selector
@settings(max_examples=40)
@given(candidates=fleets(), k=st.integers(0, 14), seed=st.integers(0, 99))
def test_same_seed_same_answer_and_selecting_changes_nothing(
    name: str, candidates: Candidates, k: int, seed: int
) -> None:
    selector = make_selector(CONFIGS[name])
    lived(selector, candidates, 2, seed)
    before, state = copy.deepcopy(candidates), selector.to_state()
    first = selector.select(candidates, k, stream(seed))
    assert first.tolist() == selector.select(candidates, k, stream(seed)).tolist()
    assert selector.to_state() == state
    for field in ("is_available", "tau_hat_s", "width_s", "transfer_hat_s", "n_k"):
        np.testing.assert_array_equal(getattr(candidates, field), getattr(before, field))


@every_selector
@settings(max_examples=40)
@given(candidates=fleets(), seed=st.integers(0, 99))
def test_a_checkpoint_has_the_same_future(name: str, candidates: Candidates, seed: int) -> None:
    original, resumed = make_selector(CONFIGS[name]), make_selector(CONFIGS[name])
    lived(original, candidates, 4, seed)
    resumed.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_state())))
    assert lived(original, candidates, 6, seed + 50) == lived(resumed, candidates, 6, seed + 50)
    assert original.to_state() == resumed.to_state()


@every_selector
def test_the_fleet_may_grow_between_rounds(name: str) -> None:
    selector = make_selector(CONFIGS[name])
    lived(selector, fleet([0.1, 0.2]), 3, seed=0)
    rows = selector.select(fleet([0.1] * 5, absent=[0, 1]), 3, stream(0))
    assert set(rows.tolist()) <= {2, 3, 4}
    selector.observe(outcomes(5, rows.tolist()))
    assert selector.queues(7).shape == (7,)


@every_selector
def test_a_void_round_is_observed(name: str) -> None:
    selector = make_selector(CONFIGS[name])
    nobody = fleet([0.0] * 4, absent=range(4))
    assert selector.select(nobody, 3, stream(0)).size == 0
    selector.observe(outcomes(4, []))
    assert np.all(selector.queues(4) >= 0.0)


@every_selector
def test_observing_leaves_the_outcomes_alone(name: str) -> None:
    told = outcomes(4, [0, 2], [2])
    make_selector(CONFIGS[name]).observe(told)
    assert told.is_selected.tolist() == [True, False, True, False]
    assert told.is_aggregated.tolist() == [False, False, True, False]


@every_selector
def test_queues_are_a_copy(name: str) -> None:
    selector = make_selector(CONFIGS[name])
    selector.observe(outcomes(3, [0]))
    before = selector.queues(3).tolist()
    selector.queues(3)[:] = 99.0
    assert selector.queues(3).tolist() == before


@every_selector
def test_refuses_a_negative_cohort(name: str) -> None:
    with pytest.raises(ValueError, match="k must be >= 0, got -1"):
        make_selector(CONFIGS[name]).select(fleet([1.0]), -1, stream(0))


@every_selector
def test_tries_a_device_that_it_has_never_seen(name: str) -> None:
    """It is predicted at 0 s; three rounds of two reach four devices, whatever they cost."""
    selector, seen = make_selector(CONFIGS[name]), set[int]()
    for t in range(40):
        tau = [0.5 if row in seen else 0.0 for row in range(4)]
        rows = selector.select(fleet(tau, round_id=t + 1), 2, stream(t)).tolist()
        selector.observe(outcomes(4, rows))
        seen |= set(rows)
    assert seen == {0, 1, 2, 3}


LEARNERS = [
    n for n in CONFIGS if n.startswith(("fedcs", "rbcs-f")) and not CONFIGS[n].needs_known_times
]
"""Policies that go by predicted times."""


@pytest.mark.parametrize("name", LEARNERS)
def test_refuses_a_prediction_that_is_not_finite_only_for_available_devices(name: str) -> None:
    selector = make_selector(CONFIGS[name])
    assert 1 not in selector.select(fleet([0.1, np.nan, 0.2, 0.3], absent=[1]), 2, stream(0))
    with pytest.raises(ValueError, match="tau_hat_s of an available device must be finite"):
        selector.select(fleet([0.1, np.nan, 0.2, 0.3]), 2, stream(0))


@every_selector
def test_says_what_it_is(name: str) -> None:
    kind = type(make_selector(CONFIGS[name]))
    assert "Source:" in (inspect.getdoc(kind) or "")


def test_ties_at_the_start_do_not_follow_the_row_order() -> None:
    """With nothing known, each policy that breaks ties by chance reaches every row alike."""
    for name in ("uniform", "fedcs", "rbcs-f", "oort", "power-of-choice", "fastest-known"):
        counts = np.zeros(6)
        for seed in range(600):
            fresh = make_selector(CONFIGS[name])
            counts[fresh.select(fleet([0.0] * 6), 2, stream(seed))] += 1
        assert counts.min() > 150, name
        assert counts.max() < 250, name


def test_outcomes_keep_their_shape() -> None:
    rbcs_f = make_selector(CONFIGS["rbcs-f"])
    rbcs_f.observe(outcomes(3, []))
    with pytest.raises(ValueError, match="each of 3 known devices, got 2"):
        rbcs_f.observe(outcomes(2, []))
