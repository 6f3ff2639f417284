"""Core speed, background load and clock from samples."""

import numpy as np
import pytest

from fairbed.testbed.recording.analysis.findings import NotMeasured, Sampled
from fairbed.testbed.recording.analysis.processor import (
    TimedTraining,
    background_load,
    clock_ratio,
    core_speed,
)


def _every_second(values: list[float]) -> Sampled:
    return Sampled([float(i) for i in range(len(values))], values)


def test_speed_is_reference_time_over_time_per_core() -> None:
    trainings = [TimedTraining(reference_s=1.0, took_s=4.0, mu_cores=0.5)] * 5
    assert core_speed(trainings, "rounds").value == pytest.approx(0.5)


def test_one_slow_training_does_not_matter_and_short_ones_do_not_count() -> None:
    trainings = [TimedTraining(1.0, 2.0, 1.0)] * 5 + [
        TimedTraining(1.0, 50.0, 1.0),
        TimedTraining(1.0, 1e-4, 1.0),
    ]
    found = core_speed(trainings, "rounds")
    assert found.value == pytest.approx(0.5)
    assert "median of 6 rounds" in found.how


def test_two_trainings_are_too_few() -> None:
    with pytest.raises(NotMeasured, match=r"needs 3 rounds .* got 2 of 3"):
        core_speed([TimedTraining(1.0, 2.0, 1.0)] * 2 + [TimedTraining(1.0, 1e-4, 1.0)], "rounds")


def test_background_load_is_cores_minus_free_cores() -> None:
    found = background_load(_every_second([3.9, 3.95, 3.9, 4.2]), 4, 4.0)
    assert found.value == pytest.approx(0.075)
    assert found.series is None


def test_varying_background_load_has_a_series_that_leaves_free_cores() -> None:
    found = background_load(_every_second([4.0] * 50 + [0.0] * 50), 4, 100.0)
    assert found.series is not None
    assert found.series.highest < 4.0
    assert found.series.at(20.0) == 0.0
    assert found.value == pytest.approx(found.series.mean)


def test_a_clock_that_cannot_be_read_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="the clock cannot be read"):
        clock_ratio(_every_second([]), 10.0)
    with pytest.raises(NotMeasured, match="got 2"):
        clock_ratio(_every_second([1.0, 1.0]), 10.0)


def test_a_constant_clock_is_one_number_and_a_dropping_one_a_series() -> None:
    assert clock_ratio(_every_second([1.0] * 20), 20.0).series is None
    dropped = clock_ratio(_every_second([1.0] * 30 + [0.6] * 30), 60.0)
    assert dropped.series is not None
    assert dropped.series.at(10.0) == 1.0
    assert dropped.series.at(45.0) == 0.6
    assert dropped.value == pytest.approx(0.8)


def test_steps_without_a_sample_have_the_value_of_the_one_before() -> None:
    series = Sampled([2.5, 9.0], [3.0, 5.0]).series(1.0, 12.0)
    assert [series.at(t) for t in (0.5, 2.6, 8.9, 9.5, 11.9)] == [3.0, 3.0, 3.0, 5.0, 5.0]
    assert series.period_s == 12.0


def test_means_over_steps_keep_the_mean_of_even_samples() -> None:
    values = np.random.default_rng(2).uniform(0.0, 4.0, 200).tolist()
    series = Sampled([0.1 * i for i in range(200)], values).series(1.0, 20.0)
    assert series.mean == pytest.approx(np.mean(values), rel=1e-6)
