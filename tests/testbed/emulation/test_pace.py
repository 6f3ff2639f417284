"""A closed control loop has the configured speed on average, and no more after a pause."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.pace import (
    CONTROL_INTERVAL_S,
    IDLE_CREDIT_S,
    MAX_CREDIT_S,
    PaceController,
)


@given(
    speed=st.floats(0.02, 2.0),
    appetites=st.lists(st.floats(0.5, 1.0), min_size=50, max_size=200),
    late_s=st.floats(0.0, 0.02),
    cores=st.integers(1, 4),
)
def test_a_busy_program_has_its_speed_on_average(
    speed: float, appetites: list[float], late_s: float, cores: int
) -> None:
    account = PaceController(0.0, 0.0)
    now = cpu_s = 0.0
    for appetite in appetites:
        now += CONTROL_INTERVAL_S
        cpu_s += CONTROL_INTERVAL_S * max(appetite * cores, speed)
        if (still_s := account.advance(now, cpu_s, speed, 0.0)) > 0.0:
            now += still_s + late_s  # the pacer itself waits for this machine
            account.resume(now, cpu_s, speed)
    assert cpu_s / now == pytest.approx(
        speed, rel=0.05, abs=(cores * CONTROL_INTERVAL_S + late_s) / now
    )
    assert account.lost_s == 0.0


@pytest.mark.parametrize(("speed", "burst_s"), [(0.33, 0.015), (0.8, 0.05)])
def test_full_speed_after_a_pause_ends_with_the_credit_of_a_quota(
    speed: float, burst_s: float
) -> None:
    """Idle credit c lasts c / (1 - speed), rounded up to an interval of control.

    A burst that begins between two readings is longer: the first reading still limits its credit.
    """
    longest_s = 0.0
    for share in np.linspace(0.0, 1.0, 101):
        account = PaceController(0.0, 0.0)
        now, cpu_s = 10.0, float(share) * CONTROL_INTERVAL_S
        still_s = account.advance(now, cpu_s, speed, 0.0)
        while still_s == 0.0:
            now, cpu_s = now + CONTROL_INTERVAL_S, cpu_s + CONTROL_INTERVAL_S
            still_s = account.advance(now, cpu_s, speed, 0.0)
        longest_s = max(longest_s, cpu_s)
        if share == 0.0:
            assert cpu_s <= burst_s + CONTROL_INTERVAL_S
            assert cpu_s - speed * (cpu_s + still_s) == pytest.approx(IDLE_CREDIT_S * speed)
            assert account.contended_s == 0.0
    assert burst_s < longest_s <= burst_s + 2.0 * CONTROL_INTERVAL_S


def test_a_program_catches_up_after_a_wait_and_what_it_cannot_is_contended() -> None:
    account = PaceController(0.0, 0.0)
    account.advance(0.02, 0.0, 0.5, 0.0)  # waits; the kernel counts a wait at its end
    account.advance(0.06, 0.0, 0.5, 0.06)
    assert account.contended_s == pytest.approx(0.06 - IDLE_CREDIT_S)
    assert account.advance(0.14, 0.08, 0.5, 0.0) == pytest.approx(0.02)  # 0.07 were due
    assert account.contended_s == 0.0
    account.advance(1.14, 0.08, 0.5, 1.0)
    assert account.lost_s == pytest.approx(1.0 - 0.02 - MAX_CREDIT_S)
    assert account.contended_s == pytest.approx(1.0 - 0.02 - IDLE_CREDIT_S)


def test_time_in_which_the_user_stopped_the_program_is_neither_credit_nor_contention() -> None:
    account = PaceController(0.0, 0.0)
    account.skip(100.0, 0.0)
    assert account.advance(100.02, 0.02, 0.5, 0.0) == pytest.approx(0.02)
    assert account.contended_s == 0.0
