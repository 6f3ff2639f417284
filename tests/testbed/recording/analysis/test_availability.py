"""Availability from samples."""

import pytest

from fairbed.testbed.recording.analysis.availability import (
    PresenceSample,
    TimeSpan,
    measure_availability,
)
from fairbed.testbed.recording.analysis.findings import NotMeasured


def _samples(*stretches: tuple[float, float]) -> list[PresenceSample]:
    return [
        PresenceSample(float(t))
        for start, end in stretches
        for t in range(int(start), int(end) + 1)
    ]


def test_a_device_with_samples_all_the_time_is_always_available() -> None:
    found = measure_availability(_samples((0, 100)), [], 100.0)
    assert (found.value, found.series) == (1.0, None)


def test_a_long_silence_is_an_absence() -> None:
    found = measure_availability(_samples((0, 40), (70, 100)), [], 100.0)
    assert found.series is not None
    assert found.series.at(39.0) == 1.0
    assert found.series.at(55.0) == 0.0
    assert found.series.at(71.0) == 1.0
    assert found.value == pytest.approx(0.71)


def test_a_silence_at_work_is_no_absence() -> None:
    found = measure_availability(_samples((0, 40), (70, 100)), [TimeSpan(38.0, 69.0)], 100.0)
    assert found.value == 1.0


def test_lost_contexts_are_no_absence() -> None:
    samples = [sample for sample in _samples((0, 100)) if int(sample.at_s) % 7]
    assert measure_availability(samples, [], 100.0).value == 1.0


def test_a_device_is_away_before_its_first_and_after_its_last_sample() -> None:
    found = measure_availability(_samples((20, 50)), [], 100.0)
    assert found.series is not None
    assert [found.series.at(t) for t in (10.0, 30.0, 60.0)] == [0.0, 1.0, 0.0]


def test_an_unwilling_device_is_away() -> None:
    samples = [PresenceSample(float(t), is_willing=not 30 <= t < 60) for t in range(100)]
    found = measure_availability(samples, [], 100.0)
    assert found.value == pytest.approx(0.7)


def test_a_device_without_samples_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="no sample"):
        measure_availability([], [], 100.0)
