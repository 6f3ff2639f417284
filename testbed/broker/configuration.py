"""The text of broker configurations.

mosquitto and the NATS server read these files again on SIGHUP, and close the connections of users
that are no longer listed. They must be replaced atomically: without its password file mosquitto
accepts any password.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fairbed.testbed.broker.permissions import Account, Permissions, permissions
from fairbed.testbed.host.broker_usage import KEPT_S, MAX_SUBSCRIPTIONS

BrokerKind: TypeAlias = Literal["mosquitto", "nats", "amqtt"]
"""The programs that a run can start."""
BrokerChoice: TypeAlias = Literal["auto", BrokerKind]

MAX_PACKET_BYTES = 1 << 20
"""Above Fairbed's largest message (1,000,000 bytes); the default of NATS."""

MAX_QUEUED_BYTES = 256 << 20
"""Queue of one slow client: four times the sum of all upload windows."""

MAX_QUEUED_MESSAGES = 10_000

MAX_INFLIGHT = 100
"""Unacknowledged messages of QoS 1 to one client."""

HASH_ITERATIONS = 101
"""Of PBKDF2. Passwords are random and long, so a slow hash would protect nothing."""

SYSTEM_ACCOUNT = "SYS"

CLUSTER_NAME, ROUTE_USER = "fairbed", "route"

CLUSTER_WAIT_S = 1
"""Time after which a node of a cluster gives a step of a connection up, seconds. Steps fail while
the streams of a lost node elect new leaders, and so does a new subscription of QoS 1 whose leader
would be the lost node. By default (5 s) a reconnection of several steps took longer than a silent
device is waited for; 0.3 s was too short for the start of a cluster on a busy machine."""

ORPHAN_S = 300
"""A node of a cluster removes a subscription of QoS 1 this long after its client left, seconds. A
subscription that was given up leaves a consumer without a client, which would keep every message
for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address that a broker listens on."""

    port: int
    host: str | None = None
    """None is every address of the machine."""
    certificate: str | None = None
    """Path of the server's certificate; None is without TLS."""
    key: str | None = None
    """Path of its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster that a NATS server is a node of."""

    routes: Sequence[str]
    """Address of each node for the others, `HOST:PORT`; the same list in each node."""
    own: int
    """Index of this node in `routes`."""
    secret: str
    """Password of the routes, letters and digits; with it one can read and send everything."""


def mosquitto_hash(password: str, salt: bytes, iterations: int = HASH_ITERATIONS) -> str:
    """Return a hash in the format of `mosquitto_passwd`: $7$iterations$salt$PBKDF2-HMAC-SHA512.

    Args:
        password: The password.
        salt: 12 random bytes.
        iterations: Of PBKDF2; the default is that of `mosquitto_passwd`.
    """
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)
    encoded = [base64.b64encode(part).decode() for part in (salt, digest)]
    return f"$7${iterations}${encoded[0]}${encoded[1]}"


def mosquitto_conf(
    listeners: Sequence[Listener],
    *,
    password_file: str,
    acl_file: str | None = None,
    user: str | None = None,
    max_packet_bytes: int = MAX_PACKET_BYTES,
) -> str:
    """Return `mosquitto.conf`.

    Args:
        listeners: At least one.
        password_file: Path of `mosquitto_passwords`.
        acl_file: Path of `mosquitto_acl`; None lets every user publish and read everything.
        user: User that the broker runs as if root starts it; None is mosquitto's default.
        max_packet_bytes: Largest packet.
    """
    lines = [
        *(line for listener in listeners for line in _mosquitto_listener(listener)),
        "allow_anonymous false",
        f"password_file {password_file}",
        *([] if acl_file is None else [f"acl_file {acl_file}"]),
        "persistence false",
        f"persistent_client_expiration {KEPT_S // 3600}h",
        "sys_interval 0",
        "log_dest stderr",
        f"max_packet_size {max_packet_bytes}",
        f"max_queued_messages {MAX_QUEUED_MESSAGES}",
        f"max_queued_bytes {MAX_QUEUED_BYTES}",
        f"max_inflight_messages {MAX_INFLIGHT}",
        "set_tcp_nodelay true",
        *([] if user is None else [f"user {user}"]),
    ]
    return "\n".join(lines) + "\n"


def _mosquitto_listener(listener: Listener) -> list[str]:
    lines = [
        f"listener {listener.port} {listener.host or ''}".rstrip(),
        "max_qos 1",  # of QoS 2 each session could keep MAX_INFLIGHT messages unfinished
    ]
    if listener.certificate is not None:
        lines += [
            f"certfile {listener.certificate}",
            f"keyfile {listener.key}",
            "tls_version tlsv1.2",  # the oldest that is accepted
        ]
    return lines


def mosquitto_passwords(accounts: Iterable[Account]) -> str:
    """Return mosquitto's password file."""
    return "".join(f"{account.user}:{account.mosquitto_hash}\n" for account in accounts)


def mosquitto_acl(accounts: Iterable[Account]) -> str:
    """Return mosquitto's access control list."""
    blocks = []
    for account in accounts:
        allowed = _permissions(account)
        lines = [
            f"user {account.user}",
            *(f"topic write {topic}" for topic in allowed.publishes),
            *(f"topic read {topic}" for topic in allowed.reads),
        ]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def nats_conf(
    listener: Listener,
    users: Sequence[dict[str, object]],
    *,
    server_name: str,
    data_folder: str,
    system_user: Mapping[str, str] | None = None,
    max_packet_bytes: int = MAX_PACKET_BYTES,
    cluster: Cluster | None = None,
) -> str:
    """Return the configuration of the NATS server.

    NATS' own protocol cannot be turned off: it gets a free port on loopback.

    Args:
        listener: For MQTT.
        users: `nats_users`, or entries of NATS' `authorization.users`.
        server_name: Name in logs; another one in each node of a cluster.
        data_folder: Keeps messages of QoS 1 and retained messages.
        system_user: `user` and `password` of its system account, which may list connections.
        max_packet_bytes: Largest packet.
        cluster: None is a server on its own. Each node of a cluster holds all messages of QoS 1
            and all retained ones, so that one may be lost of three, two of five.
    """
    mqtt: dict[str, object] = {
        "host": listener.host or "::",
        "port": listener.port,
        "max_ack_pending": MAX_INFLIGHT,
    }
    if listener.certificate is not None:
        mqtt["tls"] = {
            "cert_file": listener.certificate,
            "key_file": listener.key,
            "min_version": "1.2",
        }
    settings: dict[str, object] = {
        "server_name": server_name,
        "host": "127.0.0.1",
        "port": -1,
        "max_payload": max_packet_bytes,
        "max_pending": MAX_QUEUED_BYTES,
        "max_subscriptions": MAX_SUBSCRIPTIONS,
        "authorization": {"users": list(users)},
        "jetstream": {"store_dir": data_folder},
        "mqtt": mqtt,
    }
    if system_user is not None:
        login = {**system_user, "allowed_connection_types": ["STANDARD"]}
        settings["accounts"] = {SYSTEM_ACCOUNT: {"users": [login]}}
        settings["system_account"] = SYSTEM_ACCOUNT
    if cluster is not None:
        mqtt["stream_replicas"] = len(cluster.routes)
        mqtt["js_api_timeout"] = f"{CLUSTER_WAIT_S}s"
        mqtt["consumer_memory_storage"] = True
        mqtt["consumer_inactive_threshold"] = f"{ORPHAN_S}s"
        route_login = f"{ROUTE_USER}:{cluster.secret}"
        host, _, port = cluster.routes[cluster.own].rpartition(":")
        settings["cluster"] = {
            "name": CLUSTER_NAME,
            "host": host.strip("[]"),
            "port": int(port),
            "authorization": {"user": ROUTE_USER, "password": cluster.secret},
            "routes": [f"nats://{route_login}@{route}" for route in cluster.routes],
        }
    return json.dumps(settings, indent=1) + "\n"


def nats_users(accounts: Iterable[Account]) -> list[dict[str, object]]:
    """Return the users of `nats_conf`, which may speak MQTT only."""
    users = list[dict[str, object]]()
    for account in accounts:
        allowed = _permissions(account)
        users.append(
            {
                "user": account.user,
                "password": account.nats_hash,
                "allowed_connection_types": ["MQTT"],
                "permissions": {
                    "publish": _subjects(allowed.publishes),
                    "subscribe": _subjects(allowed.reads),
                },
            }
        )
    return users


def _subjects(topics: Sequence[str]) -> dict[str, list[str]]:
    """Return the rule of NATS for MQTT topic filters."""
    assert topics, "an empty list would allow everything, and every role has topics"
    return {"allow": [topic.replace("/", ".").replace("+", "*") for topic in topics]}


def _permissions(account: Account) -> Permissions:
    return permissions(account.role, account.name, account.tenant)
