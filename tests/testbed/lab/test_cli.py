"""`fairbed lab`: what it makes, shows and refuses."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from fairbed.testbed.cli.main import main
from fairbed.testbed.host.loopback import free_port
from fairbed.testbed.lab import service, systemd
from fairbed.testbed.lab.folder import open_lab
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.run.broker import find_broker
from tests.testbed.lab.labs import FAIRBED, lab_up, make_lab

pytestmark = pytest.mark.skipif(
    find_broker("mosquitto") is None, reason="mosquitto is not installed"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FAIRBED_LAB", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def ports() -> list[str]:
    return ["--port", str(free_port()), "--enrol-port", str(free_port())]


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("fairbed: ")


def test_init_makes_a_lab_that_commands_find(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "init", "--address", "lab.local", "--address", "10.0.0.2", *ports()]) == 0
    out = capsys.readouterr().out
    lab = open_lab()
    assert lab.folder == home / ".local/share/fairbed/lab"
    assert lab.settings.addresses == ("lab.local", "10.0.0.2")
    assert out.startswith(f"lab in {lab.folder}: mosquitto, devices use lab.local:")
    before = lab.ca.read_bytes()
    assert main(["lab", "init", *ports()]) == 2
    assert f"{lab.folder}: must be a new folder, got an existing lab" in error_of(capsys)
    assert lab.ca.read_bytes() == before
    assert main(["lab", "init", str(home / "other"), "--name", "other", *ports()]) == 0
    assert f"to use this one: export FAIRBED_LAB={home / 'other'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--name", "My lab"], "lab init: name must be 1 to 32 of a-z, 0-9 and hyphen"),
        (["--address", "10.0.0.2:8883"], "lab init: addresses must be host names or IP addresses"),
        (["--port", "0"], "lab init: port must be 1 to 65535, got 0"),
        (["--port", "8884", "--enrol-port", "8884"], "must differ"),
    ],
)
def test_settings_that_break_a_rule_are_named(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert main(["lab", "init", *ports(), *arguments]) == 2
    assert problem in error_of(capsys)
    assert [path.name for path in home.iterdir()] == []


def test_a_port_in_use_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["lab", "init", *ports(), "--port", str(port)]) == 2
    line = error_of(capsys)
    assert f"lab: port {port} must be free, got " in line
    assert line.endswith("; stop that program, or choose another --port")
    assert list(home.iterdir()) == []


def test_a_missing_broker_or_package_names_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(service, "find_mosquitto", lambda: None)
        without.setattr(service, "find_nats", lambda: None)
        assert main(["lab", "init", *ports()]) == 2
        line = error_of(capsys)
        assert "mosquitto or nats must be installed, got none" in line
        assert "sudo apt install mosquitto" in line
        assert "'fairbed[broker]'" in line
        assert main(["lab", "init", "--broker", "mosquitto", *ports()]) == 2
        assert "the broker mosquitto must be installed" in error_of(capsys)
    monkeypatch.setattr("fairbed.testbed.lab.identities.find_spec", lambda name: None)
    for arguments in (["init"], ["up"], ["status"]):
        assert main(["lab", *arguments]) == 2
        assert "the package cryptography must be installed" in error_of(capsys)


def test_a_full_disk_leaves_nothing_behind(home: Path) -> None:
    line = " ".join([*FAIRBED, "lab", "init", *ports()])
    done = subprocess.run(  # no file may grow: what a full disk does, without one
        ["bash", "-c", f"ulimit -f 0; exec {line}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (error,) = done.stderr.splitlines()
    assert "must be writable, got File too large; free space" in error
    assert not (home / ".local/share/fairbed/lab").exists()
    assert list((home / ".local/share/fairbed").iterdir()) == []


def test_commands_without_a_lab_say_how_to_make_one(capsys: pytest.CaptureFixture[str]) -> None:
    for action in (["up"], ["down"], ["status"], ["config", "emqx"]):
        assert main(["lab", *action]) == 2
        assert error_of(capsys).endswith("got none; make one with: fairbed lab init")


def test_a_service_needs_systemd(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "has_systemd", lambda: False)
    lab = make_lab(home)
    assert main(["lab", "up", "--service"]) == 2
    assert f"run this command: {systemd.up_command(lab)[0]} " in error_of(capsys)
    assert main(["lab", "down", "--service"]) == 2
    assert "fairbed-lab.service must exist, got none" in error_of(capsys)


@pytest.mark.broker
def test_status_and_down_follow_a_lab_that_is_up(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_lab(home, addresses=("127.0.0.1", "127.0.0.9"))
    with Identities(lab.database) as identities:
        identities.create("pi-1")
        identities.create("pi-2")
        identities.revoke("pi-2", now_s=0.0)
    with lab_up(lab) as process:
        assert main(["lab", "status", "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        assert (status["is_up"], status["pid"], status["service"]) == (True, process.pid, None)
        assert (status["devices"], status["online"]) == (1, 0)
        assert status["addresses"] == {"127.0.0.1": None, "127.0.0.9": None}
        assert status["certificate_until"] == "2037-01-01"
        assert status["version"].startswith("mosquitto version ")
        modes = {path: path.stat().st_mode & 0o077 for path in lab.folder.rglob("*")}
        assert [path for path, open_to in modes.items() if open_to] == []
        os.umask(umask := os.umask(0o022))
        assert main(["lab", "up"]) == 2
        assert f"the lab is up already, as process {process.pid}" in error_of(capsys)
        assert os.umask(umask) == umask
        assert main(["lab", "down"]) == 0
        assert process.wait(30) == 0
    capsys.readouterr()
    assert main(["lab", "status"]) == 1
    out = capsys.readouterr().out
    assert "state        down; start it with: fairbed lab up" in out
    assert f"address      127.0.0.1, port {lab.settings.port} (TLS): not reached: " in out
    assert main(["lab", "down"]) == 0
    assert "the lab is down" in capsys.readouterr().out


@pytest.mark.broker
def test_another_server_on_the_port_is_not_taken_for_the_lab(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "a").mkdir()
    lab, other = make_lab(home), make_lab(home / "a")
    text = (lab.folder / "lab.toml").read_text()
    old, new = (f"\nport = {one.settings.port} " for one in (lab, other))
    (lab.folder / "lab.toml").write_text(text.replace(old, new))
    with lab_up(other):
        assert main(["lab", "status"]) == 1
    assert "not reached: certificate: " in capsys.readouterr().out


def test_rules_for_other_brokers(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "config", "generic"]) == 0
    assert (
        "device (user NAME)\n  publish    fairbed/TENANT/d/NAME/status" in capsys.readouterr().out
    )
    lab = make_lab(home)
    with Identities(lab.database) as identities:
        identities.create("pi-1")
    assert main(["lab", "config", "emqx"]) == 0
    assert '{allow, {username, "pi-1"}, publish, ["fairbed/main/d/pi-1/status"' in (
        capsys.readouterr().out
    )
