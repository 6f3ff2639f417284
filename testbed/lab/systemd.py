"""The service of a lab under systemd: its unit is written, started and removed.

As root it is a unit of the system, which runs as the owner of the lab's folder; otherwise a unit of
the user.

Source: systemd.service(5), systemd.exec(5).
"""

import os
import pwd
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fairbed.device_agent.enrolment import (
    Run,
    enable_unit,
    has_systemd,
    run_command,
    stays_up,
    systemctl,
)
from fairbed.device_agent.systemd import HARDENED, HARDENED_SYSTEM, USER_SERVICE, quoted
from fairbed.testbed.errors import LabError
from fairbed.testbed.lab.folder import SETTINGS_FILE, Lab

_SERVICE = f"""\
[Unit]
Description=Fairbed lab {{name}}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={{command}}
Restart=on-failure
RestartSec=5
WatchdogSec=60
KillMode=mixed
LimitNOFILE=65536
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
{HARDENED}"""

_SYSTEM = f"""\
User={{user}}
CapabilityBoundingSet={{capabilities}}
AmbientCapabilities={{capabilities}}
ReadWritePaths={{folder}}
{HARDENED_SYSTEM}"""


PRIVATE_FOLDERS = ("/tmp", "/var/tmp")  # of PrivateTmp, systemd.exec(5)


def unit_name(lab: Lab) -> str:
    """Return the name of the unit of a lab."""
    name = lab.settings.name
    return "fairbed-lab.service" if name == "lab" else f"fairbed-lab-{name}.service"


def up_command(lab: Lab) -> list[str]:
    """Return the command that runs a lab in the foreground."""
    script = Path(sys.executable).with_name("fairbed")
    own = [str(script)] if script.exists() else [sys.executable, "-m", "fairbed.testbed.cli.main"]
    return [*own, "lab", "up", "--lab", str(lab.folder)]


def unit_text(lab: Lab, command: Sequence[str], *, user: str | None) -> str:
    """Return the unit of a lab.

    Args:
        lab: The lab.
        command: Absolute command line that runs it.
        user: User that a unit of the system runs as; None is a unit of a user.
    """
    head = _SERVICE.format(name=lab.settings.name, command=" ".join(map(quoted, command)))
    if user is None:
        return head + USER_SERVICE
    ports = (lab.settings.port, lab.settings.enrol_port)
    return head + _SYSTEM.format(
        user=user,
        folder=quoted(str(lab.folder)),
        capabilities="CAP_NET_BIND_SERVICE" if min(ports) < 1024 else "",
    )


def install_unit(lab: Lab, run: Run = run_command) -> str:
    """Write the unit of a lab, start it now and with this machine; return its name.

    Raises:
        LabError: There is no systemd, or it refuses.
    """
    if not has_systemd():
        command = shlex.join(up_command(lab))
        raise LabError(
            "lab up --service: systemd must manage this machine, got another init; let yours run "
            f"this command: {command}"
        )
    is_system = os.geteuid() == 0
    if not is_system and run(["systemctl", "--user", "show-environment"]).returncode != 0:
        raise LabError(
            "lab up --service: systemd must have a session of this user, got none; log in as this "
            f"user, or run: sudo {shlex.join([*up_command(lab), '--service'])}"
        )
    for private in PRIVATE_FOLDERS if is_system else ():
        if lab.folder.resolve().is_relative_to(private):
            raise LabError(
                f"lab up --service: the lab must not be below {private}, of which a service of the "
                f"system has its own, got {lab.folder}; move it to another folder"
            )
    user = pwd.getpwuid(lab.folder.stat().st_uid).pw_name if is_system else None
    path = _unit_path(lab)
    if path.exists() and not has_unit(lab):
        raise LabError(
            f"{path}: must be of this lab, got that of another one named {lab.settings.name}; "
            f"change name in {lab.folder / SETTINGS_FILE}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit_text(lab, up_command(lab), user=user), encoding="utf-8")
    except OSError as exc:
        raise LabError(f"{path}: must be writable, got {exc.strerror}") from exc
    problem = enable_unit(path.name, run, is_system=is_system)
    if problem is not None:
        raise LabError(problem)
    if not is_system and not stays_up(run):
        raise LabError(
            f"{path.name}: runs, but only while this user is logged in; run: "
            "sudo loginctl enable-linger $USER"
        )
    return path.name


def remove_unit(lab: Lab, run: Run = run_command) -> bool:
    """Stop and remove the unit of a lab; return whether there was one.

    Raises:
        LabError: systemd refuses.
    """
    path = _unit_path(lab)
    if not has_unit(lab):
        return False
    is_system = os.geteuid() == 0
    _systemctl(["disable", "--now", path.name], run, is_system=is_system)
    path.unlink(missing_ok=True)
    _systemctl(["daemon-reload"], run, is_system=is_system)
    return True


def has_unit(lab: Lab) -> bool:
    """Return whether this lab is started with this machine, by a unit of this user or of root."""
    try:
        text = _unit_path(lab).read_text(encoding="utf-8")
    except OSError:
        return False
    return has_systemd() and f" {quoted(str(lab.folder))}\n" in text


def _unit_path(lab: Lab) -> Path:
    if os.geteuid() == 0:
        return Path("/etc/systemd/system") / unit_name(lab)
    base = os.environ.get("XDG_CONFIG_HOME")
    folder = (Path(base) if base else Path.home() / ".config") / "systemd" / "user"
    return folder / unit_name(lab)


def _systemctl(arguments: Sequence[str], run: Run, *, is_system: bool) -> None:
    problem = systemctl(arguments, run, is_system=is_system)
    if problem is not None:
        raise LabError(problem)
