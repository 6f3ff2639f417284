"""The folder of a lab: settings, certificates, credentials of this host; made once by `init_lab`.

    lab.toml                  settings: name, broker, ports, addresses
    ca.pem ca.key             certificate authority
    server.pem server.key     certificate of broker and enrolment server
    lab.db                    identities, tokens, contacts (testbed/lab/identities.py)
    coordinator.json          passwords of the identities that commands on this host use
    signing.key               secret from which the task keys of devices are derived
    audit.jsonl               what was done to which identity
    wheels/                   packages for devices without Internet
    broker/                   generated configuration of the broker, its log, lab.pid

The folder has mode 0700, its files 0600.
"""

import ipaddress
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote as shell_quote
from typing import Literal, TypeAlias
from urllib.parse import quote

import msgspec
import psutil
from msgspec import Struct

from fairbed.testbed.broker.permissions import COORDINATOR, OPERATOR, user_of
from fairbed.testbed.errors import LabError
from fairbed.testbed.lab.identities import LAB_SERVICE, Identities, Identity, require_packages
from fairbed.wire.messages import is_device_name
from fairbed.wire.signature import new_secret, task_key
from fairbed.wire.text import NotText, text_of, toml_of

VERSION = 1
"""Of the folder; a lab of another version is refused."""

LabBroker: TypeAlias = Literal["mosquitto", "nats"]

BROKER_PORT = 8883
"""Port of MQTT over TLS (IANA: secure-mqtt)."""

ENROL_PORT = 8884

SETTINGS_FILE = "lab.toml"
ENVIRONMENT = "FAIRBED_LAB"

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")
"""RFC 1123, section 2.1; without a dot at the end."""


class LabSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file `lab.toml`."""

    version: int = VERSION
    """Of the folder of the lab."""
    name: str = "lab"
    """1 to 32 of a-z, 0-9 and hyphen; part of the subject of the certificate authority."""
    broker: LabBroker
    """Program that `fairbed lab up` runs."""
    port: int = BROKER_PORT
    """MQTT over TLS, on all addresses of this machine."""
    local_port: int | None = None
    """MQTT without TLS for the coordinator, on 127.0.0.1 only, with passwords; mosquitto only,
    None for NATS, whose one MQTT listener has TLS."""
    enrol_port: int = ENROL_PORT
    """HTTPS of the enrolment server, on all addresses of this machine."""
    addresses: tuple[str, ...]
    """Host names and IP addresses that devices may use; enrolment prints the first."""

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(
                f"version must be {VERSION}, got {self.version}; use the Fairbed that made this lab"
            )
        if not is_device_name(self.name):
            raise ValueError(f"name must be 1 to 32 of a-z, 0-9 and hyphen, got {self.name!r}")
        has_local = self.local_port is not None
        if has_local != (self.broker == "mosquitto"):
            raise ValueError(
                "local_port must be set with mosquitto, and only there, got "
                f"{self.local_port} with {self.broker}"
            )
        ports = {"port": self.port, "enrol_port": self.enrol_port}
        if self.local_port is not None:
            ports["local_port"] = self.local_port
        for key, port in ports.items():
            if not 1 <= port <= 65535:
                raise ValueError(f"{key} must be 1 to 65535, got {port}")
        if len(set(ports.values())) != len(ports):
            raise ValueError(f"{', '.join(ports)} must differ, got {list(ports.values())}")
        if not self.addresses:
            raise ValueError("addresses must name at least one address of this machine, got none")
        for address in self.addresses:
            if not _is_address(address):
                raise ValueError(
                    f"addresses must be host names or IP addresses without a port, got {address!r}"
                )


@dataclass(frozen=True, slots=True)
class Lab:
    """An existing lab: its folder and settings."""

    folder: Path
    settings: LabSettings

    @property
    def ca(self) -> Path:
        """Certificate of the authority, PEM."""
        return self.folder / "ca.pem"

    @property
    def ca_key(self) -> Path:
        """Key of the authority, PEM."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """Certificate of broker and enrolment server, PEM."""
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        """Key of broker and enrolment server, PEM."""
        return self.folder / "server.key"

    @property
    def database(self) -> Path:
        """Identities, tokens and contacts."""
        return self.folder / "lab.db"

    @property
    def coordinator(self) -> Path:
        """Passwords of the identities that commands on this host use, by MQTT user."""
        return self.folder / "coordinator.json"

    @property
    def signing_key(self) -> Path:
        """Secret from which the task keys of devices are derived."""
        return self.folder / "signing.key"

    @property
    def audit(self) -> Path:
        """The audit log."""
        return self.folder / "audit.jsonl"

    @property
    def wheels(self) -> Path:
        """Packages for devices without Internet."""
        return self.folder / "wheels"

    @property
    def broker(self) -> Path:
        """Folder of the generated configuration of the broker."""
        return self.folder / "broker"

    def url(self, user: str) -> str:
        """Return the broker's address on this host, with the credentials of `user`.

        Args:
            user: `coordinator_main`, `operator_local` or `coordinator_lab`.

        Raises:
            LabError: `coordinator.json` cannot be read or does not have the user.
        """
        passwords = self._passwords()
        if user not in passwords:
            raise LabError(f"{self.coordinator}: must have the user {user}, got none")
        login = f"{user}:{quote(passwords[user], safe='')}"
        if self.settings.local_port is not None:
            return f"mqtt://{login}@127.0.0.1:{self.settings.local_port}"
        return f"mqtts://{login}@127.0.0.1:{self.settings.port}?cafile={quote(str(self.ca))}"

    def task_key(self, identity: Identity) -> str | None:
        """Return the task key of a device (`wire.signature`); None if the lab has no secret yet.

        It is derived from the hash of the password, which a new name keeps and a new enrolment
        replaces.

        Raises:
            LabError: The secret cannot be read.
        """
        try:
            secret = self.signing_key.read_text("ascii").strip()
        except FileNotFoundError:  # a lab of an earlier version that was not up since
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise LabError(f"{self.signing_key}: must be readable, got {_cause(exc)}") from exc
        return task_key(secret, identity.mosquitto_hash)

    def _passwords(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self.coordinator.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError) as exc:
            raise LabError(
                f"{self.coordinator}: must have the passwords of this host, got {_cause(exc)}"
            ) from exc


def find_lab(given: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the lab that a command uses; it may not exist.

    The first of: `given`, the variable `FAIRBED_LAB`, the path in the file that `init_lab` wrote,
    `~/.local/share/fairbed/lab`.
    """
    if given is not None:
        return given.expanduser().absolute()
    if environment.get(ENVIRONMENT):
        return Path(environment[ENVIRONMENT]).expanduser().absolute()
    pointed = _pointed(environment)
    if pointed is not None:
        return pointed
    home = environment.get("HOME") or str(Path.home())
    return Path(home) / ".local" / "share" / "fairbed" / "lab"


def lab_option(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return ` --lab FOLDER` for a command in advice; empty if a command uses that lab anyway."""
    return "" if find_lab(None, environment) == folder else f" --lab {shell_quote(str(folder))}"


def open_lab(given: Path | None = None, environment: Mapping[str, str] = os.environ) -> Lab:
    """Return the lab that a command uses; see `find_lab`.

    Raises:
        LabError: There is none, or its settings are not valid.
    """
    folder = find_lab(given, environment)
    path = folder / SETTINGS_FILE
    try:
        found = toml_of(text_of(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise LabError(
            f"{folder}: must be the folder of a lab, got none; make one with: fairbed lab init"
        ) from exc
    except NotText as exc:
        raise LabError(f"{path}: {exc}") from exc
    except (OSError, ValueError) as exc:
        raise LabError(f"{path}: must be a TOML file, got {_cause(exc)}") from exc
    version = found.get("version")
    if version != VERSION:  # the other keys may differ, too
        raise LabError(
            f"{path}: version must be {VERSION}, got {version}; use the Fairbed that made this lab"
        )
    try:
        return Lab(folder, msgspec.convert(found, LabSettings))
    except msgspec.ValidationError as exc:
        raise LabError(f"{path}: {exc}") from exc


def init_lab(
    folder: Path,
    settings: LabSettings,
    *,
    now_s: float,
    environment: Mapping[str, str] = os.environ,
) -> Lab:
    """Make a lab; the first lab of a user becomes the one that commands find.

    Args:
        folder: Must not exist, or be empty.
        settings: Of the new lab.
        now_s: Unix time.
        environment: As for `find_lab`.

    Raises:
        LabError: The folder is not empty or not writable, or a package is missing.
    """
    require_packages()
    from fairbed.testbed.lab.certificates import make_authority

    folder = folder.absolute()
    _check_new(folder)
    default = find_lab(None, {k: v for k, v in environment.items() if k != ENVIRONMENT})
    now = datetime.fromtimestamp(now_s, timezone.utc)
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    with _written(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir(mode=0o700)
        try:
            lab = Lab(scratch, settings)
            for sub in (lab.wheels, lab.broker):
                sub.mkdir(mode=0o700)
            authority = make_authority(settings.name, now)
            write_private(lab.ca, authority.certificate)
            write_private(lab.ca_key, authority.key)
            sign_if_changed(lab, now_s=now_s)
            make_signing_key(lab)
            with Identities(lab.database) as identities:
                passwords = {
                    user_of(name, role): identities.create(name, role, now_s=now_s)
                    for name, role in (COORDINATOR, OPERATOR, LAB_SERVICE)
                }
            write_private(lab.coordinator, msgspec.json.encode(passwords))
            write_private(scratch / SETTINGS_FILE, _settings_toml(settings).encode())
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if default != folder and not (default / SETTINGS_FILE).exists():
            _pointer(environment).parent.mkdir(parents=True, exist_ok=True)
            write_private(_pointer(environment), f"{folder}\n".encode())
    return Lab(folder, settings)


def sign_if_changed(lab: Lab, *, now_s: float) -> bool:
    """Sign the server's certificate again if its addresses changed; its key stays.

    Returns:
        Whether there is a new certificate.

    Raises:
        LabError: A certificate cannot be read or written.
    """
    require_packages()
    from fairbed.testbed.lab.certificates import Certified, addresses_of, sign_server

    wanted = server_addresses(lab.settings)
    try:
        has_server = lab.server.exists() and lab.server_key.exists()
        if has_server and set(addresses_of(lab.server.read_bytes())) == set(wanted):
            return False
        signed = sign_server(
            Certified(lab.ca.read_bytes(), lab.ca_key.read_bytes()),
            wanted,
            datetime.fromtimestamp(now_s, timezone.utc),
            lab.server_key.read_bytes() if lab.server_key.exists() else None,
        )
    except (OSError, ValueError) as exc:
        raise LabError(
            f"{lab.folder}: ca.pem, ca.key, server.pem and server.key must be PEM files, got "
            f"{_cause(exc)}; restore a copy of the folder"
        ) from exc
    write_private(lab.server_key, signed.key)
    write_private(lab.server, signed.certificate)
    return True


def make_signing_key(lab: Lab) -> None:
    """Make the secret from which task keys are derived, unless the lab has it.

    Raises:
        LabError: It cannot be written.
    """
    if not lab.signing_key.exists():
        write_private(lab.signing_key, f"{new_secret()}\n".encode())


def server_addresses(settings: LabSettings) -> list[str]:
    """Return the names and addresses of the server's certificate: of the settings, of this host."""
    host = socket.gethostname().split(".")[0]
    names = [name for name in (host, f"{host}.local") if _HOST_NAME.fullmatch(name)]
    return list(
        dict.fromkeys(
            [*settings.addresses, "localhost", "127.0.0.1", "::1", *names, *_own_addresses()]
        )
    )


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, mode 0600.

    Raises:
        LabError: The file cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with _written(path):
        try:
            scratch.unlink(missing_ok=True)
            descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # these files outlive a power failure
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Turn an OSError of writing into one line."""
    try:
        yield
    except OSError as exc:
        raise LabError(
            f"{path}: must be writable, got {exc.strerror}; free space, or correct the rights"
        ) from exc


def _check_new(folder: Path) -> None:
    try:
        found = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as exc:
        raise LabError(f"{folder}: must be a new folder, got {exc.strerror}") from exc
    if SETTINGS_FILE in found:
        raise LabError(
            f"{folder}: must be a new folder, got an existing lab, with the identities of its "
            "devices; name another folder, or remove this one"
        )
    if found:
        raise LabError(f"{folder}: must be a new or empty folder, got one with {found[0]}")


def _settings_toml(settings: LabSettings) -> str:
    """Return the text of `lab.toml`."""
    encode = msgspec.json.encode  # JSON strings, numbers and arrays are TOML, too
    lines = [
        "# A lab of Fairbed; see docs/lab.md. `fairbed lab up` reads this file when it starts.",
        f"version = {settings.version}",
        f"name = {encode(settings.name).decode()}",
        f'broker = "{settings.broker}"',
        f"port = {settings.port}  # MQTT over TLS, on all addresses",
    ]
    if settings.local_port is not None:
        lines.append(f"local_port = {settings.local_port}  # without TLS, on 127.0.0.1 only")
    lines += [
        f"enrol_port = {settings.enrol_port}  # HTTPS, on all addresses",
        f"addresses = {encode(settings.addresses).decode()}  # devices use the first",
    ]
    return "\n".join(lines) + "\n"


def _pointer(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CONFIG_HOME")
    home = environment.get("HOME") or str(Path.home())
    return (Path(base) if base else Path(home) / ".config") / "fairbed" / "lab"


def _pointed(environment: Mapping[str, str]) -> Path | None:
    """Return the folder that `init_lab` noted, if there is still a lab in it."""
    try:
        text = _pointer(environment).read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
    folder = Path(text)
    return folder if text and (folder / SETTINGS_FILE).is_file() else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None and len(text) <= 253
    return True


def _own_addresses() -> list[str]:
    """Return the IP addresses of this machine that others can use."""
    found = []
    for interface in psutil.net_if_addrs().values():
        for entry in interface:
            if entry.family in (socket.AF_INET, socket.AF_INET6) and "%" not in entry.address:
                found.append(str(ipaddress.ip_address(entry.address)))
    return sorted(set(found))


def _cause(exc: Exception) -> str:
    return (getattr(exc, "strerror", None) or str(exc) or type(exc).__name__).splitlines()[0]
