"""A broker as a child process: started until it accepts a login, reloaded, stopped."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
from anyio.abc import Process

from fairbed.device_agent.cgroup import memory_limit_bytes
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.host.loopback import loopback_problem
from fairbed.wire.errors import TransportError
from fairbed.wire.transport.address import is_loopback
from fairbed.wire.transport.base import LinkUp
from fairbed.wire.transport.client import MqttTransport

READY_S = 20.0
"""Longest start, seconds: amqtt takes 0.35 s on an idle machine; a busy one can be 50x slower."""

STOP_S = 3.0
"""From SIGTERM to SIGKILL, seconds."""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(16 << 20)}
"""Settings of glibc's allocator, ignored elsewhere: keep up to 16 MiB of freed memory. Returning it
chunk by chunk costs mosquitto 0.8 ms of processor time per MB that it forwards."""

MEMORY_RATIO = 0.5
"""Largest part of the memory of this machine, or of this container, for a broker. Neither mosquitto
nor NATS bounds the sessions and subscriptions of a user, and a full machine loses more than these.
"""
MEMORY_POLL_S = 2.0

POLL_S = 0.01
LOG_LINES = 3


def find_mosquitto() -> list[str] | None:
    """Return the command that runs mosquitto; None if it is not installed."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    found = shutil.which("mosquitto", path=path)
    return [found] if found else None


def find_nats() -> list[str] | None:
    """Return the command that runs the NATS server; None if it is not installed."""
    scripts = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    path = os.pathsep.join((*scripts, os.environ.get("PATH", os.defpath)))
    found = shutil.which("nats-server", path=path)
    return [found] if found else None


class BrokerProcess:
    """A broker that ends with this process; it may be started again after it ended.

    Args:
        name: Of the program, for messages.
        command: Program and first arguments.
        address: Host and port that a first connection tests.
        url: Address with user and password that must be accepted.
        log: File that its output is appended to.
    """

    def __init__(
        self, name: str, command: list[str], address: tuple[str, int], url: str, log: Path
    ) -> None:
        self._name, self._command, self._address = name, command, address
        self._url, self._log = url, log
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None after `stop` or `kill`."""
        return self._process.pid if self._process else None

    async def start(self, arguments: list[str]) -> None:
        """Start the broker, and return when it accepts a login.

        Raises:
            BrokerError: It does not start.
        """
        host, _ = self._address
        if is_loopback(host) and (problem := loopback_problem()) is not None:
            raise BrokerError(f"{self._name}: {problem}")
        try:
            with self._log.open("ab") as log:
                self._process = await anyio.open_process(
                    guarded([*self._command, *arguments]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | ALLOCATOR,
                    start_new_session=True,  # Ctrl-C must not end the broker before its users
                )
        except OSError as exc:
            raise BrokerError(f"{self._name}: cannot start {self._command[0]}, {exc}") from exc
        try:
            await self._await_ready(self._process)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    def reload(self) -> None:
        """Make the broker read its configuration again; does nothing if it does not run."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    async def stop(self, limit_s: float = STOP_S) -> None:
        """Stop the broker, by SIGTERM, after the limit by SIGKILL; returns when it has ended."""
        process = self._process
        if process is not None:
            if process.returncode is None:
                process.terminate()
            with anyio.move_on_after(limit_s):
                await process.wait()
            await self.kill()

    async def kill(self) -> None:
        """Kill the broker as `kill -9` does."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            for child in psutil.Process(process.pid).children():  # if the guard stays as parent
                child.kill()
            process.kill()
        await process.wait()
        await process.aclose()

    async def wait(self) -> str:
        """Wait until the broker ends by itself or takes too much memory, which kills it.

        Returns:
            Why: the end of its log, or its memory.
        """
        process = self._process
        while process is not None and process.returncode is None:
            with anyio.move_on_after(MEMORY_POLL_S):
                await process.wait()
            used, most = _memory_bytes(process.pid), MEMORY_RATIO * _machine_memory_bytes()
            if process.returncode is None and used > most:
                await self.kill()
                return (
                    f"its memory must stay below {most / 2**20:,.0f} MiB, "
                    f"{MEMORY_RATIO:.0%} of this machine, got {used / 2**20:,.0f}"
                )
        return f"end of its log: {self._log_end()}"

    async def _await_ready(self, process: Process) -> None:
        """Return when the broker has accepted a login."""
        host, port = self._address
        problem = f"no answer in {READY_S:.0f} s"
        with anyio.move_on_after(READY_S):
            while process.returncode is None:
                try:
                    await (await anyio.connect_tcp(host, port)).aclose()
                except OSError:
                    await anyio.sleep(POLL_S)
                    continue
                if await self._accepts(process) and process.returncode is None:
                    return
                problem = "a refused login"
                break
        if process.returncode is not None:
            problem = f"exit status {process.returncode}"
        raise BrokerError(
            f"{self._name}: must start and accept a login at {host}:{port}, "
            f"got {problem}; end of its log: {self._log_end()}; see {self._log}"
        )

    async def _accepts(self, process: Process) -> bool:
        is_up = False
        try:
            link = MqttTransport(self._url, f"ready-{secrets.token_hex(4)}")
            async with link, anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_at_end, process, tasks.cancel_scope)
                is_up = isinstance(await anext(link.events()), LinkUp)
                tasks.cancel_scope.cancel()
        except TransportError:
            return False
        return is_up

    def _log_end(self) -> str:
        """Return the end of the log on one line."""
        try:
            lines = self._log.read_text(errors="replace").split("\n")
        except OSError:
            return "no log"
        return " | ".join([line.strip() for line in lines if line.strip()][-LOG_LINES:]) or "no log"


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a broker, whose guard may be its parent."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process, *process.children()))
    return 0


def _machine_memory_bytes() -> int:
    """Return the memory that the programs of this machine, or of this container, can have."""
    total = int(psutil.virtual_memory().total)
    return min(total, memory_limit_bytes(Path("/")) or total)


async def _cancel_at_end(process: Process, scope: anyio.CancelScope) -> None:
    await process.wait()
    scope.cancel()
