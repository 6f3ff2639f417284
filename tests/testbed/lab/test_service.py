"""A lab that is up, with real brokers: identities take effect at once, and it survives faults."""

import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from fairbed.testbed.errors import LabError
from fairbed.testbed.host import broker_process
from fairbed.testbed.host.broker_usage import MAX_SESSIONS
from fairbed.testbed.lab import service
from fairbed.testbed.lab.folder import Lab, LabBroker
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.lab.service import (
    POLL_S,
    check_version,
    has_account,
    pid_of_broker,
    running_pid,
    serve_lab,
)
from fairbed.wire.codec import encode
from fairbed.wire.errors import Refused
from fairbed.wire.messages import PROTOCOL_VERSION, Status
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkDown, LinkUp, Will
from fairbed.wire.transport.client import MqttTransport
from tests.brokers import PRODUCTION_BROKERS
from tests.testbed.lab.labs import NOW_S, make_lab
from tests.testbed.lab.raw_client import Login, RawClient

LIMIT_S = 30.0
"""Longest wait for what must happen; seconds."""

DROPPED_S = 1.0
"""From the revocation of an identity to the end of its connection; seconds."""

TOPICS = Topics()
ON = encode(Status(state="on", boot=1))
OFF = encode(Status(state="off", boot=1))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=PRODUCTION_BROKERS)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    kind: LabBroker = request.param
    return make_lab(tmp_path, kind)


class Clock:
    """Unix time of a test."""

    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def up(lab: Lab, clock: Clock | None = None) -> AsyncIterator[None]:
    ready = anyio.Event()

    async def serve() -> None:
        await serve_lab(lab, on_ready=ready.set, now=clock or Clock())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        with anyio.fail_after(LIMIT_S):
            await ready.wait()
        yield
        tasks.cancel_scope.cancel()


def device(lab: Lab, name: str, password: str, boot: int = 1) -> MqttTransport:
    return MqttTransport(
        f"mqtts://{name}:{password}@127.0.0.1:{lab.settings.port}?cafile={lab.ca}",
        f"fairbed-main-{name}-{boot}",
        will=Will(TOPICS.status(name), OFF),
        backoff=lambda retry: 0.05,
    )


async def await_up(link: MqttTransport) -> None:
    with anyio.fail_after(LIMIT_S):
        async for event in link.events():
            if isinstance(event, LinkUp):
                return


async def until_dropped(link: MqttTransport) -> None:
    with anyio.fail_after(DROPPED_S):
        assert isinstance(await anext(link.events()), LinkDown)


async def until_refused(link: MqttTransport) -> None:
    try:
        async for event in link.events():
            assert isinstance(event, LinkDown)
    except Refused:
        return


async def until_state(identities: Identities, name: str, state: str) -> None:
    with anyio.fail_after(LIMIT_S):
        while (found := identities.contacts().get(name)) is None or found.state != state:  # noqa: ASYNC110  # a file
            await anyio.sleep(POLL_S / 4)


def brokers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if child.name() in ("mosquitto", "nats-server")]


@pytest.mark.anyio
async def test_a_device_that_keeps_too_much_in_the_broker_is_refused_for_an_hour(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_process, "MEMORY_POLL_S", 0.05)
    monkeypatch.setattr(broker_process, "GROWTH_BYTES", -1)
    trust = ssl.create_default_context(cafile=str(lab.ca))
    with Identities(lab.database) as identities:
        logins = {name: identities.create(name, now_s=NOW_S) for name in ("pi", "nano")}
        async with (
            up(lab),
            device(lab, "nano", logins["nano"]) as nano,
            device(lab, "pi", logins["pi"]) as pi,
        ):
            await await_up(nano)
            await await_up(pi)
            for k in range(MAX_SESSIONS["device"]):
                login = Login(f"session-{k}", "pi", logins["pi"], is_clean=False)
                RawClient(lab.settings.port, login, trust).close()
            with anyio.fail_after(LIMIT_S):
                await until_refused(pi)
            await nano.publish(TOPICS.telemetry("nano"), b"", qos=1)
            assert lab.audit.read_text().count('"refuse"') == 1
    (line,) = [one for one in caplog.messages if "sessions" in one]
    assert line == (
        "device pi keeps 9 sessions and 0 subscriptions at the broker, at most 8 and 1,000 are "
        "allowed; the broker refuses it for 60 minutes; revoke it with: fairbed devices revoke pi"
    )


@pytest.mark.anyio
async def test_identities_take_effect_without_a_restart(lab: Lab) -> None:
    clock = Clock()
    with Identities(lab.database) as identities:
        early = identities.create("early", now_s=NOW_S, expires_s=NOW_S + 60)
        async with up(lab, clock):
            (process,) = brokers()
            assert pid_of_broker(lab) == process.pid
            late = identities.create("late", now_s=NOW_S)
            async with (
                device(lab, "early", early) as one,
                MqttTransport(
                    f"mqtts://late:{late}@127.0.0.1:{lab.settings.port}?cafile={lab.ca}",
                    "late",
                    waits_if_refused=True,
                    backoff=lambda retry: 0.05,
                ) as other,
            ):
                await await_up(one)
                await await_up(other)
                identities.revoke("late", now_s=NOW_S)
                await until_dropped(other)
                clock.now_s = NOW_S + 60
                await until_dropped(one)
                with anyio.fail_after(LIMIT_S):
                    await until_refused(one)
            assert brokers() == [process]
    assert brokers() == []
    assert pid_of_broker(lab) is None


@pytest.mark.anyio
async def test_every_listener_needs_a_password_and_all_but_loopback_tls(lab: Lab) -> None:
    async with up(lab):
        (process,) = brokers()
        listening = {
            (entry.laddr.ip, entry.laddr.port)
            for entry in process.net_connections("tcp")
            if entry.status == psutil.CONN_LISTEN
        }
        beyond = {port for host, port in listening if host not in ("127.0.0.1", "::1")}
        assert beyond == {lab.settings.port}
        context = ssl.create_default_context(cafile=str(lab.ca))
        with (
            socket.create_connection(("127.0.0.1", lab.settings.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            assert secure.version() in ("TLSv1.2", "TLSv1.3")
        for url in (
            f"mqtts://127.0.0.1:{lab.settings.port}?cafile={lab.ca}",
            f"mqtts://device:wrong@127.0.0.1:{lab.settings.port}?cafile={lab.ca}",
            *([f"mqtt://127.0.0.1:{lab.settings.local_port}"] if lab.settings.local_port else []),
        ):
            async with MqttTransport(url, "stranger") as link:
                with anyio.fail_after(LIMIT_S):
                    await until_refused(link)


@pytest.mark.anyio
async def test_a_broker_that_dies_is_started_again(lab: Lab) -> None:
    with Identities(lab.database) as identities:
        password = identities.create("pi-1", now_s=NOW_S)
        async with up(lab), device(lab, "pi-1", password) as link:
            await await_up(link)
            for process in brokers():
                process.kill()
            with anyio.fail_after(LIMIT_S):
                assert isinstance(await anext(link.events()), LinkDown)
            identities.revoke("pi-1", now_s=NOW_S)  # while the broker is down
            with anyio.fail_after(LIMIT_S):
                await until_refused(link)


@pytest.mark.anyio
@pytest.mark.full
async def test_a_broker_that_hangs_is_killed_and_started_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "KEEPALIVE_S", 1)
    monkeypatch.setattr(service, "HUNG_S", 1.0)
    async with up(lab):
        (hung,) = brokers()
        hung.suspend()
        with anyio.fail_after(LIMIT_S):
            while pid_of_broker(lab) in (None, hung.pid):  # noqa: ASYNC110  # a file
                await anyio.sleep(POLL_S)
        assert not hung.is_running()


@pytest.mark.anyio
async def test_a_revocation_on_a_full_disk_takes_effect_when_space_is_free(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path, data: bytes) -> None:
        raise LabError(f"{path}: must be writable, got No space left on device; free space")

    with Identities(lab.database) as identities:
        password = identities.create("pi-1", now_s=NOW_S)
        async with up(lab), device(lab, "pi-1", password) as link:
            await await_up(link)
            with monkeypatch.context() as full:
                full.setattr(service, "write_private", fail)
                identities.revoke("pi-1", now_s=NOW_S)
                with anyio.fail_after(LIMIT_S):
                    while "No space left" not in caplog.text:  # noqa: ASYNC110  # a log
                        await anyio.sleep(POLL_S)
            await until_dropped(link)
    assert caplog.text.count("No space left") == 1


@pytest.mark.anyio
async def test_a_clock_that_was_ahead_for_a_while_locks_no_device_out(lab: Lab) -> None:
    clock = Clock()
    with Identities(lab.database) as identities:
        password = identities.create("pi-1", now_s=NOW_S, expires_s=NOW_S + 3600.0)
        async with up(lab, clock), device(lab, "pi-1", password) as link:
            await await_up(link)
            clock.now_s += 86_400.0
            await until_dropped(link)
            clock.now_s -= 86_400.0
            with anyio.fail_after(LIMIT_S):
                while not has_account(lab, "pi-1"):  # noqa: ASYNC110  # a file
                    await anyio.sleep(POLL_S)


@pytest.mark.anyio
async def test_contacts_of_devices_are_noted(lab: Lab) -> None:
    with Identities(lab.database) as identities:
        password = identities.create("pi-1", now_s=NOW_S)
        identities.create("pi-2", now_s=NOW_S)
        identities.saw("pi-2", at_s=NOW_S - 9, state="online")  # before this start
        async with up(lab):
            async with device(lab, "pi-1", password) as link:
                await await_up(link)
                await link.publish(TOPICS.status("pi-1"), ON, qos=1, retain=True)
                await until_state(identities, "pi-1", "online")
                other = bytes([PROTOCOL_VERSION + 1]) + ON[1:]
                await link.publish(TOPICS.up("pi-1"), other, qos=1)
                await link.publish(TOPICS.status("pi-1"), OFF, qos=1, retain=True)
                await until_state(identities, "pi-1", "offline")
            assert identities.contacts()["pi-1"].agent == f"protocol {PROTOCOL_VERSION + 1}"
            assert identities.contacts()["pi-1"].at_s == NOW_S
            assert identities.contacts()["pi-2"].state == "offline"


@pytest.mark.anyio
async def test_one_folder_is_served_once(lab: Lab) -> None:
    assert running_pid(lab) is None
    async with up(lab):
        assert running_pid(lab) == os.getpid()
        with pytest.raises(LabError, match=f"the lab is up already, as process {os.getpid()}"):
            await serve_lab(lab, now=Clock())
    assert running_pid(lab) is None


@pytest.mark.anyio
async def test_a_port_in_use_is_named_with_its_program(lab: Lab) -> None:
    with socket.socket() as taken:
        taken.bind(("", lab.settings.port))
        taken.listen()
        with pytest.raises(LabError, match=r"must be free, got .* port in .*lab\.toml"):
            await serve_lab(lab, now=Clock())
    assert running_pid(lab) is None
    assert brokers() == []


@pytest.mark.parametrize(
    ("broker", "printed", "problem"),
    [
        ("mosquitto", "mosquitto version 2.0.11", None),
        ("mosquitto", "mosquitto version 1.6.12", "must be 2.0.0 or newer, got 1.6.12"),
        ("nats", "nats-server: v2.12.6", None),
        ("nats", "nats-server: v2.15.1", None),
        ("nats", "nats-server: v2.12.5", "must be 2.12.6 or newer, got 2.12.5"),
        ("nats", "nats-server: v2.9.25", "must be 2.12.6 or newer, got 2.9.25"),
        ("nats", "", "must be 2.12.6 or newer, got ''"),
    ],
)
def test_a_broker_that_cannot_enforce_the_roles_is_refused(
    broker: str, printed: str, problem: str | None
) -> None:
    command = [sys.executable, "-c", f"print({printed!r})", "--"]
    if problem is None:
        check_version(broker, command)
        return
    with pytest.raises(LabError, match=problem):
        check_version(broker, command)


def test_a_broker_without_a_version_is_one_line() -> None:
    with pytest.raises(LabError, match=r"^lab: /no/broker must name its version, got "):
        check_version("nats", ["/no/broker"])
