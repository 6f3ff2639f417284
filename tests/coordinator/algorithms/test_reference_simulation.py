"""Whole policies in the paper's linear world, against recorded results of our own simulation.

The numbers are a regression band (T = 500, ten seeds), not the paper's: its figures give none.
"""

from functools import cache

import numpy as np
import pytest

from fairbed.coordinator.algorithms.fairness import rate_slack
from fairbed.coordinator.algorithms.selection.base import Selector
from fairbed.coordinator.algorithms.selection.fedcs import FedCs
from fairbed.coordinator.algorithms.selection.rbcs_f import RbcsF
from fairbed.coordinator.algorithms.selection.uniform import Uniform
from tests.coordinator.algorithms.world import BETA, ROUNDS, Run, draw_world, simulate

SEEDS = 10
MILD, WILD = 0.1, 1.0
"""Relative deviation of a time."""
WEIGHTS = (0.0, 5.0, 20.0, 50.0)


def selector(policy: str) -> Selector:
    if policy == "random":
        return Uniform()
    if policy == "fedcs":
        return FedCs(deadline_s=3.0)
    return RbcsF(beta=BETA, V=float(policy))


@cache
def runs(policy: str, noise: float = MILD) -> tuple[Run, ...]:
    return tuple(simulate(selector(policy), draw_world(seed, noise)) for seed in range(SEEDS))


def mean_total_s(policy: str, noise: float = MILD) -> float:
    return float(np.mean([run.total_s for run in runs(policy, noise)]))


@pytest.mark.parametrize(
    ("policy", "mild_s", "wild_s"),
    [
        pytest.param("random", 3241, 4210, marks=pytest.mark.full),
        pytest.param("0", 3286, 4245, marks=pytest.mark.full),
        ("5", 1678, 2677),
        pytest.param("20", 1520, 2411, marks=pytest.mark.full),
        pytest.param("50", 1429, 2232, marks=pytest.mark.full),
    ],
)
@pytest.mark.full
def test_total_time_is_within_two_percent(policy: str, mild_s: float, wild_s: float) -> None:
    assert mean_total_s(policy, MILD) == pytest.approx(mild_s, rel=0.02)
    assert mean_total_s(policy, WILD) == pytest.approx(wild_s, rel=0.02)


@pytest.mark.parametrize(
    ("policy", "mean_queue", "min_rate", "jain", "rates"),
    [
        pytest.param("0", 12, 0.190, 0.998, [0.212, 0.200, 0.195, 0.193], marks=pytest.mark.full),
        ("5", 40, 0.144, 0.910, [0.305, 0.192, 0.157, 0.147]),
        pytest.param("20", 144, 0.126, 0.831, [0.354, 0.169, 0.144, 0.133], marks=pytest.mark.full),
        pytest.param("50", 346, 0.098, 0.735, [0.404, 0.156, 0.133, 0.106], marks=pytest.mark.full),
    ],
)
def test_queues_and_rates_are_those_recorded(
    policy: str, mean_queue: float, min_rate: float, jain: float, rates: list[float]
) -> None:
    found = runs(policy)
    assert np.mean([run.mean_queue for run in found]) == pytest.approx(mean_queue, rel=0.05)
    assert np.mean([run.min_rate for run in found]) == pytest.approx(min_rate, abs=0.005)
    assert np.mean([run.jain for run in found]) == pytest.approx(jain, abs=0.005)
    assert np.mean([run.group_rates for run in found], axis=0) == pytest.approx(rates, abs=0.005)


@pytest.mark.parametrize(
    "V", [pytest.param(V, marks=[] if V == 5.0 else pytest.mark.full) for V in WEIGHTS]
)
def test_the_guarantee_holds_exactly_in_every_run(V: float) -> None:
    for run in runs(f"{V:g}"):
        assert rate_slack(run.counts, ROUNDS, BETA, run.queues).min() >= -1e-9


@pytest.mark.full
def test_time_falls_and_queues_and_unfairness_rise_with_the_weight_on_time() -> None:
    times = [mean_total_s(policy) for policy in ("random", "5", "20", "50")]
    totals = [float(np.mean([r.mean_queue for r in runs(f"{V:g}")])) for V in WEIGHTS]
    evenness = [float(np.mean([r.jain for r in runs(f"{V:g}")])) for V in WEIGHTS]
    assert times == sorted(times, reverse=True)
    assert totals == sorted(totals)
    assert evenness == sorted(evenness, reverse=True)


@pytest.mark.full
def test_a_deadline_alone_is_fastest_and_excludes_slow_devices() -> None:
    assert mean_total_s("fedcs") < mean_total_s("50")
    for run in runs("fedcs"):
        assert run.group_rates[3] < 0.05 < BETA


@pytest.mark.full
def test_estimates_of_the_selected_are_within_a_few_percent() -> None:
    for policy in ("5", "20"):
        assert np.mean([run.ape for run in runs(policy)]) < 0.035
