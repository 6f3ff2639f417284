"""What a run has on this machine: processes, ports, namespaces, control groups, containers.

Everything of a run has the run's name or descends from its process. Linux.
"""

import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fairbed.testbed.backends.network.owner import FOLDER
from fairbed.testbed.backends.network.plan.names import PREFIX
from fairbed.testbed.backends.network.sweep import NAMESPACES

CONTROL_GROUPS = Path("/sys/fs/cgroup")

END_S = 15.0
"""Longest life of a process after that of its run: SIGTERM, then SIGKILL, of each part."""
POLL_S = 0.05


@dataclass(slots=True)
class Belongings:
    """The processes and ports that a run had so far, and how to find the rest of it."""

    run_id: str
    processes: dict[int, psutil.Process] = field(default_factory=dict)
    ports: set[int] = field(default_factory=set)

    def see(self, owner: psutil.Process) -> None:
        """Add the processes of a live run, and the ports on which they listen."""
        with suppress(psutil.Error):
            for process in (owner, *owner.children(recursive=True), *self._named()):
                self.processes[process.pid] = process
                with suppress(psutil.Error):
                    listening = process.net_connections("tcp")
                    self.ports |= {c.laddr.port for c in listening if c.status == "LISTEN"}

    def forget(self) -> None:
        """Forget the processes and ports of a life that ended, when nothing of it is left."""
        self.processes.clear()
        self.ports.clear()

    def left_alive(self) -> list[str]:
        """Wait for the end of all processes; return those that are still alive after `END_S`."""
        deadline = time.monotonic() + END_S
        while alive := [process for process in self._all() if _is_alive(process)]:
            if time.monotonic() > deadline:
                return [f"process {_line(process)}" for process in alive]
            time.sleep(POLL_S)
        return []

    def left_listening(self) -> list[str]:
        """Return the ports on which processes of the run still listen."""
        ports: set[int] = set()
        for process in self._all():
            with suppress(psutil.Error):
                ports |= {c.laddr.port for c in process.net_connections("tcp")} & self.ports
        return [f"port {port}" for port in sorted(ports)]

    def stems(self) -> set[str]:
        """Return the stems (`fairbed.RUN.TAG`) of namespaces, groups, locks and containers.

        A run has one, or none without a network; more are leftovers of killed ones.
        """
        names = {path.name for path in _folder(NAMESPACES)}
        names |= {path.name for path in _folder(FOLDER)}
        names |= {path.name for path in _groups(CONTROL_GROUPS)}
        names |= set(_containers())
        prefix = f"{PREFIX}.{self.run_id}."
        return {".".join(name.split(".")[:3]) for name in names if name.startswith(prefix)}

    def _all(self) -> Iterable[psutil.Process]:
        return {**self.processes, **{process.pid: process for process in self._named()}}.values()

    def _named(self) -> Iterator[psutil.Process]:
        """Yield the processes with the run's name in their command or their control groups."""
        own = psutil.Process()
        ours = {own.pid, *(process.pid for process in own.parents())}
        for process in psutil.process_iter():
            if process.pid not in ours and self.run_id in _command(process):
                yield process


def _command(process: psutil.Process) -> str:
    try:
        groups = Path(f"/proc/{process.pid}/cgroup").read_text(encoding="utf-8", errors="replace")
        return " ".join(process.cmdline()) + groups
    except (OSError, psutil.Error):
        return ""


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())[:200] or process.name()}"
    return str(process.pid)


def _folder(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else []


def _groups(top: Path) -> Iterator[Path]:
    yield from top.glob(f"**/{PREFIX}.*")


def _containers() -> list[str]:
    if shutil.which("podman") is None:
        return []
    listed = subprocess.run(
        ["podman", "ps", "--all", "--format={{.Names}}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60.0,
        encoding="utf-8",
        errors="replace",
    )
    return listed.stdout.split()
