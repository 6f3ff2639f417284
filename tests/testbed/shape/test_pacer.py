"""A closed control loop has the configured speed on average."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.shape.pacer import CONTROL_INTERVAL_S, MAX_CREDIT_S, PaceController


@given(
    speed=st.floats(0.02, 2.0),
    appetites=st.lists(st.floats(0.5, 1.0), min_size=50, max_size=200),
    cores=st.integers(1, 4),
)
def test_a_busy_program_has_its_speed_on_average(
    speed: float, appetites: list[float], cores: int
) -> None:
    account = PaceController(0.0, 0.0)
    now = cpu_s = 0.0
    for appetite in appetites:
        now += CONTROL_INTERVAL_S
        cpu_s += CONTROL_INTERVAL_S * max(appetite * cores, speed)
        now += account.advance(now, cpu_s, speed)
    assert cpu_s / now == pytest.approx(speed, rel=0.05, abs=cores * CONTROL_INTERVAL_S / now)


def test_idle_time_gives_little_credit() -> None:
    account = PaceController(0.0, 0.0)
    assert account.advance(10.0, 0.0, 0.5) == 0.0
    assert account.unused_s == pytest.approx(10.0 - MAX_CREDIT_S)
    assert account.advance(10.1, 0.1, 0.5) == pytest.approx(0.0, abs=1e-9)  # paid from the credit
    assert account.advance(10.2, 0.2, 0.5) == pytest.approx(0.1)
