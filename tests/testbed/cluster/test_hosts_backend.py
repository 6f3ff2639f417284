"""A fleet over hosts: what runs where, and what happens when a host is lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from fairbed.coordinator.store.event_log import Level
from fairbed.testbed.backends.base import Conditions, DeviceSpec
from fairbed.testbed.backends.choice import BackendChoice
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.cluster.device_hosts import DeviceHost, DeviceHosts, Network, NetworkWatch
from fairbed.testbed.cluster.host_supervisor import (
    FENCE_S,
    HEARTBEAT_S,
    LOST_S,
    FleetPart,
    HostReport,
    PathReading,
)
from fairbed.testbed.cluster.hosts_backend import WINDOW_S, HostPace, HostsBackend, choose_hosts
from fairbed.testbed.emulation.device import EmulatedDevice
from fairbed.testbed.emulation.placement import HostRoom
from fairbed.testbed.emulation.work import StepCost, WorkCosts
from fairbed.testbed.errors import BackendError, HostLostError
from fairbed.testbed.host.calibration import Probe
from fairbed.testbed.host.contention import SchedulerWaits
from fairbed.wire.artifact import encode_artifact
from fairbed.wire.messages import Hyperparameters
from tests.device_agent.softmax import softmax_artifact

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

GIB = 1 << 30
COSTS = WorkCosts(
    train=StepCost(fixed_s=1e-3, per_example_s=0.0),
    evaluate=StepCost(fixed_s=1e-3, per_example_s=0.0),
)
TASK = Probe(
    artifact=encode_artifact(softmax_artifact()),
    hyperparameters=Hyperparameters(epochs=1, batch_size=20, learning_rate=0.1),
)


def device(name: str, speed_ratio: float = 0.2) -> DeviceSpec:
    return DeviceSpec(
        name,
        EmulatedDevice(
            title="board",
            cores=4,
            memory_bytes=GIB,
            background_load=0.0,
            engine_threads=1,
            speed_ratio=speed_ratio,
            storage_read_bytes_per_s=1e8,
        ),
    )


FOUR = [device(f"pi-{number}") for number in range(4)]


@dataclass
class FakeHost:
    """A host that reports a few times a second, until a test loses it."""

    name: str
    alive: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    speeds: dict[str, float] = field(default_factory=dict)
    ended: list[HelperEnded] = field(default_factory=list)
    contended_s: dict[str, float] = field(default_factory=dict)
    readings: list[PathReading] = field(default_factory=list)
    is_lost: bool = False
    is_silent: bool = False
    """It keeps the connection but does not answer."""
    refuses: bool = False
    differing: list[str] = field(default_factory=list)
    is_killed: bool = False
    start_s: float = 0.0
    """How long it takes to start devices."""
    n_reports: int = 0
    """Requests for a report."""

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        outcome: Future[Any] = Future()

        def answer() -> None:
            if self.is_silent or not outcome.set_running_or_notify_cancel():
                return
            try:
                outcome.set_result(self._do(method, *arguments))
            except Exception as exc:
                outcome.set_exception(exc)

        self.n_reports += method == "report"
        wait_s = {"report": HEARTBEAT_S, "add": self.start_s}.get(method, 0.0)
        asyncio.get_running_loop().call_later(wait_s, answer)
        return outcome

    def kill(self) -> None:
        self.is_killed = True

    def _do(self, method: str, *arguments: Any) -> Any:
        if self.is_lost:
            raise HostLostError(f"host {self.name}: its process is lost: it died")
        match method:
            case "report":
                return self._report(arguments[0])
            case "add":
                return self._add(arguments[0])
            case "differing":
                return self.differing
            case "costs":
                return COSTS
            case "logs":
                return {f"{name}.log": b"joining\n" for name in self.alive}
            case "kill":
                self.alive.pop(arguments[0], None)
        self.calls.append((method, *arguments))
        return None

    def _add(self, part: FleetPart) -> Mapping[str, Sequence[int]]:
        if self.refuses:
            raise BackendError("fork server: cannot be started")
        for spec in part.fleet:
            self.alive[spec.name] = 100 + len(self.alive)
            self.speeds[spec.name] = 0.0 if spec.device is None else spec.device.speed_ratio
        self.calls.append(("add", *(spec.name for spec in part.fleet)))
        return {spec.name: [7] for spec in part.fleet}

    def _report(self, seen: int) -> HostReport:
        ended, self.ended = tuple(self.ended), []
        readings, self.readings = tuple(self.readings), []
        return HostReport(
            number=seen + len(ended),
            ended=ended,
            pids=dict(self.alive),
            contended_s=dict(self.contended_s),
            counted={},
            cpu_s=dict.fromkeys(self.alive, 1.0),
            readings=readings,
        )


@dataclass
class Fleet:
    backend: HostsBackend
    hosts: dict[str, FakeHost]
    ended: list[HelperEnded]
    events: list[tuple[str, str, Level, str | None]]

    def kinds(self) -> list[str]:
        return [kind for kind, *_ in self.events]


def hosts_of(*fakes: FakeHost, cores: float = 2.0, core_speed: float = 1.0) -> DeviceHosts:
    return DeviceHosts(
        "127.0.0.1",
        [
            DeviceHost(
                HostRoom(fake.name, cores, 8 * GIB, core_speed),
                "127.0.0.1",
                fake,
                1,
                Network(3e-4, 1e9, 1e9),
                0.004,
            )
            for fake in fakes
        ],
    )


async def choice_of(
    hosts: DeviceHosts, specs: Sequence[DeviceSpec], folder: Path, n_concurrent: int = 2
) -> Any:
    return await choose_hosts(
        hosts,
        BackendChoice("process", {}, specs, folder),
        n_concurrent=n_concurrent,
        memory_bytes=64 << 20,
        probe=TASK,
        dilation=1.0,
    )


@asynccontextmanager
async def fleet(
    folder: Path, specs: Sequence[DeviceSpec], *fakes: FakeHost, core_speed: float = 1.0
) -> AsyncIterator[Fleet]:
    hosts = hosts_of(*fakes, core_speed=core_speed)
    choice = await choice_of(hosts, specs, folder)
    ended, events = list[HelperEnded](), list[tuple[str, str, Level, str | None]]()
    part = FleetPart((), "mqtt://127.0.0.1:1", "main", None, None, None, 0)
    async with anyio.create_task_group() as group:
        watch = NetworkWatch(hosts.hosts)
        backend = HostsBackend(choice, part, ended.append, watch, group)
        backend.record_with(lambda *event: events.append(event))
        await backend.start(COSTS)
        yield Fleet(backend, {fake.name: fake for fake in fakes}, ended, events)
        group.cancel_scope.cancel()


async def reported() -> None:
    """Wait for a report of every host."""
    await anyio.sleep(2.0 * HEARTBEAT_S)


async def test_each_host_starts_its_devices_in_its_own_cores(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b"), core_speed=2.0) as found:
        await reported()
        assert [len(host.alive) for host in found.hosts.values()] == [2, 2]
        assert found.hosts["a"].speeds == {"pi-0": 0.1, "pi-2": 0.1}
        assert found.backend.pids.keys() == {"pi-0", "pi-1", "pi-2", "pi-3"}
        assert found.kinds() == ["host", "host"]
        text = found.events[0][1]
        assert "host a: 2 cores, each 2 of one of this machine (reference step 4.00 ms)" in text
        assert "0.30 ms round trip, 1000 Mbit/s to it" in text
        assert text.endswith("devices: pi-0, pi-2")


async def test_reports_of_a_host_are_read_while_another_one_still_starts(tmp_path: Path) -> None:
    quick, slow = FakeHost("a"), FakeHost("b", start_s=3.0 * FENCE_S)
    async with fleet(tmp_path, FOUR, quick, slow):
        assert quick.n_reports > 2.0 * FENCE_S  # else it would take itself for cut off


async def test_conditions_reach_the_host_in_its_own_cores(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b"), core_speed=2.0) as found:
        await found.backend.apply({"pi-1": Conditions(0.3, None)})
        assert found.hosts["a"].calls == [("add", "pi-0", "pi-2")]
        assert found.hosts["b"].calls[1:] == [("apply", {"pi-1": Conditions(0.15, None)})]


async def test_reports_say_how_long_devices_waited_and_which_have_ended(tmp_path: Path) -> None:
    died = HelperEnded(name="pi-0", status=-9, was_requested=False, is_device=True)
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b")) as found:
        found.hosts["a"].contended_s = {"pi-0": 0.5}
        found.hosts["a"].ended = [died]
        await reported()
        assert found.backend.contended_s("pi-0") == 0.5
        assert found.backend.contended_s("pi-1") is None
        assert found.ended == [died]


async def test_waits_of_a_proxy_delay_the_devices_of_its_host(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b")) as found:
        found.hosts["a"].readings = [
            PathReading(7, 0.2, SchedulerWaits()),
            PathReading(7, 0.1, SchedulerWaits(seconds=0.09, count=1)),
        ]
        await reported()
        now = time.perf_counter()
        assert found.backend.host_delay_s("pi-0", now - 60.0, now) == pytest.approx(0.045, abs=1e-3)
        assert found.backend.host_delay_s("pi-1", now - 60.0, now) == 0.0


async def test_devices_of_a_lost_host_start_on_one_with_room(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b")) as found:
        await found.backend.apply({"pi-0": Conditions(0.1, None)})
        found.hosts["a"].is_lost = True
        await anyio.sleep(LOST_S + 1.0)
        b = found.hosts["b"]
        assert b.alive.keys() == {"pi-0", "pi-1", "pi-2", "pi-3"}
        assert b.calls[1:] == [
            ("add", "pi-0", "pi-2"),
            ("apply", {"pi-0": Conditions(0.1, None)}),
        ]
        assert found.hosts["a"].is_killed
        assert found.ended == []
        assert found.kinds()[2:] == ["host-lost", "moved"]
        lost, moved = (text for _, text, _, _ in found.events[2:])
        assert "host a gave no sign for 10 s (host a: its process is lost: it died)" in lost
        assert "pi-0, pi-2 move to hosts with room" in lost
        assert moved.startswith("pi-0, pi-2 started on host b, 10.")


async def test_a_host_that_does_not_answer_is_lost_too(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b")) as found:
        found.hosts["a"].is_silent = True
        await anyio.sleep(LOST_S - 1.0)
        assert found.kinds() == ["host", "host"]
        await anyio.sleep(2.0)
        assert found.kinds()[2:] == ["host-lost", "moved"]


async def test_a_slow_host_that_answers_in_time_keeps_its_devices(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b")) as found:
        for _ in range(3):
            found.hosts["a"].is_lost = True
            await anyio.sleep(0.7 * LOST_S)
            found.hosts["a"].is_lost = False
            await reported()
        assert found.kinds() == ["host", "host"]


async def test_a_host_without_its_fork_server_is_given_up_at_once(tmp_path: Path) -> None:
    ended = HelperEnded(name="fork server", status=-9, was_requested=False, is_device=False)
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b")) as found:
        found.hosts["a"].ended = [ended]
        await reported()
        assert ("close",) in found.hosts["a"].calls
        assert found.kinds()[2:] == ["host-lost", "moved"]
        assert "host a has lost its fork server, which ended with status -9" in found.events[2][1]


async def test_without_room_devices_stay_missing_with_a_reason(tmp_path: Path) -> None:
    large = [device("pi-0", 0.9), device("pi-1", 0.9), device("pi-2", 0.3)]
    async with fleet(tmp_path, large, FakeHost("a"), FakeHost("b")) as found:
        assert found.hosts["a"].alive.keys() == {"pi-0", "pi-2"}
        found.hosts["a"].is_lost = True
        await anyio.sleep(LOST_S + 1.0)
        assert found.hosts["b"].alive.keys() == {"pi-1", "pi-2"}
        assert [one.name for one in found.ended] == ["pi-0"]
        assert found.ended[0].reason == (
            "host a is lost, and no other has room for it: it needs 0.90 cores of this machine "
            "and 64 MiB"
        )
        assert "pi-0" not in found.backend.pids
        await found.backend.restart("pi-0")  # an operator ends a fault: nothing to start
        await found.backend.apply({"pi-0": Conditions(0.5, None)})


async def test_devices_that_were_killed_stay_so_where_they_move(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b")) as found:
        await found.backend.kill("pi-0")
        found.hosts["a"].is_lost = True
        await anyio.sleep(LOST_S + 1.0)
        assert found.hosts["b"].alive.keys() == {"pi-1", "pi-2", "pi-3"}
        await found.backend.restart("pi-0")
        assert found.hosts["b"].calls[-1] == ("restart", "pi-0", None)


async def test_devices_move_on_when_the_next_host_is_lost_as_well(tmp_path: Path) -> None:
    fakes = [FakeHost("a"), FakeHost("b"), FakeHost("c")]
    async with fleet(tmp_path, FOUR, *fakes) as found:
        found.hosts["a"].is_lost = found.hosts["b"].is_lost = True
        await anyio.sleep(2.0 * LOST_S)
        assert found.hosts["c"].alive.keys() == {"pi-0", "pi-1", "pi-2", "pi-3"}
        assert found.ended == []


async def test_a_host_that_cannot_start_moved_devices_leaves_them_missing(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b")) as found:
        found.hosts["b"].refuses = True
        found.hosts["a"].is_lost = True
        await anyio.sleep(LOST_S + 1.0)
        assert [one.name for one in found.ended] == ["pi-0", "pi-2"]
        assert found.ended[0].reason == ("host a is lost, and on b: fork server: cannot be started")


def test_a_host_that_becomes_slower_is_reported_once_and_when_it_is_quick_again() -> None:
    pace, lines, waited_s = HostPace(), list[str](), 0.0
    for step in range(12):
        waited_s += 0.3 if 4 <= step < 8 else 0.01
        lines.append(pace.update(86_400.0 + step * WINDOW_S / 2.0, {"pi-0": waited_s, "pi-1": 0.0}))
    assert [step for step, line in enumerate(lines) if line] == [6, 8]
    assert lines[6] == (
        "kept devices waiting within 10 s: pi-0 for 0.6 s; it became slower, or other work runs "
        "there; exchanges that it delayed are invalid"
    )
    assert lines[8] == "keeps no device waiting any more, measured over 10 s"


def test_a_device_that_starts_anew_on_a_host_has_not_waited() -> None:
    pace = HostPace()
    for at, waited_s in ((0.0, 9.0), (10.0, 0.2), (20.0, 0.3)):
        assert pace.update(at, {"pi-0": waited_s}) == ""


async def test_an_over_committed_fleet_is_refused_with_the_number_that_fits(
    tmp_path: Path,
) -> None:
    large = [device(f"pi-{number}", 0.9) for number in range(5)]
    with pytest.raises(BackendError, match="5 devices must fit on the hosts, got room for 2") as no:
        await choice_of(hosts_of(FakeHost("a"), FakeHost("b")), large, tmp_path)
    assert "a 2 cores and 8.0 GiB, b 2 cores and 8.0 GiB" in str(no.value)
    assert "without room is pi-2, which needs 0.90 cores of this machine" in str(no.value)


async def test_a_host_without_the_file_of_a_rule_is_refused(tmp_path: Path) -> None:
    specs = [replace(device("pi-0"), local_rules=("json:decoder",))]
    lacking = FakeHost("b", differing=["json:decoder"])
    with pytest.raises(BackendError) as refused:
        await choice_of(hosts_of(FakeHost("a"), lacking), specs, tmp_path)
    assert str(refused.value) == (
        "host b: must have the same file of json:decoder as this machine, got none or another "
        "one; copy it there"
    )


async def test_logs_come_back_at_the_end(tmp_path: Path) -> None:
    async with fleet(tmp_path, FOUR, FakeHost("a"), FakeHost("b")) as found:
        await found.backend.finish()
        assert found.backend.log_file("pi-3").read_bytes() == b"joining\n"
        assert found.hosts["a"].calls[-1] == ("close",)
