"""FedCS: the worked example, and the vectorised greedy against the published one."""

from typing import Literal, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.selection.fedcs import FedCs, greedy_parallel, greedy_sequential
from tests.coordinator.algorithms.selection.fleet import fleet

Uploads: TypeAlias = Literal["parallel", "sequential"]
UPLOADS: tuple[Uploads, ...] = ("parallel", "sequential")

MODEL, THROUGHPUT = 4.0, np.array([4.0, 2.0, 1.0])
UPDATE_S = np.array([5.0, 3.0, 10.0])
WAY_S = MODEL / THROUGHPUT


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def published(way_s: Floats, update_s: Floats, deadline_s: float, k: int) -> list[int]:
    """Return the published greedy choice: score each, try the best, accept or drop."""
    left, chosen, theta, broadcast = list(range(len(way_s))), list[int](), 0.0, 0.0
    while left and len(chosen) < k:
        costs = [
            max(broadcast, way_s[x]) - broadcast + way_s[x] + max(0.0, update_s[x] - theta)
            for x in left
        ]
        x = left.pop(int(np.argmin(np.round(costs, 9))))
        later = theta + way_s[x] + max(0.0, update_s[x] - theta)
        if max(broadcast, way_s[x]) + later < deadline_s:
            theta, broadcast = later, max(broadcast, float(way_s[x]))
            chosen.append(x)
    return chosen


@pytest.mark.parametrize(
    ("deadline_s", "expected"), [(8.0, [0]), (12.0, [0, 1]), (30.0, [0, 1, 2])]
)
def test_worked_example(deadline_s: float, expected: list[int]) -> None:
    assert greedy_sequential(WAY_S, UPDATE_S, WAY_S, deadline_s, k=3).tolist() == expected
    assert published(WAY_S, UPDATE_S, deadline_s, k=3) == expected


@pytest.mark.parametrize(("deadline_s", "fits"), [(7.0, 0), (7.001, 1), (10.0, 1), (18.001, 3)])
def test_the_deadline_is_strict(deadline_s: float, fits: int) -> None:
    assert len(greedy_sequential(WAY_S, UPDATE_S, WAY_S, deadline_s, k=3)) == fits


QUARTERS = st.integers(0, 12).map(lambda i: i / 4)


@given(
    devices=st.lists(st.tuples(QUARTERS, QUARTERS), min_size=1, max_size=9),
    deadline_s=st.sampled_from([0.5, 2.0, 5.1, 11.0, 40.0]),
    k=st.integers(1, 9),
)
def test_agrees_with_the_published_greedy(
    devices: list[tuple[float, float]], deadline_s: float, k: int
) -> None:
    way_s, update_s = np.array(devices).T
    chosen = greedy_sequential(way_s, update_s, way_s, deadline_s, k)
    assert chosen.tolist() == published(way_s, update_s, deadline_s, k)


def test_parallel_uploads_take_the_quickest_that_fit() -> None:
    tau_s = np.array([3.0, 1.0, 2.0, 2.0, 9.0])
    assert greedy_parallel(tau_s, 10.0, 3).tolist() == [1, 2, 3]
    assert greedy_parallel(tau_s, 2.5, 5).tolist() == [1, 2, 3]
    assert greedy_parallel(tau_s, 1.0, 5).tolist() == []


@pytest.mark.parametrize("uploads", UPLOADS)
def test_one_device_alone_needs_exactly_its_predicted_time(uploads: Uploads) -> None:
    pair = fleet([6.0, 7.0], transfer_s=[2.0, 2.0])
    selector = FedCs(deadline_s=6.001, uploads=uploads)
    assert selector.select(pair, 2, rng()).tolist() == [0]


def test_sequential_uploads_queue_for_the_channel() -> None:
    """Two devices of 3 s, 2 s of it transfer: 1 + 1 + 1 s, and 1 s more for the second upload."""
    pair = fleet([3.0, 3.0], transfer_s=[2.0, 2.0])
    assert FedCs(deadline_s=3.5, uploads="parallel").select(pair, 2, rng()).tolist() == [0, 1]
    assert len(FedCs(deadline_s=3.5, uploads="sequential").select(pair, 2, rng())) == 1
    assert len(FedCs(deadline_s=4.1, uploads="sequential").select(pair, 2, rng())) == 2


@pytest.mark.parametrize("uploads", UPLOADS)
def test_the_fastest_device_goes_alone_if_none_meets_the_deadline(uploads: Uploads) -> None:
    selector = FedCs(deadline_s=1.0, uploads=uploads)
    assert selector.select(fleet([5.0, 4.0, 6.0]), 2, rng()).tolist() == [1]


@pytest.mark.parametrize("uploads", UPLOADS)
def test_a_device_never_measured_comes_first(uploads: Uploads) -> None:
    selector = FedCs(deadline_s=10.0, uploads=uploads)
    assert selector.select(fleet([1.0, 0.0, 2.0]), 1, rng()).tolist() == [1]


def test_devices_that_never_reply_do_not_block_the_others() -> None:
    selector = FedCs(deadline_s=10.0)
    chosen = {int(selector.select(fleet([0.0] * 4), 1, rng(seed))[0]) for seed in range(40)}
    assert chosen == {0, 1, 2, 3}


def test_a_negative_estimate_counts_as_no_time() -> None:
    selector = FedCs(deadline_s=10.0, uploads="sequential")
    odd = fleet([-0.5, 1.0], transfer_s=[0.3, 4.0])
    assert selector.select(odd, 2, rng()).tolist() == [0, 1]


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_deadline_that_is_not_positive(deadline_s: float) -> None:
    with pytest.raises(ValueError, match="deadline_s must be > 0"):
        FedCs(deadline_s=deadline_s)
