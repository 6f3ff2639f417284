"""Broker addresses: valid ones, refused ones, and hidden passwords."""

from pathlib import Path

import pytest

from fairbed.wire.transport.address import (
    DEFAULT_CLIENT,
    Address,
    node_urls,
    parse_url,
    redact,
    redirected,
    with_cafile,
    with_client,
    with_login,
    without_password,
)
from fairbed.wire.transport.client import MqttTransport


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://host", Address("host", 1883)),
        ("mqtts://host", Address("host", 8883, is_tls=True)),
        ("mqtt://10.0.0.1:18830/", Address("10.0.0.1", 18830)),
        ("mqtt://[::1]:1883", Address("::1", 1883)),
        ("mqtt://user@host", Address("host", 1883, "user")),
        ("mqtt://a%40b:p%3Aw%2F@host", Address("host", 1883, "a@b", "p:w/")),
        ("mqtts://h?cafile=ca.pem", Address("h", 8883, is_tls=True, cafile="ca.pem")),
        ("mqtt://h?client=aiomqtt", Address("h", 1883, client="aiomqtt")),
        (
            "mqtt://u:p@a:1,b,[::1]:2",
            Address("a", 1, "u", "p", other_nodes=(("b", 1883), ("::1", 2))),
        ),
        (
            "mqtts://h?client=direct&cafile=c",
            Address("h", 8883, is_tls=True, cafile="c", client="direct"),
        ),
    ],
)
def test_parses_valid_addresses(url: str, address: Address) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("", "must begin with mqtt://"),
        ("localhost:1883", "must begin with mqtt://"),
        ("http://u:secret@host", "must begin with mqtt://"),
        ("mqtt://", "must name a host"),
        ("mqtt://u:secret@:1883", "must name a host"),
        ("mqtt://u:secret@host:0", "port must be 1 to 65535"),
        ("mqtt://u:secret@host:70000", "write mqtt://host:port"),
        ("mqtt://u:secret@host:port", "write mqtt://host:port"),
        ("mqtt://u:secret@[::1", "write mqtt://host:port"),
        ("mqtt://u:secret@host/topic", "must end after the port"),
        ("mqtt://:secret@host", "a password needs a user"),
        ("mqtt://us%00er:secret@host", "must have no zeros in user and password"),
        ("mqtt://user:sec%00ret@host", "must have no zeros in user and password"),
        ("mqtt://u:secret@host?cafile=x", "takes only .client=NAME, and .cafile=FILE and"),
        ("mqtts://u:secret@host?verify=no", "takes only .client=NAME, and .cafile=FILE and"),
        ("mqtt://u:secret@host?server_name=x", "server_name=NAME with mqtts"),
        ("mqtts://u:secret@host?server_name=", "server_name must be a name"),
        ("mqtts://u:secret@host?server_name=x&client=aiomqtt", "and needs the client direct"),
        ("mqtt://u:secret@a,,b", "must name a host"),
        ("mqtt://u:secret@a,b:port", "write mqtt://host:port"),
        ("mqtt://u:secret@a,b,a:1883", "must list each node once"),
        (f"mqtt://u:secret@{','.join(map(str, range(17)))}", "at most 16 nodes, got 17"),
        ("mqtt://u:secret@host?client=paho", "client must be direct or aiomqtt"),
    ],
)
def test_refuses_in_one_line_without_the_password(url: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unreadable_cafile_is_reported_before_any_connection(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read cafile"):
        MqttTransport(f"mqtts://host?cafile={tmp_path / 'none.pem'}", "me")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mqtt://user:secret@host:1", "mqtt://user:***@host:1"),
        ("mqtt://user:se@cr:et@host:1", "mqtt://user:***@host:1"),
        ("mqtt://user:se/cr/et@host:1", "mqtt://user:***@host:1"),
        ("mqtt://user@host:1", "mqtt://user@host:1"),
        ("mqtt://host:1", "mqtt://host:1"),
        ("user:secret@host", "user:***@host"),
    ],
)
def test_hides_the_password(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    ("url", "chosen"),
    [
        ("mqtt://h", "mqtt://h?client=aiomqtt"),
        ("mqtts://h?cafile=c", "mqtts://h?cafile=c&client=aiomqtt"),
        ("mqtt://h?client=direct", "mqtt://h?client=direct"),
    ],
)
def test_an_address_that_names_no_client_is_given_one(url: str, chosen: str) -> None:
    assert with_client(url, "aiomqtt") == chosen
    assert with_client(url, DEFAULT_CLIENT) == url


def test_an_address_does_not_show_its_password() -> None:
    assert "secret" not in repr(parse_url("mqtt://user:secret@host"))


@pytest.mark.parametrize(
    ("url", "changed"),
    [
        ("mqtt://u:p%40@far:1883", "mqtt://u:p%40@127.0.0.1:9"),
        ("mqtt://far?client=aiomqtt", "mqtt://127.0.0.1:9?client=aiomqtt"),
        ("mqtts://u@far?cafile=c", "mqtts://u@127.0.0.1:9?cafile=c&server_name=far"),
        ("mqtts://[::1]:1", "mqtts://127.0.0.1:9?server_name=%3A%3A1"),
        ("mqtts://far?server_name=own", "mqtts://127.0.0.1:9?server_name=own"),
        ("mqtt://u:p@far,[::1]:2?client=direct", "mqtt://u:p@127.0.0.1:9?client=direct"),
    ],
)
def test_a_proxy_keeps_login_and_certificate_name(url: str, changed: str) -> None:
    assert redirected(url, "127.0.0.1", 9) == changed
    assert parse_url(changed).port == 9


def test_the_library_client_cannot_reach_a_tls_broker_through_a_proxy() -> None:
    with pytest.raises(ValueError, match="needs the client direct") as caught:
        redirected("mqtts://u:secret@far?client=aiomqtt", "127.0.0.1", 9)
    assert "secret" not in str(caught.value)


def test_a_login_and_a_cafile_are_replaced() -> None:
    url = with_login("mqtts://a:b@far:1?cafile=c", "pi-1", "p/w")
    assert url == "mqtts://pi-1:p%2Fw@far:1?cafile=c"
    assert parse_url(with_cafile(url, "/run/ca.pem")).cafile == "/run/ca.pem"


def test_each_node_of_a_cluster_has_the_same_login_and_options() -> None:
    url = with_login("mqtts://near:1,[::1]:2,far/?cafile=a,b@c", "pi-1", "p/w")
    assert node_urls(url) == [
        f"mqtts://pi-1:p%2Fw@{node}/?cafile=a,b@c" for node in ("near:1", "[::1]:2", "far")
    ]
    assert parse_url(url).nodes == (("near", 1), ("::1", 2), ("far", 8883))
    assert without_password(url) == "mqtts://pi-1@near:1,[::1]:2,far/?cafile=a,b@c"


def test_a_proxy_to_a_cluster_with_tls_needs_the_name_of_its_certificates() -> None:
    with pytest.raises(ValueError, match=r"add \?server_name=NAME") as caught:
        redirected("mqtts://u:secret@a,b", "127.0.0.1", 9)
    assert "secret" not in str(caught.value)
    assert redirected("mqtts://a,b?server_name=c", "h", 9) == "mqtts://h:9?server_name=c"
