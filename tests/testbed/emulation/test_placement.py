"""Where the devices of a fleet run, and when hosts have no room for them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.capacity import Demand, fits
from fairbed.testbed.emulation.capacity import fitting_dilation as dilation_on_one
from fairbed.testbed.emulation.placement import (
    DeviceNeed,
    HostRoom,
    Placement,
    fitting_dilation,
    place,
)

MIB = 1 << 20


def fleet(*speeds: float, threads: int = 1, group: str = "") -> list[DeviceNeed]:
    return [
        DeviceNeed(f"d-{number}", speed, threads, 50 * MIB, group)
        for number, speed in enumerate(speeds)
    ]


def hosts(*cores: float, memory_bytes: int = 1 << 34, core_speed: float = 1.0) -> list[HostRoom]:
    return [HostRoom(f"h-{n}", one, memory_bytes, core_speed) for n, one in enumerate(cores)]


@st.composite
def fleets(draw: st.DrawFn) -> list[DeviceNeed]:
    size = draw(st.integers(0, 25))
    return [
        DeviceNeed(
            f"d-{number}",
            draw(st.just(0.0) | st.floats(0.01, 3.0)),
            draw(st.integers(1, 4)),
            draw(st.integers(1, 400)) * MIB,
            draw(st.sampled_from(["", "", "", "cell-a", "cell-b"])),
        )
        for number in range(size)
    ]


@st.composite
def rooms(draw: st.DrawFn) -> list[HostRoom]:
    return [
        HostRoom(
            f"h-{number}",
            draw(st.sampled_from([0.5, 1.0, 2.0, 8.0])),
            draw(st.integers(0, 4000)) * MIB,
            draw(st.floats(0.3, 3.0)),
        )
        for number in range(draw(st.integers(1, 4)))
    ]


def assert_not_overcommitted(
    placement: Placement,
    devices: Sequence[DeviceNeed],
    hosts: Sequence[HostRoom],
    n_concurrent: int,
    dilation: float,
) -> None:
    needs = {device.name: device for device in devices}
    for host in hosts:
        own = [needs[name] for name in placement.on(host.name)]
        speeds = [(need.speed / host.core_speed, need.threads) for need in own]
        assert not own or fits(Demand.of(speeds, n_concurrent), host.cores, dilation)
        assert sum(need.memory_bytes for need in own) <= host.memory_bytes


@given(fleets(), rooms(), st.integers(1, 6), st.sampled_from([1.0, 2.0, 7.0]))
def test_no_host_is_over_committed_and_no_device_is_forgotten(
    devices: list[DeviceNeed], rooms: list[HostRoom], m: int, k: float
) -> None:
    placement = place(devices, rooms, n_concurrent=m, dilation=k)
    assert_not_overcommitted(placement, devices, rooms, m, k)
    assert {*placement.hosts, *placement.left} == {device.name for device in devices}
    assert len(placement.hosts) + len(placement.left) == len(devices)
    assert placement == place(devices, rooms, n_concurrent=m, dilation=k)


@given(fleets(), rooms(), st.integers(1, 6))
def test_groups_stay_together(devices: list[DeviceNeed], rooms: list[HostRoom], m: int) -> None:
    placement = place(devices, rooms, n_concurrent=m)
    for group in ("cell-a", "cell-b"):
        members = [device.name for device in devices if device.group == group]
        assert len({placement.hosts.get(name) for name in members}) <= 1


@given(fleets(), rooms(), st.integers(1, 6))
def test_the_dilation_that_is_named_fits(
    devices: list[DeviceNeed], rooms: list[HostRoom], m: int
) -> None:
    k = fitting_dilation(devices, rooms, m)
    if k is not None:
        assert place(devices, rooms, n_concurrent=m, dilation=k).left == ()
        assert k == 1 or place(devices, rooms, n_concurrent=m, dilation=k - 1).left


@given(fleets(), st.sampled_from([0.5, 1.0, 2.0, 8.0]), st.integers(1, 6))
def test_one_host_has_the_room_of_this_machine(
    devices: list[DeviceNeed], cores: float, m: int
) -> None:
    alone = hosts(cores, memory_bytes=1 << 40)
    demand = Demand.of([(device.speed, device.threads) for device in devices], m)
    assert fitting_dilation(devices, alone, m) == dilation_on_one(demand, cores)
    is_placed = not place(devices, alone, n_concurrent=m).left
    assert is_placed == (not devices or fits(demand, cores, 1.0))


@given(fleets(), rooms(), st.integers(1, 6))
def test_devices_of_a_lost_host_take_no_room_that_others_have(
    devices: list[DeviceNeed], rooms: list[HostRoom], m: int
) -> None:
    first = place(devices, rooms, n_concurrent=m)
    lost, *others = rooms
    needs = {device.name: device for device in devices}
    present = {host.name: [needs[name] for name in first.on(host.name)] for host in others}
    moving = [needs[name] for name in first.on(lost.name)]
    moved = place(moving, others, n_concurrent=m, present=present)
    kept = {name: host for name, host in first.hosts.items() if host != lost.name}
    both = Placement({**kept, **moved.hosts}, moved.left)
    assert_not_overcommitted(both, devices, others, m, 1.0)


def test_equal_devices_are_spread_over_equal_hosts() -> None:
    placement = place(fleet(*[0.2] * 6), hosts(2, 2, 2), n_concurrent=4)
    assert [len(placement.on(f"h-{n}")) for n in range(3)] == [2, 2, 2]


def test_a_faster_host_takes_more_devices() -> None:
    quick = HostRoom("quick", 2, 1 << 34, core_speed=3.0)
    placement = place(fleet(*[0.2] * 8), [*hosts(2), quick], n_concurrent=8)
    assert (len(placement.on("h-0")), len(placement.on("quick"))) == (2, 6)


def test_any_devices_of_a_host_may_work_at_the_same_time() -> None:
    # 0.9 cores each: one per host at a time with m = 2, as both of one host may be selected
    placement = place(fleet(*[0.9] * 3), hosts(2, 2), n_concurrent=2)
    assert len(placement.hosts) == 2
    assert placement.left == ("d-2",)
    assert fitting_dilation(fleet(*[0.9] * 3), hosts(2, 2), 2) == 2
    assert place(fleet(*[0.9] * 3), hosts(2, 2), n_concurrent=1).left == ()


def test_devices_that_fit_only_side_by_side_are_packed() -> None:
    # spread first, the small ones would leave no host with room for the two of the cell
    cell = fleet(0.7, 0.7, group="cell")
    small = [DeviceNeed(f"s-{n}", 0.7, 1, 50 * MIB) for n in range(2)]
    placement = place([*small, *cell], hosts(2, 2), n_concurrent=4)
    assert placement.left == ()
    assert placement.hosts["d-0"] == placement.hosts["d-1"]


def test_without_memory_no_dilation_helps() -> None:
    small = hosts(8, 8, memory_bytes=120 * MIB)
    assert place(fleet(*[0.1] * 5), small, n_concurrent=2).left == ("d-4",)
    assert fitting_dilation(fleet(*[0.1] * 5), small, 2) is None


def test_without_hosts_only_an_empty_fleet_is_placed() -> None:
    assert place([], [], n_concurrent=1) == Placement({}, ())
    assert place(fleet(0.1), [], n_concurrent=1).left == ("d-0",)


def test_at_least_one_device_works_at_a_time() -> None:
    with pytest.raises(ValueError, match="n_concurrent must be at least 1, got 0"):
        place(fleet(0.1), hosts(2), n_concurrent=0)
