"""The feasibility condition, compared with enumeration and with queues that diverge."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Bools, Floats
from fairbed.coordinator.algorithms.selection.feasibility import (
    TOLERANCE,
    first_infeasible_k,
    highest_rate,
)


def by_enumeration(availability: Floats, m: int, beta: float) -> int | None:
    """Return the first k that fails, from all 2^k patterns of available devices."""
    p = np.sort(availability)
    for k in range(1, len(p) + 1):
        expected = 0.0
        for pattern in product([False, True], repeat=k):
            chance = np.prod(np.where(pattern, p[:k], 1 - p[:k]))
            expected += float(chance) * min(m, sum(pattern))
        if k * beta > expected * (1 + 1e-9):
            return k
    return None


@given(
    availability=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=7),
    m=st.integers(1, 5),
    beta=st.sampled_from([0.0, 0.0971, 0.2339, 0.4177, 0.7351]),
)
def test_agrees_with_enumeration(availability: list[float], m: int, beta: float) -> None:
    p = np.array(availability)
    assert first_infeasible_k(p, m, beta) == by_enumeration(p, m, beta)


def test_necessary_conditions_alone_are_not_enough() -> None:
    """N beta <= m and beta <= availability, and yet the queues of this fleet diverge."""
    assert first_infeasible_k(np.array([0.6, 0.6]), m=1, beta=0.5) == 2
    assert first_infeasible_k(np.array([0.6, 0.6]), m=1, beta=0.42) is None


def test_the_boundary_is_feasible() -> None:
    assert first_infeasible_k(np.ones(40), m=6, beta=0.15) is None
    assert first_infeasible_k(np.ones(41), m=6, beta=0.15) == 41
    assert first_infeasible_k(np.full(40, 0.8), m=8, beta=0.15) is None


@pytest.mark.parametrize(
    ("m", "beta", "expected"), [(1000, 0.001, None), (1000, 0.0011, 909_091), (1, 0.25, 4)]
)
def test_only_the_first_few_of_a_million_devices_are_examined(
    m: int, beta: float, expected: int | None
) -> None:
    """Once m devices are always available, the rest follows from a division."""
    assert first_infeasible_k(np.full(1_000_000, 0.9), m, beta) == expected


def test_one_seldom_available_device_fails_first() -> None:
    assert first_infeasible_k(np.array([0.9, 0.1, 0.9]), m=2, beta=0.15) == 1


def test_an_empty_fleet_is_feasible() -> None:
    assert first_infeasible_k(np.zeros(0), m=1, beta=0.5) is None


def first_infeasible_k_in_trace(is_available: Bools, m: int, beta: float) -> int | None:
    """Return the smallest group that is infeasible by the averages of a trace (T, N)."""
    least_first = np.argsort(is_available.mean(axis=0), kind="stable")
    present = np.cumsum(is_available[:, least_first], axis=1)
    expected = np.minimum(present, m).mean(axis=0)
    wanted = beta * np.arange(1, is_available.shape[1] + 1)
    failing = np.flatnonzero(wanted > expected * (1.0 + TOLERANCE))
    return int(failing[0]) + 1 if failing.size else None


def test_a_long_independent_trace_agrees_with_its_probabilities() -> None:
    rng = np.random.default_rng(11)
    p = rng.uniform(0.2, 1.0, 12)
    trace = rng.uniform(size=(20_000, 12)) < p
    for beta in (0.1, 0.3, 0.45):
        assert first_infeasible_k_in_trace(trace, 4, beta) == first_infeasible_k(p, 4, beta)


@pytest.mark.parametrize(
    ("availability", "m", "message"),
    [
        ([0.5, 1.2], 1, r"availability must be in \[0, 1\], got 1.2 at row 1"),
        ([float("nan")], 1, r"availability must be in \[0, 1\], got nan at row 0"),
        ([0.5], 0, "m must be >= 1, got 0"),
    ],
)
def test_refuses_bad_availability(availability: list[float], m: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        first_infeasible_k(np.array(availability), m, 0.1)


@given(availability=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=7), m=st.integers(1, 5))
def test_the_highest_rate_is_feasible_and_nothing_above_it(
    availability: list[float], m: int
) -> None:
    p = np.array(availability)
    rate = highest_rate(p, m)
    assert first_infeasible_k(p, m, rate) is None
    assert first_infeasible_k(p, m, rate * 1.001) is not None
