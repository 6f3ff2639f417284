"""A broker as a child process: started until it accepts a login, reloaded, watched, stopped.

While `BrokerProcess.wait` runs, the memory of the broker and its log are bounded: it is killed
before it takes the memory of the machine, and before that the caller learns which logins keep too
much there (`broker_usage`).
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import psutil
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from fairbed.device_agent.cgroup import memory_limit_bytes
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.host.broker_usage import (
    Connections,
    ConnzAnswer,
    Usage,
    connz_request,
    mosquitto_sessions,
    mosquitto_usage,
    nats_usage,
)
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.host.loopback import free_port, loopback_problem
from fairbed.testbed.host.slow_steps import named_if_slow
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
"""Largest part of the memory of this machine, or of this container, for a broker: a full machine
loses more than the sessions and subscriptions of a broker."""

GROWTH_BYTES = 64 << 20
"""Growth after which the logins of a broker are looked at."""

MEMORY_POLL_S = 0.5

MAX_LOG_BYTES = 8 << 20
"""Of the log of a broker; one older log of this size is kept."""

SYSTEM_USER = "system"
"""User of NATS' system account, which may list connections."""

USAGE_S = 10.0
"""Longest time in which a broker lists its logins, seconds."""

TREE_POLL_S, TREE_SETTLED_POLLS = 0.1, 5
"""A tree of subscriptions is complete when its file has not grown in so many polls."""

MAX_CONNECTIONS = 100_000
"""That NATS lists at once."""

MAX_ANSWER_BYTES = 256 << 20
"""Of NATS: 1 KB for each connection and more."""

POLL_S = 0.01
LOG_LINES = 3

GUARD_IS_REPLACED = sys.platform == "linux"
"""The broker replaces its guard (`testbed.host.guard`); elsewhere it is a child of the guard."""

_ANSWERS = msgspec.json.Decoder(ConnzAnswer)


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
        system_password: Of `SYSTEM_USER` in the configuration of a NATS server; without it the
            logins of that server are not looked at.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        address: tuple[str, int],
        url: str,
        log: Path,
        system_password: str | None = None,
    ) -> None:
        self._name, self._command, self._address = name, command, address
        self._url, self._log, self._system_password = url, log, system_password
        self._process: Process | None = None
        self._tree = log.with_name(f"{log.stem}-subscriptions")
        """What mosquitto prints beside its log: its subscriptions, when it is asked for them."""
        self._system_port = 0
        """Of NATS' own protocol."""

    @property
    def pid(self) -> int | None:
        """Process id; None after `stop` or `kill`."""
        return self._process.pid if self._process else None

    async def start(self, arguments: list[str], folder: Path | None = None) -> None:
        """Start the broker, and return when it accepts a login.

        Args:
            arguments: Of its command.
            folder: Its working directory, to which file names in its configuration are relative;
                None is that of this process.

        Raises:
            BrokerError: It does not start.
        """
        host, _ = self._address
        if is_loopback(host) and (problem := loopback_problem()) is not None:
            raise BrokerError(f"{self._name}: {problem}")
        if self._system_password is not None:
            self._system_port = free_port()
            arguments = [*arguments, "--port", str(self._system_port)]
        printed = self._tree if self._name == "mosquitto" else self._log
        try:
            with self._log.open("ab") as log, printed.open("ab") as output:
                self._process = await anyio.open_process(
                    guarded([*self._command, *arguments]),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=log,
                    env=os.environ | ALLOCATOR,
                    cwd=folder,
                    start_new_session=True,  # Ctrl-C must not end the broker before its users
                )
        except OSError as exc:
            raise BrokerError(f"{self._name}: cannot start {self._command[0]}, {exc}") from exc
        try:
            with named_if_slow(f"{self._name} to accept a login", READY_S):
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
        self._tree.unlink(missing_ok=True)

    async def wait(
        self, on_growth: Callable[[Mapping[str, Usage]], None] = lambda usage: None
    ) -> str:
        """Wait until the broker ends by itself or takes too much memory, which kills it.

        Args:
            on_growth: Receives what each login keeps, by user, whenever the memory of the broker
                has grown by `GROWTH_BYTES`.

        Returns:
            Why: the end of its log, or its memory.
        """
        process, least = self._process, sys.maxsize
        most = MEMORY_RATIO * _machine_memory_bytes()
        while process is not None and process.returncode is None:
            with anyio.move_on_after(MEMORY_POLL_S):
                await process.wait()
            used = _memory_bytes(process.pid)
            if process.returncode is None and used > most:
                await self.kill()
                return (
                    f"its memory must stay below {most / 2**20:,.0f} MiB, "
                    f"{MEMORY_RATIO:.0%} of this machine, got {used / 2**20:,.0f}"
                )
            if self._log_bytes() > MAX_LOG_BYTES:
                await anyio.to_thread.run_sync(self._trim_log)
            least = min(least, used)
            if process.returncode is None and used - least > GROWTH_BYTES:
                least = used
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_at_end, process, tasks.cancel_scope)
                    on_growth(await self.usage())
                    tasks.cancel_scope.cancel()
        return f"end of its log: {self._log_end()}"

    async def usage(self) -> dict[str, Usage]:
        """Return what each login keeps in the broker; nothing if the broker does not list it."""
        problems = (
            OSError,  # of the files
            psutil.Error,  # it has ended
            anyio.BrokenResourceError,
            anyio.EndOfStream,
            anyio.IncompleteRead,
            anyio.DelimiterNotFound,
            msgspec.DecodeError,  # its answer is another one than that of known versions
            ValueError,
        )
        with anyio.move_on_after(USAGE_S), suppress(*problems):
            if self._name == "mosquitto":
                return await self._mosquitto_usage()
            if self._system_password is not None:
                return nats_usage(await self._nats_connections(self._system_password))
        return {}

    async def _mosquitto_usage(self) -> dict[str, Usage]:
        if self._process is None:
            return {}
        broker = _program(self._process.pid)
        broker.send_signal(signal.SIGUSR2)
        size, settled = -1, 0
        while settled < TREE_SETTLED_POLLS:
            await anyio.sleep(TREE_POLL_S)
            before, size = size, self._tree.stat().st_size
            settled = settled + 1 if size == before else 0
        connected = {(x.raddr.ip, x.raddr.port) for x in broker.net_connections("tcp") if x.raddr}
        try:
            return await anyio.to_thread.run_sync(self._read_usage, connected)
        finally:
            os.truncate(self._tree, 0)  # the broker appends to it

    def _read_usage(self, connected: set[tuple[str, int]]) -> dict[str, Usage]:
        """Return what the files of a mosquitto state about its logins."""
        logs = [path for path in (_older(self._log), self._log) if path.exists()]
        sessions = mosquitto_sessions((x for log in logs for x in _lines(log)), connected)
        return mosquitto_usage(sessions, _lines(self._tree))

    async def _nats_connections(self, password: str) -> list[Connections]:
        """Return what a NATS server answers about its open, and about its closed connections."""
        found = list[Connections]()
        login = {"user": SYSTEM_USER, "pass": password, "verbose": False, "pedantic": False}
        async with await anyio.connect_tcp("127.0.0.1", self._system_port) as stream:
            lines = BufferedByteReceiveStream(stream)
            await lines.receive_until(b"\r\n", 1 << 16)  # INFO
            await stream.send(f"CONNECT {json.dumps(login)}\r\nSUB answer 1\r\n".encode())
            for is_closed in (False, True):
                await stream.send(
                    connz_request("answer", is_closed=is_closed, limit=MAX_CONNECTIONS)
                )
                while not (head := await lines.receive_until(b"\r\n", 1 << 16)).startswith(b"MSG "):
                    if head.startswith(b"-ERR"):
                        raise ValueError(head)
                    if head == b"PING":
                        await stream.send(b"PONG\r\n")
                size = int(head.split()[-1])
                if size > MAX_ANSWER_BYTES:
                    raise ValueError(size)
                body = await lines.receive_exactly(size + len(b"\r\n"))
                answer = await anyio.to_thread.run_sync(_ANSWERS.decode, body)
                found.append(answer.data)
        return found

    def _log_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def _trim_log(self) -> None:
        """Begin the log of the broker anew; the broker appends to it."""
        with suppress(OSError):
            try:
                shutil.copyfile(self._log, _older(self._log))
            finally:  # even on a full disk
                os.truncate(self._log, 0)

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
            lines = self._log.read_text(errors="replace", encoding="utf-8").split("\n")
        except OSError:
            return "no log"
        return " | ".join([line.strip() for line in lines if line.strip()][-LOG_LINES:]) or "no log"


def _older(log: Path) -> Path:
    """Return the older log of a broker."""
    return log.with_name(f"{log.name}.1")


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\n")


def _program(pid: int) -> psutil.Process:
    """Return the process of a broker, given that of its guard."""
    guard = psutil.Process(pid)
    if GUARD_IS_REPLACED:  # a look for children reads all processes of the machine
        return guard
    return next(iter(guard.children()), guard)


def _memory_bytes(pid: int) -> int:
    """Return the resident memory of a broker, given the process of its guard."""
    with suppress(psutil.Error):
        memory: int = _program(pid).memory_info().rss
        return memory
    return 0


def _machine_memory_bytes() -> int:
    """Return the memory that the programs of this machine, or of this container, can have."""
    total = int(psutil.virtual_memory().total)
    return min(total, memory_limit_bytes(Path("/")) or total)


async def _cancel_at_end(process: Process, scope: anyio.CancelScope) -> None:
    await process.wait()
    scope.cancel()
