"""The process backend: real agents, real signals, nothing left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import anyio
import psutil
import pytest

from fairbed import profiles
from fairbed.testbed.backends.base import DeviceSpec, device_spec
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.backends.process import ProcessBackend
from fairbed.testbed.backends.proxy.protocol import Shape
from fairbed.testbed.emulation.queues import depth_bytes
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

NOWHERE = "mqtt://127.0.0.1:1"
"""No broker: agents try for ever."""

"""No test waits longer for anything."""

METHODS: list[Literal["fork", "spawn"]] = (
    ["fork", "spawn"] if sys.platform == "linux" else ["spawn"]
)

PARENT = """
import sys
from pathlib import Path
import anyio
from fairbed.testbed.backends.base import DeviceSpec
from fairbed.testbed.backends.process import ProcessBackend
from fairbed.testbed.backends.proxy.protocol import Shape

async def main():
    fleet = [DeviceSpec(f"device-{i}", None, Shape(up_bps=1e6)) for i in range(3)]
    async with ProcessBackend(sys.argv[1], fleet, Path(sys.argv[2])) as backend:
        await backend.start()
        print("up", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def fleet_of(count: int) -> list[DeviceSpec]:
    pi = profiles.load("raspberry-pi-4b")
    return [device_spec(f"pi-{index:02d}", pi) for index in range(count)]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("method", METHODS)
def test_every_device_is_a_process_with_a_log_and_all_end_together(
    method: Literal["fork", "spawn"], tmp_path: Path
) -> None:
    ended: list[HelperEnded] = []

    async def test() -> None:
        fleet = fleet_of(3)
        async with ProcessBackend(
            NOWHERE, fleet, tmp_path, method=method, on_end=ended.append
        ) as backend:
            assert backend.pids == {}
            await backend.start()
            pids = backend.pids
            assert pids.keys() == {spec.name for spec in fleet}
            assert len(set(pids.values())) == 3
            assert all(is_alive(pid) for pid in pids.values())
        assert backend.pids == {}
        assert not any(is_alive(pid) for pid in pids.values())

    run(test)
    assert {end.name for end in ended if end.is_device} == {"pi-00", "pi-01", "pi-02"}
    assert {end.name for end in ended if not end.is_device} == {"fork server", "proxy-0"}
    assert all(end.was_requested for end in ended)
    for end in ended:
        if end.is_device and end.status == 0:  # it had started completely
            log = (tmp_path / "logs" / f"{end.name}.log").read_text(encoding="utf-8")
            assert "Raspberry Pi 4 Model B" in log
            assert "SIGTERM: stopping" in log


@pytest.mark.broker
@pytest.mark.skipif(find_broker("mosquitto") is None, reason="mosquitto is not installed")
def test_devices_reconnect_through_their_links_after_a_power_cut(tmp_path: Path) -> None:
    topics = Topics("lab")
    fleet = [
        *fleet_of(2),
        DeviceSpec("plain"),
        DeviceSpec("slow", None, Shape(down_bps=1e6, up_bps=1e6, delay_s=0.02)),
    ]

    async def test() -> None:
        async with (
            start_broker("mosquitto", folder=tmp_path) as broker,
            MqttTransport(broker.url, "observer") as observer,
            ProcessBackend(broker.url, fleet, tmp_path, tenant="lab") as backend,
        ):
            online: set[str] = set()
            events = observer.events()

            async def until(expected: set[str]) -> None:
                while online != expected:
                    event = await anext(events)
                    if isinstance(event, LinkUp):
                        await observer.subscribe(topics.status("+"), qos=1)
                    elif isinstance(event, Packet):
                        name = event.topic.split("/")[-2]
                        status = decode(event.payload)
                        assert isinstance(status, Status)
                        (online.add if status.state == "on" else online.discard)(name)

            all_devices = {spec.name for spec in fleet}
            await backend.start()
            await until(all_devices)

            before = backend.pids["pi-01"]
            await backend.kill("pi-01")
            assert "pi-01" not in backend.pids
            await until(all_devices - {"pi-01"})  # the broker has published its will
            await backend.restart("pi-01")
            await until(all_devices)
            assert backend.pids["pi-01"] != before

    run(test)


def test_a_device_that_dies_by_itself_is_reported(tmp_path: Path) -> None:
    async def test() -> None:
        send, receive = anyio.create_memory_object_stream[HelperEnded](10)
        async with (
            send,
            receive,
            ProcessBackend(NOWHERE, fleet_of(2), tmp_path, on_end=send.send_nowait) as backend,
        ):
            await backend.start()
            pid = backend.pids["pi-00"]
            os.kill(pid, signal.SIGKILL)
            assert await receive.receive() == HelperEnded(
                "pi-00", -9, was_requested=False, is_device=True
            )
            assert backend.pids.keys() == {"pi-01"}
            await backend.restart("pi-00")
            assert backend.pids["pi-00"] != pid

    run(test)


def test_a_device_starts_again_as_another_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with ProcessBackend(NOWHERE, fleet_of(1), tmp_path) as backend:
            await backend.start()
            spec = device_spec("pi-00", profiles.load("jetson-nano"))
            await backend.restart("pi-00", spec)
            log = backend.log_file("pi-00")
            with anyio.fail_after(LIMIT_S):
                while not log.exists() or "emulates NVIDIA Jetson" not in log.read_text():  # noqa: ASYNC110
                    await anyio.sleep(0.02)

    run(test)


def test_a_fleet_ends_with_its_fork_server(tmp_path: Path) -> None:
    async def test() -> None:
        lost = anyio.Event()

        def on_end(ended: HelperEnded) -> None:
            if ended.name == "fork server" and not ended.was_requested:
                lost.set()

        async with ProcessBackend(NOWHERE, fleet_of(2), tmp_path, on_end=on_end) as backend:
            await backend.start()
            pids = backend.pids
            os.kill(psutil.Process(pids["pi-00"]).ppid(), signal.SIGKILL)
            await lost.wait()
            assert backend.pids == {}
            with pytest.raises(BackendError, match=r"^fork server: .*fork-server\.log"):
                await backend.restart("pi-00")

    run(test)


@pytest.fixture
def testbed(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A testbed with three devices in a process of its own, and all its descendants."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, NOWHERE, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        family = psutil.Process(process.pid).children(recursive=True)
        yield process, family
        for member in family:
            if member.is_running():
                member.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_testbed(
    number: signal.Signals, testbed: tuple[subprocess.Popen[str], list[psutil.Process]]
) -> None:
    process, family = testbed
    assert len(family) == 5  # fork server, proxies, three agents
    process.send_signal(number)
    process.wait(30)
    assert still_running(family, 30.0) == []


@pytest.mark.parametrize(
    ("url", "fleet", "complaint"),
    [
        (NOWHERE, [DeviceSpec("Pi 4")], r"^fleet: a name must be 1 to 32 .* got 'Pi 4'; rename"),
        (
            NOWHERE,
            [DeviceSpec("a"), DeviceSpec("a")],
            r"^fleet: names must differ, got 'a' 2 times",
        ),
        ("nowhere", [DeviceSpec("a")], r"^broker\.url: must begin with mqtt://"),
        (
            "mqtts://a:1?client=aiomqtt",
            [DeviceSpec("a", None, Shape(up_bps=1e6))],
            r"^broker\.url: server_name must be a name, and needs the client direct",
        ),
    ],
)
def test_a_fleet_that_cannot_run_is_refused(
    url: str, fleet: list[DeviceSpec], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(BackendError, match=complaint):
        ProcessBackend(url, fleet, tmp_path)


def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        backend = ProcessBackend(NOWHERE, fleet_of(2), tmp_path)
        with pytest.raises(BackendError, match=r"^backend: must be entered"):
            await backend.start()
        async with backend:
            with pytest.raises(BackendError, match=r"^pi-7: no such device; the fleet has pi-00, "):
                await backend.kill("pi-7")

    run(test)


def test_a_link_may_be_that_of_another_profile() -> None:
    pi, lte = profiles.load("raspberry-pi-4b"), profiles.load_link("lte-driving")
    own, other = device_spec("a", pi).shape, device_spec("a", pi, lte.link).shape
    assert own is not None
    assert (own.down_bps, own.up_bps, own.delay_s) == (108e6, 108e6, 0.0025)
    assert own.up_queue_bytes == depth_bytes(pi.link.queue, 108e6)
    assert other is not None
    assert (other.down_bps, other.up_bps, other.delay_s) == (6.21e6, 1.08e6, 0.03)
    assert device_spec("a", None) == DeviceSpec("a")
