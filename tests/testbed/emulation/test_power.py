"""Power of an emulated device by phase, against sums by hand."""

import pytest
from msgspec import structs

from fairbed import profiles
from fairbed.profiles import Profile
from fairbed.profiles.schema import Energy, Power
from fairbed.testbed.emulation.power import UNKNOWN, PhasePower, phase_power


def profile(threads: int = 1, **energy: float) -> Profile:
    """Return a Raspberry Pi 4B, of four cores, with these powers."""
    powers = {
        name: Power(value=watts, tag="literature", source="made up")
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


def test_power_has_the_interval_of_its_sources() -> None:
    found = profile(idle_w=2.0, train_w=6.0)
    assert found.energy is not None
    assert found.energy.idle_w is not None
    wide = structs.replace(found.energy.idle_w, low=1.0, high=3.0)
    device = structs.replace(found, energy=structs.replace(found.energy, idle_w=wide))
    assert phase_power(device) == PhasePower(2.0, 3.0, (1.0, 3.0), (2.25, 3.75))
    transmit = Power(value=2.5, tag="literature", source="made up")
    energy = structs.replace(found.energy, idle_w=wide, transmit_w=transmit)
    sending = structs.replace(found, energy=energy)
    assert phase_power(sending) == PhasePower(2.5, 3.0, None, (2.25, 3.75))
    with pytest.raises(ValueError, match="value must be from low to high, 3 to 4, got 2"):
        Power(value=2.0, low=3.0, high=4.0, tag="literature", source="made up")


@pytest.mark.parametrize("name", profiles.names())
def test_boards_of_the_library_have_a_power_of_transfers(name: str) -> None:
    energy = profiles.load(name).energy
    if energy is None:
        return
    assert energy.idle_w is not None
    assert energy.transmit_w is not None
    assert energy.idle_w.value < energy.transmit_w.value
