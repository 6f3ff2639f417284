"""Names by row, made on demand."""

import pytest

from fairbed.testbed.replay.vector_fleet import DeviceNames


def test_names_count_from_one_in_each_group() -> None:
    names = DeviceNames([("a", 2), ("phone", 3)])
    assert list(names) == ["a-1", "a-2", "phone-1", "phone-2", "phone-3"]
    assert names[-1] == "phone-3"
    assert names[1:3] == ["a-2", "phone-1"]
    assert [names.group(row) for row in range(5)] == [0, 0, 1, 1, 1]
    assert len(DeviceNames([])) == 0


def test_a_million_names_cost_nothing_until_used() -> None:
    names = DeviceNames([("phone", 1_000_000)])
    assert len(names) == 1_000_000
    assert (names[0], names[999_999]) == ("phone-1", "phone-1000000")
    with pytest.raises(IndexError, match="row must be below 1000000, got 1000000"):
        names[1_000_000]
