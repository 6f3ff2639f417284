"""What the numbers of the reproduction are made of."""

import math

import numpy as np
import pytest

from experiments.rbcs_f_paper.arms import FASTEST, LOW_NOISE, RANDOM, Arm, Policy, all_arms, rbcs_f
from experiments.rbcs_f_paper.figures import BIN, binned
from experiments.rbcs_f_paper.reference import METRICS, REFERENCE, SEEDS, Printed
from experiments.rbcs_f_paper.report import table
from experiments.rbcs_f_paper.rounds import ExactQueues, Trajectory, regret_s
from experiments.rbcs_f_paper.table import cells, checks
from fairbed.coordinator.algorithms.arrays import Bools

BETA = 0.15


def run(total_s: float = 1.0, backlog: float = 0.0, is_selected: Bools | None = None) -> Trajectory:
    """Return ten rounds of eight devices with these numbers."""
    if is_selected is None:
        is_selected = np.ones((10, 8), dtype=np.bool_)
    rounds = len(is_selected)
    return Trajectory(
        duration_s=np.full(rounds, total_s / rounds),
        is_selected=is_selected,
        backlog=np.full(rounds, backlog),
        regret_s=np.zeros(rounds),
        error_selected=np.zeros(rounds),
        error_all=np.zeros(rounds),
        broken_rounds=0,
        queue_error=0.0,
    )


def test_exact_queues_are_those_of_the_worked_example() -> None:
    """Beta = 0.15, x = 0,0,1,0,0,0,0,1."""
    queues, seen = ExactQueues(BETA, 1), []
    for x in (0, 0, 1, 0, 0, 0, 0, 1):
        queues.advance(np.array([bool(x)]))
        seen.append(float(queues.values[0]))
        assert queues.guarantee_holds
    assert seen == [0.15, 0.30, 0.0, 0.15, 0.30, 0.45, 0.60, 0.0]


def test_the_guarantee_fails_when_a_queue_is_forgotten() -> None:
    queues = ExactQueues(BETA, 2)
    queues.advance(np.array([True, False]))
    queues._z[1] = 0
    assert not queues.guarantee_holds


def test_the_best_cohort_has_no_regret_and_others_have_theirs() -> None:
    """The worked example of P4: V = 1 and m = 2 choose the first two, with J = 1.7."""
    known_s, queues = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.3, 0.6, 1.0])
    everybody = np.ones(4, dtype=np.bool_)
    assert regret_s(known_s, everybody, queues, np.array([0, 1]), 1.0) == 0.0
    other = regret_s(known_s, everybody, queues, np.array([2, 3]), 1.0)
    assert other == pytest.approx((4.0 - 1.6) - 1.7)
    twice = regret_s(known_s, everybody, queues, np.array([2, 3]), 10.0)
    assert twice == pytest.approx(((40.0 - 1.6) - 19.7) / 10.0)


def test_a_number_is_judged_by_the_errors_of_both_means() -> None:
    """Ten of ours around the mean and five of the reference: s sqrt(1/10 + 1/5) is one error."""
    policy, reference = rbcs_f(20.0), REFERENCE["RBCS-F(20)"][2]
    assert reference is not None
    spread = np.array([-1.0, 1.0] * 5)
    error = spread.std(ddof=1) * math.sqrt(1 / 10 + 1 / SEEDS)
    for distance, near in ((0.0, True), (2.9, True), (3.1, False), (-3.1, False)):
        mean = reference.value + distance * error + math.copysign(0.5, distance)
        runs = {Arm(policy=policy): [run(backlog=mean + off) for off in spread]}
        cell = next(c for c in cells(runs, has_reference=True) if c.metric == "queues")
        assert cell.is_within is near, distance
        assert cell.error == pytest.approx(spread.std(ddof=1) / math.sqrt(10))


def test_a_total_time_has_to_be_within_two_percent_besides() -> None:
    policy, reference = rbcs_f(20.0), REFERENCE["RBCS-F(20)"][0]
    assert reference is not None
    for off, near in ((0.019, True), (0.021, False)):
        mean_s = reference.value * (1.0 + off)
        runs = {Arm(policy=policy): [run(mean_s + x) for x in (-90.0, 90.0) * 5]}
        cell = next(c for c in cells(runs, has_reference=True) if c.metric == METRICS[0])
        assert cell.is_within is near
        assert cell.apart_ratio == pytest.approx(off, abs=1e-6)


def test_without_a_reference_nothing_is_judged() -> None:
    runs = {Arm(policy=RANDOM): [run(), run()]}
    assert all(cell.is_within is None for cell in cells(runs, has_reference=False))


def test_what_was_printed_may_have_been_rounded() -> None:
    assert (Printed("144").half_unit, Printed("0.998").half_unit) == (0.5, 0.0005)


def test_a_broken_ordering_is_found() -> None:
    policies: list[Policy] = [RANDOM, *(rbcs_f(v) for v in (0.0, 5.0, 10.0, 20.0, 50.0)), FASTEST]
    runs = {
        Arm(policy=p): [run(100.0 - i, backlog=float(i)), run(100.0 - i, backlog=float(i))]
        for i, p in enumerate(policies)
    }
    by_text = {check.text.partition(":")[0]: check.holds for check in checks(runs)}
    assert by_text["time, 10% noise"]
    runs[Arm(policy=rbcs_f(20.0))] = [run(200.0, 99.0)] * 2
    broken = {check.text.partition(":")[0]: check.holds for check in checks(runs)}
    assert not broken["time, 10% noise"]
    assert not broken["queues, 10% noise"]


def test_every_arm_is_played_once() -> None:
    arms = all_arms()
    assert len(set(arms)) == len(arms) == 2 * (len(REFERENCE) + 4)
    experiment = Arm(policy=rbcs_f(50.0), noise=1.0, coding="literal_seed").experiment(7, 3)
    assert (experiment.rounds, experiment.seed, experiment.selection.V) == (7, 3, 50.0)
    assert {group.noise for group in experiment.fleet} == {1.0}
    assert experiment.selection.cold_start_coding == "literal_seed"
    assert Arm(policy=RANDOM).noise == LOW_NOISE


def test_bins_of_the_pull_record_are_rates() -> None:
    is_selected = np.zeros((2 * BIN + 5, 2), dtype=np.bool_)
    is_selected[:BIN, 0] = True
    is_selected[2 * BIN :, 1] = True
    assert binned(is_selected).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]


def test_a_table_lines_up() -> None:
    lines = table(["a", "bb"], [["long cell", "1"], ["x", "22"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0] == "| a         | bb |"
