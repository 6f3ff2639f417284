"""A batch program executes lines and reports each line that it refuses."""

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import psutil
import pytest

from fairbed.testbed.backends.network.batch import LINES_AT_ONCE, BatchPipe, open_batch_pipe
from fairbed.testbed.backends.network.enter import OWN, identity
from fairbed.testbed.errors import BackendError

pytestmark = pytest.mark.usefixtures("untouched_host")

TIMEOUT_S = 30.0


def _run(namespace: Path, test: Callable[[BatchPipe], Awaitable[None]]) -> None:
    async def run() -> None:
        with anyio.fail_after(TIMEOUT_S):
            async with open_batch_pipe("ip", namespace, identity()) as pipe:
                await test(pipe)

    anyio.run(run)


def _links(namespace: Path) -> list[str]:
    look = ["nsenter", f"--net={namespace}", "ip", "-br", "link"]
    seen = subprocess.run(look, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return [line.split("@")[0].split()[0] for line in seen.stdout.splitlines()]


def test_all_lines_are_in_effect_when_it_returns(scratch: Path) -> None:
    async def test(pipe: BatchPipe) -> None:
        names = [f"x{index}" for index in range(LINES_AT_ONCE + 7)]
        await pipe.run([f"link add {name} type veth peer name y{name}" for name in names])
        assert set(names) <= set(_links(scratch))

    _run(scratch, test)


def test_a_line_that_is_refused_is_named_and_the_others_are_run(scratch: Path) -> None:
    async def test(pipe: BatchPipe) -> None:
        await pipe.run(["link set lo up"])
        lines = ["link set nowhere up", "link add x1 type veth peer name y1", "nonsense"]
        with pytest.raises(BackendError) as caught:
            await pipe.run(lines)
        assert str(caught.value) == (
            'network: ip link set nowhere up: Cannot find device "nowhere"; '
            'ip nonsense: Object "nonsense" is unknown, try "ip help".'
        )
        assert "x1" in _links(scratch)
        await pipe.run(["link del x1"])

    _run(scratch, test)


def test_only_some_of_many_errors_are_listed(scratch: Path) -> None:
    async def test(pipe: BatchPipe) -> None:
        # An unknown device would take a kernel with modules 0.1 s per line: it tries to load one.
        with pytest.raises(BackendError, match=r"\(and 297 more\)$"):
            await pipe.run(["nonsense"] * 300)

    _run(scratch, test)


def test_the_hosts_namespace_is_refused() -> None:
    async def test(pipe: BatchPipe) -> None:
        with pytest.raises(BackendError, match="must not be the host's network namespace"):
            await pipe.run(["link set lo up"])

    _run(OWN, test)


def test_a_killed_program_is_reported(scratch: Path) -> None:
    async def test(pipe: BatchPipe) -> None:
        await pipe.run(["link set lo up"])
        for child in psutil.Process().children(recursive=True):
            if child.name() == "ip":
                os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(BackendError, match=r"ip must stay alive and reply, .*; check"):
            await pipe.run(["link set lo up"])

    _run(scratch, test)
