"""The namespace backend: real namespaces, real control groups, real agents, nothing left behind."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest

from fairbed import profiles
from fairbed.testbed.backends.base import Backend, DeviceSpec, device_spec
from fairbed.testbed.backends.cgroups import fleet as sandboxes
from fairbed.testbed.backends.cgroups.files import CgroupError, read
from fairbed.testbed.backends.cgroups.group import Group
from fairbed.testbed.backends.cgroups.places import find_places
from fairbed.testbed.backends.choice import BackendChoice, open_backend, problem_with
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.emulation.conditions import Conditions, Outage, Shape
from fairbed.testbed.errors import BackendError
from fairbed.testbed.run.broker import find_broker, start_broker
from fairbed.wire.codec import decode
from fairbed.wire.messages import Status
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport
from tests.bounded import LIMIT_S, run
from tests.processes import still_running

REPOSITORY = Path(__file__).parents[3]

"""No test waits longer for anything."""

POLL_S = 0.01

NOWHERE = "mqtt://127.0.0.1:1"
"""No broker: agents try for ever."""

PARENT = """
import sys
from pathlib import Path
import anyio
from fairbed.testbed.backends.choice import open_backend
from fairbed.testbed.backends.base import DeviceSpec

async def main():
    fleet = [DeviceSpec(f"device-{i}") for i in range(3)]
    async with open_backend("namespace", fleet, Path(sys.argv[1]), sys.argv[2]) as choice:
        async with choice.backend("mqtt://127.0.0.1:1") as backend:
            await backend.start()
            print(*backend.pids.values(), flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.fixture(autouse=True)
def needs_namespaces() -> None:
    problem = anyio.run(problem_with, "namespace")
    if problem is not None:
        pytest.skip(problem)


@pytest.fixture
def run_id() -> str:
    return f"test-{secrets.token_hex(4)}"


def pis(count: int, link: Shape | None = None) -> list[DeviceSpec]:
    pi = profiles.load("raspberry-pi-4b")
    return [replace(device_spec(f"pi-{number}", pi), shape=link) for number in range(1, count + 1)]


def conditions(
    speed_ratio: float | None = 0.5, outage: Outage | None = None, shape: Shape | None = None
) -> Conditions:
    return Conditions(speed_ratio=speed_ratio, shape=shape, outage=outage)


@asynccontextmanager
async def opened_backend(
    folder: Path, run_id: str, fleet: list[DeviceSpec], ended: list[HelperEnded] | None = None
) -> AsyncIterator[tuple[BackendChoice, Backend]]:
    async with (
        open_backend("namespace", fleet, folder, run_id) as choice,
        choice.backend(NOWHERE, on_end=None if ended is None else ended.append) as backend,
    ):
        await backend.start()
        for pid in backend.pids.values():
            await until(lambda pid=pid: is_inside(pid, run_id))  # type: ignore[misc]
        yield choice, backend


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - the kernel has no event for it
        await anyio.sleep(POLL_S)


def is_inside(pid: int, run_id: str) -> bool:
    return run_id in Path(f"/proc/{pid}/cgroup").read_text()


def group_folders(run_id: str) -> list[Path]:
    """Return the folders of a run's control groups, wherever they are."""
    return [
        Path(parent, name)
        for top in find_places().tops
        for parent, names, _ in os.walk(top)
        for name in names
        if run_id in name
    ]


def what_is_left(run_id: str) -> list[str]:
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    found = [line for line in spaces.splitlines() if run_id in line]
    return [*found, *map(str, group_folders(run_id))]


def share_of(run_id: str, name: str) -> float | None:
    """Return the processor quota of a device as the kernel knows it, in cores."""
    place = find_places().cpu
    (folder,) = (
        path for path in place.folder.iterdir() if run_id in path.name and path.name.endswith(name)
    )
    if place.version == 2:
        quota, period = read(folder / "cpu.max").split()
    else:
        quota, period = (read(folder / f"cpu.cfs_{part}_us") for part in ("quota", "period"))
    return None if quota in ("max", "-1") else int(quota) / int(period)


def test_every_device_has_a_network_and_groups_of_its_own_and_all_is_removed(
    tmp_path: Path, run_id: str
) -> None:
    ended: list[HelperEnded] = []

    async def test() -> None:
        async with opened_backend(tmp_path, run_id, pis(3), ended) as (choice, backend):
            assert choice.network is not None
            pids = backend.pids
            networks = {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in pids.values()}
            assert len(networks) == 3
            for name, pid in pids.items():
                assert choice.network.namespace(name).stat().st_ino in networks
                assert is_inside(pid, choice.network.namespace(name).name)
                device = pis(1)[0].device
                assert device is not None
                assert share_of(run_id, name) == pytest.approx(device.speed_ratio, rel=1e-3)

    run(test)
    assert what_is_left(run_id) == []
    assert all(end.was_requested for end in ended)
    assert {end.name for end in ended} == {"pi-1", "pi-2", "pi-3", "fork server", "proxy-0"}


def test_conditions_change_while_devices_run(tmp_path: Path, run_id: str) -> None:
    async def test() -> None:
        async with opened_backend(tmp_path, run_id, pis(2)) as (_, backend):
            before = share_of(run_id, "pi-2")
            await backend.apply({"pi-1": conditions(0.05)})
            assert share_of(run_id, "pi-1") == pytest.approx(0.05, rel=1e-3)
            assert share_of(run_id, "pi-2") == before
            await backend.apply({"pi-1": conditions(None)})
            assert share_of(run_id, "pi-1") is None
            process = psutil.Process(backend.pids["pi-1"])
            await backend.apply({"pi-1": conditions(outage="frozen")})
            await until(lambda: process.status() == psutil.STATUS_STOPPED)
            await backend.apply({"pi-1": conditions(shape=Shape(down_bps=1e6))})
            await until(lambda: process.status() != psutil.STATUS_STOPPED)

    run(test)


@pytest.mark.parametrize(
    ("name", "speed", "complaint"),
    [
        ("pi-1", 0.001, "^pi-1: processor share must be at least 0.01 of a core, got 0.001"),
        ("pi-1", -1.0, "^pi-1: speed_ratio must be > 0"),
        ("pi-9", 0.5, "^pi-9: no such device"),
    ],
)
def test_impossible_conditions_are_reported_in_one_line(
    name: str, speed: float, complaint: str, tmp_path: Path, run_id: str
) -> None:
    async def test() -> None:
        async with opened_backend(tmp_path, run_id, pis(1)) as (_, backend):
            before = share_of(run_id, "pi-1")
            with pytest.raises(BackendError, match=complaint):
                await backend.apply({"pi-1": conditions(0.2), name: conditions(speed)})
            assert share_of(run_id, "pi-1") == before  # no change is applied in part

    run(test)


def test_a_device_that_died_with_a_raised_quota_restarts_with_its_own(
    tmp_path: Path, run_id: str
) -> None:
    async def test() -> None:
        async with opened_backend(tmp_path, run_id, pis(1)) as (choice, backend):
            assert choice.network is not None
            before, pid = share_of(run_id, "pi-1"), backend.pids["pi-1"]
            assert before is not None
            group = Group(find_places(), choice.network.namespace("pi-1").name)
            group.limit_cpu(2.0 * before)  # as in a compute section
            await backend.kill("pi-1")
            assert backend.pids == {}
            assert await backend.sample() == {}
            await backend.restart("pi-1")
            assert share_of(run_id, "pi-1") == pytest.approx(before)
            assert backend.pids["pi-1"] != pid
            await until(lambda: is_inside(backend.pids["pi-1"], run_id))

    run(test)


@pytest.mark.broker
@pytest.mark.skipif(find_broker("mosquitto") is None, reason="mosquitto is not installed")
def test_devices_reach_a_broker_on_the_hub_and_are_counted(tmp_path: Path, run_id: str) -> None:
    topics = Topics("lab")
    fleet = pis(2, Shape(down_bps=1e7, up_bps=1e7))

    async def test() -> None:
        async with open_backend("namespace", fleet, tmp_path, run_id) as choice:
            assert choice.broker_host is not None
            async with (
                start_broker("mosquitto", folder=tmp_path, host=choice.broker_host) as broker,
                MqttTransport(broker.url, "observer") as observer,
                choice.backend(broker.url, tenant="lab") as backend,
            ):
                await backend.start()
                online: set[str] = set()
                async for event in observer.events():
                    if isinstance(event, LinkUp):
                        await observer.subscribe(topics.status("+"), qos=1)
                    elif isinstance(event, Packet):
                        status = decode(event.payload)
                        assert isinstance(status, Status)
                        online.add(event.topic.split("/")[-2])
                    if online == {"pi-1", "pi-2"}:
                        break
                found = await backend.sample()
                assert found.keys() == online
                for usage in found.values():
                    assert usage.cpu_s > 0.0
                    assert usage.wall_s > 0.0
                    assert usage.throttled_s is not None
                    assert usage.up_bytes is not None
                    assert usage.up_bytes > 100
                    assert usage.dropped_packets == 0
                await backend.restart("pi-1")
                again = (await backend.sample())["pi-1"]
                assert again.wall_s < found["pi-1"].wall_s
                assert again.cpu_s < found["pi-1"].cpu_s + again.wall_s

    run(test)


def test_a_device_with_full_memory_ends_and_the_reason_is_reported(
    tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "AGENT_MEMORY_BYTES", 1 << 20)
    ended: list[HelperEnded] = []
    spec = pis(1)[0]
    assert spec.device is not None
    small = replace(spec, device=msgspec.structs.replace(spec.device, memory_bytes=1 << 20))

    async def test() -> None:
        async with (
            open_backend("namespace", [small], tmp_path, run_id) as choice,
            choice.backend(NOWHERE, on_end=ended.append) as backend,
        ):
            await backend.start()
            await until(lambda: bool(ended))

    run(test)
    death = ended[0]
    assert (death.name, death.status, death.was_requested) == ("pi-1", -signal.SIGKILL, False)
    assert death.reason == "its memory was full"


def test_a_limit_that_is_gone_is_reported_before_the_device_that_ends_by_it(
    tmp_path: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "CHECK_S", 60.0)
    ended: list[HelperEnded] = []

    def check_limit(group: Group) -> None:
        raise CgroupError("pi-1: the limit is gone")

    async def test() -> None:
        async with opened_backend(tmp_path, run_id, pis(1), ended) as (_, backend):
            monkeypatch.setattr(Group, "check_limit", check_limit)
            os.kill(backend.pids["pi-1"], signal.SIGKILL)
            await until(lambda: len(ended) == 2)

    run(test)
    gone = HelperEnded("control groups", 1, False, False, "pi-1: the limit is gone")
    assert ended[0] == gone
    assert (ended[1].name, ended[1].is_device) == ("pi-1", True)


def test_a_relay_that_ends_is_reported(tmp_path: Path, run_id: str) -> None:
    ended: list[HelperEnded] = []

    async def test() -> None:
        fleet = pis(1, Shape(delay_s=0.01))
        async with opened_backend(tmp_path, run_id, fleet, ended) as (choice, _):
            assert choice.network is not None
            if not choice.network.pids:
                pytest.skip("this kernel delays packets by itself")
            os.kill(choice.network.pids[0], signal.SIGKILL)
            await until(lambda: bool(ended))
            assert ended == [HelperEnded("relay-0", -signal.SIGKILL, False, False)]

    run(test)


def test_the_next_start_removes_what_a_killed_run_left(tmp_path: Path, run_id: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), run_id],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        agents = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(agents) == 3
        assert what_is_left(run_id) != []
        parent.kill()
    assert still_running(agents, LIMIT_S) == []

    async def another() -> None:
        async with opened_backend(tmp_path, f"after-{secrets.token_hex(4)}", pis(1)):
            pass

    run(another)
    assert what_is_left(run_id) == []


def test_a_live_run_survives_the_start_of_another(tmp_path: Path, run_id: str) -> None:
    async def test() -> None:
        async with opened_backend(tmp_path, run_id, pis(1)) as (_, backend):
            other = f"other-{secrets.token_hex(4)}"
            async with opened_backend(tmp_path / "other", other, pis(1)) as (_, neighbour):
                assert backend.pids.keys() == neighbour.pids.keys() == {"pi-1"}
            assert what_is_left(other) == []
            assert share_of(run_id, "pi-1") is not None
            assert psutil.pid_exists(backend.pids["pi-1"])

    run(test)
