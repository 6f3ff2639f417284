"""Decoding of a byte stream, at any division into reads."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.errors import DecodeError
from fairbed.wire.transport.protocol import packets
from fairbed.wire.transport.protocol.packets import (
    LARGE_BYTES,
    MAX_PAYLOAD_BYTES,
    READ_BYTES,
    Inbound,
    Oversized,
    Publish,
    Reader,
)
from tests.wire.transport.protocol.test_packets import INBOUND, MALFORMED

SMALL = [(bytes.fromhex(text), packet) for text, packet in INBOUND.values()]


def publish(n_bytes: int, fill: int = 7) -> tuple[bytes, Inbound]:
    """Return the bytes of a message of QoS 1, and the decoded packet."""
    body = bytes([fill]) * n_bytes
    head = packets.publish_head("t", n_bytes, qos=1, packet_id=3)
    return head + body, Publish("t", body, 1, False, 3)


def feed(reader: Reader, data: bytes) -> list[Inbound]:
    """Write bytes into the reader's buffer, as the event loop does; return complete packets."""
    got: list[Inbound] = []
    while data:
        space = reader.get_buffer()
        assert len(space) > 0
        part, data = data[: len(space)], data[len(space) :]
        space[: len(part)] = part
        got += reader.buffer_updated(len(part))
    return got


@given(
    st.lists(st.sampled_from([*SMALL, *map(publish, (0, 5_000, LARGE_BYTES, 9_000, 70_000))])),
    st.lists(st.integers(1, 3 * READ_BYTES)),
)
def test_packets_do_not_depend_on_the_division_of_the_stream(
    stream: list[tuple[bytes, Inbound]], cuts: list[int]
) -> None:
    data = b"".join(raw for raw, _ in stream)
    reader, got = Reader(), list[Inbound]()
    for cut in cuts:
        got += feed(reader, data[:cut])
        data = data[cut:]
    got += feed(reader, data)
    assert got == [packet for _, packet in stream]


def test_byte_by_byte_no_packet_is_returned_before_its_end() -> None:
    for raw, packet in [*SMALL, publish(LARGE_BYTES + 1)]:
        reader = Reader()
        for place in range(len(raw) - 1):
            assert feed(reader, raw[place : place + 1]) == []
        assert feed(reader, raw[-1:]) == [packet]


def test_a_chunk_is_received_into_memory_of_its_own() -> None:
    raw, packet = publish(500_000)
    reader = Reader()
    assert feed(reader, raw[:READ_BYTES]) == []
    assert len(reader.get_buffer()) == len(raw) - READ_BYTES
    (came,) = feed(reader, raw[READ_BYTES:])
    assert came == packet
    assert isinstance(came, Publish)
    assert isinstance(came.payload, memoryview)
    assert came.payload.readonly
    (again,) = feed(reader, publish(500_000, fill=8)[0])
    assert came == packet, "the next one has memory of its own"
    assert again != packet


def test_an_announced_size_takes_no_memory() -> None:
    """One header of 256 MiB took them at once."""
    reader = Reader()
    feed(reader, bytes.fromhex("32ffffff7f"))
    assert len(reader.get_buffer()) < 100_000
    feed(reader, b"\x00\x01t\x00\x03" + bytes(200_000))
    assert len(reader.get_buffer()) <= READ_BYTES


@pytest.mark.parametrize("n_bytes", [MAX_PAYLOAD_BYTES, 1_300_000])
@pytest.mark.parametrize("topic", ["t", "t" * 65_000])
def test_the_payload_of_an_oversized_message_is_discarded(n_bytes: int, topic: str) -> None:
    head = packets.publish_head(topic, n_bytes, qos=1, packet_id=3)
    _, small = SMALL[0]
    reader = Reader()
    first, last = feed(reader, head + bytes(n_bytes) + SMALL[0][0])
    assert last == small
    if n_bytes == MAX_PAYLOAD_BYTES:
        assert first == Publish(topic, bytes(n_bytes), 1, False, 3)
    else:
        assert first == Oversized(topic, n_bytes, 1, 3)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_packet_is_refused_after_good_ones(name: str) -> None:
    text, rule = MALFORMED[name]
    with pytest.raises(DecodeError, match=rule):
        feed(Reader(), b"".join(raw for raw, _ in SMALL) + bytes.fromhex(text))


@pytest.mark.parametrize("tail", ["", "01"])
def test_a_length_of_five_bytes_is_refused(tail: str) -> None:
    with pytest.raises(DecodeError, match="a length must take at most 4 bytes"):
        feed(Reader(), bytes.fromhex("30ffffffff" + tail))


def test_a_wrong_packet_is_refused_before_its_body_arrives() -> None:
    with pytest.raises(DecodeError, match="type 9 must hold 3 to 1026"):
        feed(Reader(), bytes.fromhex("90ffffff7f"))


@given(st.binary(max_size=300))
def test_random_bytes_are_decoded_or_raise_decode_error(data: bytes) -> None:
    with suppress(DecodeError):
        feed(Reader(), data)


def test_the_rest_of_a_read_waits_for_the_end_of_its_packet() -> None:
    (first, one), (second, two) = publish(5, fill=1), publish(9, fill=2)
    reader = Reader()
    assert feed(reader, first + second[:4]) == [one]
    assert feed(reader, second[4:]) == [two]


def test_parts_of_large_messages_are_counted_as_they_arrive() -> None:
    reader = Reader()
    feed(reader, b"".join(raw for raw, _ in [*SMALL, publish(5_000)]))
    assert reader.large_bytes == 0
    raw, _ = publish(500_000)
    counts = []
    for place in range(0, len(raw), 100_000):
        feed(reader, raw[place : place + 100_000])
        counts.append(reader.large_bytes)
    assert counts == sorted(set(counts))
    assert 500_000 <= counts[-1] <= len(raw)
