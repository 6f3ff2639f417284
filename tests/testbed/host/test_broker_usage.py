"""Which login keeps what, from what mosquitto and NATS list (`tests.testbed.test_run_accounts` asks
real ones).
"""

import msgspec
import pytest

from fairbed.testbed.host.broker_usage import (
    MAX_SESSIONS,
    MAX_SUBSCRIPTIONS,
    Connection,
    Connections,
    Session,
    Usage,
    connz_request,
    mosquitto_sessions,
    mosquitto_usage,
    nats_usage,
)


def connected(port: int, client_id: str, user: str, clean: int = 1) -> bytes:
    end = f"(p2, c{clean}, k60, u'{user}')."
    return f"17958: New client connected from 127.0.0.1:{port} as {client_id} {end}".encode()


def test_a_session_counts_while_it_is_open_or_kept() -> None:
    log = [
        connected(1, "earlier", "pi", clean=0),
        b"17958: mosquitto version 2.0.11 starting",
        connected(2, "open", "pi"),
        connected(3, "left", "pi"),
        connected(4, "kept", "nano", clean=0),
        connected(5, "expired", "nano", clean=0),
        b"17958: Expiring client expired due to timeout.",
        connected(6, "changed", "nano", clean=0),
        connected(7, "changed", "nano"),
        b"17958: Client left closed its connection.",
    ]
    assert mosquitto_sessions(log, {("127.0.0.1", 2), ("127.0.0.1", 9)}) == [
        Session("pi", b"open"),
        Session("nano", b"kept"),
    ]


def test_subscriptions_are_counted_for_the_login_of_their_client() -> None:
    sessions = [Session("pi", b"pi-1"), Session("pi", b"pi-2"), Session("nano", b"nano-1")]
    tree = [
        b"        fairbed",
        b"          main",
        b"            ctl (pi-1, 1) (nano-1, 0)",
        b"            b",
        b"              x",
        b"                c",
        b"                  0 (pi-2, 0)",
        b"                  1 (gone, 0)",
    ]
    assert mosquitto_usage(sessions, tree) == {"pi": Usage(2, 2), "nano": Usage(1, 1)}


def test_a_level_that_looks_like_a_subscriber_needs_a_client_id_that_is_secret() -> None:
    sessions = [Session("pi", b"pi-1"), Session("nano", b"nano-5f3a")]
    tree = [b"    x (nano, 0) (nano-, 0) (pi-1, 2)", b"      y (nano-5f3b, 0) (pi-1, 0)"]
    assert mosquitto_usage(sessions, tree) == {"pi": Usage(1, 2), "nano": Usage(1, 0)}


@pytest.mark.parametrize("client_id", ["x (y", "x, 0) (", "x y", "ü", "x" * 201, ""])
def test_a_client_id_that_hides_subscriptions_is_excess(client_id: str) -> None:
    sessions = mosquitto_sessions([connected(1, client_id, "pi")], {("127.0.0.1", 1)})
    usage = mosquitto_usage(sessions, [f"  x ({client_id}, 0)".encode()])
    problem = usage["pi"].excess("device")
    assert problem == "has 1 sessions at the broker with an irregular client id"


def test_a_client_id_cannot_name_another_user() -> None:
    log = [connected(1, "x (p2, c1, k60, u'nano').", "pi", clean=0)]
    assert [session.user for session in mosquitto_sessions(log, ())] == ["pi"]


def test_sessions_of_nats_are_client_ids_and_closed_connections_have_no_subscriptions() -> None:
    now, before = "2026-11-28T14:37:50.503Z", "2026-11-28T13:37:51.999999999Z"
    earlier = "2026-11-28T13:37:49Z"
    opened = [
        {"authorized_user": "pi", "mqtt_client": "a", "subscriptions": 10},
        {"authorized_user": "pi", "mqtt_client": "b", "subscriptions": 5},
        {"authorized_user": "nano", "mqtt_client": "d"},
        {"mqtt_client": "never accepted"},
    ]
    closed = [
        {"authorized_user": "pi", "mqtt_client": "b", "subscriptions": 7, "stop": now},
        {"authorized_user": "pi", "mqtt_client": "c", "reason": "Client Closed", "stop": before},
        {"authorized_user": "pi", "mqtt_client": "e", "subscriptions": 7, "stop": earlier},
    ]
    answers = [{"now": now, "connections": connections} for connections in (opened, closed)]
    assert nats_usage(msgspec.convert(answers, list[Connections])) == {
        "pi": Usage(3, 15),
        "nano": Usage(1, 0),
    }


@pytest.mark.parametrize("reason", ["Authentication Failure", "Protocol Violation", "Other"])
def test_a_connection_that_claims_to_be_of_a_device_does_not_count_for_it(reason: str) -> None:
    now = "2026-11-28T14:37:50.503Z"
    closed = Connection("pi", "a", stop=now, reason=reason)
    assert nats_usage([Connections(now, [closed])]) == {}


def test_a_request_to_nats_states_its_length() -> None:
    line, body, rest = connz_request("answer", is_closed=True, limit=5).split(b"\r\n")
    assert (line, rest) == (f"PUB $SYS.REQ.SERVER.PING.CONNZ answer {len(body)}".encode(), b"")
    assert body == b'{"auth": true, "state": 1, "limit": 5}'


def test_what_is_too_much_depends_on_the_role() -> None:
    most = MAX_SESSIONS["device"]
    assert Usage(most, MAX_SUBSCRIPTIONS).excess("device") is None
    assert Usage(1, MAX_SUBSCRIPTIONS + 1).excess("device") == (
        "keeps 1 sessions and 1,001 subscriptions at the broker, at most 8 and 1,000 are allowed"
    )
    assert Usage(most + 1, 0).excess("device") is not None
    assert Usage(most + 1, 0).excess("viewer") is None
    assert Usage(MAX_SESSIONS["viewer"] + 1, 0).excess("viewer") is not None
    assert Usage(10_000, 10_000).excess("coordinator") is None
