"""What a fleet asks of this machine."""

import pytest

from testbed.experiment import EmulationConfig, Experiment, FleetConfig
from testbed.fleet import peak_cores, plan_fleet

FLEET = (
    FleetConfig(profile="raspberry-pi-zero-2w", count=2),  # 0.214 cores of the reference each
    FleetConfig(profile="raspberry-pi-4b"),  # 0.425
    FleetConfig(count=5),  # this machine, not throttled
)


@pytest.mark.parametrize(
    ("at_once", "host_core_speed", "cores"),
    [(1, 1.0, 0.425), (2, 1.0, 0.639), (9, 1.0, 0.853), (2, 2.0, 0.3195), (0, 1.0, 0.0)],
)
def test_the_peak_is_the_sum_of_the_fastest_devices(
    at_once: int, host_core_speed: float, cores: float
) -> None:
    emulation = EmulationConfig(host_core_speed=host_core_speed)
    devices = plan_fleet(Experiment(name="fleet", fleet=FLEET, emulation=emulation), {})
    assert peak_cores(devices, at_once) == pytest.approx(cores)
