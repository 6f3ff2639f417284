"""A live run that faults are done to: started, resumed, watched. The shell of the chaos benchmark.

`LiveFleet.cause` does one fault. `LiveFleet.resume` starts the run again after its end.
"""

import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import numpy as np
import psutil

from benchmarks._chaos.audit import RoundRows
from benchmarks._chaos.belongings import Belongings
from benchmarks._chaos.clock import shifted
from benchmarks._chaos.schedule import JUMP_S, Fault, Setup
from benchmarks._live_run import separate_agents
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.connection import DATABASE, open_readonly
from fairbed.coordinator.store.tables import RoundRow
from fairbed.testbed.broker.configuration import BrokerKind
from fairbed.testbed.broker.run_accounts import login_of
from fairbed.testbed.cli.runs import ask_run
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.run_folder import read_endpoint
from fairbed.wire.errors import TransportError
from fairbed.wire.messages import OperatorCommand

EXPERIMENT = """
name = "chaos"
seed = {seed}
rounds = 1000000
[data]
dataset = "digits"
[model]
name = "softmax"
[selection]
policy = "rbcs-f"
per_round = 2
beta = {beta}
[round]
deadline_s = 10.0
min_devices = 1
join_timeout_s = 60.0
[evaluation]
every = 10
[broker]
kind = "{broker}"
{fleet}
"""

EMULATED = """
[emulation]
backend = "{setup}"
host_core_speed = 4.0
[[fleet]]
name = "pi"
profile = "raspberry-pi-4b"
link = "wifi-board"
count = {devices}
"""

SEPARATE = """
[[fleet]]
physical = [{names}]
"""

BETA = 0.2
"""Three devices and a hostile one can have it with two selections per round."""

DISK_MIB = 96
"""Size of the file system of the run folder, a tmpfs, so that it can be filled."""

ATTACK_END_S = 20.0
"""Longest end of an attack, which begins with the start of an interpreter and an enrolment."""
POLL_S = 0.05
FIRST_ROUND_S = 120.0
"""Longest time from a start to the first closed round: join, task, shards, round."""

OUTAGES = {
    "agent killed": "killed",
    "agent stopped": "frozen",
    "link cut": "unplugged",
    "coverage hole": "coverage",
}
"""Fault of `fairbed command RUN fault` for each kind of a device's fault."""

HELPERS = {"fork server": "backends.fork_server", "link helper": "backends.proxy.server"}
HELPER_OF_NAMESPACES = "backends.network.relay"

KINDS = ("coordinator", "broker", "fork server", "link helper", "agents")
"""Kinds of processes whose memory is watched."""


class RunEndedError(Exception):
    """The run ended although no fault should end it, or did not end or begin as it should."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process of the run ended."""

    status: int
    line: str
    """Last line of its output."""


class LiveFleet:
    """A run with emulated devices, or with agents that joined by themselves.

    Args:
        folder: An empty folder.
        setup: Where the devices are.
        broker: Kind of the embedded broker.
        devices: Number of devices.
        seed: Of the experiment.
    """

    def __init__(
        self, folder: Path, setup: Setup, broker: BrokerKind, devices: int, seed: int
    ) -> None:
        self.setup, self.broker, self.devices = setup, broker, devices
        self._disk = folder / "disk"
        self.folder = self._disk / f"chaos-{setup}-{broker}-{os.getpid()}"
        self.belongings = Belongings(self.folder.name)
        self.lives = 0
        self.hostile_packets = 0
        """Packets of attacks so far, of those that ended by themselves."""
        self._counted = (0, 0)
        self._top = folder
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._agents: dict[int, tuple[ExitStack, list[psutil.Process]]] = {}
        """The separate agents by number, each with what ends it."""
        names = ", ".join(f'"{_name(number)}"' for number in range(devices))
        fleet = (
            SEPARATE.format(names=names)
            if setup == "separate"
            else EMULATED.format(setup=setup, devices=devices)
        )
        self._experiment, self._log = folder / "chaos.toml", folder / "chaos.log"
        self._text = EXPERIMENT.format(seed=seed, beta=BETA, broker=broker, fleet=fleet)

    def __enter__(self) -> "LiveFleet":
        self._disk.mkdir()
        self.can_fill_disk = self._mount()
        self._experiment.write_text(self._text, encoding="utf-8")
        return self

    def __exit__(self, *exc: object) -> None:
        for agent, _ in self._agents.values():
            agent.close()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
        self._stack.close()

    @property
    def owner(self) -> psutil.Process:
        """The process of the run: coordinator and owner of broker and fleet."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def start(self, shift_s: int = 0) -> None:
        """Start the run, or resume it; return when its first round has closed.

        Args:
            shift_s: By how much its clocks are later than those of this machine.

        Raises:
            RunEndedError: It ends before, or takes longer than `FIRST_ROUND_S`.
        """
        self.lives += 1
        before = self._counts()[0]
        what = "coordinator" if self.setup == "separate" else "run"
        command = [sys.executable, "-m", "fairbed.testbed.cli.main", what, "--headless", "--json"]
        if (self.folder / DATABASE).exists():
            command += [str(self.folder)]
        else:
            command += [str(self._experiment), "--out", str(self.folder)]
        argv = shifted(command, shift_s) if shift_s else command
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                guarded(argv), stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        if self.setup == "separate" and not self._agents:
            self._await(lambda: read_endpoint(self.folder) is not None, "the broker's address")
            for number in range(self.devices):
                self._start_agent(number)
        self._await(lambda: self._counts()[0] > before, "a round")

    def cause(self, fault: Fault) -> Callable[[], None]:
        """Begin a fault; return what ends it.

        Raises:
            RunEndedError: The run has ended by itself.
        """
        name = fault.kind.name
        if name in OUTAGES:
            return self._cause_of_device(fault, OUTAGES[name])
        if name in ("corrupt chunks", "hostile device"):
            return self._attack(name.replace(" ", "-"), fault)
        if name == "disk full":
            return self._fill_disk()
        part, _, how = name.rpartition(" ")
        if name == "clock jump":
            part, how = "coordinator", "killed"
        process = self._part(part)
        if process is None:
            return _nothing
        number = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}.get(how, signal.SIGTERM)
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
        return (lambda: _continue(process)) if how == "stopped" else _nothing

    def jump_s(self, fault: Fault) -> int:
        """Return by how much the clocks jump at the resume after a fault; 0 for other faults."""
        if fault.kind.name != "clock jump":
            return 0
        earliest_s = int(-time.monotonic()) + 60  # the clock of a machine that has just started
        return int(np.random.default_rng(fault.seed).integers(earliest_s, JUMP_S))

    def await_end(self, within_s: float) -> Ending:
        """Wait until the process of the run has ended; return how.

        Raises:
            RunEndedError: It has not ended in time.
        """
        assert self._process is not None
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise RunEndedError(f"the run must end within {within_s:g} s, is still alive") from None
        return Ending(status, self._last_line())

    def await_rounds(self, done: int, within_s: float) -> None:
        """Wait until `done` more rounds have closed with an update.

        Raises:
            RunEndedError: The run ended by itself, or they take longer.
        """
        before = self.done_rounds()
        self._await(lambda: self.done_rounds() >= before + done, f"{done} rounds", within_s)

    def end(self) -> Ending:
        """End the run by SIGTERM; return how it ended."""
        assert self._process is not None
        self._process.terminate()
        return self.await_end(30.0)

    @property
    def is_alive(self) -> bool:
        """Whether the process of the run is alive."""
        return self._process is not None and self._process.poll() is None

    def rounds(self) -> list[RoundRow]:
        """Return the closed rounds; none before the store exists."""
        try:
            with RunReader(self.folder) as reader:
                return reader.rounds()
        except StoreError:
            return []

    def done_rounds(self) -> int:
        """Return how many rounds have closed with an update."""
        return self._counts()[1]

    def rows(self, since: int) -> list[RoundRows]:
        """Return the rows of the closed rounds after round `since`.

        Raises:
            StoreError: The store is damaged.
        """
        with RunReader(self.folder) as reader, reader.snapshot():
            return [
                RoundRows(
                    row, reader.selections(row.round), reader.exchanges(row.round - 1, row.round)
                )
                for row in reader.rounds(since)
            ]

    def check_files(self) -> list[str]:
        """Return damage of the database or of the newest model, one line each.

        Raises:
            StoreError: The newest model is damaged or missing.
        """
        path = self.folder / DATABASE
        with closing(open_readonly(path)) as connection:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        with RunReader(self.folder) as reader:
            reader.final_model()
        return [] if found == ["ok"] else [f"{DATABASE}: {line}" for line in found]

    def memory_mib(self) -> Mapping[str, float]:
        """Return the resident memory of the largest process of each kind that there is."""
        found: dict[str, float] = {}
        for kind, _, rss_bytes in self.memory():
            found[kind] = max(found.get(kind, 0.0), rss_bytes / 2**20)
        return found

    def memory(self) -> list[tuple[str, Hashable, int]]:
        """Return kind, identity and resident bytes of each process of the run."""
        found: list[tuple[str, Hashable, int]] = []
        with suppress(psutil.Error):
            owner = self.owner
            agents = [p for agent in self._agents for p in self._agent_processes(agent)]
            for process in (owner, *owner.children(recursive=True), *agents):
                with suppress(psutil.Error):
                    kind = self._kind(process)
                    if kind is not None:
                        identity = process.pid, process.create_time()
                        found.append((kind, identity, process.memory_info().rss))
        return found

    def _kind(self, process: psutil.Process) -> str | None:
        assert self._process is not None
        words = " ".join(process.cmdline())
        if process.pid == self._process.pid:
            return "coordinator"
        if "fairbed.device_agent" in words:
            return "agents"
        if HELPERS["fork server"] in words:
            is_agent = process.ppid() != self._process.pid
            return "agents" if is_agent else "fork server"
        if HELPERS["link helper"] in words or HELPER_OF_NAMESPACES in words:
            return "link helper"
        return "broker" if process.name() in ("mosquitto", "nats-server") else None

    def _part(self, part: str) -> psutil.Process | None:
        """Return the first process of a kind; None if the run has none."""
        with suppress(psutil.Error):
            owner = self.owner
            for process in (owner, *owner.children(recursive=True)):
                with suppress(psutil.Error):
                    if self._kind(process) == part:
                        return process
        return None

    def _cause_of_device(self, fault: Fault, outage: str) -> Callable[[], None]:
        assert fault.device is not None
        if self.setup == "separate":
            return self._cause_of_agent(fault.device, outage)
        command = OperatorCommand(
            id=secrets.token_bytes(16),
            action="fault",
            device=_name(fault.device),
            name=outage,
            value=fault.duration_s,
        )
        endpoint = read_endpoint(self.folder)
        if endpoint is not None:
            with suppress(TransportError):  # the broker is stopped
                anyio.run(ask_run, endpoint, command, 2.0)
        return _nothing

    def _cause_of_agent(self, number: int, outage: str) -> Callable[[], None]:
        processes = self._agent_processes(number)
        if outage == "killed":
            for process in processes:
                process.kill()
            return lambda: self._start_agent(number)
        for process in processes:
            process.suspend()

        def end() -> None:
            for process in processes:
                _continue(process)

        return end

    def _agent_processes(self, number: int) -> Sequence[psutil.Process]:
        return [process for process in self._agents[number][1] if process.is_running()]

    def _start_agent(self, number: int) -> None:
        if number in self._agents:
            self._agents.pop(number)[0].close()
        endpoint = read_endpoint(self.folder)
        assert endpoint is not None
        stack, name = ExitStack(), _name(number)
        urls = {name: login_of(endpoint, name)}
        self._agents[number] = stack, stack.enter_context(separate_agents(self._top, urls, "error"))

    def _attack(self, kind: str, fault: Fault) -> Callable[[], None]:
        what = [kind, str(self.folder), str(fault.duration_s), str(fault.seed)]
        process = subprocess.Popen(
            guarded([sys.executable, "-m", "benchmarks._chaos.hostile", *what]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

        def end() -> None:
            try:
                output, _ = process.communicate(timeout=ATTACK_END_S)
                self.hostile_packets += int(output or b"0")
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

        return end

    def _fill_disk(self) -> Callable[[], None]:
        """Fill the disk to the last byte."""
        if not self.can_fill_disk:
            return _nothing
        filler = self._disk / "filler"
        for size in (1 << 20, 1 << 8):
            with suppress(OSError), filler.open("ab", buffering=0) as file:
                while file.write(bytes(size)) == size:
                    pass
        return lambda: filler.unlink(missing_ok=True)

    def _mount(self) -> bool:
        """Give the run folder a small file system of its own; return whether that worked."""
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "fairbed-chaos"]
        if sys.platform != "linux" or os.geteuid() != 0:
            return False
        if subprocess.run([*mount, str(self._disk)], stderr=subprocess.DEVNULL).returncode:
            return False
        self._stack.callback(subprocess.run, ["umount", "--lazy", str(self._disk)])
        return True

    def _await(self, holds: Callable[[], bool], what: str, within_s: float = FIRST_ROUND_S) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            if not self.is_alive:
                raise RunEndedError(f"the run ended before {what}: {self._last_line()}")
            if time.monotonic() > deadline:
                raise RunEndedError(f"{what} must come within {within_s:g} s")
            time.sleep(POLL_S)

    def _counts(self) -> tuple[int, int]:
        """Return how many rounds have closed, and with an update.

        The last known numbers while the store cannot be read.
        """
        path = self.folder / DATABASE
        if path.exists():
            with suppress(sqlite3.Error, StoreError), closing(open_readonly(path)) as connection:
                sql = "SELECT count(*), coalesce(sum(status = 'done'), 0) FROM round"
                self._counted = connection.execute(sql).fetchone()
        return self._counted

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


def _name(number: int) -> str:
    return f"pi-{number + 1}"


def _nothing() -> None:
    """End a fault that is an instant, or that ends by itself."""


def _continue(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
