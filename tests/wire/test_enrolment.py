"""Requests of enrolment: what is decoded, what is refused, names of devices."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.enrolment import EnrolReply, EnrolRequest, RenewRequest, valid_name
from fairbed.wire.messages import is_device_name


@given(st.text(max_size=80))
def test_every_host_name_becomes_a_valid_name(host_name: str) -> None:
    assert is_device_name(valid_name(host_name))


@pytest.mark.parametrize(
    ("host_name", "name"),
    [
        ("Pi Kitchen.local", "pi-kitchen"),
        ("raspberrypi", "raspberrypi"),
        ("---", "device"),
        ("", "device"),
        ("é", "device"),
        ("a" * 31 + "-b", "a" * 31),
    ],
)
def test_the_name_is_close_to_the_host_name(host_name: str, name: str) -> None:
    assert valid_name(host_name) == name


@pytest.mark.parametrize(
    "change",
    [
        {"token": "short"},
        {"token": "a b c d e f g h"},
        {"name": "../x"},
        {"host_name": "A"},
        {"agent": "x" * 101},
        {"extra": 1},
        {"protocol": "1"},
    ],
)
def test_a_malformed_request_is_refused(change: dict[str, object]) -> None:
    good = {"token": "t" * 32, "host_name": "pi", "agent": "1.0"}
    assert msgspec.convert(good, EnrolRequest).name is None
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**good, **change}, EnrolRequest)


def test_a_request_of_renewal_needs_name_and_password() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "pi", "agent": "1.0"}, RenewRequest)


def test_a_device_reads_the_reply_of_a_newer_lab() -> None:
    reply = msgspec.convert(
        {
            "lab": "home",
            "name": "pi",
            "role": "device",
            "tenant": "main",
            "user": "pi",
            "password": "p" * 32,
            "port": 8883,
            "colour": "blue",
        },
        EnrolReply,
    )
    assert reply.expires_s is None
