"""Containers: the images of the Containerfile under compose.yaml, and enrolment in a clean Debian.

Skipped with the reason without root, podman, podman-compose or mmdebstrap (it makes a base image
without a registry); the package index must be reachable.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from fairbed.testbed.backends.containers.engine import LIMITS, find_engine
from fairbed.testbed.errors import BackendUnavailable
from fairbed.testbed.host.loopback import free_ports
from fairbed.testbed.lab.folder import Lab
from tests.testbed.lab.labs import FAIRBED, lab_up, make_lab
from tests.testbed.small_run import wait_until
from tools.build_dist import build

ROOT = Path(__file__).parents[3]

BASE, BASE_WITH_SYSTEMD = "localhost/fairbed-test-base", "localhost/fairbed-test-systemd"
"""Debian 13, and Debian 12 with systemd; kept between runs: they have nothing of this checkout."""
PACKAGES = "ca-certificates,curl,python3,python3-venv"
SYSTEMD = "dbus-user-session,libpam-systemd,systemd,systemd-sysv"
WHEELS = ("--python=3.13", "--python=3.11", "--platform=x86_64")
"""Of the wheelhouse for these two."""
WITH_SYSTEMD = ("--systemd=always", "--cap-add=SYS_ADMIN", "--tmpfs=/run", "--tmpfs=/tmp")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""Of this machine: its network may have an authority of its own before the package index."""

BUILD_S, RUN_S = 600.0, 180.0

EXPERIMENT = """
name = "boxes"
rounds = {rounds}
[model]
name = "softmax"
[selection]
per_round = 2
beta = 0.3
[round]
min_devices = 2
join_timeout_s = 120
[broker]
url = "lab"
"""

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(1200)]


def run(*command: str, limit_s: float = RUN_S, **options: Any) -> str:
    """Run a program; return its output. Fails the test with all of it if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=limit_s, check=False, **options
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def podman() -> list[str]:
    """Return the command of podman that works on this machine."""
    try:
        return list(anyio.run(find_engine).command)
    except BackendUnavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def base(podman: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a clean Debian 13 with Python and curl, as an image."""
    return clean_image(podman, BASE, "trixie", PACKAGES, tmp_path_factory.mktemp("base"))


def clean_image(podman: list[str], name: str, suite: str, packages: str, folder: Path) -> str:
    """Make an image of a Debian, if it is not there; return its name."""
    name = f"{name}:{hashlib.sha256(f'{suite} {packages}'.encode()).hexdigest()[:12]}"
    if subprocess.run([*podman, "image", "exists", name], check=False).returncode:
        if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
            pytest.skip("needs mmdebstrap and root; type: apt-get install mmdebstrap")
        archive = folder / "base.tar"
        options = ["--quiet", "--mode=root", "--variant=minbase", f"--include={packages}"]
        run("mmdebstrap", *options, suite, str(archive), limit_s=BUILD_S)
        run(*podman, "import", "--quiet", str(archive), name)
    return name


@pytest.fixture(scope="module")
def tag(podman: list[str], base: str) -> Iterator[str]:
    """Build both images; return their tag."""
    if shutil.which("podman-compose") is None:
        pytest.skip("needs podman-compose; type: pip install podman-compose")
    tag = f"test-{secrets.token_hex(4)}"
    names = [f"localhost/fairbed-{target}:{tag}" for target in ("agent", "coordinator")]
    options = [f"--build-arg=BASE={base}", "--network=host", "--quiet"]
    if CERTIFICATES.exists():
        options.append(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
    try:
        for name in names:
            target = f"--target={name.partition('-')[2].partition(':')[0]}"
            run(*podman, "build", *options, target, "-t", name, str(ROOT), limit_s=BUILD_S)
        yield tag
    finally:
        subprocess.run([*podman, "rmi", "--force", *names], capture_output=True, check=False)


class Composed:
    """The services of compose.yaml in a folder, under names of this test."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder, self._environ = folder, os.environ | environ
        self._prefix = f"fairbed{secrets.token_hex(4)}"
        self._projects: set[str] = set()
        shutil.copy(ROOT / "compose.yaml", folder)

    def command(self, project: str, *arguments: str) -> list[str]:
        """Return the command line for one project."""
        self._projects.add(project)
        limits = f"--podman-run-args={' '.join(LIMITS)}"
        return ["podman-compose", "-p", f"{self._prefix}{project}", limits, *arguments]

    def __call__(self, project: str, *arguments: str, **environ: str) -> str:
        """Run podman-compose; return its output."""
        command = self.command(project, *arguments)
        return run(*command, cwd=self._folder, env=self._environ | environ)

    def succeeds(self, project: str, *arguments: str) -> bool:
        """Return whether podman-compose succeeds."""
        process = self.start(project, *arguments)
        process.communicate(timeout=RUN_S)
        return process.returncode == 0

    def start(self, project: str, *arguments: str) -> "subprocess.Popen[str]":
        """Start podman-compose; its output is in a pipe."""
        return subprocess.Popen(
            self.command(project, *arguments),
            cwd=self._folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def remove(self) -> None:
        """Remove all containers and volumes."""
        for project in self._projects:
            self(project, "--profile=agent", "--profile=run", "down", "--volumes", "--timeout=5")


@pytest.fixture
def composed(tmp_path: Path, tag: str) -> Iterator[Composed]:
    (tmp_path / "work").mkdir()
    (tmp_path / "lab-ca.pem").touch()
    port, enrol_port = free_ports(2)
    environ = {
        "FAIRBED_TAG": tag,
        "FAIRBED_ADDRESS": "127.0.0.1",
        "FAIRBED_PORT": str(port),
        "FAIRBED_ENROL_PORT": str(enrol_port),
    }
    composed = Composed(tmp_path, environ)
    try:
        yield composed
    finally:
        composed.remove()


def test_a_lab_a_coordinator_and_two_agents_in_containers_finish_two_runs(
    composed: Composed, tmp_path: Path
) -> None:
    composed("lab", "up", "--detach", "lab")
    status = ("exec", "-T", "lab", "fairbed", "lab", "status")
    wait_until(lambda: composed.succeeds("lab", *status), "the lab in its container")
    inside = ("exec", "-T", "lab")
    authority = composed("lab", *inside, "cat", "/var/lib/fairbed/lab/ca.pem")
    (tmp_path / "lab-ca.pem").write_text(authority)
    enrol = composed("lab", *inside, "fairbed", "enroll", "box-1", "box-2", "--json")
    for invitation in json.loads(enrol):
        token = re.search(r"FAIRBED_TOKEN=([^;\s]+)", invitation["line"])
        url = re.search(r"(https://\S+)/install", invitation["line"])
        assert token
        assert url
        agent = ("--profile=agent", "up", "--detach", "agent")
        composed(invitation["name"], *agent, FAIRBED_TOKEN=token[1], FAIRBED_LAB_URL=url[1])

    def play(name: str, rounds: int) -> dict[str, Any]:
        (tmp_path / "work" / "boxes.toml").write_text(EXPERIMENT.format(rounds=rounds))
        command = ("fairbed", "coordinator", "boxes.toml", "--headless", "--json", f"--out={name}")
        process = composed.start("lab", "--profile=run", "run", "--rm", "-T", "run", *command)
        out, errors = process.communicate(timeout=RUN_S)
        assert process.returncode == 0, errors
        summary: dict[str, Any] = json.loads(out)
        return summary

    first = play("first", rounds=3)
    assert (first["rounds_completed"], first["rounds_void"]) == (3, 0)
    assert first["selected"] == {"box-1": 3, "box-2": 3}
    assert (first["exchange"]["count"], first["exchange"]["failed"]) == (6, 0)
    for name in ("box-1", "box-2"):  # the token is used: only the identity in the volume counts
        composed(name, "--profile=agent", "restart", "agent")
        composed(name, "--profile=agent", "exec", "-T", "agent", "device-agent", "doctor")
    second = play("second", rounds=1)
    assert (second["rounds_completed"], second["exchange"]["count"]) == (1, 2)
    assert (tmp_path / "work" / "second" / "run.db").exists()


@pytest.fixture(scope="module")
def lab(base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Run a lab that has the packages of the clean Debian."""
    lab = make_lab(tmp_path_factory.mktemp("lab"))
    run(*FAIRBED, "lab", "wheelhouse", *WHEELS, env=environ_of(lab), limit_s=BUILD_S)
    with lab_up(lab):
        yield lab


def environ_of(lab: Lab) -> dict[str, str]:
    return os.environ | {"FAIRBED_LAB": str(lab.folder)}


class CleanDebian:
    """A container on which a person types."""

    def __init__(
        self, podman: list[str], base: str, *given: str, command: Sequence[str] = ("sleep", "1200")
    ) -> None:
        self._podman = podman
        self.name = f"fairbed-{secrets.token_hex(4)}"
        options = ["--detach", f"--name={self.name}", f"--hostname={self.name}", "--network=host"]
        options.append("--env=PIP_COMPILE=0")  # no bytecode of modules that nothing here imports
        run(*podman, "run", *LIMITS, *options, *given, base, *command)

    def type(self, line: str, *options: str) -> str:
        """Run a line in a shell; return its output."""
        return run(*self._podman, "exec", *options, self.name, "sh", "-c", line)

    def enrol(self, lab: Lab, *options: str) -> str:
        """Paste the line of `fairbed enroll`; return the command that starts the agent."""
        (enrol,) = json.loads(run(*FAIRBED, "enroll", "--json", env=environ_of(lab)))
        return self.paste(enrol["line"], *options)

    def paste(self, line: str, *options: str) -> str:
        """Paste a line that enrols; return the command that starts the agent."""
        output = self.type(line, *options)
        assert f"{self.name}: enrolled at the lab lab" in output
        assert "installing from the package index" not in output
        found = re.search(r"start the agent with: (.*)", output)
        assert found
        return found[1]

    def remove(self) -> None:
        """End and remove the container."""
        command = [*self._podman, "rm", "--force", "--time=0", self.name]
        subprocess.run(command, capture_output=True, check=False)


@pytest.fixture
def debian(podman: list[str], base: str) -> Iterator[CleanDebian]:
    debian = CleanDebian(podman, base)
    try:
        yield debian
    finally:
        debian.remove()


def test_a_clean_debian_is_enrolled_by_the_line_and_serves_a_run(
    debian: CleanDebian, lab: Lab, tmp_path: Path
) -> None:
    (enrol,) = json.loads(run(*FAIRBED, "enroll", "--json", env=environ_of(lab)))
    command = debian.paste(enrol["line"])
    assert f"{debian.name}: keeps its identity" in debian.type(enrol["line"])
    debian.type(f"{command} </dev/null >/dev/null 2>&1 &")
    experiment = tmp_path / "boxes.toml"
    experiment.write_text(EXPERIMENT.replace("= 2", "= 1").format(rounds=2))
    coordinator = ["coordinator", str(experiment), f"--out={tmp_path / 'run'}"]
    output = run(*FAIRBED, *coordinator, "--headless", "--json", env=environ_of(lab))
    summary = json.loads(output)
    assert summary["selected"] == {debian.name: 2}
    assert (summary["rounds_completed"], summary["exchange"]["count"]) == (2, 2)
    shown = run(*FAIRBED, "devices", env=environ_of(lab))
    assert re.search(rf"^{debian.name} .*online", shown, re.MULTILINE), shown
    assert "problem " not in debian.type("/opt/fairbed/venv/bin/device-agent doctor")


def test_a_debian_without_certificates_is_enrolled(debian: CleanDebian, lab: Lab) -> None:
    debian.type("rm -r /etc/ssl/certs")
    assert debian.enrol(lab).startswith("/opt/fairbed/venv/bin/device-agent run ")


def test_an_ordinary_user_without_python3_venv_is_enrolled_in_the_home_folder(
    debian: CleanDebian, lab: Lab
) -> None:
    debian.type("rm -r /usr/lib/python3*/ensurepip /usr/share/python-wheels")
    debian.type("useradd --create-home anna")
    home = "/home/anna"
    command = debian.enrol(lab, "--user=anna", f"--env=HOME={home}")
    assert command.startswith(f"{home}/.local/share/fairbed/venv/bin/device-agent run ")
    assert debian.type(f"stat --format='%a %U' {home}/.config/fairbed/agent.toml") == "600 anna\n"


@pytest.fixture(scope="module")
def systemd_image(podman: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a clean Debian 12 with systemd, as an image."""
    folder = tmp_path_factory.mktemp("systemd")
    packages = f"{PACKAGES},{SYSTEMD}"
    return clean_image(podman, BASE_WITH_SYSTEMD, "bookworm", packages, folder)


@contextmanager
def debian_with_systemd(podman: list[str], image: str, *given: str) -> Iterator[CleanDebian]:
    debian = CleanDebian(podman, image, *WITH_SYSTEMD, *given, command=["/sbin/init"])
    try:
        wait_until(lambda: "running" in debian.type(f"{STATE} || true"), "systemd in a container")
        yield debian
    finally:
        debian.remove()


@pytest.fixture
def with_systemd(podman: list[str], systemd_image: str) -> Iterator[CleanDebian]:
    with debian_with_systemd(podman, systemd_image) as debian:
        yield debian


STATE = "systemctl is-system-running"
SHOW = "systemctl show fairbed-agent --value --property"


def test_the_line_starts_a_service_that_is_limited_restarted_and_told_of_its_revocation(
    with_systemd: CleanDebian, lab: Lab
) -> None:
    debian = with_systemd
    (enrol,) = json.loads(run(*FAIRBED, "enroll", "--json", env=environ_of(lab)))
    assert f"{debian.name}: the lab has seen this device" in debian.type(enrol["line"])
    assert debian.type(f"{SHOW}=WatchdogUSec,CPUQuotaPerSecUSec").split() == ["2min", "2s"]
    assert debian.type(f"{SHOW}=PrivateDevices,ProtectSystem").split() == ["yes", "strict"]
    assert debian.type("stat --format=%a /var/lib/fairbed/agent.toml").strip() == "600"
    assert "service       fairbed-agent.service is active (running)" in debian.type(
        "/opt/fairbed/venv/bin/device-agent doctor"
    )
    debian.type(f"kill -KILL $({SHOW}=MainPID)")
    restarted = f"{SHOW}=NRestarts; systemctl is-active fairbed-agent || true"
    wait_until(lambda: debian.type(restarted).split() == ["1", "active"], "the restarted agent")
    run(*FAIRBED, "devices", "revoke", debian.name, env=environ_of(lab))
    log = "journalctl --no-pager --unit=fairbed-agent"
    wait_until(lambda: "its identity was revoked" in debian.type(log), "the reason in the log")


@pytest.fixture(scope="module")
def lab_machine(
    podman: list[str], systemd_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CleanDebian]:
    """Run a machine with systemd and Fairbed, with a user anna whose services stay up."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build(ROOT, folder, "wheel")
    shutil.copy(ROOT / "constraints.txt", folder)
    given = [f"--volume={folder}:/wheel:ro"]
    if CERTIFICATES.exists():
        given += [f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", f"--env=PIP_CERT={CERTIFICATES}"]
    with debian_with_systemd(podman, systemd_image, *given) as debian:
        debian.type("python3 -m venv /opt/fairbed-lab")
        pip = "/opt/fairbed-lab/bin/pip install --quiet --no-cache-dir -c /wheel/constraints.txt"
        debian.type(f"{pip} '/wheel/{wheel.name}[testbed,lab,broker]'")
        debian.type("useradd --create-home --uid=1234 anna && loginctl enable-linger anna")
        yield debian


@pytest.mark.parametrize("user", ["root", "anna"])
def test_a_lab_is_a_service_that_restarts_and_stops(
    lab_machine: CleanDebian, user: str, tmp_path: Path
) -> None:
    home = "/root" if user == "root" else f"/home/{user}"
    login = (f"--user={user}", f"--env=HOME={home}", "--env=XDG_RUNTIME_DIR=/run/user/1234")
    systemctl = "systemctl" if user == "root" else "systemctl --user"

    def fairbed(arguments: str) -> str:
        return lab_machine.type(f"/opt/fairbed-lab/bin/fairbed {arguments}", *login)

    def shown(properties: str) -> list[str]:
        command = f"{systemctl} show fairbed-lab --value --property={properties}"
        return lab_machine.type(command, *login).split()

    ports = free_ports(2)
    address = f"--address=127.0.0.1 --port={ports[0]} --enrol-port={ports[1]}"
    fairbed(f"lab init --broker=nats {address}")
    assert fairbed("lab up --service") == (
        "fairbed-lab.service runs, and starts with this machine; log: journalctl "
        f"{'' if user == 'root' else '--user '}-u fairbed-lab\n"
    )
    assert shown("ActiveState,UnitFileState") == ["active", "enabled"]
    if user == "root":
        assert shown("PrivateDevices,ProtectSystem") == ["yes", "strict"]
    ca = tmp_path / "ca.pem"
    ca.write_text(lab_machine.type(f"cat {home}/.local/share/fairbed/lab/ca.pem"))
    with joined_agent(json.loads(fairbed("enroll board --json"))[0], ca, tmp_path):

        def is_online() -> bool:
            (device,) = json.loads(fairbed("devices --json"))
            return bool(device["state"] == "online")

        wait_until(is_online, "the device in the list of the lab")
        (pid,) = shown("MainPID")
        lab_machine.type(f"kill -KILL {pid}")
        wait_until(lambda: shown("NRestarts,ActiveState") == ["1", "active"], "the restarted lab")
        wait_until(is_online, "the device after the restart of the lab")
    assert "the lab is down" in fairbed("lab down")
    wait_until(lambda: shown("ActiveState") == ["inactive"], "the end of the service")
    assert shown("Result,NRestarts") == ["success", "1"]
    fairbed("lab up --service")
    assert "fairbed-lab.service: stopped and removed" in fairbed("lab down --service")
    assert shown("LoadState,ActiveState") == ["not-found", "inactive"]


@contextmanager
def joined_agent(invitation: Mapping[str, str], ca: Path, folder: Path) -> Iterator[None]:
    """Enrol this machine by an invitation, and run its agent for the duration of a block."""
    token = re.search(r"FAIRBED_TOKEN=([^;\s]+)", invitation["line"])
    url = re.search(r"(https://\S+)/install", invitation["line"])
    assert token
    assert url
    agent = [sys.executable, "-m", "fairbed.device_agent.cli"]
    environ = os.environ | {"HOME": str(folder), "FAIRBED_TOKEN": token[1]}
    options = [f"--lab={url[1]}", f"--ca={ca}", "--no-service", f"--folder={folder / 'agent'}"]
    run(*agent, "join", *options, env=environ)
    process = subprocess.Popen([*agent, f"--config={folder / 'agent' / 'agent.toml'}"], env=environ)
    try:
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
