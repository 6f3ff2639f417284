"""Nobody gets further on a broker of a lab than its role allows: tried on mosquitto and NATS.

Each test tries something forbidden with a bare client, and the permitted counterpart in the same
way, so that a broker that forwards nothing fails the test, too. A witness without limits reads
every message that the broker forwards. Order proves absence without a wait: a mark that was
published after the forbidden message arrives, and the message did not arrive before it.
"""

import secrets
import signal
import socket
import ssl
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import pytest
from _pytest.mark import ParameterSet

from fairbed.device_agent.config import AgentConfig
from fairbed.device_agent.process import client_id
from fairbed.testbed.broker.configuration import MAX_PACKET_BYTES, mosquitto_hash
from fairbed.testbed.broker.permissions import Role, permissions, user_of
from fairbed.testbed.lab.folder import Lab, write_private
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.lab.service import configuration_of, write_configuration
from fairbed.testbed.run.broker import find_broker
from fairbed.wire.messages import MAX_CHUNK_BYTES
from fairbed.wire.topics import Topics
from fairbed.wire.transport.client import matches
from tests.ledger import LEDGER
from tests.processes import end
from tests.testbed.lab.labs import make_lab
from tests.testbed.lab.raw_client import Closed, Login, Message, RawClient, packet

MAIN, OTHER = Topics("main"), Topics("other")

ROLES: dict[str, tuple[Role, str]] = {
    "pi": ("device", "main"),
    "nano": ("device", "main"),
    "far": ("device", "other"),
    "old": ("device", "main"),
    "gone": ("device", "main"),
    "vera": ("viewer", "+"),
    "alice": ("operator", "+"),
    "bob": ("operator", "+"),
    "main": ("coordinator", "+"),
}
"""Role and tenant by name; the identity of `old` has expired, and that of `gone` is revoked."""

NOW_S = 1_800_000_000.0
"""Time of the registry, Unix seconds."""

WITNESS, WITNESS_PASSWORD = "witness", "password of the witness"
"""A user of these tests that publishes and reads everything."""

GONE_WITHIN_S = 1.0
"""Longest time in which a revoked device still gets or gives anything."""

START_S = 10.0

RELOADED = {"mosquitto": b"Reloading config.", "nats": b"Reloaded server configuration"}
"""Line of the log about each reload: mosquitto's before it, and before it serves any client."""


@dataclass(kw_only=True)
class Place:
    """A running broker of a lab."""

    kind: str
    lab: Lab
    identities: Identities
    passwords: dict[str, str]
    trust: ssl.SSLContext
    process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """TLS, on all addresses."""
        return self.lab.settings.port

    @property
    def log(self) -> Path:
        return self.lab.folder / "broker.log"

    def user(self, name: str) -> str:
        return WITNESS if name == WITNESS else user_of(name, ROLES[name][0])

    def login(self, name: str, **changes: object) -> Login:
        login = Login(f"x{secrets.token_hex(8)}", self.user(name), self.passwords[name])
        for key, value in changes.items():
            setattr(login, key, value)
        return login

    def client(self, name: str, **changes: object) -> RawClient:
        """Return a connection of an identity."""
        return self.raw(self.login(name, **changes))

    def raw(self, login: Login) -> RawClient:
        return RawClient(self.port, login, self.trust)

    def witness(self) -> RawClient:
        return self.client(WITNESS)

    def configure(self) -> None:
        """Write the files of the broker from the registry, and the witness into them."""
        write_configuration(self.lab, self.identities.accepted(NOW_S), "system")
        if self.kind == "mosquitto":
            hashed = mosquitto_hash(WITNESS_PASSWORD, bytes(12))
            self._append("passwords", f"{WITNESS}:{hashed}\n")
            self._append("acl", f"\nuser {WITNESS}\ntopic readwrite #\n")
        else:
            path = configuration_of(self.lab)
            settings = msgspec.json.decode(path.read_bytes())
            login = {"user": WITNESS, "password": WITNESS_PASSWORD}
            settings["authorization"]["users"].append(login)
            write_private(path, msgspec.json.encode(settings))

    def _append(self, name: str, text: str) -> None:
        path = self.lab.broker / name
        write_private(path, path.read_bytes() + text.encode())

    def start(self) -> None:
        self.configure()
        command = find_broker("mosquitto" if self.kind == "mosquitto" else "nats")
        assert command is not None
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "-c", str(configuration_of(self.lab))], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with suppress(Closed), self.witness():
                return
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def reload(self) -> float:
        """Make the broker read its files again; return the instant of the signal.

        Before NATS has done so, it may accept a client of a new user and close its connection.
        """
        self.configure()
        assert self.process is not None
        before = self.log.read_bytes().count(RELOADED[self.kind])
        at_s = time.monotonic()
        self.process.send_signal(signal.SIGHUP)
        while self.log.read_bytes().count(RELOADED[self.kind]) == before:
            assert time.monotonic() < at_s + START_S, self.log.read_text()
            time.sleep(0.002)
        return at_s

    def stop(self) -> None:
        if self.process is not None:
            end(self.process)


def _kinds() -> list[ParameterSet]:
    return [
        pytest.param(
            kind,
            marks=[
                pytest.mark.broker,
                pytest.mark.skipif(find_broker(kind) is None, reason=f"{kind} is not installed"),
            ],
        )
        for kind in ("mosquitto", "nats")
    ]


@pytest.fixture(scope="module", params=_kinds())
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    lab = make_lab(tmp_path_factory.mktemp("trespass"), request.param)
    with Identities(lab.database) as identities:
        passwords = {
            name: identities.create(
                name,
                role,
                tenant=tenant if role == "device" else "main",  # the others belong to all
                now_s=NOW_S - 100,
                expires_s=NOW_S - 1 if name == "old" else None,
            )
            for name, (role, tenant) in ROLES.items()
            if role != "coordinator"
        }
        passwords |= msgspec.json.decode(lab.coordinator.read_bytes(), type=dict[str, str])
        passwords |= {"main": passwords["coordinator_main"], WITNESS: WITNESS_PASSWORD}
        identities.revoke("gone", now_s=NOW_S - 1)
        trust = ssl.create_default_context(cafile=str(lab.ca))
        made = Place(
            kind=request.param, lab=lab, identities=identities, passwords=passwords, trust=trust
        )
        try:
            made.start()
            yield made
        finally:
            made.stop()


# -- publishing ------------------------------------------------------------------------------------

HONEST: dict[str, str] = {
    "pi": MAIN.up("pi"),
    "vera": MAIN.watch("vera"),
    "alice": MAIN.command("alice"),
    "main": MAIN.control_all,
}
"""A topic that each publishes on by right."""

PUBLISHED: list[tuple[str, str | bytes]] = [
    ("pi", MAIN.status("nano")),
    ("pi", MAIN.telemetry("nano")),
    ("pi", MAIN.up("nano")),
    ("pi", MAIN.upload("nano")),
    ("pi", MAIN.coordinator),
    ("pi", MAIN.control_all),
    ("pi", MAIN.control("pi")),
    ("pi", MAIN.control("nano")),
    ("pi", MAIN.data("nano")),
    ("pi", MAIN.intent("ff")),
    ("pi", MAIN.chunk("ff", 0)),
    ("pi", MAIN.command("alice")),
    ("pi", MAIN.command("local")),
    ("pi", MAIN.command("pi")),
    ("pi", MAIN.watch("pi")),
    ("pi", MAIN.watch("vera")),
    ("pi", MAIN.rows("vera")),
    ("pi", MAIN.limit("ff")),
    ("pi", OTHER.up("pi")),
    ("pi", OTHER.control_all),
    ("pi", "fairbed/main/d//up"),
    ("pi", "fairbed//d/pi/up"),
    ("pi", "/fairbed/main/d/pi/up"),
    ("pi", "fairbed/main/d/pi/up/"),
    ("pi", "fairbed/main/d/pi/up/more"),
    ("pi", "FAIRBED/main/d/pi/up"),
    ("pi", "fairbed.main.d.nano.up"),
    ("pi", "fairbed/main/d/pi.up"),
    ("pi", "fairbed/main/d/nano/up\u00a0"),
    ("pi", "fairbed/main/d/*/up"),
    ("pi", "fairbed/main/d/>"),
    ("pi", "fairbed/main/d/+/up"),
    ("pi", "fairbed/main/d/#"),
    ("pi", "fairbed/main/d/nano/up\0"),
    ("pi", b"fairbed/main/d/nano/up\xff"),
    ("pi", ""),
    ("pi", "$SYS/broker/uptime"),
    ("pi", "$MQTT/msgs/fairbed/main/d/nano/up"),
    ("pi", "$MQTT/sub/fairbed"),
    ("pi", "$share/group/fairbed/main/d/nano/up"),
    ("vera", MAIN.status("vera")),
    ("vera", MAIN.up("pi")),
    ("vera", MAIN.coordinator),
    ("vera", MAIN.command("vera")),
    ("vera", MAIN.command("alice")),
    ("vera", MAIN.watch("alice")),
    ("vera", MAIN.rows("vera")),
    ("vera", MAIN.rows("alice")),
    ("vera", "fairbed/nothing"),
    ("alice", MAIN.command("bob")),
    ("alice", MAIN.command("local")),
    ("alice", MAIN.watch("bob")),
    ("alice", MAIN.rows("bob")),
    ("alice", MAIN.coordinator),
    ("alice", MAIN.control("pi")),
    ("alice", MAIN.control_all),
    ("alice", MAIN.up("pi")),
    ("main", MAIN.up("pi")),
    ("main", MAIN.status("pi")),
    ("main", MAIN.telemetry("pi")),
    ("main", MAIN.upload("pi")),
    ("main", MAIN.command("alice")),
    ("main", MAIN.watch("vera")),
]
"""User and topic of messages that must not be forwarded."""


def publish_all(place: Place, name: str, topic: str | bytes, payload: bytes) -> None:
    """Publish at each QoS, retained, also if the broker ends the connection each time."""
    client = place.client(name)
    try:
        for qos in (0, 1, 2):
            with suppress(Closed):
                client.publish(topic, payload, qos=qos, retain=True)
            if client.is_closed():
                client.close()
                client = place.client(name)
    finally:
        client.close()


def _named(values: list[tuple[str, str | bytes]]) -> list[ParameterSet]:
    return [
        pytest.param(who, topic, id=f"{who}-{topic!r}" if topic != "" else f"{who}-empty")
        for who, topic in values
    ]


@pytest.mark.parametrize(("who", "topic"), _named(PUBLISHED))
def test_nothing_is_published_outside_of_the_own_topics(
    place: Place, who: str, topic: str | bytes
) -> None:
    forbidden, mark = secrets.token_bytes(8), secrets.token_bytes(8)
    with place.witness() as witness:
        witness.subscribe("#")
        publish_all(place, who, topic, forbidden)
        with place.client(who) as honest:
            honest.publish(HONEST[who], mark, qos=1)
        assert forbidden not in [message.payload for message in witness.until(mark)]
    with place.witness() as witness:  # what the broker kept would arrive now
        witness.subscribe("#")
        witness.subscribe("$SYS/#")
        if isinstance(topic, str) and topic and "\0" not in topic:
            witness.subscribe(topic)
        witness.publish("test/mark", mark)
        assert forbidden not in [message.payload for message in witness.until(mark)]


WILLS = [
    ("pi", MAIN.status("nano")),
    ("pi", MAIN.coordinator),
    ("pi", MAIN.command("alice")),
    ("vera", MAIN.status("pi")),
    ("vera", MAIN.rows("alice")),
    ("alice", MAIN.command("bob")),
    ("alice", MAIN.coordinator),
    ("main", MAIN.status("pi")),
]


@pytest.mark.parametrize(("who", "topic"), WILLS)
def test_no_will_is_published_outside_of_the_own_topics(place: Place, who: str, topic: str) -> None:
    with place.witness() as witness:
        witness.subscribe("#")
        forbidden, mark = secrets.token_bytes(8), secrets.token_bytes(8)
        for qos in (0, 1):
            with suppress(Closed), place.client(who, will=(topic, forbidden), will_qos=qos):
                pass
        with place.client("pi", will=(MAIN.status("pi"), mark)):
            pass  # the connection ends without DISCONNECT
        assert forbidden not in [message.payload for message in witness.until(mark)]
        witness.publish(MAIN.status("pi"), b"", retain=True)


# -- reading ---------------------------------------------------------------------------------------

READ: list[tuple[str, str]] = [
    *(
        ("pi", topic)
        for topic in (
            MAIN.control("nano"),
            MAIN.data("nano"),
            MAIN.status("nano"),
            MAIN.telemetry("nano"),
            MAIN.up("nano"),
            MAIN.upload("nano"),
            MAIN.upload("+"),
            MAIN.control("+"),
            MAIN.command("+"),
            MAIN.watch("+"),
            MAIN.rows("+"),
            MAIN.rows("vera"),
            MAIN.intent("+"),
            MAIN.limit("+"),
            OTHER.control_all,
            OTHER.coordinator,
            OTHER.control("pi"),
            OTHER.chunk("+", "+"),
            "#",
            "/#",
            "+/#",
            "+/+/+/+/+",
            "fairbed/#",
            "fairbed/main/#",
            "fairbed/main/d/#",
            "fairbed/main/d/pi/#",
            "fairbed/main/b/#",
            "fairbed/+/ctl",
            "fairbed/+/d/nano/ctl",
            "fairbed//d/nano/ctl",
            "fairbed/main/d/nano/ctl/#",
            "fairbed/main/d/nano//ctl",
            "fairbed.main.>",
            "fairbed.main.d.nano.ctl",
            "fairbed/main/d/*/ctl",
            "fairbed/main/>",
            ">",
            "*",
            "$share/group/fairbed/main/d/nano/ctl",
            "$share/group/#",
            "$queue/fairbed/main/d/nano/ctl",
            "$SYS/#",
            "$SYS/broker/#",
            "$SYS/ACCOUNT/#",
            "$JS/#",
            "$JS/API/#",
            "$JS/EVENT/#",
            "$MQTT/#",
            "$MQTT/sub/#",
            "$MQTT/rmsgs/#",
            "$MQTT/JSA/#",
            "_INBOX/#",
            "$fairbed/main/#",
        )
    ),
    *(
        (who, topic)
        for who in ("vera", "alice")
        for topic in (
            MAIN.chunk("+", "+"),
            MAIN.chunk("ff", 0),
            MAIN.intent("+"),
            MAIN.upload("+"),
            MAIN.upload("pi"),
            MAIN.up("+"),
            MAIN.control("+"),
            MAIN.data("pi"),
            MAIN.control_all,
            MAIN.command("+"),
            MAIN.command("bob"),
            MAIN.watch("+"),
            MAIN.rows("+"),
            MAIN.rows("bob"),
            "#",
            "fairbed/+/#",
            "$share/group/fairbed/main/u/pi",
        )
    ),
]
"""User and filter of subscriptions that must give nothing beyond the own topics."""

SECRETS: list[tuple[str, str]] = [
    *(("main", topics.control(name)) for topics, name in ((MAIN, "nano"), (OTHER, "far"))),
    ("main", MAIN.data("nano")),
    ("main", MAIN.data("pi")),
    ("main", MAIN.control("pi")),
    ("main", MAIN.control_all),
    ("main", OTHER.control_all),
    ("main", OTHER.coordinator),
    ("main", MAIN.intent("ff")),
    ("main", MAIN.chunk("ff", 0)),
    ("main", OTHER.chunk("ff", 0)),
    ("main", MAIN.limit("ff")),
    ("main", MAIN.rows("bob")),
    ("main", MAIN.rows("vera")),
    ("nano", MAIN.up("nano")),
    ("nano", MAIN.upload("nano")),
    ("nano", MAIN.status("nano")),
    ("nano", MAIN.telemetry("nano")),
    ("pi", MAIN.upload("pi")),
    ("pi", MAIN.up("pi")),
    ("alice", MAIN.command("alice")),
    ("bob", MAIN.command("bob")),
    ("vera", MAIN.watch("vera")),
    ("alice", MAIN.watch("alice")),
]
"""User and topic of the messages that are published during such a subscription."""


@pytest.fixture(scope="module")
def publishers(place: Place) -> Iterator[dict[str, RawClient]]:
    clients = {name: place.client(name) for name in {who for who, _ in SECRETS}}
    try:
        yield clients
    finally:
        for client in clients.values():
            client.close()


def may_read(who: str, message: Message) -> bool:
    role, tenant = ROLES[who]
    return any(matches(mine, message.topic) for mine in permissions(role, who, tenant).reads)


@pytest.mark.parametrize(("who", "pattern"), READ)
def test_nothing_is_read_outside_of_the_own_topics(
    place: Place, publishers: dict[str, RawClient], who: str, pattern: str
) -> None:
    marked = MAIN.control("pi") if who == "pi" else MAIN.coordinator
    with place.witness() as witness, place.client(who) as trespasser:
        witness.subscribe("#")
        with suppress(Closed):
            assert trespasser.subscribe(pattern) == (0 if place.kind == "mosquitto" else 0x80)
        reader = place.client(who) if trespasser.is_closed() else trespasser
        with reader:
            reader.subscribe(marked)
            for owner, topic in SECRETS:
                publishers[owner].publish(topic, topic.encode(), qos=1)
            publishers["main"].publish(marked, mark := secrets.token_bytes(8), qos=1)
            got = reader.until(mark)
        assert [message for message in got if not may_read(who, message)] == []
        assert {message.topic for message in witness.until(mark)} >= {topic for _, topic in SECRETS}


def test_what_the_broker_keeps_is_given_to_devices_of_the_tenant_only(place: Place) -> None:
    model, mark = MAIN.chunk("ee", 0), b"mark"
    with place.client("main") as coordinator:
        coordinator.publish(model, b"model", qos=1, retain=True)
    got = dict[str, list[bytes]]()
    for who in ("pi", "far", "vera", "alice"):
        with place.client(who) as reader, place.witness() as witness:
            with suppress(Closed):
                reader.subscribe(model)
                reader.subscribe(MAIN.chunk("+", "+"))
            marked = OTHER.coordinator if who == "far" else MAIN.coordinator
            reader.subscribe(marked)
            witness.publish(marked, mark, qos=1)
            got[who] = [message.payload for message in reader.until(mark)]
    assert b"model" in got.pop("pi")
    assert got == {"far": [], "vera": [], "alice": []}


def test_a_shared_subscription_takes_no_message_from_a_device(place: Place) -> None:
    with place.client("nano") as owner, place.client("pi") as thief:
        owner.subscribe(MAIN.control("nano"))
        for group in ("$share/nano/", "$share/group/"):
            with suppress(Closed):
                thief.subscribe(group + MAIN.control("nano"))
        with place.client("main") as coordinator:
            for number in range(8):
                coordinator.publish(MAIN.control("nano"), bytes([number]), qos=1)
            coordinator.publish(MAIN.control("nano"), b"mark", qos=1)
        assert [message.payload for message in owner.until(b"mark")] == [
            bytes([number]) for number in range(8)
        ]


def test_no_device_purges_what_nats_keeps(place: Place) -> None:
    with place.client("main") as coordinator:
        coordinator.publish(MAIN.chunk("dd", 0), b"kept", qos=1, retain=True)
    for subject in ("STREAM/PURGE", "STREAM/DELETE", "CONSUMER/DELETE"):
        for stream in ("$MQTT_rmsgs", "$MQTT_msgs", "$MQTT_sess"):
            publish_all(place, "pi", f"$JS/API/{subject}/{stream}", b"{}")
    with place.client("pi") as reader:
        reader.subscribe(MAIN.chunk("dd", 0))
        assert reader.until(b"kept") == []


# -- connecting ------------------------------------------------------------------------------------


def wrong_logins(place: Place) -> dict[str, Login]:
    """Return logins that the broker must refuse, by what is wrong with them."""
    pi, nano = place.passwords["pi"], place.passwords["nano"]
    known = next(one for one in place.identities.all() if one.name == "pi")
    return {
        "anonymous": Login("x"),
        "anonymous, without a client id": Login(""),
        "wrong password": Login("x", "pi", "wrong"),
        "empty password": Login("x", "pi", ""),
        "no password": Login("x", "pi"),
        "no user": Login("x", "", pi),
        "longer password": Login("x", "pi", pi + "x"),
        "shorter password": Login("x", "pi", pi[:-1]),
        "password of another device": Login("x", "pi", nano),
        "name of another device": Login("x", "nano", pi),
        "name of the coordinator": Login("x", "coordinator_main", pi),
        "name of an operator": Login("x", "operator_alice", pi),
        "role without a prefix": Login("x", "alice", place.passwords["alice"]),
        "capitals": Login("x", "PI", pi),
        "space": Login("x", "pi ", pi),
        "line break": Login("x", "pi\n", pi),
        "hash of mosquitto": Login("x", "pi", known.mosquitto_hash),
        "hash of NATS": Login("x", "pi", known.nats_hash),
        "unknown user": Login("x", "pi-2", pi),
        "system account of NATS": Login("x", "sys", "pass"),
        "revoked": place.login("gone"),
        "expired": place.login("old"),
        "revoked, under a valid client id": place.login("gone", client_id="fairbed-main-pi"),
        "MQTT 3.1 of 2010": Login("x", "pi", "wrong", level=3, name=b"MQIsdp"),
        "MQTT 5": Login("x", "pi", "wrong", level=5),
    }


def test_nobody_without_a_valid_password_connects(place: Place) -> None:
    for why, login in wrong_logins(place).items():
        with suppress(Closed):
            place.raw(login).close()
            pytest.fail(f"connected: {why}")
    for name in ROLES:
        if name not in ("old", "gone"):
            with place.client(name) as honest:
                honest.ping()


def test_a_refused_login_publishes_no_will(place: Place) -> None:
    with place.witness() as witness:
        witness.subscribe("#")
        will, mark = secrets.token_bytes(8), secrets.token_bytes(8)
        for login in wrong_logins(place).values():
            login.will = (MAIN.status("pi"), will)
            with suppress(Closed):
                place.raw(login).close()
        with place.client("pi") as honest:
            honest.publish(MAIN.up("pi"), mark, qos=1)
        assert will not in [message.payload for message in witness.until(mark)]


def test_packets_before_a_login_do_nothing(place: Place) -> None:
    with place.witness() as witness:
        witness.subscribe("#")
        forbidden, mark = secrets.token_bytes(8), secrets.token_bytes(8)
        topic = MAIN.up("pi").encode()
        early = packet(0x30, len(topic).to_bytes(2, "big") + topic + forbidden)
        plain = socket.create_connection(("127.0.0.1", place.port), 5.0)
        with place.trust.wrap_socket(plain, server_hostname="localhost") as link:
            link.sendall(early)
            with suppress(OSError):
                assert link.recv(100) == b""
        with place.client("pi") as honest:
            honest.publish(MAIN.up("pi"), mark, qos=1)
        assert forbidden not in [message.payload for message in witness.until(mark)]


def of_version(place: Place, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(place.lab.ca))
    context.set_ciphers("ALL:@SECLEVEL=0")  # or OpenSSL refuses old versions here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_tls_is_refused(place: Place, version: ssl.TLSVersion) -> None:
    with pytest.raises(Closed, match=r"(?i)version|alert"):
        RawClient(place.port, place.login("pi"), of_version(place, version)).close()
    for current in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with RawClient(place.port, place.login("pi"), of_version(place, current)) as honest:
            honest.ping()


def test_the_tls_port_speaks_nothing_else(place: Place) -> None:
    with pytest.raises((Closed, TimeoutError)):
        RawClient(place.port, place.login("pi")).close()


def test_a_false_broker_learns_no_password(place: Place, tmp_path: Path) -> None:
    stranger = make_lab(tmp_path)
    false = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    false.load_cert_chain(stranger.server, stranger.server_key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard = list[bytes]()

        def serve() -> None:
            link = listener.accept()[0]
            with link, suppress(OSError), false.wrap_socket(link, server_side=True) as tls:
                heard.append(tls.recv(1000))

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Closed, match="certificate verify failed"):
            RawClient(listener.getsockname()[1], place.login("pi"), place.trust).close()
        thread.join(5.0)
    assert heard == []


def test_only_the_tls_port_is_reachable_from_outside(place: Place) -> None:
    assert place.process is not None
    listening = {
        (found.laddr.ip, found.laddr.port)
        for found in psutil.Process(place.process.pid).net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    }
    outside = {port for address, port in listening if address not in ("127.0.0.1", "::1")}
    assert outside == {place.port}
    inside = [port for _, port in listening - {(a, p) for a, p in listening if p == place.port}]
    assert len(inside) == 1  # mosquitto's plain port, or NATS' own
    with RawClient(place.port, place.login("pi"), place.trust, host="127.0.0.2") as honest:
        honest.ping()
    with pytest.raises(Closed, match="Connection refused"):
        RawClient(inside[0], place.login("pi"), host="127.0.0.2").close()
    if place.kind == "mosquitto":
        assert inside == [place.lab.settings.local_port]
        with RawClient(inside[0], place.login("main")) as coordinator:
            coordinator.ping()
        for login in wrong_logins(place).values():
            with pytest.raises(Closed):
                RawClient(inside[0], login).close()
    else:
        assert place.lab.settings.local_port is None
        for name in ("pi", "main", "alice"):
            assert b"Authorization Violation" in nats_answer(place, inside[0], name)
        assert b"PONG" in nats_answer(place, inside[0], WITNESS)


def nats_answer(place: Place, port: int, name: str) -> bytes:
    """Return NATS' answer to a login in its own protocol, and to a request of JetStream."""
    login = {"user": place.user(name), "pass": place.passwords[name], "verbose": False}
    with socket.create_connection(("127.0.0.1", port), 5.0) as link:
        assert link.recv(10_000).startswith(b"INFO ")
        link.sendall(
            b"CONNECT " + msgspec.json.encode(login) + b"\r\nSUB _INBOX.a 1\r\n"
            b"PUB $JS.API.INFO _INBOX.a 0\r\n\r\nPING\r\n"
        )
        answer = b""
        while b"PONG" not in answer and b"-ERR" not in answer:
            answer += link.recv(10_000)
        return answer


# -- sessions and load -----------------------------------------------------------------------------


def agent_id(place: Place, name: str) -> str:
    """Return the client id of an agent."""
    login = f"{place.user(name)}:{place.passwords[name]}"
    return client_id(AgentConfig(broker_url=f"mqtts://{login}@localhost", name=name))


def test_no_session_is_taken_over_by_its_documented_client_id(place: Place) -> None:
    mine = agent_id(place, "pi")
    with place.client("pi", client_id=mine) as agent:
        agent.subscribe(MAIN.control("pi"))
        for guess in ("fairbed-main-pi", "pi", "fairbed-main-pi-", agent_id(place, "nano")):
            for is_clean in (True, False):
                with place.client("nano", client_id=guess, is_clean=is_clean) as thief:
                    thief.ping()
        assert not agent.is_closed()
        with place.client("main") as coordinator:
            coordinator.publish(MAIN.control("pi"), b"mark", qos=1)
        assert agent.until(b"mark") == []
        with place.client("pi", client_id=mine):  # the device itself, after a power failure
            agent.await_close(5.0)


def test_a_message_above_the_limit_is_not_forwarded(place: Place) -> None:
    with place.witness() as witness:
        witness.subscribe(MAIN.up("pi"))
        witness.subscribe(MAIN.upload("pi"))
        with place.client("pi") as sender, pytest.raises(Closed):
            sender.publish(MAIN.up("pi"), bytes(MAX_PACKET_BYTES + 1), qos=1)
        with place.client("pi") as sender, suppress(Closed):
            sender.send(b"\x30\xff\xff\xff\x7f" + bytes(1 << 16))  # announces 256 MiB
            sender.await_close(5.0)
        with place.client("pi") as honest:
            honest.publish(MAIN.upload("pi"), bytes(MAX_CHUNK_BYTES), qos=1)
            honest.publish(MAIN.up("pi"), b"mark", qos=1)
        assert [len(message.payload) for message in witness.until(b"mark")] == [MAX_CHUNK_BYTES]


def test_garbage_ends_the_connection_of_its_sender_only(place: Place) -> None:
    with place.client("nano") as other:
        for garbage in (b"\x00\x00", b"\xf0\x00", b"\x82\x02\x00\x01", b"\x30\xff\xff\xff\xff\x01"):
            with place.client("pi") as sender, suppress(Closed):
                sender.send(garbage)
                sender.await_close(5.0)
        other.ping()


# -- revocation ------------------------------------------------------------------------------------


def test_a_revoked_device_gets_and_gives_nothing_within_a_second(
    place: Place, pytestconfig: pytest.Config
) -> None:
    password = place.identities.create("brief", now_s=NOW_S)
    login = Login("brief-1", "brief", password, will=(MAIN.status("brief"), b"will"))
    place.reload()
    with (
        place.raw(login) as device,
        place.client("nano") as other,
        place.client("main") as coordinator,
    ):
        other.subscribe(MAIN.control("nano"))
        device.subscribe(MAIN.control("brief"))
        coordinator.subscribe(MAIN.up("+"))
        coordinator.subscribe(MAIN.status("+"))
        device.publish(MAIN.up("brief"), b"given", qos=1)
        coordinator.publish(MAIN.control("brief"), b"got", qos=1)
        assert coordinator.until(b"given") == device.until(b"got") == []
        place.identities.revoke("brief", now_s=NOW_S - 1)
        since_s = place.reload()
        device.await_close(GONE_WITHIN_S)
        took_s = time.monotonic() - since_s
        pytestconfig.stash[LEDGER].note(place.kind, "revoked, until closed", lost_s=took_s)
        with pytest.raises(Closed, match="refused"):
            place.raw(login).close()
        with pytest.raises(Closed):
            device.publish(MAIN.up("brief"), b"late", qos=1)
        other.publish(MAIN.up("nano"), b"mark", qos=1)
        late = [message.payload for message in coordinator.until(b"mark")]
        assert late == ([b"will"] if place.kind == "nats" else [])  # NATS publishes it, once
        coordinator.publish(MAIN.control("nano"), b"mark", qos=1)
        assert other.until(b"mark") == []


def test_a_reload_disturbs_no_other_connection(place: Place) -> None:
    with ExitStack() as stack:
        names = [name for name in ROLES if name not in ("old", "gone")]
        clients = {name: stack.enter_context(place.client(name)) for name in names}
        clients["pi"].subscribe(MAIN.control("pi"))
        for _ in range(5):
            place.reload()
            place.client("nano").close()
            clients["main"].publish(MAIN.control("pi"), b"mark", qos=1)
            assert clients["pi"].until(b"mark") == []
        for client in clients.values():
            client.ping()


def test_a_huge_packet_before_a_login_is_refused(place: Place) -> None:
    plain = socket.create_connection(("127.0.0.1", place.port), 5.0)
    with place.trust.wrap_socket(plain, server_hostname="localhost") as link, suppress(OSError):
        link.sendall(b"\x10\xff\xff\xff\x7f" + bytes(2 * MAX_PACKET_BYTES))  # of 256 MiB
        assert link.recv(100) == b""
    with place.client("pi") as honest:
        honest.ping()
