"""Who knows a device is wrong only about what its link does next."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.oracle.ground_truth import GroundTruth, ground_truth_of
from experiments.oracle.predictor import RECENT_S, oracle_trials
from fairbed.coordinator.algorithms.estimation.prequential import Errors, prequential
from fairbed.coordinator.store.tables import ConditionRow, ExchangeRow, TruthRow
from tests.testbed.recording.rows import TRAINING, World

HOST = TRAINING.core_speed

TRUTH = TruthRow(
    name="pi-1",
    profile="pi",
    cpu_speed=0.4,
    cores=4,
    down_bps=16e6,
    up_bps=8e6,
    delay_s=0.02,
    malicious=None,
    details="{}",
)


def work_s(x: ExchangeRow) -> float:
    reference_s = TRAINING.reference_s(x.n_k, x.steps)
    assert reference_s is not None
    return reference_s / HOST


def exchange(world: World, index: int) -> ExchangeRow:
    x = world.exchange(index)
    return replace(x, s_not_previous=int(bool(x.was_cold)))


def errors_of(
    exchanges: list[ExchangeRow], past: GroundTruth, counted_after: float = 0.0
) -> Errors:
    known, trials = oracle_trials(
        [[x] for x in exchanges], {"pi-1": 0}, {"pi-1": past}, work_s, counted_after
    )
    return prequential({"known": known}, trials)["known"]


def condition(
    start_s: float, end_s: float, down_bps: float, speed_ratio: float = 0.4 / HOST
) -> ConditionRow:
    return ConditionRow(
        at_s=end_s,
        duration_s=end_s - start_s,
        device="pi-1",
        speed_ratio=speed_ratio,
        clock_ratio=1.0,
        temperature_celsius=None,
        down_bps=down_bps,
        up_bps=8e6,
        delay_s=0.02,
        jitter_s=0.0,
        loss_ratio=0.0,
        outage_s=0.0,
        unwilling_s=0.0,
    )


def test_nothing_is_unknown_of_a_device_that_never_changes() -> None:
    world = World()
    found = errors_of([exchange(world, i) for i in range(20)], ground_truth_of(TRUTH, [], HOST))
    assert found.count == 19
    assert found.p95_ape == pytest.approx(0.0, abs=1e-9), "cold starts included"


def test_a_link_that_changed_long_before_is_known() -> None:
    """Rates that alternate from round to round, each from 6 s before its dispatch on."""
    rates = [16e6, 4e6]
    world = World(down_bps=rates, delay_s=0.0)  # TCP would wait as long as the rate asks for
    exchanges = [exchange(world, i) for i in range(20)]
    rows = [
        condition(x.dispatched_at_s - RECENT_S - 1.0, x.dispatched_at_s + 4.0, rates[i % 2])
        for i, x in enumerate(exchanges)
    ]
    found = errors_of(exchanges, ground_truth_of(TRUTH, rows, HOST))
    assert found.p95_ape == pytest.approx(0.0, abs=1e-9)


def test_a_link_that_changes_at_the_dispatch_is_not() -> None:
    world = World(down_bps=[4e6])
    x = exchange(world, 1)
    exchanges = [x, replace(x, round=3, dispatched_at_s=x.dispatched_at_s + 20.0)]
    rows = [
        row
        for one in exchanges
        for row in (
            condition(one.dispatched_at_s - 10.0, one.dispatched_at_s, 16e6),
            condition(one.dispatched_at_s, one.dispatched_at_s + 5.0, 4e6),
        )
    ]
    found = errors_of(exchanges, ground_truth_of(TRUTH, rows, HOST))
    missed_s = 8.0 * 1e6 / 4e6 - 8.0 * 1e6 / 16e6
    assert found.bias == pytest.approx(-missed_s / (x.tau_s or 0.0), rel=1e-6)


def test_the_speed_of_the_last_seconds_counts_not_the_nominal_one() -> None:
    world = World(clock_ratio=0.5)
    exchanges = [exchange(world, i) for i in range(10)]
    hot = [condition(0.0, 200.0, 16e6, speed_ratio=0.5 * 0.4 / HOST)]
    assert errors_of(exchanges, ground_truth_of(TRUTH, hot, HOST)).mape == pytest.approx(
        0.0, abs=1e-9
    )
    # What is fixed hides half of a constant lie about the speed, so look at the parts.
    cool, _ = oracle_trials(
        [exchanges], {"pi-1": 0}, {"pi-1": ground_truth_of(TRUTH, [], HOST)}, work_s
    )
    warm, _ = oracle_trials(
        [exchanges], {"pi-1": 0}, {"pi-1": ground_truth_of(TRUTH, hot, HOST)}, work_s
    )
    nothing = np.zeros((1, 4))
    missing_s = cool.predict(nothing).tau_hat_s - warm.predict(nothing).tau_hat_s
    assert missing_s == pytest.approx(work_s(exchanges[0]) * HOST / 0.4)


def test_errors_are_counted_of_later_rounds_only() -> None:
    world = World()
    exchanges = [exchange(world, i) for i in range(20)]
    assert errors_of(exchanges, ground_truth_of(TRUTH, [], HOST), counted_after=10.0).count == 10


def test_a_mean_weighs_stretches_by_how_long_they_are() -> None:
    past = ground_truth_of(TRUTH, [condition(0.0, 4.0, 10e6), condition(4.0, 5.0, 20e6)], HOST)
    assert past.mean("down_bps", 0.0, 5.0) == pytest.approx(12e6)
    assert past.mean("down_bps", 3.5, 4.5) == pytest.approx(15e6)
    assert past.mean("down_bps", 9.0, 12.0) == 16e6, "beyond what is known: as configured"


def test_a_device_of_this_machine_is_not_slowed_and_its_link_has_no_limit() -> None:
    truth = replace(TRUTH, profile="this-machine", down_bps=None)
    past = ground_truth_of(truth, [], HOST)
    assert past.mean("speed_ratio", 0.0, 1.0) == 1.0
    assert past.mean("down_bps", 0.0, 1.0) == float("inf")
