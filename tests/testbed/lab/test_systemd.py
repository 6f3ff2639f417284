"""The service of a lab: its unit, and what is asked of systemd."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairbed.testbed.errors import LabError
from fairbed.testbed.lab import systemd
from fairbed.testbed.lab.folder import Lab, LabSettings
from tests.testbed.lab.labs import make_lab


class Manager:
    """Answers like systemctl and loginctl; refuses commands with a word."""

    def __init__(self, refused: str = "-", *, stays_up: bool = False) -> None:
        self.calls: list[str] = []
        self._refused, self._linger = refused, "yes\n" if stays_up else "no\n"

    def __call__(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        self.calls.append(" ".join(command))
        is_refused = self._refused in command
        error = "refused\nfor a reason" if is_refused else ""
        out = self._linger if "show-user" in command else ""
        return subprocess.CompletedProcess(command, int(is_refused), out, error)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab of a user who is not root, on a machine with systemd."""
    monkeypatch.setattr(systemd, "has_systemd", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return make_lab(tmp_path)


def unit_of(tmp_path: Path) -> Path:
    return tmp_path / "config/systemd/user/fairbed-lab.service"


@pytest.mark.parametrize("user", [None, "root", "ada"])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path, user: str | None) -> None:
    folder = tmp_path / "my lab"
    lab = Lab(folder, LabSettings(broker="nats", port=443, addresses=("lab.local",)))
    path = tmp_path / systemd.unit_name(lab)
    command = ["/bin/true", "lab", "up", "--lab", str(folder)]
    path.write_text(systemd.unit_text(lab, command, user=user))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--system" if user else "--user", "--man=no", str(path)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert [line for line in done.stderr.splitlines() if path.name in line] == []
    text = path.read_text()
    assert f'--lab "{folder}"' in text
    assert ("CAP_NET_BIND_SERVICE" in text) == (user is not None)  # port 443


def test_the_unit_is_started_now_and_with_the_machine(lab: Lab, tmp_path: Path) -> None:
    manager = Manager()
    assert not systemd.has_unit(lab)
    assert systemd.install_unit(lab, manager) == "fairbed-lab.service"
    assert manager.calls == [
        "systemctl --user show-environment",
        "systemctl --user daemon-reload",
        "systemctl --user enable fairbed-lab.service",
        "systemctl --user restart fairbed-lab.service",
        "loginctl enable-linger",
    ]
    assert f"lab up --lab {lab.folder}\n" in unit_of(tmp_path).read_text()
    assert systemd.has_unit(lab)
    del manager.calls[:]
    assert systemd.remove_unit(lab, manager)
    assert manager.calls == [
        "systemctl --user disable --now fairbed-lab.service",
        "systemctl --user daemon-reload",
    ]
    assert not unit_of(tmp_path).exists()
    assert not systemd.remove_unit(lab, manager)


@pytest.mark.parametrize(
    ("refused", "problem"),
    [
        ("show-environment", "systemd must have a session of this user, got none; log in"),
        ("restart", "systemctl --user restart fairbed-lab.service: refused for a reason"),
        ("enable-linger", "runs, but only while this user is logged in; run: sudo loginctl"),
    ],
)
def test_a_refusal_of_systemd_is_one_line(lab: Lab, refused: str, problem: str) -> None:
    with pytest.raises(LabError) as raised:
        systemd.install_unit(lab, Manager(refused))
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_root_may_have_allowed_services_without_a_login_before(lab: Lab) -> None:
    manager = Manager("enable-linger", stays_up=True)  # as on a Debian without polkit
    assert systemd.install_unit(lab, manager) == "fairbed-lab.service"
    assert manager.calls[-1] == "loginctl show-user 1000 --property=Linger --value"


def test_root_is_refused_a_folder_that_its_service_would_not_see(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(systemd, "PRIVATE_FOLDERS", (str(lab.folder.parent),))
    manager = Manager()
    with pytest.raises(
        LabError, match=rf"must not be below {lab.folder.parent}, .* got {lab.folder}; move"
    ):
        systemd.install_unit(lab, manager)
    assert manager.calls == []


def test_a_second_lab_does_not_take_the_unit_of_the_first(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    second = make_lab(tmp_path / "second")
    systemd.install_unit(lab, Manager())
    before = unit_of(tmp_path).read_text()
    with pytest.raises(LabError, match="got that of another one named lab; change name in"):
        systemd.install_unit(second, Manager())
    assert not systemd.remove_unit(second, Manager())
    assert unit_of(tmp_path).read_text() == before


def test_without_systemd_the_command_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "has_systemd", lambda: False)
    manager = Manager()
    with pytest.raises(LabError, match=rf"run this command: .*lab up --lab {lab.folder}"):
        systemd.install_unit(lab, manager)
    assert manager.calls == []
    assert not systemd.has_unit(lab)
