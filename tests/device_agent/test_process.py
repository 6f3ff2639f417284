"""The agent as a real process on a real broker, with the real engine."""

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import numpy as np
import psutil
import pytest

from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent import example_count
from fairbed.device_agent.agent import Agent
from fairbed.device_agent.config import AgentConfig
from fairbed.device_agent.errors import DataError
from fairbed.device_agent.process import client_id, link
from fairbed.testbed.run.broker import Broker, start_broker
from fairbed.wire.artifact import encode_artifact, initial_vector
from fairbed.wire.codec import encode
from fairbed.wire.messages import Goodbye, Hello, Status
from fairbed.wire.shard import encode_shard, make_shard
from fairbed.wire.topics import Topics
from fairbed.wire.transport.client import MqttTransport
from tests.device_agent.conftest import real_host_for_tests
from tests.device_agent.coordinator import TIMEOUT_S, FakeCoordinator
from tests.device_agent.softmax import N_VALUES, examples, open_softmax, softmax_task

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.broker,
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed"),
]

_log = logging.getLogger(__name__)

REPOSITORY = Path(__file__).parents[2]
NAME = "pi-07"
AGENT = [sys.executable, "-m", "fairbed.device_agent.cli"]
MIB = 1024**2 // os.sysconf("SC_PAGE_SIZE")
MAX_IDLE_PAGES = 40 * MIB
"""Bound of the resident memory of an agent without a task: 28 MiB with Python 3.10, 35 with 3.14;
11 to 14 of them are mapped library files, whose share in memory depends on what else runs."""
MAX_IDLE_OWN_PAGES = 23 * MIB
"""Bound of the private memory of an agent without a task: 17 MiB with Python 3.10, 20 with 3.14."""


@contextmanager
def agent_process(broker: Broker, folder: Path, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `device-agent` for the duration of a block."""
    command = [*AGENT, "--broker", broker.url, "--name", NAME]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen([*command, "--cache", str(folder / "cache"), *args], stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def data_file(folder: Path, value: float = 0.5) -> Path:
    """Write 60 examples of a device; return their file."""
    path = folder / "own.npz"
    np.savez(path, x=np.full((60, 1, 8, 8), value, np.float32), y=np.arange(60) % 10)
    return path


@asynccontextmanager
async def broker_and_coordinator(folder: Path) -> AsyncIterator[tuple[Broker, FakeCoordinator]]:
    """Run a broker and a coordinator for the duration of a block."""
    async with start_broker("mosquitto", folder=folder) as broker:
        transport = MqttTransport(broker.url, "coordinator")
        async with FakeCoordinator(transport, Topics(), NAME).running() as coordinator:
            yield broker, coordinator


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process; return its exit code."""
    with anyio.fail_after(TIMEOUT_S):
        return await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)


async def test_trains_the_shipped_cnn_over_mosquitto(tmp_path: Path) -> None:
    task = load_task("cnn", (1, 8, 8), 10)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 1, 8, 8)).astype(np.float32)
    vector = initial_vector(task.spec, 1)
    async with broker_and_coordinator(tmp_path) as (broker, coordinator):
        with agent_process(broker, tmp_path, "--once") as process:
            two_of_ten = np.arange(60) % 2  # the first steps lower the loss in any order
            shard = encode_shard(make_shard(x, two_of_ten))
            await coordinator.join(encode_artifact(task), shard)
            first, vector = await coordinator.run_round(1, vector, needs_loss=True)
            second, vector = await coordinator.run_round(2, vector, needs_loss=True)
            assert (first.was_cold, second.was_cold) == (True, False)
            assert first.loss_before is not None
            assert second.loss_before is not None
            assert second.loss_before < first.loss_before
            await coordinator.transport.publish(
                coordinator.topics.control_all, encode(Goodbye()), qos=1
            )
            assert await ended(process) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("has_data", [False, True])
async def test_needs_little_memory_before_its_first_task_and_stops_at_a_signal(
    tmp_path: Path, has_data: bool
) -> None:
    args = ("--data", str(data_file(tmp_path))) if has_data else ()
    imports = (
        "import anyio._backends._asyncio, fairbed.device_agent.cli, fairbed.device_agent.process"
    )
    await anyio.run_process([sys.executable, "-c", imports])  # compiling would keep 4 MiB
    async with broker_and_coordinator(tmp_path) as (broker, coordinator):
        with agent_process(broker, tmp_path, *args) as process:
            assert (await coordinator.expect(Hello)).n_k == (60 if has_data else None)
            statm = Path(f"/proc/{process.pid}/statm").read_text()  # noqa: ASYNC240  # no disk
            resident, shared = map(int, statm.split()[1:3])
            own = resident - shared
            _log.info("before a task: %.1f MiB, %.1f of its own", resident / MIB, own / MIB)
            assert resident <= MAX_IDLE_PAGES
            assert own <= MAX_IDLE_OWN_PAGES
            maps = Path(f"/proc/{process.pid}/maps").read_text()  # noqa: ASYNC240  # no disk
            assert "[heap]" in maps
            assert "numpy" not in maps
            os.kill(process.pid, signal.SIGINT)
            status = await coordinator.expect(Status)
            while status.state == "on":
                status = await coordinator.expect(Status)
            assert await ended(process) == 0


@pytest.mark.parametrize("is_installed", [True, False])
async def test_names_the_rule_that_the_data_of_the_device_breaks(
    tmp_path: Path, is_installed: bool
) -> None:
    path = data_file(tmp_path, value=np.nan)
    python, environment = sys.executable, dict(os.environ)
    if not is_installed:  # only the current folder has the package, only a path its dependencies
        python = getattr(sys, "_base_executable", python)
        environment["PYTHONPATH"] = str(Path(anyio.__file__).parents[1])
    command = [python, *AGENT[1:], "--broker", "mqtt://127.0.0.1:9", "--name", NAME]
    with anyio.fail_after(TIMEOUT_S):
        done = await anyio.run_process(
            [*command, "--data", str(path)], env=environment, cwd=REPOSITORY, check=False
        )
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"device-agent: {path}: every value of x must be a finite float32, got NaN or inf\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_the_process_that_reads_the_data_ends_with_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    os.mkfifo(path)  # without a writer a read has no end
    async with start_broker("mosquitto", folder=tmp_path) as broker:
        for stop in (signal.SIGKILL, signal.SIGTERM):
            with agent_process(broker, tmp_path, "--data", str(path)) as process:
                reader = await child_of(process)
                process.send_signal(stop)
                assert await ended(process) == (0 if stop == signal.SIGTERM else -stop)
                assert psutil.wait_procs([reader], TIMEOUT_S)[1] == []
        with agent_process(broker, tmp_path, "--data", str(path)) as process:
            (await child_of(process)).kill()
            assert await ended(process) == 2
    assert (tmp_path / "agent.log").read_text().splitlines()[-1] == (
        f"device-agent: {path}: must be read by a process of its own, which was ended by signal 9;"
        " use fewer examples, or free memory"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pipe with a name")
async def test_data_that_cannot_be_read_in_time_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(path := tmp_path / "own.npz")
    before = psutil.Process().children()
    monkeypatch.delitem(sys.modules, "numpy")  # as in an agent
    monkeypatch.setattr(example_count, "COUNT_S", 0.1)
    with anyio.fail_after(TIMEOUT_S), pytest.raises(DataError, match="must be readable within"):
        await example_count.count_examples(path)
    assert psutil.Process().children() == before


async def child_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """Wait until a process has a child; return it."""
    with anyio.fail_after(TIMEOUT_S):
        # No event tells.
        while not (children := psutil.Process(process.pid).children()):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return children[0]


async def test_the_broker_publishes_the_will_of_a_killed_agent(tmp_path: Path) -> None:
    async with broker_and_coordinator(tmp_path) as (broker, coordinator):
        with agent_process(broker, tmp_path) as process:
            hello = await coordinator.expect(Hello)
            process.kill()
            status = await coordinator.expect(Status)
            while status.state == "on":
                status = await coordinator.expect(Status)
            assert status.boot == hello.boot


def test_only_the_password_gives_the_client_id() -> None:
    def of(url: str) -> str:
        return client_id(AgentConfig(broker_url=url, name=NAME))

    first = of("mqtts://pi-07:secret@localhost")
    assert first == of("mqtts://pi-07:secret@10.0.0.1:8883")
    assert first.startswith("fairbed-main-pi-07-")
    assert len(first) == len("fairbed-main-pi-07-") + 24
    assert "secret" not in first
    others = [of(f"mqtts://{login}localhost") for login in ("", "pi-07:other@", "pi:secret@")]
    assert len({first, *others}) == 4


async def test_an_agent_for_one_run_that_the_broker_refuses_ends(tmp_path: Path) -> None:
    async with start_broker("mosquitto", folder=tmp_path) as broker:
        broker_url = broker.url.replace(broker.password, "wrong")
        command = [*AGENT, "--broker", broker_url, "--name", NAME, "--once"]
        with anyio.fail_after(TIMEOUT_S):
            done = await anyio.run_process(command, check=False)
    stderr = done.stderr.decode()
    assert done.returncode == 3
    assert stderr.splitlines()[-1].startswith("device-agent: mqtt://")
    assert "refused" in stderr.splitlines()[-1]
    assert "wrong" not in stderr


async def test_an_agent_waits_while_it_is_refused_and_serves_run_after_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def place(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        return folder

    async with start_broker("mosquitto", folder=place("port")) as broker:
        port, url = broker.port, broker.url
    password = broker.password
    config = AgentConfig(
        broker_url=url,
        name=NAME,
        cache_folder=str(tmp_path / "cache"),
        state_folder=str(tmp_path / "state"),
    )
    async with anyio.create_task_group() as group:
        agent = Agent(
            config,
            real_host_for_tests(),
            lambda will: link(config, will, backoff=lambda retry: 0.01),
            open_softmax,
        )
        group.start_soon(agent.run)
        for run in range(3):
            async with start_broker("mosquitto", folder=place(f"other-{run}"), port=port):
                with anyio.fail_after(TIMEOUT_S):
                    while caplog.text.count("not authorised") <= run:  # noqa: ASYNC110  # a log
                        await anyio.sleep(0.01)
            async with start_broker(
                "mosquitto", folder=place(f"run-{run}"), port=port, password=password
            ) as broker:
                transport = MqttTransport(broker.url, "coordinator")
                coordinator = FakeCoordinator(transport, Topics(), NAME, boot=run + 1)
                async with coordinator.running():
                    await coordinator.join(softmax_task(), encode_shard(examples(40)))
                    offer, _ = await coordinator.run_round(1, np.zeros(N_VALUES, np.float32))
                    assert offer.n_k == 40
                    await coordinator.transport.publish(
                        coordinator.topics.control_all, encode(Goodbye()), qos=1
                    )
        group.cancel_scope.cancel()
    assert caplog.text.count("not authorised") == 3
    assert password not in caplog.text
