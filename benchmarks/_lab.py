"""A lab for a benchmark: `fairbed lab up` in a separate process, with devices."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from fairbed.testbed.broker.permissions import COORDINATOR, user_of
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.host.loopback import free_ports
from fairbed.testbed.lab.folder import ENVIRONMENT, Lab, LabSettings, init_lab
from fairbed.testbed.lab.identities import Identities

START_S = 30.0
"""Time limit for the broker of the lab to accept connections."""


@dataclass(frozen=True, slots=True)
class BenchmarkLab:
    """A lab that is up, with mosquitto."""

    lab: Lab
    process: "subprocess.Popen[bytes]"
    passwords: dict[str, str]
    """Of the devices."""

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        (broker,) = (child.pid for child in children if child.name() == "mosquitto")
        return broker

    @property
    def url(self) -> str:
        """Address for the coordinator, without TLS on loopback."""
        return self.lab.url(user_of(*COORDINATOR))

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a run that uses this lab."""
        return {**os.environ, ENVIRONMENT: str(self.lab.folder)}

    def task_keys(self) -> dict[str, str]:
        """Return the task keys of the devices."""
        with Identities(self.lab.database) as identities:
            return {
                one.name: key
                for one in identities.all()
                if one.role == "device" and (key := self.lab.task_key(one)) is not None
            }

    def device_url(self, name: str, *, is_tls: bool) -> str:
        """Return the address of a device, with its password."""
        login, settings = f"{name}:{self.passwords[name]}", self.lab.settings
        if is_tls:
            return f"mqtts://{login}@127.0.0.1:{settings.port}?cafile={self.lab.ca}"
        return f"mqtt://{login}@127.0.0.1:{settings.local_port}"


@contextmanager
def benchmark_lab(folder: Path, names: Sequence[str]) -> Iterator[BenchmarkLab]:
    """Run a lab with these devices while the context lasts.

    Raises:
        SystemExit: The lab does not start.
    """
    ports = free_ports(3)
    settings = LabSettings(
        broker="mosquitto",
        port=ports[0],
        enrol_port=ports[1],
        local_port=ports[2],
        addresses=("127.0.0.1",),
    )
    lab = init_lab(folder / "lab", settings, now_s=time.time(), environment={"HOME": str(folder)})
    with Identities(lab.database) as identities:
        passwords = {name: identities.create(name) for name in names}
    log = folder / "lab.log"
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "lab", "up"]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            guarded([*command, "--lab", str(lab.folder)]), stdout=output, stderr=output
        ) as process,
    ):
        try:
            _await_port(ports[2], process, log)
            yield BenchmarkLab(lab, process, passwords)
        finally:
            process.terminate()


def _await_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(
                    f"the lab did not start: {log.read_text(encoding='utf-8').strip()}"
                ) from None
            time.sleep(0.05)
