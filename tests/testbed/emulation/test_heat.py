"""Heat follows the load with a lag, and slows the clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.profiles.quantities import Quantity
from fairbed.profiles.schema import Thermal
from fairbed.testbed.emulation.heat import Heat


def quantity(value: float) -> Quantity[float]:
    return Quantity(value=value, tag="literature", source="a test")


def thermal(onset_s: float = 120.0, time_constant_s: float = 200.0, **others: float) -> Thermal:
    return Thermal(
        sustained=quantity(0.6),
        onset=quantity(onset_s),
        time_constant=quantity(time_constant_s),
        **{name: quantity(value) for name, value in others.items()},
    )


@given(st.floats(1.0, 1000.0), st.floats(1.0, 1000.0), st.integers(1, 50))
def test_full_load_throttles_at_the_onset_whatever_the_update_interval(
    onset_s: float, time_constant_s: float, n_updates: int
) -> None:
    if onset_s > 20 * time_constant_s:
        return  # so close to the limit that the result depends on rounding
    heat = Heat(thermal(onset_s, time_constant_s))
    for update in range(1, n_updates + 1):
        heat.advance(0.99 * onset_s * update / n_updates, 1.0)
        assert not heat.is_throttled
    heat.advance(1.01 * onset_s, 1.0)
    assert heat.is_throttled
    assert heat.clock_ratio == 0.6


def test_a_device_that_rests_cools_down_and_is_fast_again() -> None:
    heat = Heat(thermal())
    heat.advance(300.0, 1.0)
    assert heat.clock_ratio == 0.6
    heat.advance(900.0, 0.0)
    assert heat.clock_ratio == 1.0


def test_one_of_four_cores_never_makes_it_hot() -> None:
    heat = Heat(thermal())
    heat.advance(1e6, 0.25)
    assert heat.clock_ratio == 1.0


def test_the_temperature_goes_from_rest_to_the_limit() -> None:
    heat = Heat(thermal(idle_celsius=40.0, limit_celsius=80.0))
    assert heat.celsius == 40.0
    heat.advance(120.0, 1.0)
    assert heat.celsius == pytest.approx(80.0)


def test_without_limits_in_the_profile_there_is_no_temperature() -> None:
    assert Heat(thermal(idle_celsius=40.0)).celsius is None


@given(st.floats(-2.0, 3.0), st.floats(0.0, 1e4))
def test_heat_is_a_share_for_any_load(load: float, now: float) -> None:
    heat = Heat(thermal())
    heat.advance(now, load)
    assert 0.0 <= heat.share <= 1.0
