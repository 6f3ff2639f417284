"""Ray nodes on this machine: real processes with own resources, which end with the test."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from fairbed.testbed.host.guard import guarded
from tests.processes import end, is_gone

START_S = 90.0
"""Time within which a node has started on a busy machine."""

STORE_BYTES = 80_000_000
"""Memory for the objects of a node; Ray needs 75 MiB."""

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "1000",  # of the head: it misses a dead node after 5 s, not 15 s
}

WITHOUT_OF_THE_HEAD = ("--include-dashboard=false", "--no-monitor")
"""Services of a head that a job on its own nodes does not use; each is a process for its life."""

READY = "Ray runtime started"

STARVED = "timed out during startup"
"""Ray gives a node 30 s, which can be too few on a busy machine."""

TRIES = 3
"""Starts of a node that was starved."""


class Node:
    """A node: `ray start --block`, and all that it started."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def processes(self) -> list[psutil.Process]:
        """Return all its processes, itself last."""
        top = psutil.Process(self._process.pid)
        return [*top.children(recursive=True), top]

    def kill(self) -> None:
        """Kill all its processes at once, as a power cut does."""
        family = self.processes()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        assert all(map(is_gone, family))


class Nodes:
    """The nodes of one cluster; the first is the head, at the address `host`."""

    def __init__(self, stack: ExitStack, folder: Path, host: str) -> None:
        self._stack, self._folder, self._host = stack, folder, host
        with socket.socket() as listener:
            listener.bind((host, 0))
            port = listener.getsockname()[1]
        self.address = f"{host}:{port}"
        self.environ = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        """Lets a process join, if ray is imported after it was set."""
        self._has_head = False

    def add(
        self,
        cores: int = 1,
        environ: Mapping[str, str] | None = None,
        *,
        host: str | None = None,
        inside: Sequence[str] = (),
    ) -> Node:
        """Start a node, and wait for it.

        Args:
            cores: Cores that it offers.
            environ: Further variables of its environment.
            host: Its address; None: that of the head.
            inside: Command that starts it, such as in namespaces of its own.
        """
        role = [f"--address={self.address}"]
        if not self._has_head:
            port = self.address.rpartition(":")[2]
            role = ["--head", f"--port={port}", f"--temp-dir={self._folder}", *WITHOUT_OF_THE_HEAD]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *role, "--block"]
        command += [f"--node-ip-address={host or self._host}", "--include-log-monitor=false"]
        sizes = [f"--num-cpus={cores}", f"--object-store-memory={STORE_BYTES}"]
        ports = ["--min-worker-port=0", "--max-worker-port=0"]
        argv = guarded([*inside, *command, *sizes, *ports])
        env = {**os.environ, **self.environ, **SETTINGS, **(environ or {})}
        self._has_head = True
        for _ in range(TRIES):
            log = self._folder / f"node-{time.monotonic_ns()}.log"
            with log.open("w") as lines:
                process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=lines, stderr=lines, text=True, env=env
                )
            self._stack.callback(end, process)
            until = time.monotonic() + START_S
            while READY not in log.read_text() and process.poll() is None:
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.05)
            if process.poll() is None or STARVED not in log.read_text():
                break
        assert process.poll() is None, log.read_text()
        return Node(process)


@contextmanager
def ray_nodes(host: str = "127.0.0.1") -> Iterator[Nodes]:
    """Yield a cluster without nodes; end its nodes at the end. Child processes may join it."""
    # Paths of sockets below it must be short.
    folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    with folder as name, ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        nodes = Nodes(stack, Path(name), host)
        for variable, value in nodes.environ.items():
            patch.setenv(variable, value)
        yield nodes
