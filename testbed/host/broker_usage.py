"""What the logins of a broker keep in its memory, and which of them keep too much.

mosquitto bounds neither the sessions nor the subscriptions of a login, and NATS the subscriptions
of a connection only. Both can list them, so `BrokerProcess` looks when the memory of its broker has
grown:

* mosquitto prints its tree of subscriptions, with client ids, on SIGUSR2 (`tree-print` in
  mosquitto_signal(1)); its log has the user and the address of each client id;
* NATS answers a request for its open and closed connections, which only a user of its system
  account may send ($SYS.REQ.SERVER.PING.CONNZ).
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Struct

MAX_SUBSCRIPTIONS = 1_000
"""Of a login at mosquitto, of a connection at NATS. A device has about 10, and a coordinator 10 for
each run."""

MAX_SESSIONS: Mapping[str, int] = {"device": 8, "viewer": 100, "operator": 100}
"""By role. A device has one, and for moments those of `device-agent doctor` and `fairbed enroll`;
each command of a person has one of its own. Coordinators are trusted."""

KEPT_S = 3600
"""A session that a client asked to keep is removed this long after the client left, seconds."""

PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")
"""Client ids that can be found in a printed tree; all of Fairbed are such."""

ACCEPTED = frozenset(
    {
        "Client Closed",
        "Duplicate Client ID",
        "Maximum Message Payload Exceeded",
        "Read Error",
        "Slow Consumer (Pending Bytes)",
        "Slow Consumer (Write Deadline)",
        "Stale Connection",
        "Write Error",
    }
)
"""Why NATS closed a connection whose login it had accepted. It also lists connections with the user
that they only claimed to be; these ended for other reasons."""

_CONNECTED = re.compile(
    rb"\d+: New client connected from (\S+):(\d+) as (.*) "
    rb"\(p\d, c([01]), k\d+, u'([^']*)'\)\.\r?"
)
_EXPIRED = re.compile(rb"\d+: Expiring client (.*) due to timeout\.")
_STARTING = re.compile(rb"\d+: mosquitto version \S+ starting")


@dataclass(slots=True)
class Usage:
    """What the sessions of one login keep in a broker."""

    sessions: int = 0
    subscriptions: int = 0
    unclear: int = 0
    """Sessions with a client id that could hide their subscriptions (`PLAIN_ID`)."""

    def excess(self, role: str) -> str | None:
        """Return what is too much for a login of a role, as a sentence without its subject.

        None if nothing is.
        """
        most = MAX_SESSIONS.get(role)
        if most is None:
            return None
        if self.unclear:
            return f"has {self.unclear} sessions at the broker with an irregular client id"
        if self.sessions > most or self.subscriptions > MAX_SUBSCRIPTIONS:
            return (
                f"keeps {self.sessions:,} sessions and {self.subscriptions:,} subscriptions at the "
                f"broker, at most {most} and {MAX_SUBSCRIPTIONS:,} are allowed"
            )
        return None


@dataclass(frozen=True, slots=True)
class Session:
    """A session of mosquitto that is open or kept."""

    user: str
    client_id: bytes


def mosquitto_sessions(
    log: Iterable[bytes], open_addresses: Collection[tuple[str, int]]
) -> list[Session]:
    """Return the sessions of a mosquitto that are open, or that a client asked to keep.

    Args:
        log: Lines of its log; those before its last start do not count.
        open_addresses: Host and port of each client that is connected.
    """
    found: dict[bytes, Session] = {}
    for line in log:
        if _STARTING.match(line):
            found.clear()
        elif (match := _EXPIRED.fullmatch(line)) is not None:
            found.pop(match[1], None)
        match = _CONNECTED.fullmatch(line)
        if match is None:
            continue
        host, port, client_id, is_clean, user = match.groups()
        is_open = (host.decode("ascii", "replace"), int(port)) in open_addresses
        if is_open or is_clean == b"0":
            found[client_id] = Session(user.decode("utf-8", "replace"), client_id)
        else:
            found.pop(client_id, None)
    return list(found.values())


def mosquitto_usage(sessions: Iterable[Session], tree: Iterable[bytes]) -> dict[str, Usage]:
    """Return what each login of a mosquitto keeps.

    A level of a topic can look like a subscriber. To forge one takes a client id of another login,
    and those of Fairbed are secret.

    Args:
        sessions: `mosquitto_sessions`.
        tree: Lines of the printed tree: a level, then `(CLIENT_ID, QOS)` of each subscriber.
    """
    usage: defaultdict[str, Usage] = defaultdict(Usage)
    user_of = dict[bytes, str]()
    for session in sessions:
        one = usage[session.user]
        one.sessions += 1
        if PLAIN_ID.fullmatch(session.client_id.decode("utf-8", "replace")):
            user_of[session.client_id] = session.user
        else:
            one.unclear += 1
    counts = Counter[bytes]()
    for line in tree:
        counts.update(re.findall(rb" \(([^ ()]+), [012]\)", line))
    for client_id, number in counts.items():
        if client_id in user_of:
            usage[user_of[client_id]].subscriptions += number
    return dict(usage)


class Connection(Struct, frozen=True):
    """A connection of NATS."""

    authorized_user: str = ""
    """User that it claimed to be; empty before its login."""
    mqtt_client: str = ""
    """Its client id."""
    subscriptions: int = 0
    stop: str | None = None
    """Its end, ISO 8601; None if it is open."""
    reason: str = ""
    """Of its end."""


class Connections(Struct, frozen=True):
    """Open or closed connections of NATS."""

    now: str
    """ISO 8601."""
    connections: list[Connection]


class ConnzAnswer(Struct, frozen=True):
    """The answer to `connz_request`; other keys are ignored."""

    data: Connections


def nats_usage(answers: Iterable[Connections]) -> dict[str, Usage]:
    """Return what each login of a NATS server keeps.

    A closed connection may have left a session, so each of its client ids counts for `KEPT_S`.

    Args:
        answers: Its open and its closed connections.
    """
    usage: defaultdict[str, Usage] = defaultdict(Usage)
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for answer in answers:
        since = _second(answer.now) - timedelta(seconds=KEPT_S)
        for one in answer.connections:
            user = one.authorized_user
            if not user:
                continue
            if one.stop is None:
                usage[user].subscriptions += one.subscriptions
            elif _second(one.stop) < since or not (one.subscriptions or one.reason in ACCEPTED):
                continue
            ids[user].add(one.mqtt_client)
    for user, found in ids.items():
        usage[user].sessions = len(found)
    return dict(usage)


def _second(time: str) -> datetime:
    """Return a time of NATS, such as 2026-11-28T14:37:50.503Z, without its fraction."""
    return datetime.fromisoformat(f"{time[:19]}+00:00")


def connz_request(reply: str, *, is_closed: bool, limit: int) -> bytes:
    """Return the lines of NATS' protocol that ask for connections with their users.

    Args:
        reply: Subject of the answer.
        is_closed: Ask for closed connections, not for open ones.
        limit: Most connections.
    """
    options = {"auth": True, "state": int(is_closed), "limit": limit}
    body = json.dumps(options).encode()
    subject = "$SYS.REQ.SERVER.PING.CONNZ"
    return f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n"
