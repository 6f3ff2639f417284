"""From nothing to a device in the lab and out again, by the commands that a person types."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import distribution
from pathlib import Path

import pytest

from fairbed.device_agent.name_conflict import LASTED_S, SHORT_S
from fairbed.testbed.cli.main import main
from fairbed.testbed.host.loopback import free_ports
from fairbed.testbed.lab.folder import LabBroker
from tests.brokers import PRODUCTION_BROKERS
from tests.processes import end
from tests.test_wheel import ROOT, dependencies
from tests.testbed.small_run import LIMIT_S, wait_until
from tools.build_dist import build

FAIRBED = [
    sys.executable,
    "-c",
    "import sys; from fairbed.testbed.cli.main import console; sys.exit(console())",
]

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel that the lab serves."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


class LabHost:
    """A lab on this machine, and commands for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own = {
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "FAIRBED_LAB": str(folder / "lab"),
        }
        self._environment = os.environ | self._own

    def fairbed(self, *arguments: str) -> str:
        """Run a command; return its output."""
        done = subprocess.run(
            [*FAIRBED, *arguments],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def up(self) -> Iterator[None]:
        """Run the lab for the duration of a block."""
        command = [*FAIRBED, "lab", "up"]
        lab = subprocess.Popen(
            command, env=self._environment, cwd=self.folder, stdout=subprocess.PIPE, text=True
        )
        assert lab.stdout is not None
        try:
            assert " is up: " in lab.stdout.readline()
            yield
        finally:
            end(lab)

    def state(self, name: str) -> str | None:
        """Return the state of a device in the list; None if it is not there.

        It is awaited again and again, so the command runs in this process, which has it loaded.
        """
        listed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(listed):
            for variable, value in self._own.items():
                patch.setenv(variable, value)
            assert main(["devices", "--json"]) == 0
        rows = json.loads(listed.getvalue())
        return next((row["state"] for row in rows if row["name"] == name), None)


class Device:
    """A device in a scratch home: an environment without Fairbed, but with what it needs."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.config = folder / "etc" / "agent.toml"
        prefix = folder / "agent"
        venv.create(prefix / "venv", symlinks=True)
        (site,) = prefix.glob("venv/lib/python*/site-packages")
        for dependency in [*dependencies(wheel, ""), distribution("pip")]:
            for file in dependency.files or ():
                if (
                    file.parts[0] not in ("..", "__pycache__")
                    and not (site / file.parts[0]).exists()
                ):
                    (site / file.parts[0]).symlink_to(str(dependency.locate_file(file.parts[0])))
        self.environment = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "PYTHON": sys.executable,
            "FAIRBED_PREFIX": str(prefix),
            "no_proxy": "127.0.0.1",
        }

    def run(self, line: str) -> tuple[int, str]:
        """Run the line that `fairbed enroll` printed, without a service; return code and output."""
        assert re.search(r" sh$", line), line
        done = subprocess.run(
            ["/bin/sh", "-c", f"{line} -s -- --no-service --folder {self.config.parent}"],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        return done.returncode, done.stdout + done.stderr

    def doctor(self) -> tuple[int, str]:
        """Run the doctor; return its code and output."""
        agent = self.folder / "agent" / "venv" / "bin" / "device-agent"
        done = subprocess.run(
            [agent, "doctor", "--config", self.config],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        return done.returncode, done.stdout

    @contextmanager
    def agent(self, command: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Run the agent for the duration of a block."""
        with (self.folder / "agent.log").open("wb") as log:
            process = subprocess.Popen(command.split(), env=self.environment, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @property
    def log(self) -> str:
        """Log of the agent."""
        return (self.folder / "agent.log").read_text()


@pytest.mark.parametrize("broker", PRODUCTION_BROKERS)
def test_a_device_joins_a_lab_is_renamed_and_revoked(
    broker: LabBroker, wheel: Path, tmp_path: Path
) -> None:
    host = LabHost(tmp_path)
    port, enrol_port = free_ports(2)
    ports = ["--port", str(port), "--enrol-port", str(enrol_port)]
    host.fairbed("lab", "init", "--broker", broker, "--address", "127.0.0.1", *ports)
    shutil.copy(wheel, tmp_path / "lab" / "wheels")
    for name in ("kitchen", "attic"):
        (tmp_path / name).mkdir()
    device, other = (Device(tmp_path / name, wheel) for name in ("kitchen", "attic"))
    with host.up():
        line = host.fairbed("enroll", "pi-kitchen").strip()
        code, output = device.run(line)
        assert code == 0, output
        assert "from the lab" in output
        assert "package index" not in output
        assert host.state("pi-kitchen") == "new"
        command = output.strip().rpartition("start the agent with: ")[2]
        with device.agent(command) as process:
            wait_until(lambda: host.state("pi-kitchen") == "online", output)
            online_at = time.monotonic()
            code, findings = device.doctor()
            assert code == 0, findings
            assert "problem" not in findings
            assert "the broker accepts pi-kitchen" in findings

            code, output = other.run(line)
            assert code == 1
            assert "device-agent: token: already used; make a new one" in output
            code, output = device.run(line)
            assert (code, "pi-kitchen: keeps its identity" in output) == (0, True)

            # Of two agents with young links, either may end.
            wait_until(
                lambda: time.monotonic() - online_at > LASTED_S + SHORT_S, "the clock stands"
            )
            copy = subprocess.run(  # a second agent with this identity, as from a copied card
                [*command.split(), "--cache", str(tmp_path / "copy")],
                env=device.environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            assert copy.returncode == 3  # systemd does not start it again
            assert copy.stderr.splitlines()[-1] == (
                "device-agent: pi-kitchen: another agent of this name is connected to the broker; "
                "stop it, or start this one with another --name"
            )
            wait_until(lambda: host.state("pi-kitchen") == "online", lambda: device.log)

            host.fairbed("devices", "rename", "pi-kitchen", "pi-attic")
            wait_until(lambda: host.state("pi-attic") == "online", lambda: device.log)
            assert "pi-kitchen: the lab renamed this device to pi-attic" in device.log

            revoked = host.fairbed("devices", "revoke", "pi-attic")
            assert re.match(r"pi-attic: revoked; the broker refuses it after 0\.\d s\n", revoked)
            wait_until(lambda: "its identity was revoked on" in device.log, lambda: device.log)
            assert process.poll() is None  # it waits, as it may be enrolled again
            code, findings = device.doctor()
            assert code == 1
            assert "problem  identity      pi-attic was revoked on" in findings
            assert "problem  login" in findings

            code, output = device.run(host.fairbed("enroll", "pi-attic").strip())
            assert (code, "pi-attic: enrolled at the lab" in output) == (0, True), output
        with device.agent(command):
            wait_until(lambda: host.state("pi-attic") == "online", lambda: device.log)
    rows = (tmp_path / "lab/audit.jsonl").read_text().splitlines()
    audit = [json.loads(row)["action"] for row in rows]
    expected = ["token", "enrol", "enrol-refused", "rename", "revoke", "token", "enrol"]
    assert [action for action in audit if action in expected] == expected
    secrets = {line.rpartition("FAIRBED_TOKEN=")[2].split(";")[0]}
    secrets |= {device.config.read_text().partition("pi-attic:")[2].partition("@")[0]}
    for text in (device.log, *rows, output, findings):
        assert not any(secret in text for secret in secrets)
