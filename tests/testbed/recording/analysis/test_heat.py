"""How a device slows down under load."""

import numpy as np
import pytest

from fairbed.testbed.recording.analysis.findings import NotMeasured
from fairbed.testbed.recording.analysis.from_machine import LoadSample, heat


def _load(
    onset_s: float, sustained: float, tau_s: float = 40.0, *, length_s: float = 200.0
) -> list[LoadSample]:
    rng = np.random.default_rng(7)
    return [
        LoadSample(
            t_s=t,
            speed=float((1.0 if t < onset_s else sustained) + 0.005 * rng.standard_normal()),
            celsius=45.0 + 35.0 * float(1.0 - np.exp(-t / tau_s)),
        )
        for t in np.arange(0.0, length_s, 1.0).tolist()
    ]


def test_a_drop_of_the_clock_has_a_depth_and_a_time_constant() -> None:
    found = heat(_load(90.0, 0.7), "the clock")
    assert found is not None
    assert found.onset.value == pytest.approx(90.0, abs=2.0)
    assert found.sustained.value == pytest.approx(0.7, abs=0.01)
    assert found.time_constant is not None
    assert found.time_constant.value == pytest.approx(40.0, rel=0.05)
    assert found.idle_celsius is not None
    assert found.idle_celsius.value == 45.0
    assert found.limit_celsius is not None
    assert found.limit_celsius.value == pytest.approx(45.0 + 35.0 * (1 - np.exp(-90 / 40)), abs=0.5)


def test_a_constant_clock_has_no_thermal_fit() -> None:
    assert heat(_load(1e9, 1.0), "the clock") is None


def test_single_low_readings_are_no_drop() -> None:
    samples = _load(1e9, 1.0)
    samples[50] = LoadSample(50.0, 0.5, 70.0)
    samples[90] = LoadSample(90.0, 0.5, 75.0)
    assert heat(samples, "the clock") is None


def test_without_a_thermometer_the_time_constant_stays_unknown() -> None:
    cold = [LoadSample(s.t_s, s.speed, None) for s in _load(90.0, 0.7)]
    found = heat(cold, "the speed of training")
    assert found is not None
    assert found.time_constant is found.idle_celsius is found.limit_celsius is None


def test_a_temperature_that_hardly_moves_has_no_time_constant() -> None:
    flat = [LoadSample(s.t_s, s.speed, 60.0 + s.t_s / 1000.0) for s in _load(90.0, 0.7)]
    found = heat(flat, "the clock")
    assert found is not None
    assert found.time_constant is None


def test_a_short_load_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="needs 10 samples under load, got 5"):
        heat(_load(1e9, 1.0)[:5], "the clock")
