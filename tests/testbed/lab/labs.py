"""Small labs for tests."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairbed.testbed.host.loopback import free_ports
from fairbed.testbed.lab.folder import Lab, LabBroker, LabSettings, init_lab
from fairbed.testbed.lab.identities import Identities

FAIRBED = [sys.executable, "-m", "fairbed.testbed.cli.main"]

STOP_S = 30.0
"""Longest end of `fairbed lab up`; it normally takes a few hundredths, seconds."""

NOW_S = 1_767_225_600.0
"""2026-01-01, UTC."""


def make_lab(
    folder: Path, broker: LabBroker = "mosquitto", *, addresses: tuple[str, ...] = ("127.0.0.1",)
) -> Lab:
    """Return a new lab in `folder`/lab on free ports; its pointer stays in `folder`."""
    ports = free_ports(3)
    settings = LabSettings(
        broker=broker,
        port=ports[0],
        enrol_port=ports[1],
        local_port=ports[2] if broker == "mosquitto" else None,
        addresses=addresses,
    )
    return init_lab(
        folder / "lab",
        settings,
        now_s=NOW_S,
        environment={"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")},
    )


def task_key_line(lab: Lab, name: str) -> str:
    """Return the line of an agent's configuration with the task key of an enrolled device."""
    with Identities(lab.database) as identities:
        identity = identities.get(name)
    assert identity is not None
    key = lab.task_key(identity)
    assert key is not None
    return f'task_key = "{key}"\n'


@contextmanager
def lab_up(lab: Lab) -> Iterator[subprocess.Popen[str]]:
    """Run `fairbed lab up` in its own process."""
    process = subprocess.Popen(
        [*FAIRBED, "lab", "up", "--lab", str(lab.folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "is up" in line, process.communicate()[1]
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
