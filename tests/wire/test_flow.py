"""Transfers over a slow link with a queue: repeated sends only make them slower."""

import hashlib
import heapq
from dataclasses import dataclass, field

import pytest

from fairbed.wire.chunks import decode_chunk
from fairbed.wire.messages import Manifest
from fairbed.wire.transfer import Upload, UploadReceiver

WINDOW = 4
CHUNK_BYTES = 32 * 1024
CHUNKS = 30


@dataclass
class Queue:
    """A link that sends frames one after the other without loss."""

    rate_bps: float
    frames: list[tuple[float, int, bytes]] = field(default_factory=list)
    _idle_at: float = 0.0
    _sent: int = 0

    def send(self, frame: bytes, now: float) -> None:
        self._idle_at = max(self._idle_at, now) + 8.0 * len(frame) / self.rate_bps
        self._sent += 1
        heapq.heappush(self.frames, (self._idle_at, self._sent, frame))


def upload_over(link: Queue, rate_bps: float | None) -> tuple[Upload, float]:
    """Return a finished upload and its duration, seconds."""
    data = bytes(CHUNKS * CHUNK_BYTES)
    manifest = Manifest(
        id=hashlib.sha256(data).digest()[:16],
        kind="update",
        size_bytes=len(data),
        chunk_bytes=CHUNK_BYTES,
    )
    upload, receiver = Upload(manifest, data, rate_bps), UploadReceiver(manifest, WINDOW)
    due = upload.on_grant(WINDOW, 0.0)
    now = 0.0
    while True:
        for index in due:
            link.send(upload.frame(index), now)
        if upload.is_acknowledged:
            return upload, now
        assert link.frames, "everything in flight is in the queue"
        wake_at = upload.wake_at
        if wake_at is not None and wake_at < link.frames[0][0]:
            now = wake_at
            due = upload.tick(now)
            continue
        now, _, frame = heapq.heappop(link.frames)
        is_due = receiver.on_chunk(decode_chunk(frame), now)
        due = upload.on_ack(receiver.bitmap(), now) if is_due else []


@pytest.mark.parametrize("rate_bps", [50e3, 200e3, 1e6, 10e6])
def test_a_link_known_as_slow_has_no_repeated_request(rate_bps: float) -> None:
    upload, took_s = upload_over(Queue(rate_bps), rate_bps)
    assert upload.resent == 0
    assert took_s == pytest.approx(8.0 * CHUNKS * CHUNK_BYTES / rate_bps, rel=0.01)


@pytest.mark.parametrize("rate_bps", [50e3, 200e3, 500e3])
def test_an_unknown_slow_link_is_detected_in_the_first_window(rate_bps: float) -> None:
    upload, took_s = upload_over(Queue(rate_bps), None)
    assert upload.resent <= 2 * WINDOW
    assert took_s <= 8.0 * (CHUNKS + 2 * WINDOW) * CHUNK_BYTES / rate_bps * 1.01


def test_a_link_that_became_slow_is_detected() -> None:
    upload, _ = upload_over(Queue(100e3), 100e6)
    assert upload.resent <= 2 * WINDOW
