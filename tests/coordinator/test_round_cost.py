"""Cost of a round for the coordinator: constant per device."""

from collections import deque
from collections.abc import Callable

import pytest

from fairbed.coordinator.script.round import ReleasedDevices
from fairbed.coordinator.state.loss_query import LossQuery, QueryOutcome
from fairbed.coordinator.state.round import (
    AcceptUpdate,
    Arrived,
    Checked,
    DeviceFailed,
    Event,
    GrantUpload,
    Offered,
    Round,
    Tick,
    VerifyUpdate,
)
from tests.coordinator.builders import offer
from tests.coordinator.state.test_loss_query import reply
from tests.steps import steps

FEW, MANY = 32, 256
TOLERANCE = 1.2
"""For the logarithm and the work per round; at O(K) per event the ratio would be 8."""


class Driver:
    """A round whose table is queried after every event."""

    def __init__(self, devices: int, **rules: object) -> None:
        fields: dict[str, object] = {"deadline_s": 60.0, "slots": 4, "target_updates": devices}
        self.now = 100.0
        self.names = [f"d{k}" for k in range(devices)]
        self.table = Round(id=1, attempt=0, **(fields | rules))  # type: ignore[arg-type]
        self.granted: deque[str] = deque()
        self.merged: list[str] = []
        self.table.begin(self.now)
        for name in self.names:
            self.table.dispatch(name, self.now)

    def feed(self, event: Event) -> None:
        """Apply an event, and the events that follow."""
        self.now += 0.001
        for action in self.table.on(event, self.now):
            match action:
                case GrantUpload(device=device):
                    self.granted.append(device)
                case VerifyUpdate(device=device):
                    self.feed(Checked(device, None))
                case AcceptUpdate(device=device):
                    self.merged.append(device)
        table = self.table
        _ = table.is_over, table.is_idle, table.is_void, table.open_count, table.wake_at()

    def upload(self) -> None:
        """Complete all granted uploads, and those that are granted meanwhile."""
        while self.granted:
            device = self.granted.popleft()
            self.feed(Arrived(device, at=self.now, bytes_up=400, duplicates=0))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Tick())

    def next_round(self) -> None:
        self.table = self.table.successor(self.table.version + 1)
        self.table.drop_stale(self.now)


def all_are_merged(devices: int) -> None:
    driver = Driver(devices)
    for name in driver.names:
        driver.feed(Offered(name, offer()))
    driver.upload()
    assert driver.merged == driver.names


def all_wait_and_then_fail(devices: int) -> None:
    driver = Driver(devices, slots=0)
    for name in driver.names:
        driver.feed(Offered(name, offer()))
    for name in reversed(driver.names):
        driver.feed(DeviceFailed(name, "x"))
    assert driver.table.is_void


def each_misses_its_own_deadline(devices: int) -> None:
    driver = Driver(0, target_updates=devices, deadline_s=5.0)
    for _ in range(devices):
        driver.table.dispatch(f"late{driver.now}", driver.now)
        driver.pass_time(1.0)
    while not driver.table.is_over:
        driver.pass_time(1.0)
    assert len(driver.table.ended) == devices


def late_ones_are_merged_in_the_next_round(devices: int) -> None:
    driver = Driver(devices, late_limit_s=1000.0, max_staleness=2)
    driver.pass_time(60.0)
    driver.next_round()
    for name in driver.names:
        driver.feed(Offered(name, offer()))
    driver.upload()
    assert driver.merged == driver.names


def a_buffered_round_releases_finished_devices(devices: int) -> None:
    driver = Driver(devices, is_buffered=True, target_updates=1, max_staleness=2, deadline_s=1e6)
    driver.feed(Offered("d0", offer()))
    driver.upload()
    driver.next_round()
    releases = ReleasedDevices(driver.table)
    for name in driver.names[1:]:
        driver.feed(Offered(name, offer()))
        driver.upload()
        assert [x.device for x in releases.take()] == [name]


def a_loss_query(devices: int) -> None:
    query, names = LossQuery(3, 0, limit_s=10.0), [f"d{k}" for k in range(devices)]
    for name in names:
        query.add(name, now=100.0)
    for name in names:
        assert query.is_open(name)
        if name.endswith("3"):
            query.end(name, QueryOutcome.LOST, "x")
        else:
            query.on_reply(name, reply(1.0), None, 101.0)
        assert query.is_over is (name == names[-1])


@pytest.mark.parametrize(
    "work",
    [
        all_are_merged,
        all_wait_and_then_fail,
        each_misses_its_own_deadline,
        late_ones_are_merged_in_the_next_round,
        a_buffered_round_releases_finished_devices,
        a_loss_query,
    ],
)
def test_a_device_costs_as_much_in_a_large_round_as_in_a_small_one(
    work: Callable[[int], None],
) -> None:
    work(FEW)  # warms imports and caches
    few, many = steps(lambda: work(FEW)), steps(lambda: work(MANY))
    assert many / MANY <= TOLERANCE * few / FEW
