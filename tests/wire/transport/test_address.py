"""Broker addresses: valid ones, refused ones, and hidden passwords."""

from pathlib import Path

import pytest

from fairbed.wire.transport.address import DEFAULT_CLIENT, Address, parse_url, redact, with_client
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
        ("mqtt://u:secret@host?cafile=x", "takes only .client=NAME, and .cafile=FILE with mqtts"),
        ("mqtts://u:secret@host?verify=no", "takes only .client=NAME, and .cafile=FILE"),
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
