"""A process enters its sandbox before it runs, or does not run."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import anyio
import msgspec
import pytest

from fairbed.testbed.backends.agent_pool import AgentPool, Site
from fairbed.testbed.backends.base import DeviceSpec
from fairbed.testbed.backends.helper import HelperEnded
from fairbed.testbed.backends.sandbox import Sandbox
from tests.testbed.backends.cgroups.conftest import MakeGroup, make_group, places

__all__ = ["make_group", "places"]

LIMIT_S = 60.0

NOWHERE = "mqtt://127.0.0.1:1"


def inside(argv: Sequence[str], sandbox: Sandbox) -> list[str]:
    """Return the command that runs `argv` in a sandbox for as long as this process lives."""
    encoded = msgspec.json.encode(sandbox).decode()
    return [
        sys.executable,
        "-m",
        "fairbed.testbed.backends.sandbox",
        str(os.getpid()),
        encoded,
        *argv,
    ]


def run(argv: list[str], sandbox: Sandbox) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        inside(argv, sandbox), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def closed(sandbox: Sandbox) -> Sandbox:
    """Return a sandbox that no process can enter."""
    return msgspec.structs.replace(sandbox, procs=("/proc/1/no-such-file",))


NO_CELL = Sandbox(procs=(), quota_folder="/nowhere", quota_version=1)


def test_a_command_is_in_the_groups_from_its_start(make_group: MakeGroup) -> None:
    sandbox = make_group("a").sandbox()
    done = run(["cat", "/proc/self/cgroup"], sandbox)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(Path(sandbox.quota_folder).name) == len(sandbox.procs)


def test_the_exit_code_is_the_commands() -> None:
    assert run(["sh", "-c", "exit 7"], NO_CELL).returncode == 7


def test_a_command_that_cannot_enter_does_not_run() -> None:
    done = run(["echo", "I run"], closed(NO_CELL))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "sandbox: cannot enter: [Errno 2] No such file or directory: '/proc/1/no-such-file'\n"
    )


def test_a_program_that_is_missing_is_one_line() -> None:
    done = run(["no-such-program"], NO_CELL)
    assert done.returncode == 127
    assert done.stderr == (
        "sandbox: cannot run no-such-program: No such file or directory; is it on the PATH?\n"
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_agent_that_cannot_enter_does_not_run(
    method: Literal["fork", "spawn"], tmp_path: Path
) -> None:
    ended: list[HelperEnded] = []

    async def test() -> None:
        done = anyio.Event()

        def on_end(end: HelperEnded) -> None:
            ended.append(end)
            if end.is_device:
                done.set()

        pool = AgentPool([DeviceSpec("a")], tmp_path, on_end=on_end)
        site = Site(NOWHERE, closed(NO_CELL))
        with anyio.fail_after(LIMIT_S):
            async with pool.open(lambda name: site, method):
                await pool.start(None)
                await done.wait()

    anyio.run(test)
    assert [(end.name, end.status) for end in ended if end.is_device] == [("a", 1)]
    log = (tmp_path / "logs/a.log").read_text()
    assert log == (
        "a: cannot enter its sandbox: [Errno 2] No such file or directory: '/proc/1/no-such-file'\n"
    )
