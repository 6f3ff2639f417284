"""Enrolment of this device at a lab: `device-agent join`, and the standing of its identity.

`join` redeems a one-time token over HTTPS, whose server certificate must be of the lab's CA. It
writes the configuration of the agent and the CA, readable by the owner only, and a systemd unit,
starts it, and waits until the lab has seen the device. A device that has a valid identity of the
same lab keeps it: to join again is to repair.

When a broker refuses the agent later, `ask_standing` learns from the lab whether the identity was
renamed, was revoked, or has expired.
"""

import email.utils
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from fairbed.device_agent.config import AgentConfig, load_config
from fairbed.device_agent.errors import ConfigError, LabProblem
from fairbed.device_agent.installed import agent_version
from fairbed.device_agent.systemd import UNIT, quoted, unit_text
from fairbed.wire.enrolment import (
    DEFAULT_PORT,
    MAX_REPLY_BYTES,
    SECRET_PATTERN,
    EnrolReply,
    EnrolRequest,
    Problem,
    RenewReply,
    RenewRequest,
    decode_json,
    valid_name,
)
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import is_device_name
from fairbed.wire.text import NotText, TOMLDecodeError, text_of, toml_of
from fairbed.wire.transport.address import parse_url, with_login

TOKEN_VARIABLE = "FAIRBED_TOKEN"
"""Environment variable with the token, which keeps it out of the process list."""

TIMEOUT_S = 20.0
"""Longest wait for one step of a request."""

SEEN_S = 60.0
"""Longest wait until the lab has seen the device; an agent takes seconds to start on a board."""

CLOCK_LIMIT_S = 3600.0
"""Difference from the lab's clock that is reported; certificates and logs need no better clock."""

SPACE_BYTES = 1 << 20
"""Space that must be free for the configuration before a token is redeemed."""

_Reply = TypeVar("_Reply", bound=Struct)


@dataclass(frozen=True, slots=True)
class Lab:
    """Where the enrolment server of a lab is, and the certificate that it must have."""

    host: str
    port: int
    cafile: Path

    @property
    def url(self) -> str:
        """The address, for messages and the configuration."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"


def lab_at(url: str, cafile: Path) -> Lab:
    """Return the lab at an address `https://HOST[:PORT]`.

    Raises:
        ConfigError: The address is malformed.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        parts, port = urlsplit(""), DEFAULT_PORT
    if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/"):
        raise ConfigError(f"lab: must be https://HOST:PORT, got {url!r}; fairbed enroll prints it")
    return Lab(parts.hostname, port, cafile)


def request(
    lab: Lab, path: str, body: Struct, reply: type[_Reply], timeout_s: float = TIMEOUT_S
) -> tuple[_Reply, float | None]:
    """Post a request to a lab; return its reply and the time on the lab's clock, Unix seconds.

    Raises:
        LabProblem: There is no such reply; the message names the cause, and what to do.
    """
    problem, code = "", 0
    connection = http.client.HTTPSConnection(
        lab.host, lab.port, timeout=timeout_s, context=tls_context(lab)
    )
    try:
        connection.request(
            "POST",
            path,
            msgspec.json.encode(body),
            {"Content-Type": "application/json", "Connection": "close"},
        )
        answer = connection.getresponse()
        code, text = answer.status, answer.read(MAX_REPLY_BYTES)
        lab_s = parsed_date(answer.getheader("Date"))
        if code == http.client.OK:
            return decode_json(text, reply), lab_s
        problem = decode_json(text, Problem).problem
    except (OSError, http.client.HTTPException) as exc:
        raise LabProblem(f"{lab.url}: {connection_problem(exc, lab)}") from exc
    except DecodeError as exc:
        raise LabProblem(
            f"{lab.url}: must be the enrolment server of a lab, got another answer (status "
            f"{code}); check host and port: fairbed enroll prints them"
        ) from exc
    finally:
        connection.close()
    raise LabProblem(" ".join(problem.split()), status=code)


def tls_context(lab: Lab) -> ssl.SSLContext:
    """Return TLS settings that trust the lab's CA alone.

    Raises:
        LabProblem: The certificate of the CA cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=str(lab.cafile))
    except OSError as exc:
        raise LabProblem(
            f"{lab.cafile}: must be the certificate of the lab's CA, got: {exc.strerror or exc}; "
            "run the line of fairbed enroll again"
        ) from exc


_OTHER_CA = frozenset({18, 19, 20, 21})
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64
"""Codes of OpenSSL, X509_V_ERR_* in x509_vfy.h."""


def connection_problem(exc: BaseException, lab: Lab) -> str:
    """Return why a connection to a lab failed, and what to do; one line."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return _certificate_problem(exc, lab)
    if isinstance(exc, socket.gaierror):
        return (
            f"the name {lab.host} must resolve to an address, got: {exc.strerror}; check its "
            "spelling and the network, or let the lab print its IP address: "
            "fairbed enroll --address IP"
        )
    if isinstance(exc, ConnectionRefusedError):
        return "nothing listens there; on the lab host: fairbed lab up, and check the port"
    if isinstance(exc, TimeoutError):
        return "no answer; check address, network and the firewall of the lab host"
    if isinstance(exc, ssl.SSLError):
        return f"it does not speak TLS there ({exc.reason or exc}); check the port"
    if isinstance(exc, http.client.HTTPException):
        return "it does not speak HTTPS there; check the port"
    if isinstance(exc, OSError) and exc.strerror:
        return f"{exc.strerror}; check address and network"
    return f"{exc or type(exc).__name__}; check address and network"


def _certificate_problem(exc: ssl.SSLCertVerificationError, lab: Lab) -> str:
    code = exc.verify_code
    if code in (_NOT_YET_VALID, _EXPIRED):
        today = time.strftime("%Y-%m-%d", time.gmtime())
        state = "not valid yet" if code == _NOT_YET_VALID else "expired"
        return (
            f"its certificate is {state} on {today}, the date of this device; set the clock: "
            "sudo timedatectl set-ntp true"
        )
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            f"its certificate is not for the name {lab.host}; use an address of lab.toml, or add "
            "this one there (addresses) and restart the lab"
        )
    if code in _OTHER_CA:
        return (
            "its certificate is of another CA: this is not the lab of this device, or the lab was "
            "made anew; run the line of fairbed enroll again"
        )
    return f"its certificate is refused: {exc.verify_message}"


def parsed_date(header: str | None) -> float | None:
    """Return the Unix time of an HTTP date; None if there is none."""
    try:
        return email.utils.parsedate_to_datetime(header or "").timestamp()
    except (TypeError, ValueError):
        return None


def clock_problem(lab_s: float | None, now_s: float) -> str | None:
    """Return what is wrong with the clock of this device; None if little is, or unknown."""
    if lab_s is None or abs(now_s - lab_s) <= CLOCK_LIMIT_S:
        return None
    days = abs(now_s - lab_s) / 86400.0
    length = f"{days:.0f} days" if days >= 2.0 else f"{days * 24.0:.0f} hours"
    side = "behind" if now_s < lab_s else "ahead of"
    return (
        f"the clock of this device is {length} {side} the lab's; set it: "
        "sudo timedatectl set-ntp true"
    )


# Files --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """Where the files of an enrolled agent are."""

    folder: Path
    """Configuration and CA."""
    state: Path | None
    """State of the agent; None is the platform's folder."""
    cache: Path | None

    @property
    def config(self) -> Path:
        """The configuration of the agent."""
        return self.folder / "agent.toml"

    @property
    def cafile(self) -> Path:
        """The certificate of the lab's CA."""
        return self.folder / "lab-ca.pem"


SYSTEM_PLACES = Places(
    Path("/var/lib/fairbed"), Path("/var/lib/fairbed/state"), Path("/var/cache/fairbed")
)
"""Of a system unit: folders that systemd gives to its user."""


def default_places() -> Places:
    """Return where the files are: those of the system for root, else those of the user."""
    if hasattr(os, "geteuid") and os.geteuid() == 0 and has_systemd():
        return SYSTEM_PLACES
    base = os.environ.get("XDG_CONFIG_HOME")
    return Places((Path(base) if base else Path.home() / ".config") / "fairbed", None, None)


def has_systemd() -> bool:
    """Return whether systemd manages this system, as `sd_booted(3)` does."""
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, mode 0600, with the owner of its folder.

    Raises:
        LabProblem: It cannot be written, for example because the disk is full.
    """
    scratch: str | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(descriptor, "wb") as file:
            if os.geteuid() == 0:  # the user of the unit must be able to read it
                owner = path.parent.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as exc:
        if scratch is not None:
            with suppress(OSError):
                os.unlink(scratch)
        raise LabProblem(
            f"{path}: must be writable, got: {exc.strerror or exc}; free some space or change "
            "the permissions, and run the same line again"
        ) from exc


_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


def with_keys(text: str, values: Mapping[str, str]) -> str:
    """Return a TOML file with these top-level strings set; all else stays as it is.

    Raises:
        ConfigError: The file is no TOML, or writes one of the keys in a way that is not understood.
    """
    table = _TABLE.search(text)
    head, tail = (text, "") if table is None else (text[: table.start()], text[table.start() :])
    for key, value in values.items():
        line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
        found = re.search(rf"^{re.escape(key)}[ \t]*=.*$", head, re.MULTILINE)
        if found is None:
            head = f"{head.rstrip()}\n{line}\n" if head.strip() else f"{line}\n"
            head += "\n" if tail else ""
        else:
            head = head[: found.start()] + line + head[found.end() :]
    try:
        parsed = toml_of(head + tail)
    except NotText as exc:
        raise ConfigError(str(exc)) from exc
    except TOMLDecodeError as exc:
        raise ConfigError(f"must be a TOML file, {exc}; correct or delete it") from exc
    if any(parsed.get(key) != value for key, value in values.items()):
        raise ConfigError(f"must have {', '.join(values)} on one line each; correct or delete it")
    return head + tail


# Standing -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The identity in the configuration of an enrolled agent."""

    lab: Lab
    name: str
    password: str


def enrolled(config: AgentConfig) -> Enrolled | None:
    """Return the identity in a configuration; None if the agent was not enrolled at a lab."""
    if config.lab_url is None:
        return None
    try:
        address = parse_url(config.broker_url)
    except ValueError:
        return None
    if address.cafile is None or not re.fullmatch(SECRET_PATTERN, address.password or ""):
        return None
    lab = lab_at(config.lab_url, Path(address.cafile))
    return Enrolled(lab, config.name, address.password or "")


def ask_standing(identity: Enrolled, timeout_s: float = TIMEOUT_S) -> RenewReply:
    """Return the standing of an identity at its lab.

    Raises:
        LabProblem: The lab does not answer, or does not know the identity.
    """
    body = RenewRequest(name=identity.name, password=identity.password, agent=agent_version())
    return request(identity.lab, "/renew", body, RenewReply, timeout_s)[0]


def rename(path: Path, config: AgentConfig, name: str) -> None:
    """Write the new name of a renamed device into its configuration.

    Raises:
        LabProblem: The file cannot be written.
        ConfigError: The file is no TOML.
    """
    password = parse_url(config.broker_url).password or ""
    url = with_login(config.broker_url, name, password)
    try:
        text = with_keys(text_of(path.read_bytes()), {"name": name, "broker_url": url})
    except OSError as exc:
        raise LabProblem(f"{path}: must be readable, got: {exc.strerror or exc}") from exc
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    write_private(path, text)


def _broker_url(host: str, port: str, user: str, password: str, cafile: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    credentials = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return f"mqtts://{credentials}@{shown}{port}?cafile={quote(cafile)}"


# Join ---------------------------------------------------------------------------------------------

Write: TypeAlias = Callable[[str], None]
Run: TypeAlias = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a command; raises OSError if there is none."""


def run_command(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command of the system; return its code and output."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
        encoding="utf-8",
        errors="replace",
    )


def systemctl(arguments: Sequence[str], run: Run, *, is_system: bool) -> str | None:
    """Run systemctl; return why it refused, in one line, or None."""
    command = ["systemctl", *([] if is_system else ["--user"]), *arguments]
    done = run(command)
    if done.returncode == 0:
        return None
    return f"{' '.join(command)}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}"


def enable_unit(name: str, run: Run, *, is_system: bool) -> str | None:
    """Start a unit, now and with this machine; return why systemd refused, or None."""
    for arguments in (["daemon-reload"], ["enable", name], ["restart", name]):
        problem = systemctl(arguments, run, is_system=is_system)
        if problem is not None:
            return problem
    return None


def stays_up(run: Run) -> bool:
    """Let units of this user run without a login; return whether they do.

    Without polkit only root may allow it, and may have done so before.
    """
    if run(["loginctl", "enable-linger"]).returncode == 0:
        return True
    shown = run(["loginctl", "show-user", str(os.geteuid()), "--property=Linger", "--value"])
    return shown.stdout.strip() == "yes"


def read_token(environment: Mapping[str, str], stdin: Callable[[], str]) -> str:
    """Return the token of `FAIRBED_TOKEN`, else the first line of the input.

    Raises:
        ConfigError: There is no token, or it is malformed; the message does not quote it.
    """
    token = (environment.get(TOKEN_VARIABLE) or stdin()).strip()
    if re.fullmatch(SECRET_PATTERN, token) is None:
        got = "none" if not token else f"{len(token)} characters of another form"
        raise ConfigError(
            f"{TOKEN_VARIABLE}: must be the token that fairbed enroll prints, got {got}; copy the "
            "whole line"
        )
    return token


def join(
    lab: Lab,
    token: Callable[[], str],
    write: Write,
    *,
    name: str | None = None,
    places: Places | None = None,
    unit: bool = True,
    is_new: bool = False,
    run: Run = run_command,
    seen_s: float = SEEN_S,
) -> None:
    """Enrol this device, write its files, start its service and wait until the lab has seen it.

    Args:
        lab: The lab, with the file of its CA, which is copied.
        token: Returns the token; it is asked for only if one is needed.
        write: Receives lines for the operator of the device.
        name: Name of the device, which the token must allow; None is that of the token, or else
            that of the host.
        places: Where the files are; None is the place for this user.
        unit: Write and start a systemd unit where there is systemd.
        is_new: Replace a valid identity of the same lab.
        run: Runs `systemctl`.
        seen_s: Longest wait until the lab has seen the device.

    Raises:
        LabProblem: The lab refused, or cannot be reached, or a file cannot be written.
        ConfigError: Token, name or an existing configuration break a rule.
    """
    if name is not None and not is_device_name(name):
        raise ConfigError(f"name: must be 1 to 32 of a-z, 0-9 and hyphen, got {name!r}")
    places = places or default_places()
    kept = None if is_new else _kept_identity(places, lab)
    if kept is not None:
        _keep(places, lab, kept, write)
    elif not _enrol(places, lab, token(), name, write):
        return
    identity = enrolled(load_config(places.config, {}))
    assert identity is not None, "the file was written above"
    command = _command(places.config)
    if not unit or not has_systemd():
        write(f"there is no systemd service; start the agent with: {' '.join(command)}")
        return
    if not start_unit(command, run, write, is_system=places == SYSTEM_PLACES):
        write(f"start the agent with: {' '.join(command)}")
        return
    _await_seen(identity, seen_s, write, is_system=places == SYSTEM_PLACES)


def _kept_identity(places: Places, lab: Lab) -> RenewReply | None:
    """Return the standing of an identity of this lab that this device has; None if it has none."""
    if not places.config.exists():
        return None
    config = load_config(places.config, {})
    identity = enrolled(config)
    if identity is None:
        return None
    try:
        standing = ask_standing(Enrolled(lab, identity.name, identity.password))
    except LabProblem as exc:
        if exc.status is None:  # the lab was not reached: a token would not help
            raise
        return None
    if standing.standing in ("revoked", "expired"):
        return None
    if standing.standing == "renamed":
        rename(places.config, config, standing.name)
    return standing


def _keep(places: Places, lab: Lab, standing: RenewReply, write: Write) -> None:
    config = load_config(places.config, {})
    address = parse_url(config.broker_url)
    write_private(places.cafile, lab.cafile.read_text(encoding="ascii"))
    url = _broker_url(
        lab.host, f":{address.port}", standing.name, address.password or "", str(places.cafile)
    )
    text = text_of(places.config.read_bytes())
    values = {"broker_url": url, "lab_url": lab.url, **_key_of(standing)}
    write_private(places.config, with_keys(text, values))
    write(f"{standing.name}: keeps its identity at the lab {standing.lab}; no token is used")


def _enrol(places: Places, lab: Lab, token: str, name: str | None, write: Write) -> bool:
    """Redeem the token and write the files; return whether this is a device."""
    _check_space(places.folder)
    body = EnrolRequest(
        token=token,
        name=name,
        host_name=valid_name(socket.gethostname()),
        agent=agent_version(),
        machine=os.uname().machine,
        python=".".join(map(str, sys.version_info[:3])),
    )
    old = places.config.read_text(encoding="utf-8") if places.config.exists() else ""
    old = re.sub(r"^task_key[ \t]*=.*\n?", "", old, flags=re.MULTILINE)  # of another enrolment
    with_keys(old, {"name": "x"})  # a file that cannot be changed must not cost the token
    reply, lab_s = request(lab, "/enrol", body, EnrolReply)
    write_private(places.cafile, lab.cafile.read_text(encoding="ascii"))
    url = _broker_url(lab.host, f":{reply.port}", reply.user, reply.password, str(places.cafile))
    if reply.role != "device":
        path = places.folder / f"{reply.role}-{reply.name}.toml"
        write_private(path, with_keys("", {"broker_url": url, "role": reply.role}))
        write(f"{reply.name}: {reply.role} of the lab {reply.lab}; {path} has the broker's address")
        return False
    values = {"name": reply.name, "tenant": reply.tenant, "broker_url": url, "lab_url": lab.url}
    values |= _key_of(reply)
    if places.state is not None and places.cache is not None:
        values |= {"state_folder": str(places.state), "cache_folder": str(places.cache)}
    write_private(places.config, with_keys(old, values))
    load_config(places.config, {})
    expires = "" if reply.expires_s is None else f" until {utc_day(reply.expires_s)}"
    write(f"{reply.name}: enrolled at the lab {reply.lab}{expires}; wrote {places.config}")
    if (problem := clock_problem(lab_s, time.time())) is not None:
        write(f"warning: {problem}")
    return True


def _key_of(reply: EnrolReply | RenewReply) -> dict[str, str]:
    """Return the part of the configuration with the device's task key; empty without one."""
    return {} if reply.task_key is None else {"task_key": reply.task_key}


def utc_day(unix_s: float) -> str:
    """Return the date of a Unix time, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(unix_s))


def _check_space(folder: Path) -> None:
    """Raise `LabProblem` if the folder cannot take the files: a full disk must cost no token."""
    probe = folder / ".space"
    write_private(probe, "\n" * SPACE_BYTES)
    probe.unlink()


def _command(config: Path) -> tuple[str, ...]:
    script = Path(sys.executable).with_name("device-agent")
    if script.exists():
        return (str(script), "run", "--config", str(config))
    return (sys.executable, "-m", "fairbed.device_agent.cli", "run", "--config", str(config))


def start_unit(command: Sequence[str], run: Run, write: Write, *, is_system: bool) -> bool:
    """Write and (re)start the unit of the agent; return whether it runs.

    Raises:
        LabProblem: The unit cannot be written.
    """
    if not is_system and run(["systemctl", "--user", "show-environment"]).returncode != 0:
        write(
            "systemd has no session for this user (log in as this user, or run the line with sudo)"
        )
        return False
    folder = Path("/etc/systemd/system")
    if not is_system:
        base = os.environ.get("XDG_CONFIG_HOME")
        folder = (Path(base) if base else Path.home() / ".config") / "systemd" / "user"
    path = folder / UNIT
    text = unit_text(" ".join(map(quoted, command)), is_system=is_system, cores=os.cpu_count() or 1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise LabProblem(f"{folder}: must be a folder, got: {exc.strerror}") from exc
    write_private(path, text)
    path.chmod(0o644)  # no secret is in it, and tools of the system read it
    problem = enable_unit(UNIT, run, is_system=is_system)
    if problem is not None:
        write(problem)
        return False
    if not is_system and not stays_up(run):
        write(
            "the agent starts when you log in; to start it at boot: sudo loginctl enable-linger "
            + _user()
        )
    return True


def _user() -> str:
    return os.environ.get("USER", "$USER")


def _await_seen(identity: Enrolled, seen_s: float, write: Write, *, is_system: bool) -> None:
    log = f"journalctl {'' if is_system else '--user '}-u {UNIT.removesuffix('.service')}"
    deadline = time.monotonic() + seen_s
    while time.monotonic() < deadline:
        with suppress(LabProblem):
            if ask_standing(identity).is_seen:
                write(f"{identity.name}: the lab has seen this device; log: {log}")
                return
        time.sleep(1.0)
    raise LabProblem(
        f"{identity.name}: must be seen by the lab within {seen_s:g} s, got no sign of it; see "
        f"{log}, and: device-agent doctor"
    )
