"""The unit of the agent, and the notifications to systemd."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from fairbed.device_agent.systemd import UNIT, notify_systemd, unit_text

pytestmark = pytest.mark.anyio

TIMEOUT_S = 20.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(str(tmp_path / "notify"))
        link.setblocking(False)
        yield link


async def received(manager: socket.socket) -> str:
    """Wait for one notification."""
    with anyio.fail_after(TIMEOUT_S):
        await anyio.wait_readable(manager)
    return manager.recv(100).decode()


async def test_reports_readiness_then_pings_from_the_event_loop(
    manager: socket.socket, tmp_path: Path
) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
    async with anyio.create_task_group() as group:
        group.start_soon(notify_systemd, environment)
        assert [await received(manager) for _ in range(3)] == ["READY=1", *["WATCHDOG=1"] * 2]
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": str(os.getpid() + 1)}],
)
async def test_without_a_watchdog_only_readiness_is_reported(
    manager: socket.socket, tmp_path: Path, watchdog: dict[str, str]
) -> None:
    await notify_systemd({"NOTIFY_SOCKET": str(tmp_path / "notify"), **watchdog})
    assert await received(manager) == "READY=1"
    with pytest.raises(BlockingIOError):
        manager.recv(100)


@pytest.mark.parametrize("address", ["", "tcp:1", "/none/at/all"])
async def test_without_systemd_nothing_is_sent_and_nothing_fails(address: str) -> None:
    await notify_systemd({"NOTIFY_SOCKET": address} if address else {})


@pytest.mark.parametrize("is_system", [True, False])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path, is_system: bool) -> None:
    path = tmp_path / UNIT
    path.write_text(unit_text("/bin/true run", is_system=is_system, cores=4))
    manager = "--system" if is_system else "--user"
    done = subprocess.run(
        ["systemd-analyze", "verify", manager, "--man=no", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT in line]
    assert complaints == []


def test_the_unit_limits_memory_and_processor_and_restarts() -> None:
    text = unit_text("/opt/agent run", is_system=True, cores=1)
    for line in (
        "ExecStart=/opt/agent run",
        "MemoryMax=75%",
        "CPUQuota=100%",
        "WatchdogSec=120",
        "Restart=always",
        "RestartPreventExitStatus=2 3",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "DynamicUser=yes",
        "CapabilityBoundingSet=",
    ):
        assert f"\n{line}\n" in text
    assert "CPUQuota=200%" in unit_text("/x", is_system=True, cores=8)


def test_a_unit_of_a_user_needs_no_mount_namespace() -> None:
    text = unit_text("/opt/agent run", is_system=False, cores=1)
    assert not [line for line in text.splitlines() if line.startswith(("Protect", "Private"))]
    assert "WantedBy=default.target" in text
