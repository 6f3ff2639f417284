"""The container backend: real containers, in the same networks and groups, nothing left behind."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from fairbed.testbed.backends.base import Backend
from fairbed.testbed.backends.choice import BackendChoice, open_backend
from fairbed.testbed.backends.containers.engine import find_engine
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.errors import BackendUnavailable
from fairbed.wire.errors import innermost
from tests.bounded import LIMIT_S, run
from tests.processes import still_running
from tests.testbed.backends.test_namespace import (
    NOWHERE,
    REPOSITORY,
    conditions,
    is_inside,
    pis,
    share_of,
    until,
    what_is_left,
)

PARENT = """
import sys
from pathlib import Path
import anyio
from fairbed.testbed.backends.choice import open_backend
from fairbed.testbed.backends.base import DeviceSpec

async def main():
    fleet = [DeviceSpec("one"), DeviceSpec("two")]
    async with open_backend("container", fleet, Path(sys.argv[1]), sys.argv[2]) as choice:
        async with choice.backend("mqtt://127.0.0.1:1") as backend:
            await backend.start()
            print(*backend.pids.values(), flush=True)
            await anyio.sleep_forever()

anyio.run(main)
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def needs_containers(tmp_path: Path) -> None:
    async def attempt() -> None:
        async with open_backend("container", pis(1), tmp_path, "trial"):
            pass

    try:
        anyio.run(attempt)
    except BackendUnavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture
def run_id() -> str:
    return f"test-{secrets.token_hex(4)}"


@asynccontextmanager
async def opened_backend(
    folder: Path, run_id: str, count: int, ended: list[HelperEnded] | None = None
) -> AsyncIterator[tuple[BackendChoice, Backend]]:
    async with (
        open_backend("container", pis(count), folder, run_id) as choice,
        choice.backend(NOWHERE, on_end=None if ended is None else ended.append) as backend,
    ):
        await backend.start()
        yield choice, backend


def containers(run_id: str) -> list[str]:
    listed = subprocess.run(
        ["podman", "ps", "--all", "--format={{.Names}}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    return [name for name in listed.stdout.split() if run_id in name]


@pytest.mark.usefixtures("needs_containers")
def test_every_device_is_a_container_in_its_own_network_and_groups_and_all_is_removed(
    tmp_path: Path, run_id: str
) -> None:
    ended: list[HelperEnded] = []

    async def test() -> None:
        async with opened_backend(tmp_path, run_id, 2, ended) as (choice, backend):
            assert choice.network is not None
            usages = (await backend.sample()).values()
            assert max(usage.cpu_s for usage in usages) < 0.2, "a start is not of the device"
            assert len(containers(run_id)) == 2
            for name, pid in backend.pids.items():
                space = choice.network.namespace(name)
                assert space.stat().st_ino == os.stat(f"/proc/{pid}/ns/net").st_ino
                assert os.stat(f"/proc/{pid}/ns/pid").st_ino != os.stat("/proc/self/ns/pid").st_ino
                assert is_inside(pid, space.name)
            log = backend.log_file("pi-1")
            await until(lambda: log.exists() and "emulates" in log.read_text())
            await backend.apply({"pi-1": conditions(0.3)})
            assert share_of(run_id, "pi-1") == pytest.approx(0.3, rel=1e-3)
            assert (await backend.sample())["pi-1"].cpu_s > 0.0

    run(test)
    assert what_is_left(run_id) == []
    assert containers(run_id) == []
    assert all(end.was_requested for end in ended)
    assert {end.name for end in ended} == {"pi-1", "pi-2", "proxy-0"}


@pytest.mark.full
@pytest.mark.usefixtures("needs_containers")
def test_a_container_can_be_frozen_killed_and_restarted(tmp_path: Path, run_id: str) -> None:
    ended: list[HelperEnded] = []

    async def test() -> None:
        async with opened_backend(tmp_path, run_id, 1, ended) as (_, backend):
            process = psutil.Process(backend.pids["pi-1"])
            await backend.apply({"pi-1": conditions(outage="frozen")})
            await until(lambda: process.status() == psutil.STATUS_STOPPED)
            await backend.kill("pi-1")
            assert backend.pids == {}
            assert [(end.status, end.was_requested) for end in ended] == [(-signal.SIGKILL, True)]
            await backend.restart("pi-1")
            again = backend.pids["pi-1"]
            assert again != process.pid
            os.kill(again, signal.SIGKILL)
            await until(lambda: len(ended) == 2)
            assert (ended[1].status, ended[1].was_requested) == (-signal.SIGKILL, False)

    run(test)
    assert containers(run_id) == []


@pytest.mark.full
@pytest.mark.alone  # another run that starts would remove them, too
@pytest.mark.usefixtures("needs_containers")
def test_containers_of_a_killed_run_are_removed(tmp_path: Path, run_id: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), run_id],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        agents = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(agents) == 2
        assert len(containers(run_id)) == 2
        parent.kill()
    assert still_running(agents, LIMIT_S) == []

    async def another() -> None:
        await until(lambda: not containers(run_id))  # `removed_at_end` is removing them
        async with opened_backend(tmp_path / "next", f"next-{secrets.token_hex(4)}", 1):
            pass

    run(another)
    assert what_is_left(run_id) == []


def test_without_podman_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BackendUnavailable, match=r"^podman must be on the PATH; sudo apt-get"):
        anyio.run(find_engine)


@pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
def test_a_missing_image_is_reported_in_one_line() -> None:
    with pytest.raises(Exception, match=r"no-such-image") as caught:
        anyio.run(find_engine, "localhost/no-such-image")
    problem = innermost(caught.value)
    assert isinstance(problem, BackendUnavailable)
    assert "\n" not in str(problem)
