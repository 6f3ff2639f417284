"""The packets of MQTT 3.1.1: bytes written by hand from the standard, and malformed packets."""

import pytest

from fairbed.wire.errors import DecodeError, EncodeError
from fairbed.wire.transport.base import Will
from fairbed.wire.transport.protocol import packets
from fairbed.wire.transport.protocol.packets import (
    Connack,
    Inbound,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Unsuback,
    check_head,
    decode,
)

OUTBOUND: dict[str, tuple[bytes, str]] = {
    "connect": (packets.connect("me", keepalive_s=15), "100e 00044d515454 04 02 000f 00026d65"),
    "connect-full": (
        packets.connect(
            "me", keepalive_s=258, will=Will("w/t", b"off"), username="u", password="pä"
        ),
        "1020 00044d515454 04 ee 0102 00026d65 0003772f74 00036f6666 000175 000370c3a4",
    ),
    "connect-user": (
        packets.connect("", keepalive_s=0, username=""),
        "100e 00044d515454 04 82 0000 0000 0000",
    ),
    "publish": (packets.publish_head("t/1", 2) + b"hi", "3007 0003742f31 6869"),
    "publish-qos-1": (
        packets.publish_head("ü", 1, qos=1, packet_id=258) + b"!",
        "3207 0002c3bc 0102 21",
    ),
    "publish-retained": (packets.publish_head("t", 0, retain=True), "3103 000174"),
    "publish-retained-qos-1": (
        packets.publish_head("t", 0, qos=1, retain=True, packet_id=1),
        "3305 000174 0001",
    ),
    "publish-128": (packets.publish_head("t", 125), "308001 000174"),
    "publish-16384": (packets.publish_head("t", 16_381), "30808001 000174"),
    "publish-2097152": (packets.publish_head("t", 2_097_149), "3080808001 000174"),
    "publish-largest": (packets.publish_head("t", packets.MAX_REMAINING - 3), "30ffffff7f 000174"),
    "puback": (packets.puback(65_535), "4002 ffff"),
    "subscribe": (
        packets.subscribe(7, {"a/+": 0, "b": 1}),
        "820c 0007 0003612f2b 00 000162 01",
    ),
    "unsubscribe": (packets.unsubscribe(8, ["a/+", "b"]), "a20a 0008 0003612f2b 000162"),
    "pingreq": (packets.PINGREQ, "c000"),
    "disconnect": (packets.DISCONNECT, "e000"),
}

INBOUND: dict[str, tuple[str, Inbound]] = {
    "connack": ("2002 0000", Connack(0)),
    "connack-session": ("2002 0100", Connack(0)),
    "connack-refused": ("2002 0005", Connack(5)),
    "publish": ("3007 0003742f31 6869", Publish("t/1", b"hi", 0, False, 0)),
    "publish-qos-1": ("3207 0002c3bc 0102 21", Publish("ü", b"!", 1, False, 258)),
    "publish-again": ("3a07 0002c3bc 0102 21", Publish("ü", b"!", 1, False, 258)),
    "publish-retained-empty": ("3103 000174", Publish("t", b"", 0, True, 0)),
    "puback": ("4002 ffff", Puback(65_535)),
    "suback": ("9005 0007 000180", Suback(7, b"\x00\x01\x80")),
    "unsuback": ("b002 0008", Unsuback(8)),
    "pingresp": ("d000", Pingresp()),
}

MALFORMED: dict[str, tuple[str, str]] = {
    "connect": ("1000", r"packet type must be one that a broker sends, got type 1 with flags 0$"),
    "subscribe": ("8200", r"one that a broker sends, got type 8 with flags 2$"),
    "type-0": ("0000", r"one that a broker sends, got type 0 with flags 0$"),
    "type-15": ("ff00", r"one that a broker sends, got type 15 with flags 15$"),
    "pubrec": ("5002 0001", r"one that a broker sends, got type 5 with flags 0$"),
    "puback-flags": ("4202 0001", r"one that a broker sends, got type 4 with flags 2$"),
    "connack-long": ("2003 000000", r"type 2 must hold 2 to 2 bytes, got 3$"),
    "connack-flags": ("2002 0200", r"CONNACK flags must be 0 or 1, got 2$"),
    "puback-short": ("4001 00", r"type 4 must hold 2 to 2 bytes, got 1$"),
    "suback-empty": ("9002 0007", r"type 9 must hold 3 to 1026 bytes, got 2$"),
    "suback-huge": ("90ff7f", r"type 9 must hold 3 to 1026 bytes, got 16383$"),
    "suback-code": ("9003 0007 03", r"SUBACK codes must be 0, 1, 2 or 128, got \[3\]$"),
    "unsuback-long": ("b003 000801", r"type 11 must hold 2 to 2 bytes, got 3$"),
    "pingresp-long": ("d001 00", r"type 13 must hold 0 to 0 bytes, got 1$"),
    "publish-qos-2": ("3407 0002c3bc 0102 21", r"PUBLISH must be of QoS 0 or 1, got 2$"),
    "publish-qos-3": ("3607 0002c3bc 0102 21", r"PUBLISH must be of QoS 0 or 1, got 3$"),
    "publish-empty": ("3000", r"PUBLISH must hold its topic, got 0 bytes$"),
    "publish-one": ("3001 00", r"PUBLISH must hold its topic, got 1 bytes$"),
    "publish-short-topic": ("3003 000274", r"PUBLISH must hold its topic, got 3 bytes$"),
    "publish-no-id": ("3204 000174 00", r"PUBLISH must hold its topic, got 4 bytes$"),
    "publish-id-0": ("3205 000174 0000", r"a message of QoS 1 must have a packet id, got 0$"),
    "publish-no-topic": ("3002 0000", r"a topic must be a text without zeros, got ''$"),
    "publish-zero": ("3003 000100", r"a topic must be a text without zeros, got '\\x00'$"),
    "publish-not-utf-8": ("3003 0001ff", r"a topic must be UTF-8, got b'\\xff'$"),
}


def parts_of(text: str) -> tuple[int, int, bytes]:
    """Return first byte, announced length and body of a packet in hexadecimal digits."""
    data, length, place = bytes.fromhex(text), 0, 1
    while True:
        length |= (data[place] & 0x7F) << 7 * (place - 1)
        place += 1
        if not data[place - 1] & 0x80:
            return data[0], length, data[place:]


@pytest.mark.parametrize("name", OUTBOUND)
def test_encodes_as_the_standard_specifies(name: str) -> None:
    came, expected = OUTBOUND[name]
    assert came.hex() == expected.replace(" ", "")


@pytest.mark.parametrize("name", INBOUND)
def test_decodes_what_a_broker_may_send(name: str) -> None:
    text, packet = INBOUND[name]
    first, length, body = parts_of(text)
    check_head(first, length)
    assert decode(first, body) == packet
    assert decode(first, memoryview(body)) == packet


@pytest.mark.parametrize("name", MALFORMED)
def test_refuses_what_a_broker_must_not_send(name: str) -> None:
    text, rule = MALFORMED[name]
    first, length, body = parts_of(text)

    def read() -> None:
        check_head(first, length)
        decode(first, body)

    with pytest.raises(DecodeError, match=rf"^mqtt: .*{rule}"):
        read()


def test_a_payload_of_a_view_is_a_view() -> None:
    first, _, body = parts_of("3007 0003742f31 6869")
    packet = decode(first, memoryview(body))
    assert isinstance(packet, Publish)
    assert isinstance(packet.payload, memoryview)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "\ud800", "x" * 65_536])
def test_refuses_to_publish_on_an_invalid_topic(topic: str) -> None:
    with pytest.raises(EncodeError, match=r"^mqtt: .*got "):
        packets.publish_head(topic, 0)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 65_536])
def test_refuses_filters_that_mqtt_forbids(name: str) -> None:
    with pytest.raises(EncodeError, match=r"^mqtt: "):
        packets.subscribe(1, {name: 0})
    with pytest.raises(EncodeError, match=r"^mqtt: "):
        packets.unsubscribe(1, [name])


def test_refuses_a_subscribe_without_filters() -> None:
    with pytest.raises(EncodeError, match="at least one filter"):
        packets.subscribe(1, {})
    with pytest.raises(EncodeError, match="at least one filter"):
        packets.unsubscribe(1, [])


def test_refuses_a_packet_beyond_the_largest_length() -> None:
    with pytest.raises(EncodeError, match="must stay below 268435455 bytes, got 268435456"):
        packets.publish_head("t", packets.MAX_REMAINING - 2)


def test_refuses_credentials_that_do_not_fit() -> None:
    with pytest.raises(EncodeError, match="password needs a user name"):
        packets.connect("me", keepalive_s=15, password="p")
    with pytest.raises(EncodeError, match="password must stay below 65536 bytes, got 65536"):
        packets.connect("me", keepalive_s=15, username="u", password="p" * 65_536)
    with pytest.raises(EncodeError, match="will must stay below 65536 bytes"):
        packets.connect("me", keepalive_s=15, will=Will("t", bytes(65_536)))
