"""The rules of a lab for brokers that Fairbed does not configure."""

from collections.abc import Iterable

from fairbed.testbed.broker.configuration import MAX_PACKET_BYTES
from fairbed.testbed.broker.permissions import Account, Role, permissions


def emqx_acl(accounts: Iterable[Account]) -> str:
    """Return `acl.conf` of EMQX 5; set `authorization.no_match = deny` beside it."""
    lines = []
    for account in accounts:
        allowed = permissions(account.role, account.name, account.tenant)
        for action, topics in (("publish", allowed.publishes), ("subscribe", allowed.reads)):
            if topics:
                names = ", ".join(f'"{topic}"' for topic in topics)
                lines.append(f'{{allow, {{username, "{account.user}"}}, {action}, [{names}]}}.')
    return "\n".join([*lines, "{deny, all}."]) + "\n"


_ROLES: tuple[tuple[Role, str], ...] = (
    ("device", "NAME"),
    ("viewer", "viewer_NAME"),
    ("operator", "operator_NAME"),
    ("coordinator", "coordinator_NAME"),
)


def generic_rules() -> str:
    """Return the rules of each role as text, for any other MQTT 3.1.1 or 5 broker."""
    lines = [
        "# Rules for an MQTT broker that Fairbed does not configure.",
        "# NAME is the name of the device or person, TENANT the tenant of the device.",
        "# Forbid everything else, anonymous clients included; offer TLS 1.2 or newer only.",
        f"# Accept packets of {MAX_PACKET_BYTES} bytes, retained messages and QoS 1.",
        "# A user whose password is removed must lose its connection at once.",
    ]
    for role, user in _ROLES:
        allowed = permissions(role, "name", "tenant" if role == "device" else "+")
        lines += ["", f"{role} (user {user})"]
        lines += [f"  publish    {_with_marks(topic)}" for topic in allowed.publishes]
        lines += [f"  subscribe  {_with_marks(topic)}" for topic in allowed.reads]
    return "\n".join(lines) + "\n"


def _with_marks(topic: str) -> str:
    levels = {"name": "NAME", "tenant": "TENANT"}
    return "/".join(levels.get(level, level) for level in topic.split("/"))
