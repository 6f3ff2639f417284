"""Heat follows the load with two lags, and slows the clock."""

import os
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed import profiles
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


def two_lags(limit: float = 80.0) -> Thermal:
    return Thermal(
        sustained=quantity(0.6),
        time_constant=quantity(120.0),
        fast_share=quantity(0.4),
        fast_constant=quantity(8.0),
        idle_celsius=quantity(40.0),
        rise_celsius=quantity(50.0),
        limit_celsius=quantity(limit),
    )


def test_a_chip_is_hot_in_seconds_and_its_case_in_minutes() -> None:
    heat = Heat(two_lags())
    heat.advance(24.0, 1.0)
    expected = 40.0 + 20.0 * (1.0 - np.exp(-3.0)) + 30.0 * (1.0 - np.exp(-0.2))
    assert heat.celsius == pytest.approx(expected)
    heat.advance(32.0, 0.0)
    fast, slow = 20.0 * (1.0 - np.exp(-3.0)), 30.0 * (1.0 - np.exp(-0.2))
    assert heat.celsius == pytest.approx(40.0 + fast * np.exp(-1.0) + slow * np.exp(-8.0 / 120.0))


def test_the_onset_follows_from_the_temperatures() -> None:
    hot = two_lags()
    assert hot.limit == 0.8
    heat = Heat(hot)
    throttled = []
    for share in (0.999, 1.001):
        heat.advance(share * hot.onset_s, 1.0)
        throttled.append(heat.is_throttled)
    assert throttled == [False, True]
    assert two_lags(limit=95.0).onset_s == inf


def test_a_case_and_warm_air_make_it_hotter() -> None:
    cool = two_lags(limit=95.0)
    closed = cool.in_case(1.5)
    assert (closed.idle_celsius, closed.rise_celsius) == (quantity(49.0), quantity(75.0))
    assert closed.time_constant_s == 180.0, "of the same mass"
    assert cool.in_case(1.5, constant_s=90.0).time_constant_s == 90.0
    assert closed.throttles
    assert not cool.throttles
    warm = cool.in_case(ambient_celsius=32.0, constant_s=300.0)
    assert warm.idle_celsius == quantity(50.0)
    assert warm.time_constant_s == 300.0
    with pytest.raises(ValueError, match="needs idle_celsius and rise_celsius"):
        thermal().in_case(2.0)


@pytest.mark.parametrize(
    ("board", "curve", "case", "limit"),
    [
        ("raspberry-pi-3b", "rpi3b-naked", (1.0, None), 1.5),
        ("raspberry-pi-4b", "rpi4b-stock", (1.0, None), 1.5),
        ("raspberry-pi-4b", "rpi4b-fans-off", (1.0, 305.0), 3.0),  # another case
    ],
)
def test_temperatures_are_those_of_published_curves(
    board: str, curve: str, case: tuple[float, float | None], limit: float
) -> None:
    path = Path(os.environ.get("FAIRBED_DATA", "")) / "heat" / f"{curve}.dat"
    if not path.is_file():
        pytest.skip("FAIRBED_DATA has no curves of heat")
    from tools.derive_heat import LOAD_S, read_curve

    t_s, celsius = read_curve(path)
    model = profiles.load(board).thermal
    assert model is not None
    heat, found = Heat(model.in_case(*case)), []
    began = float(t_s[int(np.argmax(np.diff(celsius)))])
    for t in t_s:
        if heat.now < began <= t:
            heat.advance(began, 0.0)
        if heat.now < began + LOAD_S <= t:
            heat.advance(began + LOAD_S, 1.0)
        heat.advance(t, 1.0 if began <= heat.now < began + LOAD_S else 0.0)
        assert heat.celsius is not None
        found.append(heat.celsius)
    wrong = np.array(found) - celsius
    for part in (t_s < began + LOAD_S, t_s >= began + LOAD_S):
        assert np.sqrt(np.mean(wrong[part] ** 2)) <= limit
