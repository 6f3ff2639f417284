"""Roles publish and read no more than they need, and broker files say the same."""

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.broker.configuration import (
    Cluster,
    Listener,
    mosquitto_acl,
    mosquitto_conf,
    mosquitto_hash,
    mosquitto_passwords,
    nats_conf,
    nats_users,
)
from fairbed.testbed.broker.permissions import Role, permissions
from fairbed.testbed.lab.other_brokers import emqx_acl, generic_rules
from fairbed.wire.topics import Topics
from fairbed.wire.transport.client import matches

NAMES = st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True)


@dataclass(frozen=True)
class Known:
    """An identity as the broker files need it."""

    name: str
    role: Role
    tenant: str = "+"
    mosquitto_hash: str = "$7$101$c2FsdA==$aGFzaA=="
    nats_hash: str = "$2b$04$hash"

    @property
    def user(self) -> str:
        return self.name if self.role == "device" else f"{self.role}_{self.name}"


PI, VERA = Known("pi", "device", "main"), Known("vera", "viewer")


def allows(filters: tuple[str, ...], topic: str) -> bool:
    """Return whether a topic, or a filter of the same text, is covered."""
    return any(matches(pattern, topic) for pattern in filters)


@given(NAMES, NAMES, NAMES, NAMES)
def test_a_device_has_no_topic_of_another(name: str, other: str, tenant: str, far: str) -> None:
    mine, topics = permissions("device", name, tenant), Topics(tenant)
    for make in (topics.status, topics.telemetry, topics.up, topics.upload):
        assert allows(mine.publishes, make(name))
        assert allows(mine.publishes, make(other)) == (other == name)
    for make in (topics.control, topics.data):
        assert allows(mine.reads, make(name))
        assert allows(mine.reads, make(other)) == (other == name)
    for make in (topics.up, topics.telemetry, topics.upload):
        assert not allows(mine.reads, make(other))
    if far != tenant:
        assert not any(pattern.startswith(Topics(far).base + "/") for pattern in mine.reads)
        assert not any(pattern.startswith(Topics(far).base + "/") for pattern in mine.publishes)


@pytest.mark.parametrize("role", ["device", "viewer", "operator", "coordinator"])
def test_only_operators_command_and_only_under_their_name(role: Role) -> None:
    mine = permissions(role, "alice", "main" if role == "device" else "+").publishes
    assert allows(mine, Topics().command("alice")) == (role == "operator")
    assert not allows(mine, Topics().command("bob"))


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_who_watches_reads_no_model_and_no_update(role: Role) -> None:
    mine, topics = permissions(role, "vera"), Topics()
    assert allows(mine.reads, topics.status("pi"))
    for secret in (
        topics.chunk("ff", 0),
        topics.upload("pi"),
        topics.control("pi"),
        topics.up("pi"),
        topics.rows("bob"),
    ):
        assert not allows(mine.reads, secret)
    assert allows(mine.reads, topics.rows("vera"))
    assert not allows(mine.publishes, topics.rows("vera"))
    assert not allows(mine.publishes, topics.watch("bob"))


def test_the_coordinator_publishes_on_no_channel_of_a_device() -> None:
    mine, topics = permissions("coordinator", "main"), Topics()
    for channel in permissions("device", "pi", "main").publishes:
        assert not allows(mine.publishes, channel)
        assert allows(mine.reads, channel)
    for channel in permissions("device", "pi", "main").reads:
        if channel != topics.status("pi"):  # a device reads back its own
            assert allows(mine.publishes, channel.replace("+", "0"))


def test_writes_the_files_of_mosquitto() -> None:
    conf = mosquitto_conf(
        [
            Listener(port=8883, certificate="server.pem", key="server.key"),
            Listener(port=1883, host="127.0.0.1"),
        ],
        password_file="passwords",
        acl_file="acl",
    )
    assert conf.startswith(
        "listener 8883\nmax_qos 1\ncertfile server.pem\nkeyfile server.key\ntls_version tlsv1.2\n"
        "listener 1883 127.0.0.1\nmax_qos 1\nallow_anonymous false\n"
        "password_file passwords\nacl_file acl\n"
    )
    assert mosquitto_passwords([PI]) == "pi:$7$101$c2FsdA==$aGFzaA==\n"
    assert mosquitto_acl([PI, VERA]) == (
        "user pi\n"
        "topic write fairbed/main/d/pi/status\n"
        "topic write fairbed/main/d/pi/tel\n"
        "topic write fairbed/main/d/pi/up\n"
        "topic write fairbed/main/u/pi\n"
        "topic read fairbed/main/d/pi/ctl\n"
        "topic read fairbed/main/d/pi/data\n"
        "topic read fairbed/main/d/pi/status\n"
        "topic read fairbed/main/ctl\n"
        "topic read fairbed/main/coordinator\n"
        "topic read fairbed/main/b/+/c/+\n"
        "\n"
        "user viewer_vera\n"
        "topic write fairbed/+/watch/vera\n"
        "topic read fairbed/+/coordinator\n"
        "topic read fairbed/+/d/+/status\n"
        "topic read fairbed/+/d/+/tel\n"
        "topic read fairbed/+/rows/vera\n"
    )


def test_a_hash_is_that_of_mosquitto_passwd() -> None:
    """`mosquitto_passwd -b` of 2.0.11 wrote this for the password `secret`."""
    written = (
        "$7$101$AKen27kYidZq3oPV$Vxp7mn6zaRyiXq2K66D6iAwe7KryECwBnMh35pwfZSE7kM7l3zlMB++NEmLtBRhczu"
        "BwXTomoO5b8y7UIb4U3w=="
    )
    assert mosquitto_hash("secret", base64.b64decode("AKen27kYidZq3oPV")) == written


def test_nats_needs_no_certificate_on_loopback() -> None:
    users = nats_users([PI])
    local = Listener(port=1883, host="127.0.0.1")
    conf = json.loads(nats_conf(local, users, server_name="lab", data_folder="js"))
    assert conf["mqtt"] == {"host": "127.0.0.1", "port": 1883, "max_ack_pending": 100}


def test_writes_the_configuration_of_nats() -> None:
    listener = Listener(port=8883, certificate="server.pem", key="server.key")
    text = nats_conf(listener, nats_users([PI, VERA]), server_name="lab", data_folder="js")
    conf = json.loads(text)
    assert (conf["host"], conf["mqtt"]["host"]) == ("127.0.0.1", "::")
    assert conf["mqtt"]["tls"] == {
        "cert_file": "server.pem",
        "key_file": "server.key",
        "min_version": "1.2",
    }
    pi, vera = conf["authorization"]["users"]
    assert pi["allowed_connection_types"] == ["MQTT"]
    assert pi["permissions"]["publish"]["allow"][0] == "fairbed.main.d.pi.status"
    assert "fairbed.main.b.*.c.*" in pi["permissions"]["subscribe"]["allow"]
    assert vera["permissions"]["publish"] == {"allow": ["fairbed.*.watch.vera"]}


def test_writes_rules_for_other_brokers() -> None:
    assert emqx_acl([VERA, PI]).startswith(
        '{allow, {username, "viewer_vera"}, publish, ["fairbed/+/watch/vera"]}.\n'
        '{allow, {username, "viewer_vera"}, subscribe, ["fairbed/+/coordinator", '
    )
    assert emqx_acl([]) == "{deny, all}.\n"
    text = generic_rules()
    assert "device (user NAME)\n  publish    fairbed/TENANT/d/NAME/status\n" in text
    assert "  publish    fairbed/+/command/NAME\n" in text


def test_the_page_about_brokers_shows_the_configuration_of_a_node() -> None:
    page = Path(__file__).parents[3] / "docs/brokers.md"
    found = re.search(r"^```json\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    shown = json.loads(found[1])
    routes = [route.rpartition("@")[2] for route in shown["cluster"]["routes"]]
    ours = json.loads(
        nats_conf(
            Listener(port=shown["mqtt"]["port"], host="0.0.0.0"),
            shown["authorization"]["users"],
            server_name=shown["server_name"],
            data_folder=shown["jetstream"]["store_dir"],
            cluster=Cluster(routes=routes, own=0, secret="..."),
        )
    )
    del ours["mqtt"]["host"]
    assert shown == ours
