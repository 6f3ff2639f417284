"""Changes of the conditions of running devices, and their usage."""

import dataclasses
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest
from msgspec import structs

from fairbed import profiles
from fairbed.testbed.backends.base import DeviceSpec, device_spec
from fairbed.testbed.backends.process import ProcessBackend
from fairbed.testbed.emulation.conditions import Conditions, Outage, Shape
from fairbed.testbed.errors import BackendError
from fairbed.testbed.run.broker import find_broker, start_broker
from fairbed.wire.codec import decode, encode
from fairbed.wire.messages import Context, CoordinatorStatus, Status
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport
from tests.bounded import run
from tests.testbed.backends.test_process import NOWHERE, is_alive
from tests.tiers import some_in_fast

PI = dataclasses.replace(device_spec("pi", profiles.load("raspberry-pi-4b")), is_driven=True)
PLAIN = DeviceSpec("plain")

needs_mosquitto = pytest.mark.skipif(
    find_broker("mosquitto") is None, reason="mosquitto is not installed"
)
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")


@asynccontextmanager
async def fleet(folder: Path, *specs: DeviceSpec) -> AsyncIterator[ProcessBackend]:
    async with ProcessBackend(NOWHERE, specs or (PI,), folder) as backend:
        await backend.start()
        yield backend


def conditions(outage: Outage | None = None, **others: object) -> Conditions:
    usual = Conditions(speed_ratio=0.25, shape=Shape(down_bps=1e6, up_bps=1e6), outage=outage)
    return structs.replace(usual, **others)


async def until_status(pid: int, status: str) -> None:
    while psutil.Process(pid).status() != status:  # noqa: ASYNC110 - the kernel has no event for it
        await anyio.sleep(0.01)


async def until_running(pid: int) -> None:
    while psutil.Process(pid).status() == psutil.STATUS_STOPPED:  # noqa: ASYNC110 - the kernel has no event for it
        await anyio.sleep(0.01)


@needs_signals
def test_a_frozen_device_is_stopped_until_it_is_thawed(tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(tmp_path) as backend:
            pid = backend.pids["pi"]
            assert len(backend.path_pids("pi")) == 1
            await backend.apply({"pi": conditions("frozen")})
            await until_status(pid, psutil.STATUS_STOPPED)
            before = (await backend.sample())["pi"]
            await anyio.sleep(0.1)
            after = (await backend.sample())["pi"]
            assert after.cpu_s == before.cpu_s
            assert after.wall_s > before.wall_s
            await backend.apply({"pi": conditions()})
            await until_running(pid)

    run(test)


@needs_signals
@pytest.mark.parametrize("how", some_in_fast(["kill", "restart", "leave"], "kill"))
def test_a_frozen_device_can_be_ended(how: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(tmp_path) as backend:
            pid = backend.pids["pi"]
            await backend.apply({"pi": conditions("frozen")})
            await until_status(pid, psutil.STATUS_STOPPED)
            if how == "kill":
                await backend.kill("pi")
            elif how == "restart":
                await backend.restart("pi")
                await until_running(backend.pids["pi"])
        assert not is_alive(pid)

    run(test)


@pytest.mark.broker
@pytest.mark.full
@needs_mosquitto
def test_the_device_reports_the_conditions_that_it_measures(tmp_path: Path) -> None:
    topics = Topics("main")

    async def test() -> None:
        async with (
            start_broker("mosquitto", folder=tmp_path) as broker,
            MqttTransport(broker.url, "observer") as observer,
            ProcessBackend(broker.url, [PI], tmp_path) as backend,
        ):
            events = observer.events()

            async def context(is_so: Callable[[Context], bool]) -> Context:
                while True:
                    event = await anext(events)
                    if isinstance(event, LinkUp):
                        await observer.subscribe(topics.telemetry("+"), qos=0)
                        online = encode(CoordinatorStatus(state="on", boot=1))
                        await observer.publish(topics.coordinator, online, qos=1, retain=True)
                        await backend.start()
                    elif isinstance(event, Packet):
                        message = decode(event.payload)
                        assert isinstance(message, Context)
                        if is_so(message):
                            return message

            first = await context(lambda message: True)
            assert (first.mu_cores, first.is_willing) == (1.0, True)
            speed = PI.device.speed_ratio if PI.device else 0.0
            hot = conditions(speed_ratio=speed * 0.6, clock_ratio=0.6, temperature_celsius=82.0)
            await backend.apply({"pi": hot})
            message = await context(lambda message: message.temperature_celsius == 82.0)
            assert message.mu_cores == pytest.approx(0.6)
            busy = conditions(speed_ratio=speed * 0.3, clock_ratio=0.6, is_willing=False)
            await backend.apply({"pi": busy})
            message = await context(lambda message: not message.is_willing)
            assert message.mu_cores == pytest.approx(0.3)  # half by heat, half by other work

    run(test)


@pytest.mark.broker
@needs_mosquitto
def test_an_unplugged_device_disconnects_and_reconnects(tmp_path: Path) -> None:
    topics = Topics("main")

    async def test() -> None:
        async with (
            start_broker("mosquitto", folder=tmp_path) as broker,
            MqttTransport(broker.url, "observer") as observer,
            ProcessBackend(broker.url, [PI], tmp_path) as backend,
        ):
            states: list[str] = []
            events = observer.events()

            async def until(state: str) -> None:
                while not states or states[-1] != state:
                    event = await anext(events)
                    if isinstance(event, LinkUp):
                        await observer.subscribe(topics.status("+"), qos=1)
                        await backend.start()
                    elif isinstance(event, Packet):
                        message = decode(event.payload)
                        assert isinstance(message, Status)
                        states.append(message.state)

            await until("on")
            await backend.apply({"pi": conditions("unplugged")})
            await until("off")
            await backend.apply({"pi": conditions()})
            await until("on")

    run(test)


def test_a_sample_counts_the_processor_time_since_the_last_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(tmp_path, PI, PLAIN) as backend:
            while (usage := (await backend.sample())["pi"]).cpu_s == 0.0:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            assert 0.0 < usage.cpu_s <= 2.0 * usage.wall_s + 1.0
            await backend.kill("pi")
            assert (await backend.sample()).keys() == {"plain"}

    run(test)


@pytest.mark.parametrize(
    ("name", "wanted", "complaint"),
    [
        (
            "pi",
            conditions(shape=Shape(loss_ratio=0.01)),
            r'^pi: .* cannot drop packets, got loss_ratio 0\.01; use emulation\.backend = "names',
        ),
        (
            "pi",
            conditions(speed_ratio=0.0),
            r"^pi: speed_ratio must be > 0 and finite, got 0\.0; use outage",
        ),
        (
            "plain",
            conditions(speed_ratio=None),
            r"^plain: must have a link of its own for Shape\(.*, got none; give it a link",
        ),
        (
            "plain",
            Conditions(None, None, "coverage"),
            r"^plain: must have a link of its own for coverage, got none; give it a link",
        ),
        (
            "plain",
            Conditions(0.5, None),
            r"^plain: must have a profile to be slowed, got none and speed_ratio 0\.5; give it",
        ),
        ("pi-7", conditions(), r"^pi-7: no such device; the fleet has pi, plain"),
    ],
)
def test_impossible_conditions_are_refused(
    name: str, wanted: Conditions, complaint: str, tmp_path: Path
) -> None:
    async def test() -> None:
        backend = ProcessBackend(NOWHERE, [PI, PLAIN], tmp_path)
        async with backend:
            with pytest.raises(BackendError, match=complaint):
                await backend.apply({name: wanted})

    run(test)


def test_a_fleet_that_loses_packets_is_refused(tmp_path: Path) -> None:
    lossy = DeviceSpec("pi", None, Shape(loss_ratio=0.02))
    with pytest.raises(BackendError, match=r"^pi: the process backend relays TCP and cannot drop"):
        ProcessBackend(NOWHERE, [lossy], tmp_path)


def test_conditions_wait_for_the_backend_to_be_entered(tmp_path: Path) -> None:
    async def test() -> None:
        backend = ProcessBackend(NOWHERE, [PI], tmp_path)
        with pytest.raises(BackendError, match=r"^backend: must be entered"):
            await backend.apply({"pi": conditions()})
        assert await backend.sample() == {}

    run(test)
