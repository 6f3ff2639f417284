"""The whole experiment at its own length: the reference table, orderings, both codings, regret."""

from functools import cache

import numpy as np
import pytest

from experiments.rbcs_f_paper.arms import (
    FASTEST,
    FEDCS,
    HIGH_NOISE,
    LOW_NOISE,
    RANDOM,
    Arm,
    Policy,
    rbcs_f,
    rbcs_f_known,
)
from experiments.rbcs_f_paper.reference import METRICS, ROUNDS
from experiments.rbcs_f_paper.rounds import ROUNDING, Trajectory, trajectory
from experiments.rbcs_f_paper.table import Cell, cells, checks

SEEDS = {RANDOM: 20, rbcs_f(20.0): 8}
"""Four of each policy, where the command plays ten; more where few happen to differ little among
themselves and lie 1 % aside."""
LOW_NOISE_POLICIES = (RANDOM, rbcs_f(5.0), rbcs_f(20.0), rbcs_f(50.0), FASTEST)
TOLD = rbcs_f_known(20.0)


@cache
def played(
    policy: Policy, noise: float = LOW_NOISE, seeds: int | None = None
) -> tuple[Trajectory, ...]:
    arm = Arm(policy=policy, noise=noise)
    return tuple(trajectory(arm, ROUNDS, seed) for seed in range(seeds or SEEDS.get(policy, 4)))


def judged(policy: Policy) -> list[Cell]:
    """Return the numbers of a policy that the reference has, too."""
    found = cells({Arm(policy=policy): played(policy)}, has_reference=True)
    return [cell for cell in found if cell.reference is not None]


@pytest.mark.parametrize("policy", LOW_NOISE_POLICIES, ids=lambda policy: policy.label)
def test_every_number_is_the_one_of_the_reference(policy: Policy) -> None:
    found = judged(policy)
    grow_for_ever = {"queues"} if policy == FASTEST else set[str]()
    assert {cell.metric for cell in found} == set(METRICS) - {METRICS[1]} - grow_for_ever
    assert [cell for cell in found if not cell.is_within] == []


def test_who_knows_the_times_takes_as_long_as_recorded() -> None:
    (cell,) = judged(TOLD)
    assert cell.is_within, cell


def test_times_that_vary_wildly_cost_what_was_recorded() -> None:
    policy = rbcs_f(20.0)
    runs = {Arm(policy=policy, noise=HIGH_NOISE): played(policy, HIGH_NOISE)}
    (cell,) = cells(runs, has_reference=True)
    assert cell.metric == METRICS[1]
    assert cell.is_within, cell


def test_orderings_and_the_guarantee_hold() -> None:
    runs = {Arm(policy=policy): played(policy)[:3] for policy in (*LOW_NOISE_POLICIES, TOLD)}
    runs[Arm(policy=rbcs_f(10.0))] = played(rbcs_f(10.0), LOW_NOISE, 3)
    found = checks(runs)
    assert len(found) == 6
    assert all(check.holds for check in found), found


def test_the_guarantee_is_exact_in_every_round_of_every_policy() -> None:
    for policy in LOW_NOISE_POLICIES:
        for run in played(policy):
            assert run.broken_rounds == 0
            assert run.queue_error <= ROUNDING


def test_regret_grows_more_slowly_than_the_rounds() -> None:
    for policy in (rbcs_f(5.0), rbcs_f(20.0)):
        gaps_s = np.array([run.regret_s for run in played(policy)])
        assert gaps_s.min() >= -1e-9, "nothing is better than the optimum"
        first, last = gaps_s[:, :100].mean(), gaps_s[:, -100:].mean()
        assert last < 0.5 * first


def test_the_literal_coding_predicts_worse_and_takes_longer() -> None:
    arm = Arm(policy=rbcs_f(20.0), coding="literal_seed")
    ours, literal = played(rbcs_f(20.0))[:3], [trajectory(arm, ROUNDS, s) for s in range(3)]
    for name in ("error_selected", "error_all"):
        low, high = (
            np.mean([run.second_half(getattr(run, name)) for run in runs])
            for runs in (ours, literal)
        )
        assert low < 0.045 < 0.06 < high < 0.095
    costs = np.mean([r.total_s for r in literal]) / np.mean([r.total_s for r in ours]) - 1.0
    assert 0.005 < costs < 0.045


def test_a_deadline_of_three_seconds_is_nearly_as_quick_as_knowing_everything() -> None:
    """The reference has 1022 s for both when the times are known; learning them costs a little."""
    fedcs = np.mean([run.total_s for run in played(FEDCS, LOW_NOISE, 3)])
    fastest = np.mean([run.total_s for run in played(FASTEST)[:3]])
    assert 1.0 < fedcs / fastest < 1.1
