"""When a device was there."""

import pytest

from fairbed.testbed.recording.analysis.availability import Heard, TimeSpan, available
from fairbed.testbed.recording.analysis.findings import NotMeasured


def _heard(*stretches: tuple[float, float]) -> list[Heard]:
    return [Heard(float(t)) for start, end in stretches for t in range(int(start), int(end) + 1)]


def test_a_device_that_is_heard_all_the_time_is_always_there() -> None:
    found = available(_heard((0, 100)), [], 100.0)
    assert (found.value, found.series) == (1.0, None)


def test_a_long_silence_is_an_absence() -> None:
    found = available(_heard((0, 40), (70, 100)), [], 100.0)
    assert found.series is not None
    assert found.series.at(39.0) == 1.0
    assert found.series.at(55.0) == 0.0
    assert found.series.at(71.0) == 1.0
    assert found.value == pytest.approx(0.71)


def test_a_silence_at_work_is_none() -> None:
    found = available(_heard((0, 40), (70, 100)), [TimeSpan(38.0, 69.0)], 100.0)
    assert found.value == 1.0


def test_some_lost_contexts_are_no_absence() -> None:
    heard = [sign for sign in _heard((0, 100)) if int(sign.at_s) % 7]
    assert available(heard, [], 100.0).value == 1.0


def test_a_device_that_came_late_and_left_early_was_away() -> None:
    found = available(_heard((20, 50)), [], 100.0)
    assert found.series is not None
    assert [found.series.at(t) for t in (10.0, 30.0, 60.0)] == [0.0, 1.0, 0.0]


def test_an_unwilling_device_is_away() -> None:
    heard = [Heard(float(t), is_willing=not 30 <= t < 60) for t in range(100)]
    found = available(heard, [], 100.0)
    assert found.value == pytest.approx(0.7)


def test_a_device_that_was_never_heard_tells_nothing() -> None:
    with pytest.raises(NotMeasured, match="never heard"):
        available([], [], 100.0)
