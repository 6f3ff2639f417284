"""The users of a broker, and the topics that each role may publish and read.

Everything that is not listed is forbidden; a broker's configuration is written from these lists.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from fairbed.wire.topics import ANY, LOCAL_OPERATOR, Topics

Role: TypeAlias = Literal["device", "viewer", "operator", "coordinator"]

COORDINATOR: tuple[str, Role] = ("main", "coordinator")
"""Identity of the coordinator of each run on this host."""
OPERATOR: tuple[str, Role] = (LOCAL_OPERATOR, "operator")
"""Identity of commands on this host: `fairbed stop`, the control room."""


def user_of(name: str, role: Role) -> str:
    """Return the MQTT user name of an identity."""
    return name if role == "device" else f"{role}_{name}"


class Account(Protocol):
    """The part of an identity that a broker has to know."""

    @property
    def name(self) -> str:
        """Name of the device or person."""

    @property
    def user(self) -> str:
        """MQTT user name."""

    @property
    def role(self) -> Role:
        """Role."""

    @property
    def tenant(self) -> str:
        """Tenant of a device; `+` for the other roles, which serve all tenants."""

    @property
    def mosquitto_hash(self) -> str:
        """Hash of the password in the format of `mosquitto_passwd`."""

    @property
    def nats_hash(self) -> str:
        """Hash of the password in the format of bcrypt."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Topic filters of one identity."""

    publishes: tuple[str, ...]
    reads: tuple[str, ...]


def permissions(role: Role, name: str, tenant: str = ANY) -> Permissions:
    """Return the topics of an identity.

    Args:
        role: Its role.
        name: Its name, which stands in the topics of a device and of an operator.
        tenant: Its tenant, or `+` for all.
    """
    topics = Topics(tenant)
    if role == "device":
        return _device(topics, name)
    if role == "coordinator":
        return _coordinator(topics)
    requests = topics.watch(name)
    watched = (topics.coordinator, topics.status(ANY), topics.telemetry(ANY), topics.rows(name))
    if role == "viewer":
        return Permissions(publishes=(requests,), reads=watched)
    return Permissions(
        publishes=(requests, topics.command(name)), reads=(*watched, topics.answer(name))
    )


def _device(topics: Topics, name: str) -> Permissions:
    return Permissions(
        publishes=(
            topics.status(name),
            topics.telemetry(name),
            topics.up(name),
            topics.upload(name),
        ),
        reads=(
            topics.control(name),
            topics.data(name),
            topics.status(name),  # to find another device of its name
            topics.control_all,
            topics.coordinator,
            topics.chunk(ANY, ANY),
        ),
    )


def _coordinator(topics: Topics) -> Permissions:
    """Return its topics: it publishes on no channel of a device."""
    return Permissions(
        publishes=(
            topics.coordinator,
            topics.answer(ANY),
            topics.rows(ANY),
            topics.control_all,
            topics.control(ANY),
            topics.data(ANY),
            topics.intent(ANY),
            topics.chunk(ANY, ANY),
            topics.limit(ANY),
        ),
        reads=(
            topics.coordinator,
            topics.command(ANY),
            topics.watch(ANY),
            topics.status(ANY),
            topics.telemetry(ANY),
            topics.up(ANY),
            topics.upload(ANY),
            topics.intent(ANY),
            topics.limit(ANY),
        ),
    )
