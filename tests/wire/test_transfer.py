"""Transfers step by step: requests, their times, and refused chunks."""

from collections.abc import Iterable

import numpy as np
import pytest

from fairbed.wire.chunks import Chunk, chunk_slice, decode_chunk, encode_chunk, manifest_of
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Manifest, SteadyTransfer
from fairbed.wire.transfer import Download, Upload, UploadReceiver

CHUNK = 1024


def in_flight(transfer: Download | Upload) -> frozenset[int]:
    """Return the chunks that were requested or sent and have not arrived."""
    return frozenset(transfer._flow.in_flight)


def blob(count: int, short_by: int = 100) -> tuple[bytes, Manifest]:
    """Return a blob of `count` chunks, the last one a little shorter, and its manifest."""
    rng = np.random.Generator(np.random.PCG64(count))
    data = rng.bytes(count * CHUNK - short_by)
    return data, manifest_of(data, "model", CHUNK)


def piece(data: bytes, manifest: Manifest, index: int) -> Chunk:
    frame = encode_chunk(manifest.id, index, data[chunk_slice(manifest, index)])
    return decode_chunk(frame)


def bitmap(manifest: Manifest, indices: Iterable[int]) -> bytes:
    bits = sum(1 << index for index in indices)
    return bits.to_bytes(-(-manifest.chunk_count // 8), "little")


def test_requests_a_window_and_then_one_chunk_per_arrival() -> None:
    data, manifest = blob(6)
    download = Download(manifest, window=4)
    assert download.start(0.0) == [0, 1, 2, 3]
    assert download.on_chunk(piece(data, manifest, 0), 0.1) == [4]
    assert download.on_chunk(piece(data, manifest, 2), 0.2) == [5]
    assert in_flight(download) == {1, 3, 4, 5}
    for index in (1, 3, 4, 5):
        assert download.on_chunk(piece(data, manifest, index), 0.3) == []
    assert download.is_complete
    assert (download.started_at, download.finished_at) == (0.0, 0.3)
    assert download.data == data
    assert download.wake_at is None
    download.verify()


def test_writes_in_place() -> None:
    data, manifest = blob(3)
    download = Download(manifest)
    before = download.data
    assert len(before) == len(data)
    for index in download.start(0.0):
        download.on_chunk(piece(data, manifest, index), 0.1)
    assert download.data is before


def test_counts_and_ignores_a_duplicate() -> None:
    data, manifest = blob(3)
    download = Download(manifest, window=1)
    download.start(0.0)
    assert download.on_chunk(piece(data, manifest, 0), 0.1) == [1]
    assert download.on_chunk(piece(data, manifest, 0), 0.2) == []
    assert download.duplicates == 1
    assert download.received_bytes == 2 * CHUNK


def test_the_chunks_after_the_first_are_the_steady_part() -> None:
    data, manifest = blob(3)
    download, receiver = Download(manifest), UploadReceiver(manifest, 4)
    download.start(0.0)
    for transfer in (download, receiver):
        reported = []
        for index, at in ((1, 0.5), (0, 0.75), (2, 1.0), (2, 1.5)):
            transfer.on_chunk(piece(data, manifest, index), at)
            reported.append(transfer.steady)
        assert reported == [
            None,
            SteadyTransfer(n_bytes=CHUNK, duration_s=0.25),
            SteadyTransfer(n_bytes=2 * CHUNK - 100, duration_s=0.5),
            None,  # a duplicate: the measurement is not reliable
        ]


def test_a_single_chunk_has_no_steady_part() -> None:
    data, manifest = blob(1)
    download = Download(manifest)
    download.start(0.0)
    download.on_chunk(piece(data, manifest, 0), 0.5)
    assert download.steady is None


def test_a_transfer_with_a_repeated_request_has_no_steady_part() -> None:
    data, manifest = blob(2)
    download = Download(manifest)
    download.start(0.0)
    download.on_link_up(1.0)
    for index in (0, 1):
        download.on_chunk(piece(data, manifest, index), 2.0 + index)
    assert download.rerequests
    assert download.steady is None


def test_accepts_a_chunk_that_was_not_requested() -> None:
    data, manifest = blob(3)
    download = Download(manifest, window=1)
    assert download.start(0.0) == [0]
    assert download.on_chunk(piece(data, manifest, 1), 0.1) == []
    assert download.on_chunk(piece(data, manifest, 0), 0.2) == [2]


@pytest.mark.parametrize(
    ("index", "length", "of_this_blob", "rule"),
    [
        (0, CHUNK, False, "chunk: must be of blob"),
        (3, CHUNK, True, "chunk: index must be below 3, got 3"),
        (0, CHUNK - 1, True, "chunk 0: must hold 1024 bytes, got 1023"),
        (2, CHUNK, True, "chunk 2: must hold 924 bytes, got 1024"),
    ],
)
def test_refuses_a_chunk_of_another_blob(
    index: int, length: int, of_this_blob: bool, rule: str
) -> None:
    _, manifest = blob(3)
    chunk = Chunk(manifest.id if of_this_blob else bytes(16), index, memoryview(bytes(length)))
    download, receiver = Download(manifest), UploadReceiver(manifest, 4)
    requested = download.start(0.0)
    for transfer in (download, receiver):
        with pytest.raises(DecodeError, match=rule):
            transfer.on_chunk(chunk, 0.1)
        assert transfer.received_bytes == 0
    assert in_flight(download) == frozenset(requested)
    assert receiver.bitmap() == bytes(1)


def test_requests_again_after_two_seconds_with_half_the_window() -> None:
    data, manifest = blob(9)
    download = Download(manifest, window=4)
    download.start(0.0)
    assert download.wake_at == 2.0
    assert download.tick(1.99) == []
    assert download.tick(2.0) == [0, 1]
    assert download.window == 2
    assert in_flight(download) == {0, 1}
    assert download.rerequests == 2
    assert download.wake_at == 6.0  # the timeout has doubled
    assert download.on_chunk(piece(data, manifest, 2), 2.5) == []  # late, but accepted
    assert download.tick(4.5) == [0]  # the timeout is reset
    assert download.window == 1


def test_a_window_of_arrivals_widens_the_window_by_one() -> None:
    data, manifest = blob(20)
    download = Download(manifest, window=4)
    download.start(0.0)
    download.tick(2.0)
    download.tick(6.0)
    widths = []
    requested = sorted(in_flight(download))
    while not download.is_complete:
        requested += download.on_chunk(piece(data, manifest, requested.pop(0)), 6.1)
        widths.append(download.window)
    assert widths[:7] == [2, 2, 3, 3, 3, 4, 4]
    assert max(widths) == 4


def test_a_slow_link_has_a_long_timeout_from_the_first_chunk_on() -> None:
    """1 Mbit/s and 256 KiB: four chunks in flight take 8.4 s, and none was lost."""
    data = bytes(4_000_000)
    manifest = manifest_of(data, "model", 256 * 1024)
    chunk_s = 8 * manifest.chunk_bytes / 1e6
    download = Download(manifest, window=4)
    queue, now = download.start(0.0), 0.0
    while queue:
        now += chunk_s
        wake_at = download.wake_at
        assert wake_at is not None
        assert wake_at > now
        queue += download.on_chunk(piece(data, manifest, queue.pop(0)), now)
    assert download.is_complete
    assert download.rerequests == 0


def test_waits_four_smoothed_chunk_times() -> None:
    data, manifest = blob(9)
    download = Download(manifest, window=1)
    download.start(0.0)
    download.on_chunk(piece(data, manifest, 0), 1.0)  # chunk time 1 s
    assert download.wake_at == pytest.approx(1.0 + 4 * 1.0)
    download.on_chunk(piece(data, manifest, 1), 4.0)  # chunk time 3 s, smoothed 1.5 s
    assert download.wake_at == pytest.approx(4.0 + 4 * 1.5)


def test_a_chunk_that_arrives_in_parts_is_not_requested_again() -> None:
    _, manifest = blob(9)
    download = Download(manifest, window=4)
    download.start(0.0)
    for now in (1.9, 3.8, 5.7):
        download.on_part(now)
        assert download.tick(now) == []
        assert download.wake_at == pytest.approx(now + 2.0)
    assert download.tick(7.7) == [0, 1]


def test_an_overtaken_chunk_is_requested_again_while_parts_arrive() -> None:
    data, manifest = blob(9)
    download = Download(manifest, window=4)
    download.start(0.0)
    for index in (1, 2, 3):
        download.on_chunk(piece(data, manifest, index), 0.1)
    download.on_part(1.9)
    assert download.wake_at == 2.0


def test_an_overtaken_chunk_is_requested_again_while_others_arrive() -> None:
    data, manifest = blob(200)
    download = Download(manifest, window=4)
    queue, now = download.start(0.0), 0.0
    queue.remove(1)
    while 1 not in queue:
        now += 0.1
        queue += download.on_chunk(piece(data, manifest, queue.pop(0)), now)
        queue += download.tick(now)
    assert 2.0 <= now < 2.5
    assert download.rerequests == 1


def test_all_chunks_in_flight_are_requested_again_after_a_lost_link() -> None:
    data, manifest = blob(9)
    download = Download(manifest, window=4)
    download.start(0.0)
    download.on_chunk(piece(data, manifest, 1), 0.1)
    download.on_chunk(piece(data, manifest, 3), 0.2)
    assert in_flight(download) == {0, 2, 4, 5}
    assert download.on_link_up(60.0) == [0, 2, 4, 5]
    assert download.rerequests == 4
    assert download.wake_at == 62.0


def test_a_link_that_comes_up_late_starts_the_download() -> None:
    _, manifest = blob(2)
    download = Download(manifest)
    assert download.wake_at is None
    assert download.on_link_up(3.0) == [0, 1]
    assert download.started_at == 3.0


def test_verify_reports_missing_chunks_and_a_wrong_hash() -> None:
    data, manifest = blob(2)
    download = Download(manifest)
    download.start(0.0)
    download.on_chunk(piece(data, manifest, 0), 0.1)
    with pytest.raises(DecodeError, match="every chunk must have arrived, got 1 missing"):
        download.verify()
    download.on_chunk(piece(data, manifest, 1), 0.1)
    download.data[0] ^= 1
    with pytest.raises(DecodeError, match="sha256 must be"):
        download.verify()


def test_an_empty_window_is_refused() -> None:
    _, manifest = blob(2)
    with pytest.raises(ValueError, match="at least 1"):
        Download(manifest, window=0)


def test_sends_nothing_before_the_grant() -> None:
    data, manifest = blob(6)
    upload = Upload(manifest, data)
    assert upload.on_link_up(0.0) == []
    assert upload.tick(100.0) == []
    assert upload.wake_at is None
    assert upload.on_grant(4, 0.0) == [0, 1, 2, 3]


def test_a_repeated_grant_changes_nothing() -> None:
    data, manifest = blob(6)
    upload = Upload(manifest, data)
    upload.on_grant(4, 0.0)
    assert upload.on_grant(4, 0.1) == []
    assert in_flight(upload) == {0, 1, 2, 3}


def test_acknowledged_chunks_let_the_next_ones_be_sent() -> None:
    data, manifest = blob(6)
    upload = Upload(manifest, data)
    upload.on_grant(4, 0.0)
    assert upload.on_ack(bitmap(manifest, [0, 2]), 0.1) == [4, 5]
    assert upload.is_all_sent
    assert in_flight(upload) == {1, 3, 4, 5}
    assert upload.on_ack(bitmap(manifest, range(6)), 0.2) == []
    assert upload.is_acknowledged
    assert upload.resent == 0
    assert upload.wake_at is None


def test_late_and_repeated_acks_are_harmless() -> None:
    data, manifest = blob(9)
    upload = Upload(manifest, data)
    upload.on_grant(4, 0.0)
    assert upload.on_ack(bitmap(manifest, [0, 1, 2]), 0.1) == [4, 5, 6]
    for stale in ([], [0], [0, 1, 2]):
        assert upload.on_ack(bitmap(manifest, stale), 0.2) == []
    assert in_flight(upload) == {3, 4, 5, 6}


def test_an_ack_of_a_chunk_never_sent_is_ignored() -> None:
    data, manifest = blob(9)
    upload = Upload(manifest, data)
    upload.on_grant(2, 0.0)
    assert upload.on_ack(bitmap(manifest, range(9)), 0.1) == [2, 3]


@pytest.mark.parametrize("received", [b"", bytes(1), bytes(3), b"\x00\x02", b"\xff\xff"])
def test_refuses_a_malformed_bitmap(received: bytes) -> None:
    data, manifest = blob(9)
    upload = Upload(manifest, data)
    upload.on_grant(4, 0.0)
    with pytest.raises(DecodeError, match="ack: must be a bitmap of 9 chunks"):
        upload.on_ack(received, 0.1)
    assert in_flight(upload) == {0, 1, 2, 3}


def test_sends_unacknowledged_chunks_again() -> None:
    data, manifest = blob(9)
    upload = Upload(manifest, data)
    upload.on_grant(4, 0.0)
    assert upload.tick(2.0) == [0, 1]
    assert upload.resent == 2
    assert upload.tick(6.0) == [0, 1]
    assert upload.window == 2  # never below the interval of acknowledgements


def test_resumes_after_a_lost_link() -> None:
    data, manifest = blob(9)
    upload = Upload(manifest, data)
    upload.on_grant(4, 0.0)
    upload.on_ack(bitmap(manifest, [0, 1]), 0.1)
    assert upload.on_link_up(9.0) == [2, 3, 4, 5]
    assert upload.on_grant(4, 9.1) == []
    assert upload.on_ack(bitmap(manifest, [0, 1, 2, 3, 4, 5]), 9.2) == [6, 7, 8]


def test_a_frame_is_the_encoded_chunk() -> None:
    data, manifest = blob(2)
    upload = Upload(manifest, memoryview(data))
    chunk = decode_chunk(upload.frame(1))
    assert (chunk.blob, chunk.index, bytes(chunk.payload)) == (manifest.id, 1, data[CHUNK:])


def test_an_upload_must_be_as_long_as_announced() -> None:
    data, manifest = blob(2)
    with pytest.raises(ValueError, match="must hold 1948 bytes, got 1947"):
        Upload(manifest, data[:-1])


def test_an_ack_is_due_every_half_window_on_a_duplicate_and_at_the_end() -> None:
    data, manifest = blob(9)
    receiver = UploadReceiver(manifest, window=5)
    due = []
    for index in (8, 0, 1, 1, 2, 3, 4, 5, 6, 7):
        is_due = receiver.on_chunk(piece(data, manifest, index), 0.1)
        due.append(is_due)
        if is_due:
            receiver.bitmap()
    assert due == [False, False, True, True, False, False, True, False, False, True]
    assert receiver.is_complete
    assert receiver.finished_at == 0.1
    assert receiver.duplicates == 1
    assert receiver.data == data
    assert manifest.sha256 is not None
    receiver.verify(manifest.sha256)


def test_a_blob_within_one_window_is_acknowledged_once() -> None:
    data, manifest = blob(4)
    receiver = UploadReceiver(manifest, window=4)
    due = [receiver.on_chunk(piece(data, manifest, index), 0.1) for index in (3, 0, 0, 1, 2)]
    assert due == [False, False, True, False, True]
    upload = Upload(manifest, data)
    upload.on_grant(4, 0.0)
    assert upload.tick(100.0) == [0, 1, 2, 3], "fewer would not be acknowledged"


def test_the_bitmap_begins_with_the_least_significant_bit() -> None:
    data, manifest = blob(10)
    receiver = UploadReceiver(manifest, window=4)
    for index in (0, 2, 9):
        receiver.on_chunk(piece(data, manifest, index), 0.1)
    assert receiver.bitmap() == bytes([0b101, 0b10])


def test_a_receiver_reports_a_wrong_hash() -> None:
    data, manifest = blob(1)
    receiver = UploadReceiver(manifest, window=4)
    receiver.on_chunk(piece(data, manifest, 0), 0.1)
    with pytest.raises(DecodeError, match="sha256 must be"):
        receiver.verify(bytes(32))


def test_a_receiver_may_write_into_a_used_buffer() -> None:
    data, manifest = blob(3)
    used = bytearray(b"\xff" * manifest.size_bytes)
    receiver = UploadReceiver(manifest, window=4, memory=used)
    for index in range(3):
        receiver.on_chunk(piece(data, manifest, index), 0.0)
    assert receiver.data is used
    assert used == data


def test_the_buffer_of_a_receiver_must_have_the_size_of_the_blob() -> None:
    _, manifest = blob(3)
    with pytest.raises(ValueError, match="memory: must hold"):
        UploadReceiver(manifest, window=4, memory=bytearray(manifest.size_bytes + 1))


def test_a_chunk_that_arrives_while_it_waits_for_a_repeat_is_not_requested_again() -> None:
    data, manifest = blob(4)
    download = Download(manifest, window=4)
    download.start(0.0)
    assert download.tick(2.0) == [0, 1], "2 and 3 wait: the window is halved"
    assert download.on_chunk(piece(data, manifest, 2), 2.1) == []
    assert download.on_chunk(piece(data, manifest, 0), 2.2) == [3]
