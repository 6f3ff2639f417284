"""Every topic is below its tenant, and a topic of a device names the device."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import is_device_name
from fairbed.wire.topics import Topics

TOPICS = Topics(tenant="lab-2")
NAMES = st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True)


def test_lists_the_topics_of_a_tenant() -> None:
    assert TOPICS.coordinator == "fairbed/lab-2/coordinator"
    assert TOPICS.command("alice") == "fairbed/lab-2/command/alice"
    assert TOPICS.answer("alice") == "fairbed/lab-2/answer/alice"
    assert TOPICS.control_all == "fairbed/lab-2/ctl"
    assert TOPICS.status("pi-7") == "fairbed/lab-2/d/pi-7/status"
    assert TOPICS.telemetry("pi-7") == "fairbed/lab-2/d/pi-7/tel"
    assert TOPICS.up("+") == "fairbed/lab-2/d/+/up"
    assert TOPICS.control("pi-7") == "fairbed/lab-2/d/pi-7/ctl"
    assert TOPICS.data("pi-7") == "fairbed/lab-2/d/pi-7/data"
    assert TOPICS.upload("pi-7") == "fairbed/lab-2/u/pi-7"
    assert TOPICS.intent("00ff") == "fairbed/lab-2/b/00ff/intent"
    assert TOPICS.chunk("00ff", 12) == "fairbed/lab-2/b/00ff/c/12"


def test_stays_below_eight_slashes() -> None:
    longest = TOPICS.chunk("ff" * 16, 1 << 21)
    assert longest.count("/") <= 7


@given(NAMES)
def test_finds_the_device_of_its_topics(name: str) -> None:
    assert TOPICS.device_of(TOPICS.status(name)) == (name, "status")
    assert TOPICS.device_of(TOPICS.telemetry(name)) == (name, "tel")
    assert TOPICS.device_of(TOPICS.up(name)) == (name, "up")
    assert TOPICS.device_of(TOPICS.upload(name)) == (name, "upload")


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "fairbed/lab-2",
        "fairbed/lab-2/ctl",
        "fairbed/lab-2/d/pi-7",
        "fairbed/lab-2/d/pi-7/ctl",
        "fairbed/lab-2/d/pi-7/up/more",
        "fairbed/other/d/pi-7/up",
        "d/pi-7/up",
        "u/pi-7",
    ],
)
def test_refuses_topics_that_are_not_of_a_device(topic: str) -> None:
    with pytest.raises(DecodeError) as caught:
        TOPICS.device_of(topic)
    assert str(caught.value) == f"topic: must be one of a device, got {topic!r}"


def test_a_probe_of_the_payload_limit_is_no_topic_of_a_device() -> None:
    topic = TOPICS.limit("1f")
    assert topic == "fairbed/lab-2/limit/1f"
    with pytest.raises(DecodeError):
        TOPICS.device_of(topic)


def test_finds_the_operator_of_a_command() -> None:
    assert TOPICS.operator_of(TOPICS.command("alice")) == "alice"
    assert TOPICS.operator_of(TOPICS.up("alice")) is None
    assert TOPICS.operator_of("fairbed/lab-2/command") is None
    for name in ("", "a/b", "+", "A", "x" * 33):
        with pytest.raises(DecodeError, match=r"^operator: must be 1 to 32 of a-z, 0-9 and hyphen"):
            TOPICS.operator_of(f"fairbed/lab-2/command/{name}")


def test_finds_the_viewer_of_a_request() -> None:
    assert TOPICS.viewer_of(TOPICS.watch("vera")) == "vera"
    assert TOPICS.viewer_of(TOPICS.command("vera")) is None
    with pytest.raises(DecodeError, match=r"^viewer: must be 1 to 32 of a-z, 0-9 and hyphen"):
        TOPICS.viewer_of(TOPICS.watch("vera/b"))


def test_covers_all_tenants() -> None:
    assert Topics("+").command("alice") == "fairbed/+/command/alice"
    assert Topics("+").chunk("+", "+") == "fairbed/+/b/+/c/+"


@pytest.mark.parametrize("name", ["", "Pi", "pi.7", "pi 7", "pi_7", "ü", "x" * 33, "pi\n", "+"])
def test_refuses_bad_names(name: str) -> None:
    assert not is_device_name(name)
    with pytest.raises(DecodeError) as caught:
        TOPICS.device_of(f"fairbed/lab-2/u/{name}")
    assert str(caught.value) == (
        f"device name: must be 1 to 32 of a-z, 0-9 and hyphen, got {name!r}"
    )


def test_refuses_a_bad_tenant() -> None:
    with pytest.raises(ValueError, match=r"^tenant: must be 1 to 32 of a-z, 0-9 and hyphen, got "):
        Topics(tenant="my lab")


@given(st.text(max_size=80))
def test_random_topics_raise_nothing_but_decode_error(topic: str) -> None:
    for candidate in (topic, f"fairbed/lab-2/{topic}", f"fairbed/lab-2/d/{topic}/up"):
        with suppress(DecodeError):
            name, _ = TOPICS.device_of(candidate)
            assert is_device_name(name)
