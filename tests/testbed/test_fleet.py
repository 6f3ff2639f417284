"""A fleet is planned as its file says, and let into this machine only if it fits."""

import pytest

from coordinator.config import SelectionConfig
from testbed.admission import admit, demand_of
from testbed.experiment import EmulationConfig, Experiment, ExperimentError, FleetConfig
from testbed.fleet import plan_fleet

FLEET = (
    FleetConfig(profile="raspberry-pi-zero-2w", count=2),  # 0.214 cores of the reference each
    FleetConfig(profile="raspberry-pi-4b"),  # 0.425
)


def experiment(
    per_round: int = 2, fleet: tuple[FleetConfig, ...] = FLEET, **emulation: object
) -> Experiment:
    return Experiment(
        name="fleet",
        fleet=fleet,
        emulation=EmulationConfig(**emulation),  # type: ignore[arg-type]  # keys of the test
        selection=SelectionConfig(per_round=per_round, beta=0.0),
    )


def admitted(plan: Experiment, cores: float, earlier: float | None = None) -> float:
    return admit(plan, plan_fleet(plan, {}), cores, earlier)


@pytest.mark.parametrize(
    ("per_round", "host_core_speed", "cores"),
    [(1, 1.0, 0.425), (2, 1.0, 0.639), (3, 1.0, 0.853), (2, 2.0, 0.3195)],
)
def test_the_fastest_of_one_round_are_what_a_fleet_wants(
    per_round: int, host_core_speed: float, cores: float
) -> None:
    plan = experiment(per_round, host_core_speed=host_core_speed)
    assert demand_of(plan, plan_fleet(plan, {})).together == pytest.approx(cores)


def test_devices_that_are_not_throttled_want_nothing() -> None:
    plan = experiment(7, (*FLEET, FleetConfig(count=5)))
    assert demand_of(plan, plan_fleet(plan, {})).together == pytest.approx(0.853)
    assert admitted(plan, cores=2) == 1.0


def test_a_fleet_that_does_not_fit_is_refused_with_the_dilation_that_would() -> None:
    plan = experiment(3, host_core_speed=0.1)
    with pytest.raises(ExperimentError, match=r"want 8\.53 cores at once, and this machine has 2,"):
        admitted(plan, cores=2)
    with pytest.raises(ExperimentError, match='use 6, or "auto", or fewer devices'):
        admitted(plan, cores=2)
    assert admitted(experiment(3, host_core_speed=0.1, dilation=6.0), cores=2) == 6.0


def test_a_device_faster_than_a_core_is_refused_by_its_thread() -> None:
    plan = experiment(1, host_core_speed=0.3)
    with pytest.raises(ExperimentError, match=r"want 1\.42 cores|as fast as 1\.42 cores"):
        admitted(plan, cores=64)


def test_auto_takes_the_least_that_fits_and_nothing_when_it_fits() -> None:
    plan = experiment(3, host_core_speed=0.1, dilation="auto")
    assert admitted(plan, cores=2) == 6.0
    assert admitted(plan, cores=64) == 5.0, "one thread is as fast as 4.25 cores"
    assert admitted(experiment(3, dilation="auto"), cores=2) == 1.0


def test_a_run_that_goes_on_keeps_its_dilation_while_that_is_enough() -> None:
    plan = experiment(3, host_core_speed=0.1, dilation="auto")
    assert admitted(plan, cores=64, earlier=6.0) == 6.0
    assert admitted(plan, cores=1, earlier=6.0) > 6.0


def test_time_cannot_run_slower_for_a_device_that_is_not_throttled() -> None:
    plan = experiment(1, (FleetConfig(name="pc"), *FLEET), dilation=2.0)
    with pytest.raises(ExperimentError, match="give pc-1 a profile"):
        admitted(plan, cores=2)


def test_a_dilated_device_is_slower_by_that_and_its_truth_is_not() -> None:
    (device, *_) = plan_fleet(experiment(), {})
    slow = device.dilated(4.0)
    before, after = device.spec, slow.spec
    assert before.device is not None
    assert after.device is not None
    assert before.shape is not None
    assert after.shape is not None
    assert after.device.speed_ratio == before.device.speed_ratio / 4
    rates = before.device.storage_read_bytes_per_s, after.device.storage_read_bytes_per_s
    assert rates[0] == 4 * rates[1]
    assert (before.shape.down_bps or 0) == 4 * (after.shape.down_bps or 1)
    assert after.shape.delay_s == 4 * before.shape.delay_s
    assert slow.truth() == device.truth()
