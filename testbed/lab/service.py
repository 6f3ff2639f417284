"""`fairbed lab up`: the broker of a lab, its enrolment server and the contacts of its devices.

It runs until a signal. The broker's configuration is generated from the identities; a change of
them reaches the broker within `POLL_S`. A broker that dies is started again.
"""

import fcntl
import logging
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import psutil
from anyio.abc import TaskGroup, TaskStatus

from fairbed.device_agent.systemd import notify_systemd
from fairbed.testbed.broker.configuration import (
    Listener,
    mosquitto_acl,
    mosquitto_conf,
    mosquitto_passwords,
    nats_conf,
    nats_users,
)
from fairbed.testbed.broker.permissions import user_of
from fairbed.testbed.errors import BrokerError, LabError
from fairbed.testbed.host.broker_process import (
    SYSTEM_USER,
    BrokerProcess,
    find_mosquitto,
    find_nats,
)
from fairbed.testbed.host.broker_usage import KEPT_S, Usage
from fairbed.testbed.install import install_command
from fairbed.testbed.lab.audit import Audit
from fairbed.testbed.lab.enrolment import serve_enrolment
from fairbed.testbed.lab.folder import (
    SETTINGS_FILE,
    Lab,
    LabSettings,
    lab_option,
    make_signing_key,
    open_lab,
    sign_if_changed,
    write_private,
)
from fairbed.testbed.lab.identities import LAB_SERVICE, Contact, Identities, Identity
from fairbed.wire.codec import decode
from fairbed.wire.errors import DecodeError, Disconnected, VersionError, innermost
from fairbed.wire.messages import Hello, Signed, Status, is_device_name
from fairbed.wire.topics import ANY, Topics
from fairbed.wire.transport.base import LinkUp, Packet
from fairbed.wire.transport.client import MqttTransport

POLL_S = 0.2
"""From a change of an identity to the new configuration of the broker, seconds."""

RETRY_S, RETRY_CAP_S = 0.5, 60.0
"""Back-off of a broker that dies again and again, seconds."""

STABLE_S = 60.0
"""A broker that ran longer than this restarts the back-off."""

KEEPALIVE_S = 15
"""Of the lab's own connection, by which it notices a broker that hangs."""

HUNG_S = 60.0
"""A broker that runs, but accepts no login for so long, is killed and started again."""

FLUSH_S = 30.0
"""Interval at which times of last contact are stored; changes of state are stored at once."""

MAX_PENDING = 10_000
"""Devices with a contact that is not stored yet; further ones wait for their next message."""

LOCK_FILE = "lab.pid"
BROKER_PID_FILE = "broker.pid"

LEAST_VERSIONS: Mapping[str, tuple[tuple[int, int, int], str]] = {
    "mosquitto": ((2, 0, 0), "an older one cannot read the hashes of passwords"),
    "nats": (
        (2, 12, 6),
        "with 2.12.3 to 2.12.5 a device reads and forges messages of others, and an older one "
        "refuses the subscriptions of devices",
    ),
}
"""Tried with `tests/testbed/lab/test_trespass.py`."""

VERSION_S = 10.0
"""Longest time in which a broker names its version, seconds."""

_log = logging.getLogger(__name__)


def running_pid(lab: Lab) -> int | None:
    """Return the process that runs a lab; None if it is down."""
    try:
        with (lab.broker / LOCK_FILE).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0)
    except (OSError, ValueError):
        return None
    return None


def pid_of_broker(lab: Lab) -> int | None:
    """Return the process of a lab's broker, as its last start noted it; None if it is unknown."""
    try:
        return int((lab.broker / BROKER_PID_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def open_running_lab() -> Lab:
    """Return the lab on this machine, for `broker.url = "lab"`.

    Raises:
        LabError: There is none, or it is down.
    """
    lab = open_lab()
    if running_pid(lab) is None:
        raise LabError(
            f"broker.url: the lab {lab.folder} must be up, got one that is down; start it with: "
            "fairbed lab up"
        )
    return lab


def has_account(lab: Lab, user: str) -> bool:
    """Return whether the configuration that the broker of a lab reads has an MQTT user."""
    is_mosquitto = lab.settings.broker == "mosquitto"
    path = lab.broker / ("passwords" if is_mosquitto else "nats.json")
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise LabError(f"{path}: must be readable, got {exc.strerror}") from exc
    if is_mosquitto:
        return any(line.startswith(f"{user}:") for line in text.splitlines())
    return f'"{user}"' in text


@contextmanager
def _locked(lab: Lab) -> Iterator[None]:
    """Own the lab while the context lasts; the kernel releases it when this process dies."""
    try:
        lab.broker.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(lab.broker / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise LabError(f"{lab.broker}: must be writable, got {exc.strerror}") from exc
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise LabError(
                f"{lab.folder}: the lab is up already, as process {running_pid(lab)}; "
                f"stop it first with: fairbed lab down{lab_option(lab.folder)}"
            ) from exc
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def check_ports(settings: LabSettings, file: Path | None = None) -> None:
    """Check that the ports of a lab are free.

    Args:
        settings: Of the lab.
        file: Where they can be changed; None: by the options of `fairbed lab init`.

    Raises:
        LabError: One is in use.
    """
    for key in ("port", "enrol_port", "local_port"):
        port = getattr(settings, key)
        if port is None:
            continue
        host = "127.0.0.1" if key == "local_port" else ""
        other = f"--{key.replace('_', '-')}" if file is None else f"{key} in {file}"
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker does
            try:
                probe.bind((host, port))
            except PermissionError as exc:
                raise LabError(
                    f"lab: {key} {port} needs the rights of root; choose {other} from 1024 on"
                ) from exc
            except OSError as exc:
                raise LabError(
                    f"lab: {key} {port} must be free, got {_user_of_port(port)}; stop that "
                    f"program, or choose another {other}"
                ) from exc


def _user_of_port(port: int) -> str:
    """Return the program that listens on a port, as far as this user may see it."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            is_it = connection.laddr and connection.laddr.port == port
            if is_it and connection.status == psutil.CONN_LISTEN and connection.pid:
                name = psutil.Process(connection.pid).name()
                return f"{name} (process {connection.pid}) there"
    return "another program there"


def find_program(broker: str) -> list[str]:
    """Return the command that runs the broker of a lab.

    Raises:
        LabError: It is not installed.
    """
    command = find_mosquitto() if broker == "mosquitto" else find_nats()
    if command is None:
        advice = (
            "run: sudo apt install mosquitto"
            if broker == "mosquitto"
            else f"run: {install_command('fairbed[broker]')}"
        )
        raise LabError(f"lab: the broker {broker} must be installed, got none; {advice}")
    check_version(broker, command)
    return command


def check_version(broker: str, command: Sequence[str]) -> None:
    """Check that a broker is new enough to enforce what each role may do.

    Raises:
        LabError: It is older, or has no version.
    """
    least, why = LEAST_VERSIONS[broker]
    option = "-h" if broker == "mosquitto" else "--version"  # mosquitto has no other
    try:
        done = subprocess.run(
            [*command, option],
            capture_output=True,
            text=True,
            timeout=VERSION_S,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LabError(f"lab: {command[0]} must name its version, got {exc}") from exc
    first = next(iter(done.stdout.splitlines()), "")
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", first)
    if found is None or tuple(map(int, found.groups())) < least:
        raise LabError(
            f"lab: {broker} must be {'.'.join(map(str, least))} or newer, got "
            f"{found[0] if found else repr(first)}: {why}; update it"
        )


class _Broker:
    """The broker of a lab and its generated configuration.

    Args:
        lab: The lab.
        on_refused: Receives an identity that keeps too much in the broker's memory, and what.
    """

    def __init__(self, lab: Lab, on_refused: Callable[[Identity, str], None]) -> None:
        self._lab, self._is_stale, self._on_refused = lab, False, on_refused
        self.is_ready = False
        """It has accepted a login since its last start."""
        settings = lab.settings
        self._system_password = secrets.token_urlsafe(24)
        self._process = BrokerProcess(
            settings.broker,
            find_program(settings.broker),
            ("127.0.0.1", settings.local_port or settings.port),
            lab.url(user_of(*LAB_SERVICE)),
            lab.broker / "broker.log",
            self._system_password if settings.broker == "nats" else None,
        )
        self._accounts: Mapping[str, Identity] = {}
        """As they were configured, by user."""
        self._refused_until = dict[str, float]()
        """Users that keep too much in the broker's memory, and how long it refuses them."""

    @property
    def refused(self) -> frozenset[str]:
        """Users that the broker has to refuse now because they keep too much in its memory."""
        now = anyio.current_time()
        return frozenset(user for user, end in self._refused_until.items() if now < end)

    def configure(self, accounts: Sequence[Identity]) -> None:
        """Write the configuration; a running broker reads it and drops those refused.

        Raises:
            LabError: It cannot be written.
        """
        refused = self.refused
        accepted = [one for one in accounts if one.user not in refused]
        write_configuration(self._lab, accepted, self._system_password)
        self._accounts = {one.user: one for one in accounts}
        if self.is_ready:
            self._process.reload()
        else:  # a signal would end a process that is just starting
            self._is_stale = True

    async def start(self) -> None:
        """Start the broker, and return when it accepts a login.

        Raises:
            BrokerError: It does not start.
        """
        self.is_ready, self._is_stale = False, False
        await self._process.start(["-c", str(configuration_of(self._lab))])
        with suppress(LabError):  # a full disk; runs then do not see when the broker has to wait
            write_private(self._lab.broker / BROKER_PID_FILE, str(self._process.pid).encode())
        self.is_ready = True
        if self._is_stale:
            self._process.reload()

    async def stop(self) -> None:
        """Stop the broker; returns when it has ended."""
        self.is_ready = False
        (self._lab.broker / BROKER_PID_FILE).unlink(missing_ok=True)
        await self._process.stop()

    async def kill(self) -> None:
        """Kill the broker; `keep_up` starts it again."""
        self.is_ready = False
        await self._process.kill()

    def _refuse_excess(self, usage: Mapping[str, Usage]) -> None:
        """Refuse each user that keeps too much in the broker's memory, for a while."""
        for user in usage.keys() - self.refused:
            one = self._accounts.get(user)
            problem = None if one is None else usage[user].excess(one.role)
            if one is not None and problem is not None:
                self._refused_until[user] = anyio.current_time() + KEPT_S
                text = f"{problem}; the broker refuses it for {KEPT_S // 60} minutes"
                _log.warning(
                    "%s %s %s; revoke it with: fairbed devices revoke %s",
                    one.role,
                    one.name,
                    text,
                    one.name,
                )
                self._on_refused(one, text)

    async def keep_up(self) -> None:
        """Start the broker again whenever it ends; the waits grow to `RETRY_CAP_S`."""
        failures, last_problem = 0, ""
        while True:
            started_s = anyio.current_time()
            why = await self._process.wait(self._refuse_excess)
            self.is_ready = False
            problem = f"{self._lab.settings.broker} ended; {why}"
            if anyio.current_time() - started_s > STABLE_S:
                failures = 0
            await anyio.sleep(min(RETRY_CAP_S, RETRY_S * 2.0**failures))
            failures = min(failures + 1, 20)
            try:
                await self._process.kill()
                await self.start()
                _log.warning("%s; it was started again", problem)
                last_problem = ""
            except BrokerError as exc:
                if str(exc) != last_problem:
                    _log.error("%s; it is tried again", exc)
                last_problem = str(exc)


def configuration_of(lab: Lab) -> Path:
    """Return the file that the broker is started with."""
    return lab.broker / ("nats.json" if lab.settings.broker == "nats" else "mosquitto.conf")


def write_configuration(lab: Lab, accounts: Sequence[Identity], system_password: str) -> None:
    """Write the files of the broker.

    Args:
        lab: The lab.
        accounts: The identities that it accepts.
        system_password: Of NATS' system account.

    Raises:
        LabError: They cannot be written.
    """
    tls = Listener(port=lab.settings.port, certificate=str(lab.server), key=str(lab.server_key))
    if lab.settings.broker == "nats":
        text = nats_conf(
            tls,
            nats_users(accounts),
            server_name=f"fairbed-{lab.settings.name}",
            data_folder=str(lab.broker / "jetstream"),
            system_user={"user": SYSTEM_USER, "password": system_password},
        )
        write_private(configuration_of(lab), text.encode())
        return
    passwords, acl = lab.broker / "passwords", lab.broker / "acl"
    assert lab.settings.local_port is not None, "checked with the settings"
    text = mosquitto_conf(
        [tls, Listener(port=lab.settings.local_port, host="127.0.0.1")],
        password_file=str(passwords),
        acl_file=str(acl),
        user="root" if os.geteuid() == 0 else None,  # another one cannot read these files
    )
    write_private(acl, mosquitto_acl(accounts).encode())
    write_private(passwords, mosquitto_passwords(accounts).encode())
    write_private(configuration_of(lab), text.encode())


async def serve_lab(
    lab: Lab,
    *,
    on_ready: Callable[[], None] = lambda: None,
    now: Callable[[], float] = time.time,
) -> None:
    """Run a lab until SIGINT, SIGTERM or SIGHUP.

    Args:
        lab: The lab; no other process may run it.
        on_ready: Called once, when broker and enrolment server have been started.
        now: Unix time.

    Raises:
        LabError: It is up already, a port is in use, or a file cannot be used.
        BrokerError: The broker does not start.
    """
    failure: Exception | None = None
    with _locked(lab):
        check_ports(lab.settings, lab.folder / SETTINGS_FILE)
        sign_if_changed(lab, now_s=now())
        make_signing_key(lab)
        shutil.rmtree(lab.broker / "jetstream", ignore_errors=True)  # messages of an earlier start
        with Identities(lab.database) as identities:
            audit = Audit(lab.audit)

            def note_refused(one: Identity, text: str) -> None:
                with suppress(LabError):  # a full disk; the log of the lab has it
                    audit.write(
                        "refuse", at_s=now(), name=one.name, role=one.role, by="lab", detail=text
                    )

            broker = _Broker(lab, note_refused)
            try:
                async with anyio.create_task_group() as tasks:
                    await tasks.start(_end_at_signal, tasks, name="lab.signals")
                    version, accounts = identities.version(), identities.accepted(now())
                    broker.configure(accounts)
                    await broker.start()
                    contacts = Contacts(identities, now)
                    tasks.start_soon(broker.keep_up, name="lab.broker")
                    tasks.start_soon(
                        _follow,
                        broker,
                        contacts,
                        identities,
                        now,
                        version,
                        next_expiry_s(accounts),
                        name="lab.identities",
                    )
                    tasks.start_soon(_listen, lab, contacts, broker, name="lab.contacts")
                    tasks.start_soon(_store, contacts, broker, name="lab.store")
                    enrolment = partial(serve_enrolment, lab, identities, audit, now=now)
                    await tasks.start(enrolment, name="lab.enrolment")
                    tasks.start_soon(notify_systemd, name="lab.systemd")
                    on_ready()
            except Exception as exc:  # raised below, outside the group, which would wrap it
                failure = innermost(exc)
            finally:
                with anyio.CancelScope(shield=True):
                    await broker.stop()
    if failure is not None:
        raise failure


async def _end_at_signal(
    tasks: TaskGroup, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
        numbers.append(signal.SIGHUP)
    with anyio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            _log.info("ended by %s", signal.Signals(number).name)
            tasks.cancel_scope.cancel()
            return


async def _follow(
    broker: _Broker,
    contacts: "Contacts",
    identities: Identities,
    now: Callable[[], float],
    version: int,
    expires_s: float,
) -> None:
    """Configure the broker anew whenever an identity changes, expires or is refused for a while.

    A clock that was ahead and is set back makes expired identities valid again.

    Args:
        broker: As it was configured for `version` of the identities.
        contacts: Of the devices.
        identities: All of them.
        now: Unix time.
        version: Of the identities.
        expires_s: Unix time at which the first of them expires.
    """
    last_problem, since_s, refused = "", now(), broker.refused
    while True:
        await anyio.sleep(POLL_S)
        try:
            found, now_s, refused_now = identities.version(), now(), broker.refused
            is_same = found == version and refused_now == refused
            if is_same and since_s <= now_s < expires_s:
                continue
            accounts = identities.accepted(now_s)
            broker.configure(accounts)
            contacts.forget_states()
            version, since_s, expires_s = found, now_s, next_expiry_s(accounts)
            refused = refused_now
            last_problem = ""
        except LabError as exc:  # such as a full disk: try again
            if str(exc) != last_problem:
                _log.error("%s", exc)
            last_problem = str(exc)


def next_expiry_s(accounts: Iterable[Identity]) -> float:
    """Return the Unix time at which the first of them expires; infinity if none does."""
    return min((one.expires_s for one in accounts if one.expires_s is not None), default=math.inf)


class Contacts:
    """Notes the contacts of devices, and stores them in batches."""

    def __init__(self, identities: Identities, now: Callable[[], float] = time.time) -> None:
        self._identities, self._now = identities, now
        self._pending: dict[str, Contact] = {}
        self._known: dict[str, Contact] = {}
        """As stored."""
        self._is_anew = False
        """The stored states are out of date."""
        self.is_urgent = False
        """A state or a version has changed."""

    def restart(self) -> None:
        """Forget which devices are online: the broker sends their status after each connect."""
        self._pending, self._known, self._is_anew, self.is_urgent = {}, {}, True, True

    def forget_states(self) -> None:
        """Store the next state of each device at once: a changed identity is stored as offline."""
        self._known = {}

    def on_packet(self, packet: Packet) -> None:
        """Note a message of a device."""
        match packet.topic.split("/"):
            case ["fairbed", _, "d", name, ("status" | "tel" | "up") as channel] if is_device_name(
                name
            ):
                self._note(name, channel, packet)

    def _note(self, name: str, channel: str, packet: Packet) -> None:
        if name not in self._pending and len(self._pending) >= MAX_PENDING:
            return
        state = "online"
        agent: str | None = None
        if channel != "tel":
            try:
                message = decode(packet.payload)
                if isinstance(message, Signed):  # only a run has the key of its session
                    message = decode(message.body)
                match message:
                    case Status(state="off"):
                        if packet.retained:  # an old one: see `restart`
                            return
                        state = "offline"
                    case Hello(capabilities=capabilities):
                        agent = capabilities.agent
            except VersionError:
                agent = f"protocol {packet.payload[0]}"
            except DecodeError:
                return
        before = self._pending.get(name) or self._known.get(name)
        merged = Contact(
            name=name,
            at_s=self._now(),
            agent=agent or (before.agent if before is not None else None),
            state=state,
        )
        if before is None or (before.state, before.agent) != (merged.state, merged.agent):
            self.is_urgent = True
        self._pending[name] = merged

    def store(self) -> None:
        """Store what is pending.

        Raises:
            LabError: The file cannot be used; what is pending stays.
        """
        pending, self._pending, self.is_urgent = self._pending, {}, False
        try:
            if self._is_anew:
                self._identities.all_offline()
                self._is_anew = False
            self._identities.saw_many(pending.values())
        except LabError:
            self._pending = pending | self._pending
            raise
        self._known |= pending


async def _end_if_hung(transport: MqttTransport, broker: _Broker) -> None:
    """Kill a broker that runs but accepts no login, so that it is started again."""
    down_s = 0.0
    while True:
        await anyio.sleep(POLL_S)
        down_s = 0.0 if transport.down_reason is None or not broker.is_ready else down_s + POLL_S
        if down_s > HUNG_S:
            _log.error("the broker has not answered for %.0f s; it is killed", down_s)
            await broker.kill()
            down_s = 0.0


async def _listen(lab: Lab, contacts: Contacts, broker: _Broker) -> None:
    """Note the messages of all devices of all tenants."""
    topics = Topics(ANY)
    transport = MqttTransport(
        lab.url(user_of(*LAB_SERVICE)),
        f"lab-{secrets.token_hex(12)}",
        keepalive_s=KEEPALIVE_S,
        waits_if_refused=True,
    )
    async with transport, anyio.create_task_group() as tasks:
        tasks.start_soon(_end_if_hung, transport, broker, name="lab.hung")
        with suppress(Disconnected):
            await transport.subscribe(topics.status(ANY), topics.telemetry(ANY), topics.up(ANY))
        async for event in transport.events():
            match event:
                case LinkUp():
                    contacts.restart()
                case Packet():
                    contacts.on_packet(event)


async def _store(contacts: Contacts, broker: _Broker) -> None:
    waited_s, last_problem = 0.0, ""
    try:
        while True:
            await anyio.sleep(POLL_S)
            waited_s += POLL_S
            if waited_s < FLUSH_S and not contacts.is_urgent:
                continue
            waited_s = 0.0
            try:
                contacts.store()
                last_problem = ""
            except LabError as exc:
                if str(exc) != last_problem:
                    _log.error("%s", exc)
                last_problem = str(exc)
    finally:
        with suppress(LabError):
            contacts.store()
