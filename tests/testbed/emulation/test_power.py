"""Power of an emulated device by phase, against sums by hand."""

import pytest
from msgspec import structs

from fairbed import profiles
from fairbed.profiles import Profile
from fairbed.profiles.quantities import Quantity
from fairbed.profiles.schema import Energy
from fairbed.testbed.emulation.power import UNKNOWN, PhasePower, phase_power


def profile(threads: int = 1, **energy: float) -> Profile:
    """Return a Raspberry Pi 4B, of four cores, with these powers."""
    powers = {
        name: Quantity(value=watts, tag="literature", source="made up")
        for name, watts in energy.items()
    }
    board = profiles.load("raspberry-pi-4b")
    return structs.replace(
        board,
        threads=structs.replace(board.threads, value=threads),
        energy=Energy(**powers),
    )


@pytest.mark.parametrize(
    ("device", "power"),
    [
        (profile(idle_w=2.0, train_w=6.0), PhasePower(2.0, 3.0)),
        (profile(2, idle_w=2.0, train_w=6.0), PhasePower(2.0, 4.0)),
        (profile(4, idle_w=2.0, train_w=6.0), PhasePower(2.0, 6.0)),
        (profile(idle_w=2.0, train_w=6.0, transmit_w=2.5), PhasePower(2.5, 3.0)),
        (profile(idle_w=2.0), PhasePower(2.0, None)),
        (profile(train_w=6.0), UNKNOWN),
        (profile(4, train_w=6.0), PhasePower(None, 6.0)),
        (profile(transmit_w=2.5), PhasePower(2.5, None)),
        (profile(compute_w=3.5), PhasePower(None, 3.5)),
        (profile(4, idle_w=2.0, train_w=6.0, compute_w=3.5), PhasePower(2.0, 3.5)),
        (structs.replace(profile(), energy=None), UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_power_grows_linearly_with_the_busy_cores(
    device: Profile | None, power: PhasePower
) -> None:
    assert phase_power(device) == power
