"""Whether a fleet fits a machine, and the dilation at which it does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.capacity import Demand, fits, fitting_dilation, free_cores

Devices = st.lists(st.tuples(st.floats(0.01, 8.0), st.integers(1, 4)), min_size=1, max_size=30)


def fleet_demand(concurrent_cores: float) -> Demand:
    return Demand(concurrent_cores=concurrent_cores, thread_cores=0.25)


def test_only_the_fastest_of_those_that_work_at_the_same_time_count() -> None:
    demand = Demand.of([(0.2, 1), (1.0, 2), (0.75, 1), (0.1, 1)], n_concurrent=2)
    assert demand == Demand(concurrent_cores=1.75, thread_cores=0.75)
    assert Demand.of([(0.25, 1)], n_concurrent=4).concurrent_cores == 0.25
    assert Demand.of([], n_concurrent=4) == Demand(concurrent_cores=0.0, thread_cores=0.0)


def test_a_hundred_quarters_of_a_core_need_a_dilation_of_eighteen_on_two_cores() -> None:
    assert fitting_dilation(fleet_demand(25.0), cores=2) == 18


@pytest.mark.parametrize(("needed", "k"), [(0.0, 1), (1.4, 1), (1.5, 2), (2.8, 2), (2.9, 3)])
def test_half_a_core_and_a_twentieth_are_kept_free(needed: float, k: int) -> None:
    assert fitting_dilation(fleet_demand(needed), cores=2) == k
    assert fits(fleet_demand(needed), 2, 1.0) == (k == 1)


def test_a_device_that_is_faster_than_a_core_does_not_fit_on_any_number_of_cores() -> None:
    fast = Demand.of([(1.6, 1)], n_concurrent=1)
    assert not fits(fast, 64, 1.0)
    assert fitting_dilation(fast, 64) == 2
    assert fits(Demand.of([(1.6, 2)], n_concurrent=1), 64, 1.0)


@given(Devices, st.integers(1, 30), st.sampled_from([0.5, 1.0, 2.0, 4.0, 64.0]))
def test_the_dilation_that_is_named_fits_and_one_less_does_not(
    devices: list[tuple[float, int]], n_concurrent: int, cores: float
) -> None:
    demand = Demand.of(devices, n_concurrent)
    k = fitting_dilation(demand, cores)
    assert fits(demand, cores, k)
    assert k == 1 or not fits(demand, cores, k - 1)


@pytest.mark.parametrize("cores", [0.25, 0.5, 1.0, 2.0])
def test_a_small_machine_still_has_free_cores(cores: float) -> None:
    assert 0.0 < free_cores(cores) < cores
