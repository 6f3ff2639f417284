"""`fairbed lab`: make, run, stop and show a lab."""

import argparse
import logging
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from fairbed.testbed.cli import DONE, FAILED
from fairbed.testbed.errors import BrokerError, LabError, RunError, UsageError
from fairbed.testbed.host.loopback import default_address, free_port
from fairbed.testbed.lab.folder import (
    SETTINGS_FILE,
    Lab,
    LabBroker,
    LabSettings,
    find_lab,
    init_lab,
    lab_option,
    open_lab,
)
from fairbed.testbed.lab.identities import Identities, require_packages
from fairbed.testbed.lab.other_brokers import emqx_acl, generic_rules
from fairbed.testbed.lab.service import check_ports, find_program, running_pid, serve_lab
from fairbed.testbed.lab.systemd import has_unit, install_unit, remove_unit, unit_name
from fairbed.wire.console import log_lines

STOP_S = 15.0
"""Longest end of a lab: its broker has 3 s."""

REACH_S = 3.0
"""Longest wait for one address of the lab."""


def main(options: argparse.Namespace) -> int:
    """Run `fairbed lab ACTION`; return the exit code."""
    return {
        "init": _init,
        "up": _up,
        "down": _down,
        "status": _status,
        "config": _config,
        "wheelhouse": _wheelhouse,
    }[options.action](options)


def _init(options: argparse.Namespace) -> int:
    require_packages()
    folder = find_lab(options.folder)
    if (folder / SETTINGS_FILE).exists():
        raise UsageError(
            f"{folder}: must be a new folder, got an existing lab, with the identities of its "
            "devices; name another folder, or remove this one"
        )
    broker: LabBroker = options.broker or _installed_broker()
    find_program(broker)
    try:
        settings = LabSettings(
            name=options.name,
            broker=broker,
            port=options.port,
            local_port=free_port() if broker == "mosquitto" else None,
            enrol_port=options.enrol_port,
            addresses=tuple(options.address or [default_address()]),
        )
    except ValueError as exc:
        raise UsageError(f"lab init: {exc}") from exc
    check_ports(settings)
    lab = init_lab(folder, settings, now_s=time.time())
    print(f"lab in {folder}: {broker}, devices use {_address(lab)}")
    if folder != find_lab():
        print(f"another lab is the default; to use this one: export FAIRBED_LAB={folder}")
    print(
        "next:\n"
        "  fairbed lab up             run it here; with --service always, by systemd\n"
        "  fairbed enroll NAME        print the line to paste on a device\n"
        '  broker.url = "lab"         in the experiment of each run'
    )
    return DONE


def _installed_broker() -> LabBroker:
    kinds: tuple[LabBroker, ...] = ("mosquitto", "nats")
    for kind in kinds:
        with suppress(LabError):
            find_program(kind)
            return kind
    try:
        find_program("nats")
    except LabError as exc:
        raise LabError(
            "lab init: mosquitto or nats must be installed, got none; run: sudo apt install "
            f"mosquitto, or {str(exc).rpartition('run: ')[2]}"
        ) from exc
    raise AssertionError("a broker was found, then not")


def _address(lab: Lab) -> str:
    host = lab.settings.addresses[0]
    return f"{f'[{host}]' if ':' in host else host}:{lab.settings.port} (TLS)"


def _up(options: argparse.Namespace) -> int:
    require_packages()
    lab = open_lab(options.lab)
    if options.service:
        find_program(lab.settings.broker)
        if not has_unit(lab):
            _check_down(lab)
            check_ports(lab.settings, lab.folder / SETTINGS_FILE)
        print(f"{install_unit(lab)} runs, and starts with this machine; log: {_log_command(lab)}")
        return DONE
    log_lines("debug" if hasattr(options, "debug") else "info")
    if not hasattr(options, "debug"):
        logging.getLogger("fairbed.wire").setLevel(logging.WARNING)
    umask = os.umask(0o077)  # for the files of the broker, too
    try:
        anyio.run(partial(serve_lab, lab, on_ready=lambda: _print_up(lab)))
    except BrokerError as exc:
        raise RunError(str(exc)) from exc
    finally:
        os.umask(umask)
    return DONE


def _print_up(lab: Lab) -> None:
    with suppress(BrokenPipeError):
        print(
            f"lab in {lab.folder} is up: {lab.settings.broker} at {_address(lab)}; Ctrl-C ends it",
            flush=True,
        )


def _check_down(lab: Lab) -> None:
    pid = running_pid(lab)
    if pid is not None:
        raise LabError(
            f"{lab.folder}: the lab is up already, as process {pid}; stop it first with: "
            f"fairbed lab down{lab_option(lab.folder)}"
        )


def _log_command(lab: Lab) -> str:
    scope = "" if os.geteuid() == 0 else "--user "
    return f"journalctl {scope}-u {unit_name(lab).removesuffix('.service')}"


def _down(options: argparse.Namespace) -> int:
    lab = open_lab(options.lab)
    if options.service:
        if not remove_unit(lab):
            raise UsageError(f"lab down --service: {unit_name(lab)} must exist, got none")
        print(f"{unit_name(lab)}: stopped and removed")
    pid = running_pid(lab)
    if pid is None:
        print(f"{lab.folder}: the lab is down")
        return DONE
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as exc:
        raise RunError(f"process {pid}: must accept a signal, got {exc.strerror}") from exc
    deadline = time.monotonic() + STOP_S
    while running_pid(lab) == pid:
        if time.monotonic() > deadline:
            raise RunError(f"process {pid}: must end within {STOP_S:g} s, got a live one; kill it")
        time.sleep(0.05)
    print(f"{lab.folder}: the lab is down")
    if has_unit(lab):
        print(f"{unit_name(lab)} starts it again with this machine; lab down --service removes it")
    return DONE


class LabStatus(Struct, frozen=True, kw_only=True):
    """What `fairbed lab status --json` prints."""

    name: str
    folder: str
    is_up: bool
    pid: int | None
    """Of `fairbed lab up`; None while it is down."""
    service: str | None
    """Unit of systemd; None if there is none."""
    broker: str
    version: str
    """Of the broker, as it names itself."""
    port: int
    enrol_port: int
    addresses: Mapping[str, str | None]
    """Why each address cannot be reached from this machine; None if it can."""
    devices: int
    """Devices that may join: neither revoked nor expired."""
    online: int
    certificate_until: str
    """Date, UTC."""
    authority_until: str


def _status(options: argparse.Namespace) -> int:
    require_packages()
    status = _status_of(open_lab(options.lab))
    if options.json:
        print(msgspec.json.encode(status).decode())
    else:
        print("\n".join(_status_lines(status)))
    return DONE if status.is_up else FAILED


def _status_of(lab: Lab) -> LabStatus:
    from fairbed.testbed.lab.certificates import validity

    pid = running_pid(lab)
    with Identities(lab.database) as identities:
        accepted = [
            one.name
            for one in identities.accepted(time.time())
            if one.role == "device" and one.run is None
        ]
        contacts = identities.contacts()
    online = [x for x in accepted if x in contacts and contacts[x].state == "online"]
    try:
        until = [f"{validity(path.read_bytes())[1]:%Y-%m-%d}" for path in (lab.server, lab.ca)]
    except (OSError, ValueError) as exc:
        raise LabError(f"{lab.folder}: must have its certificates, got {exc}") from exc
    return LabStatus(
        name=lab.settings.name,
        folder=str(lab.folder),
        is_up=pid is not None,
        pid=pid,
        service=unit_name(lab) if has_unit(lab) else None,
        broker=lab.settings.broker,
        version=_version_of(lab.settings.broker),
        port=lab.settings.port,
        enrol_port=lab.settings.enrol_port,
        addresses={host: _problem_at(lab, host) for host in lab.settings.addresses},
        devices=len(accepted),
        online=len(online) if pid is not None else 0,
        certificate_until=until[0],
        authority_until=until[1],
    )


def _version_of(broker: str) -> str:
    """Return how a broker names itself; mosquitto has no option for it but its help."""
    try:
        command = [*find_program(broker), "-h" if broker == "mosquitto" else "--version"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=REACH_S,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except (LabError, OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    return next(iter(done.stdout.splitlines()), "unknown")


def _problem_at(lab: Lab, host: str) -> str | None:
    """Return why the broker cannot be reached at an address with TLS; None if it can."""
    try:
        context = ssl.create_default_context(cafile=str(lab.ca))
        with (
            socket.create_connection((host, lab.settings.port), REACH_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as exc:
        return f"certificate: {exc.verify_message}"
    except OSError as exc:  # also of TLS
        return exc.strerror or str(exc)


def _status_lines(status: LabStatus) -> list[str]:
    option = lab_option(Path(status.folder))
    down = f"down; start it with: fairbed lab up{option}"
    state = f"up, process {status.pid}" if status.is_up else down
    service = f", {status.service} starts it with this machine" if status.service else ""
    lines = [
        f"lab          {status.name}, in {status.folder}",
        f"state        {state}{service}",
        f"broker       {status.version}",
    ]
    for host, problem in status.addresses.items():
        reached = "reached" if problem is None else f"not reached: {problem}"
        lines.append(f"address      {host}, port {status.port} (TLS): {reached}")
    return [
        *lines,
        f"enrolment    port {status.enrol_port} (HTTPS)",
        f"devices      {status.devices} enrolled, {status.online} online",
        f"certificate  until {status.certificate_until}; "
        f"certificate authority until {status.authority_until}",
    ]


def _config(options: argparse.Namespace) -> int:
    if options.broker == "generic":
        print(generic_rules(), end="")
        return DONE
    lab = open_lab(options.lab)
    with Identities(lab.database) as identities:
        print(emqx_acl(identities.accepted(time.time())), end="")
    return DONE


def _wheelhouse(options: argparse.Namespace) -> int:
    require_packages()
    from fairbed.testbed.lab.wheelhouse import MACHINES, PYTHONS, fill

    lab = open_lab(options.lab)
    found = fill(
        lab,
        options.python or PYTHONS,
        options.platform or MACHINES,
        options.source,
        write=print,
    )
    size_mb = sum(path.stat().st_size for path in found) / 1e6
    print(f"{lab.wheels}: {len(found)} wheels, {size_mb:.0f} MB; devices that enrol take them")
    return DONE
