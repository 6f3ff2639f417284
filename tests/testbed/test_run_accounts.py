"""The broker of a plain run: each device has a login and topics of its own, on each broker.

What the broker of a lab forbids, that of a run forbids, too (`tests.testbed.lab.test_trespass`):
the same rules are in its files. Here are the parts of its own, and one case of each kind.
"""

import errno
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import get_args

import anyio
import anyio.to_thread
import psutil
import pytest

from fairbed.testbed.broker.configuration import MAX_PACKET_BYTES, BrokerKind
from fairbed.testbed.broker.run_accounts import RunAccounts, enrol_user, enrolled_users, password_of
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.host import broker_process
from fairbed.testbed.host.broker_usage import MAX_SESSIONS, MAX_SUBSCRIPTIONS
from fairbed.testbed.run.broker import Broker, await_accepted, find_broker, start_broker
from fairbed.testbed.run.run_broker import RestartBudget, keep_broker, refuse_excess
from fairbed.testbed.run.stopping import StopControl
from fairbed.wire.topics import Topics
from fairbed.wire.transport.address import with_login
from tests.testbed.lab.raw_client import Closed, Login, RawClient

T = Topics()
KINDS: tuple[BrokerKind, ...] = get_args(BrokerKind)
pytestmark = pytest.mark.anyio
CASES = [
    pytest.param(
        kind,
        marks=[
            pytest.mark.broker,
            pytest.mark.skipif(find_broker(kind) is None, reason=f"{kind} is not installed"),
        ],
    )
    for kind in KINDS
]
on_brokers = pytest.mark.parametrize("kind", CASES)


@asynccontextmanager
async def running(kind: BrokerKind, folder: Path) -> AsyncIterator[tuple[Broker, RunAccounts]]:
    accounts = RunAccounts("main", devices=["pi", "nano"])
    async with start_broker(kind, folder=folder, accounts=accounts) as broker:
        yield broker, accounts


def client(broker: Broker, accounts: RunAccounts, user: str, **login: object) -> RawClient:
    made = Login(f"x{secrets.token_hex(8)}", user, accounts.password(user))
    for key, value in login.items():
        setattr(made, key, value)
    return RawClient(broker.port, made)


def login_url(broker: Broker, accounts: RunAccounts, user: str) -> str:
    return with_login(broker.url, user, accounts.password(user))


def content_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def is_subscribed(device: RawClient, filter_: str) -> bool:
    """Return whether a broker takes a filter; mosquitto takes all, and sends nothing."""
    try:
        return device.subscribe(filter_) < 128
    except Closed:
        return False


@on_brokers
async def test_a_device_reads_and_writes_its_own_topics_only(
    kind: BrokerKind, tmp_path: Path
) -> None:
    async with running(kind, tmp_path) as (broker, accounts):
        with (
            client(broker, accounts, "coordinator_main") as coordinator,
            client(broker, accounts, "operator_local") as operator,
            client(broker, accounts, "nano") as nano,
        ):
            for topic in (T.up("+"), T.status("+"), T.upload("+"), T.command("+"), T.coordinator):
                coordinator.subscribe(topic)
            nano.subscribe(T.control("nano"))
            operator.subscribe(T.answer("local"))
            for filter_ in ("#", "fairbed/#", T.control("nano"), T.up("+"), T.answer("local")):
                with client(broker, accounts, "pi") as pi:
                    is_subscribed(pi, filter_)
                    with suppress(Closed):  # the own topic, whose message is the mark
                        pi.subscribe(T.control("pi"))
                    coordinator.publish(T.control("nano"), b"private", qos=1)
                    coordinator.publish(T.answer("local"), b"answer", qos=1)
                    coordinator.publish(T.control("pi"), b"mark", qos=1)
                    if not pi.is_closed():
                        assert pi.until(b"mark") == [], filter_
            for topic in (
                T.command("local"),
                T.coordinator,
                T.control("nano"),
                T.control_all,
                T.up("nano"),
                T.upload("nano"),
                T.status("nano"),
            ):
                with client(broker, accounts, "pi") as pi, suppress(Closed):
                    pi.publish(topic, b"forged", qos=1, retain=True)
            with client(broker, accounts, "pi", will=(T.coordinator, b"forged will")):
                pass
            with client(broker, accounts, "pi", will=(T.status("pi"), b"mark")):
                pass
            assert [m for m in coordinator.until(b"mark") if m.payload.startswith(b"forged")] == []
            operator.publish(T.command("local"), b"stop", qos=1)
            assert coordinator.until(b"stop") == []
            coordinator.publish(T.control("nano"), b"mark", qos=1)
            assert b"forged" not in [m.payload for m in nano.until(b"mark")]


@on_brokers
async def test_no_login_serves_another_user(kind: BrokerKind, tmp_path: Path) -> None:
    async with running(kind, tmp_path) as (broker, accounts):
        password = accounts.password("pi")
        for user in ("nano", "coordinator_main", "operator_local", "fairbed", "pi ", "other"):
            with pytest.raises((Closed, TimeoutError)):
                RawClient(broker.port, Login("x", user, password)).close()
        with client(broker, accounts, "pi") as pi:
            pi.ping()


@on_brokers
async def test_nothing_but_mqtt_takes_a_password_of_a_run(kind: BrokerKind, tmp_path: Path) -> None:
    """NATS opens a port for its own protocol, with other rules for topics."""
    async with running(kind, tmp_path) as (broker, accounts):
        assert broker.pid is not None
        ports = {
            found.laddr.port
            for found in psutil.Process(broker.pid).net_connections("inet")
            if found.status == psutil.CONN_LISTEN
        } - {broker.port}
        assert len(ports) == (kind == "nats")
        for port in ports:
            for user in ("pi", "coordinator_main"):
                with socket.create_connection(("127.0.0.1", port), 5.0) as link:
                    link.recv(10_000)
                    login = f'{{"user":"{user}","pass":"{accounts.password(user)}"}}'
                    link.sendall(f"CONNECT {login}\r\nPING\r\n".encode())
                    assert b"Authorization Violation" in link.recv(10_000)


@on_brokers
async def test_a_device_that_is_enrolled_later_is_accepted(
    kind: BrokerKind, tmp_path: Path
) -> None:
    async with running(kind, tmp_path) as (broker, accounts):
        with (
            client(broker, accounts, "pi") as pi,
            client(broker, accounts, "coordinator_main") as coordinator,
        ):
            with pytest.raises((Closed, TimeoutError)):
                client(broker, accounts, "late").close()
            pi.subscribe(T.control("pi"))
            enrol_user(tmp_path, "late")
            enrol_user(tmp_path, "vera", "viewer")
            await broker.enrol(enrolled_users(tmp_path))
            coordinator.subscribe(T.up("late"))
            with client(broker, accounts, "late") as late:
                late.publish(T.up("late"), b"hello", qos=1)
            with client(broker, accounts, "viewer_vera") as vera:
                vera.ping()
            assert coordinator.until(b"hello") == []
            coordinator.publish(T.control("pi"), b"mark", qos=1)
            assert pi.until(b"mark") == []  # its connection outlived the reload


@on_brokers
async def test_a_device_that_floods_is_refused_for_a_while(
    kind: BrokerKind, tmp_path: Path
) -> None:
    async with running(kind, tmp_path) as (broker, accounts), anyio.create_task_group() as group:
        with client(broker, accounts, "pi") as pi, client(broker, accounts, "nano") as nano:
            nano.subscribe(T.control("nano"))
            group.start_soon(broker.suspend, "pi", 0.2)
            await anyio.sleep(0.3)
            if kind != "amqtt":  # it paces its clients, and only refuses them when they come back
                pi.await_close(5.0)
            with pytest.raises((Closed, TimeoutError)):
                client(broker, accounts, "pi").close()
            nano.ping()
        await await_accepted(login_url(broker, accounts, "pi"), 5.0)


def full(*arguments: object) -> int:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no broker write its files in this block."""
    with monkeypatch.context() as disk:
        disk.setattr("fairbed.testbed.run.broker.os.open", full)
        yield


@on_brokers
async def test_a_user_that_a_full_disk_kept_out_is_enrolled_once_there_is_space(
    kind: BrokerKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(kind, tmp_path) as (broker, accounts):
        with full_disk(monkeypatch), pytest.raises(BrokerError, match="must fit on the disk"):
            await broker.enrol(["late"])
        assert "late" not in accounts
        await broker.enrol(["late"])
        with client(broker, accounts, "late") as late:
            late.ping()
        assert "pi" in accounts


@on_brokers
async def test_a_device_is_accepted_as_before_if_the_disk_is_full_when_it_floods(
    kind: BrokerKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(kind, tmp_path) as (broker, accounts):
        with full_disk(monkeypatch), pytest.raises(BrokerError, match="must fit on the disk"):
            await broker.suspend("pi", 60.0)
        assert not accounts.suspended
        with client(broker, accounts, "pi") as pi:
            pi.ping()


@on_brokers
async def test_a_device_is_accepted_again_once_a_full_disk_has_space(
    kind: BrokerKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbed.testbed.run.broker.RELOAD_S", 0.05)
    monkeypatch.setattr("fairbed.testbed.run.broker.RELOAD_RETRY_S", 0.05)
    async with running(kind, tmp_path) as (broker, accounts), anyio.create_task_group() as group:
        group.start_soon(broker.suspend, "pi", 0.1)
        await anyio.sleep(0.08)
        with full_disk(monkeypatch):
            await anyio.sleep(0.3)
            with pytest.raises((Closed, TimeoutError)):
                client(broker, accounts, "pi").close()
        await await_accepted(login_url(broker, accounts, "pi"), 5.0)


@on_brokers
async def test_no_file_of_a_live_broker_holds_a_password(kind: BrokerKind, tmp_path: Path) -> None:
    async with running(kind, tmp_path) as (broker, accounts):
        await broker.restart()
        await broker.enrol(["late"])
        text = content_of(tmp_path)
        assert text, "a broker has a log"
        for account in accounts.all():
            assert account.password.encode() not in text
        assert accounts.secret.encode() not in text


@on_brokers
async def test_a_packet_above_the_limit_ends_the_connection_of_its_sender_only(
    kind: BrokerKind, tmp_path: Path
) -> None:
    async with running(kind, tmp_path) as (broker, accounts):
        with (
            client(broker, accounts, "coordinator_main") as coordinator,
            client(broker, accounts, "nano") as nano,
        ):
            coordinator.subscribe(T.up("+"))
            coordinator.subscribe(T.upload("+"))
            with client(broker, accounts, "pi") as pi, pytest.raises(Closed):
                pi.publish(T.upload("pi"), bytes(2 * MAX_PACKET_BYTES), qos=1)
            with client(broker, accounts, "pi") as pi, suppress(Closed):
                pi.send(b"\x30\xff\xff\xff\x7f" + bytes(1 << 16))  # announces 256 MiB
                pi.await_close(5.0)
            nano.publish(T.up("nano"), b"mark", qos=1)
            assert coordinator.until(b"mark") == []


def test_passwords_are_derived_from_one_secret() -> None:
    known = {password_of("secret", user) for user in ("pi", "nano", "coordinator_main")}
    assert len(known) == 3
    assert all(len(password) == 32 for password in known)
    assert password_of("other", "pi") not in known


def test_only_names_of_devices_and_persons_are_enrolled(tmp_path: Path) -> None:
    for user in ("pi-2", "viewer_vera", "operator_bob", "coordinator_main", "lab_x", "../x", "A"):
        with suppress(OSError):
            (tmp_path / "enrolled").mkdir(exist_ok=True)
            (tmp_path / "enrolled" / user).touch()
    assert enrolled_users(tmp_path) == ["operator_bob", "pi-2", "viewer_vera"]


def keep_sessions(broker: Broker, accounts: RunAccounts, user: str, number: int) -> int:
    """Let a user leave sessions that the broker keeps; return how many it accepted."""
    accepted = 0
    for _ in range(number):
        with suppress(Closed), client(broker, accounts, user, is_clean=False):
            accepted += 1
    return accepted


@on_brokers
async def test_what_a_login_keeps_in_the_broker_is_limited_or_counted(
    kind: BrokerKind, tmp_path: Path
) -> None:
    """Mosquitto limits nothing, NATS the subscriptions, our amqtt both."""
    wanted = MAX_SUBSCRIPTIONS + 200
    async with running(kind, tmp_path) as (broker, accounts):
        with client(broker, accounts, "nano") as nano, client(broker, accounts, "pi") as pi:
            nano.subscribe(T.control("nano"), 1)
            codes = pi.subscribe_all([T.chunk(f"x{k}", 0) for k in range(wanted)])
            kept = keep_sessions(broker, accounts, "pi", 12)
            for k in range(12):  # an attack on the reputation of another login
                with suppress(Closed):
                    RawClient(broker.port, Login(f"claims-{k}", "nano", "guess")).close()
                with suppress(Closed):
                    RawClient(broker.port, Login(f"forgets-{k}", "nano")).close()
            usage = await broker.usage()
            if kind == "amqtt":
                assert usage == {}
                assert kept == MAX_SESSIONS["device"] - 1
            else:
                assert kept == 12
                assert usage["pi"].sessions == 13
                assert usage["nano"].sessions == 1
                assert usage["nano"].subscriptions < 10
                assert usage["pi"].excess("device") is not None
                assert usage["nano"].excess("device") is None
            if kind == "mosquitto":
                assert max(codes) == 0
                assert wanted - 100 <= usage["pi"].subscriptions <= wanted, "4 KiB are in a buffer"
            else:
                assert codes.count(128) >= 200
            nano.ping()


@pytest.mark.parametrize("kind", CASES[:2])
async def test_a_login_that_keeps_too_much_is_refused_and_the_others_go_on(
    kind: BrokerKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amqtt does not accept what is too much."""
    monkeypatch.setattr(broker_process, "MEMORY_POLL_S", 0.05)
    monkeypatch.setattr(broker_process, "GROWTH_BYTES", -1)
    stop = StopControl()
    notes: list[tuple[str, str, str | None]] = []
    monkeypatch.setattr(stop, "note", lambda *note: notes.append(note))
    async with running(kind, tmp_path) as (broker, accounts), anyio.create_task_group() as group:
        with client(broker, accounts, "nano") as nano, client(broker, accounts, "pi") as pi:
            refuse = partial(
                refuse_excess, accounts=accounts, suspend=broker.suspend, group=group, stop=stop
            )
            group.start_soon(
                keep_broker, broker, anyio.CancelScope(), stop, RestartBudget(), refuse
            )
            keep_sessions(broker, accounts, "pi", MAX_SESSIONS["device"])
            await anyio.to_thread.run_sync(pi.await_close, 20.0)
            with pytest.raises((Closed, TimeoutError)):
                client(broker, accounts, "pi").close()
            nano.ping()
            client(broker, accounts, "nano").close()
            group.cancel_scope.cancel()
    assert accounts.suspended == set()
    assert notes == [
        (
            "flood",
            "keeps 9 sessions and 0 subscriptions at the broker, at most 8 and 1,000 are allowed; "
            "the broker refuses it for 60 minutes",
            "pi",
        )
    ]
