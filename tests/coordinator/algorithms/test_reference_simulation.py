"""Whole policies in the paper's linear world, against recorded totals of our own simulation.

The numbers are a regression band (five seeds each, T = 500, times deviate by 10 %), not the
paper's: its figures give none.
"""

from functools import cache

import numpy as np
import pytest

from coordinator.algorithms.fairness import rate_slack
from coordinator.algorithms.selection.base import Selector
from coordinator.algorithms.selection.fedcs import FedCs
from coordinator.algorithms.selection.rbcs_f import RbcsF
from coordinator.algorithms.selection.uniform import Uniform
from tests.coordinator.algorithms.world import BETA, ROUNDS, Run, draw_world, simulate

SEEDS, NOISE = 4, 0.1
WEIGHTS = (0.0, 5.0, 20.0, 50.0)


def selector(policy: str) -> Selector:
    if policy == "random":
        return Uniform()
    if policy == "fedcs":
        return FedCs(deadline_s=3.0)
    return RbcsF(beta=BETA, V=float(policy))


@cache
def runs(policy: str) -> tuple[Run, ...]:
    return tuple(simulate(selector(policy), draw_world(seed, NOISE)) for seed in range(SEEDS))


def mean_total_s(policy: str) -> float:
    return float(np.mean([run.total_s for run in runs(policy)]))


@pytest.mark.parametrize(
    ("policy", "total_s"),
    [("random", 3241), ("0", 3286), ("5", 1678), ("20", 1520), ("50", 1429)],
)
def test_total_time_is_within_five_percent(policy: str, total_s: float) -> None:
    assert mean_total_s(policy) == pytest.approx(total_s, rel=0.05)


@pytest.mark.parametrize(
    ("policy", "mean_queue", "rates"),
    [
        ("5", 40, [0.305, 0.192, 0.157, 0.147]),
        ("20", 144, [0.354, 0.169, 0.144, 0.133]),
        ("50", 346, [0.404, 0.156, 0.133, 0.106]),
    ],
)
def test_queues_and_group_rates_are_those_recorded(
    policy: str, mean_queue: float, rates: list[float]
) -> None:
    found = runs(policy)
    assert np.mean([run.mean_queue for run in found]) == pytest.approx(mean_queue, rel=0.08)
    assert np.mean([run.group_rates for run in found], axis=0) == pytest.approx(rates, abs=0.012)


@pytest.mark.parametrize("V", WEIGHTS)
def test_the_guarantee_holds_exactly_in_every_run(V: float) -> None:
    for run in runs(f"{V:g}"):
        assert rate_slack(run.counts, ROUNDS, BETA, run.queues).min() >= -1e-9


def test_time_falls_and_debt_and_unfairness_rise_with_the_weight_on_time() -> None:
    times = [mean_total_s(policy) for policy in ("random", "5", "20", "50")]
    debts = [float(np.mean([r.mean_queue for r in runs(f"{V:g}")])) for V in WEIGHTS]
    evenness = [float(np.mean([r.jain for r in runs(f"{V:g}")])) for V in WEIGHTS]
    assert times == sorted(times, reverse=True)
    assert debts == sorted(debts)
    assert evenness == sorted(evenness, reverse=True)


def test_a_deadline_alone_is_quickest_and_starves_the_slow() -> None:
    assert mean_total_s("fedcs") < mean_total_s("50")
    for run in runs("fedcs"):
        assert run.group_rates[3] < 0.05 < BETA


def test_estimates_of_the_selected_are_within_a_few_percent() -> None:
    for policy in ("5", "20"):
        assert np.mean([run.ape for run in runs(policy)]) < 0.035
