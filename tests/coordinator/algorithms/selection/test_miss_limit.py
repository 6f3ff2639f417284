"""The miss limit: which devices it excludes, for how long, and its state."""

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.selection.miss_limit import RETRY_ROUNDS, MissLimit


def rows(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def missing(limit: MissLimit, row: int, rounds: int, first: int = 1) -> MissLimit:
    """Return the limit after a device has missed the deadline in some rounds."""
    for round_id in range(first, first + rounds):
        limit.observe(round_id, rows(), rows(row))
    return limit


def excluded(limit: MissLimit, round_id: int, z: float | None = None) -> list[int]:
    queues = None if z is None else np.full(4, z)
    allowed = limit.candidates(np.ones(4, dtype=np.bool_), round_id, queues)
    return [int(row) for row in np.flatnonzero(~allowed)]


def test_without_a_guarantee_a_device_is_excluded_and_tried_ever_more_rarely() -> None:
    limit = missing(MissLimit(3), row=2, rounds=2)
    assert excluded(limit, 3) == []
    missing(limit, 2, rounds=1, first=3)
    assert excluded(limit, 4) == excluded(limit, 2 + RETRY_ROUNDS) == [2]
    assert excluded(limit, 3 + RETRY_ROUNDS) == []
    missing(limit, 2, rounds=1, first=200)
    assert excluded(limit, 199 + 2 * RETRY_ROUNDS) == [2]
    assert excluded(limit, 200 + 2 * RETRY_ROUNDS) == []


def test_with_a_guarantee_a_device_is_a_candidate_when_a_selection_is_owed() -> None:
    limit = missing(MissLimit(3, beta=0.15), row=1, rounds=3)
    assert excluded(limit, 4, z=0.84) == [1]
    assert excluded(limit, 4, z=0.85) == []


def test_a_capped_queue_owes_a_selection_at_its_cap() -> None:
    limit = missing(MissLimit(3, beta=0.15, z_max=0.5), row=1, rounds=3)
    assert excluded(limit, 4, z=0.4) == [1]
    assert excluded(limit, 4, z=0.5) == []


def test_an_aggregated_update_ends_the_limit() -> None:
    limit = missing(MissLimit(3), row=1, rounds=9)
    limit.observe(10, rows(1), rows(1, 0))
    assert excluded(limit, 11) == []
    assert excluded(missing(limit, 1, rounds=2, first=11), 13) == []


def test_a_device_is_reported_once() -> None:
    limit = MissLimit(2)
    reached = []
    for round_id in range(1, 9):
        limit.observe(round_id, rows(3) if round_id == 5 else rows(), rows(3))
        reached.append(limit.reached.tolist())
    assert reached == [[], [3], [], [], [], [], [], []]


def test_excludes_no_device_if_all_miss_the_deadline() -> None:
    limit = MissLimit(1)
    limit.observe(1, rows(), rows(0, 1, 2, 3))
    assert excluded(limit, 2) == []


def test_zero_is_no_limit() -> None:
    limit = missing(MissLimit(0), row=1, rounds=9)
    assert (excluded(limit, 10), limit.reached.tolist()) == ([], [])


def test_devices_that_were_not_available_stay_so() -> None:
    limit = missing(MissLimit(1), row=0, rounds=1)
    is_available = np.array([True, False, True, False])
    assert limit.candidates(is_available, 2, None).tolist() == [False, False, True, False]
    assert is_available[0], "the input is unchanged"


def test_many_misses_do_not_overflow() -> None:
    limit = missing(MissLimit(1), row=0, rounds=2000)
    assert excluded(limit, 10**6) == [0]


def test_a_restored_state_has_the_same_future() -> None:
    limit = missing(missing(MissLimit(3), row=2, rounds=4), row=0, rounds=2)
    restored = MissLimit(3)
    restored.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(limit.to_state())))
    for one in (limit, restored):
        one.observe(5, rows(), rows(0, 2))
        assert one.reached.tolist() == [0]
    assert excluded(limit, 6) == excluded(restored, 6) == [0, 2]
    assert limit.to_state() == restored.to_state()


@pytest.mark.parametrize("beta", [0.0, 0.15])
def test_a_million_devices_are_columns(beta: float) -> None:
    n = 1_000_000
    limit = MissLimit(1, beta)
    limit.observe(1, rows(), np.arange(0, n, 2))
    allowed = limit.candidates(np.ones(n, dtype=np.bool_), 2, np.zeros(n))
    assert int(allowed.sum()) == n // 2
