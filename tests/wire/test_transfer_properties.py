"""Transfers over unreliable networks: a simulated clock, and faults drawn by hypothesis.

Only the first deliveries have the drawn faults, so every transfer must end.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.chunks import Chunk, chunk_slice, decode_chunk, encode_chunk, manifest_of
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Manifest
from fairbed.wire.transfer import Download, Upload, UploadReceiver, ack_interval
from tests.wire.test_transfer import in_flight

CHUNK = 1024
DELAY_S = 0.05
PATIENCE_STEPS = 10_000


@dataclass(frozen=True)
class Fate:
    """Fate of one packet: it arrives once per delay in `delays_s`, or never."""

    delays_s: tuple[float, ...] = (DELAY_S,)
    is_corrupt: bool = False


delays = st.floats(0.0, 30.0, allow_nan=False)
fates = st.builds(Fate, st.lists(delays, max_size=2).map(tuple), st.booleans())
schedules = st.lists(fates, max_size=60)
link_losses = st.lists(st.tuples(st.floats(0.01, 40.0), st.floats(0.0, 20.0)), max_size=3)
counts = st.integers(1, 24)
windows = st.integers(1, 8)


class Network:
    """Packets in flight on a simulated clock."""

    def __init__(self, schedule: list[Fate], losses: list[tuple[float, float]]) -> None:
        self.now = 0.0
        self._fates: Iterator[Fate] = itertools.chain(schedule, itertools.repeat(Fate()))
        self._flights: list[tuple[float, int, str, bytes]] = []
        self._order = itertools.count()
        self._losses = sorted(losses, reverse=True)

    def send(self, channel: str, body: bytes) -> None:
        fate = next(self._fates)
        if fate.is_corrupt:
            body = body[:-1] + bytes([body[-1] ^ 1])
            if channel == "ack":
                return  # the codec rejects a damaged ack, so it counts as lost
        for delay_s in fate.delays_s:
            at = self.now + delay_s
            heapq.heappush(self._flights, (at, next(self._order), channel, body))

    def step(self, wake_at: float | None) -> tuple[str, bytes] | None:
        """Advance to the next event; return the arrival, or None for a timer."""
        arrival_at = self._flights[0][0] if self._flights else math.inf
        timer_at = math.inf if wake_at is None else max(self.now, wake_at)
        if self._losses and self._losses[-1][0] <= min(arrival_at, timer_at):
            at, gap_s = self._losses.pop()
            self.now = max(self.now, at) + gap_s
            self._flights.clear()
            return ("link", b"")
        assert min(arrival_at, timer_at) < math.inf, "no event is scheduled"
        if arrival_at <= timer_at:
            self.now, _, channel, body = heapq.heappop(self._flights)
            return channel, body
        self.now = timer_at
        return None


def make(count: int) -> tuple[bytes, Manifest]:
    data = np.random.Generator(np.random.PCG64(count)).bytes(count * CHUNK - 17)
    return data, manifest_of(data, "model", CHUNK)


def decoded(body: bytes) -> Chunk | None:
    try:
        return decode_chunk(body)
    except DecodeError:
        return None


@given(counts, windows, schedules, link_losses)
def test_a_download_ends_complete(
    count: int, window: int, schedule: list[Fate], losses: list[tuple[float, float]]
) -> None:
    data, manifest = make(count)
    network = Network(schedule, losses)
    download = Download(manifest, window)
    arrived: set[int] = set()
    width, repeats = window, 0

    def request(requests: list[int]) -> None:
        assert set(requests) <= in_flight(download)
        assert not set(requests) & arrived, "an arrived chunk is never requested again"
        assert len(in_flight(download)) <= window
        assert not requests or len(in_flight(download)) <= download.window <= window
        for index in requests:
            frame = encode_chunk(manifest.id, index, data[chunk_slice(manifest, index)])
            network.send("chunk", frame)

    request(download.start(0.0))
    for _ in range(PATIENCE_STEPS):
        if download.is_complete:
            break
        match network.step(download.wake_at):
            case None:
                before = in_flight(download)
                request(download.tick(network.now))
                assert download.window == max(1, width // 2)
                assert download.rerequests > repeats or in_flight(download) < before
            case ("link", _):
                request(download.on_link_up(network.now))
            case (_, body):
                chunk = decoded(body)
                if chunk is not None:
                    arrived.add(chunk.index)
                    request(download.on_chunk(chunk, network.now))
        width, repeats = download.window, download.rerequests
    assert download.is_complete
    assert len(download.data) == manifest.size_bytes
    download.verify()


@given(counts, windows, schedules, link_losses)
def test_an_upload_ends_complete(
    count: int, window: int, schedule: list[Fate], losses: list[tuple[float, float]]
) -> None:
    data, manifest = make(count)
    network = Network(schedule, losses)
    upload, receiver = Upload(manifest, data), UploadReceiver(manifest, window)
    acknowledged = 0

    def send(indices: list[int]) -> None:
        assert len(in_flight(upload)) <= window
        assert upload.window >= min(ack_interval(window, count), window)
        assert not any(acknowledged >> index & 1 for index in indices)
        for index in indices:
            network.send("chunk", upload.frame(index))

    send(upload.on_grant(window, 0.0))
    for _ in range(PATIENCE_STEPS):
        if upload.is_acknowledged:
            break
        match network.step(upload.wake_at):
            case None:
                send(upload.tick(network.now))
            case ("link", _):
                send(upload.on_link_up(network.now))
                send(upload.on_grant(window, network.now))
            case ("ack", body):
                acknowledged |= int.from_bytes(body, "little")
                send(upload.on_ack(body, network.now))
            case (_, body):
                chunk = decoded(body)
                if chunk is not None and receiver.on_chunk(chunk, network.now):
                    network.send("ack", receiver.bitmap())
    assert upload.is_acknowledged
    assert upload.is_all_sent
    assert receiver.is_complete
    assert manifest.sha256 is not None
    receiver.verify(manifest.sha256)


@given(counts, windows, st.integers(0, 40))
def test_a_quiet_network_carries_every_chunk_once(count: int, window: int, seed: int) -> None:
    data, manifest = make(count)
    download, upload = Download(manifest, window), Upload(manifest, data)
    receiver = UploadReceiver(manifest, window)
    rng = np.random.Generator(np.random.PCG64(seed))

    def shuffled(first: list[int], step: Callable[[int, float], list[int]]) -> None:
        waiting, now = first, 0.0
        while waiting:
            now += DELAY_S
            index = waiting.pop(int(rng.integers(len(waiting))))
            waiting += step(index, now)

    def arrive(index: int, now: float) -> list[int]:
        return download.on_chunk(decode_chunk(upload.frame(index)), now)

    def take(index: int, now: float) -> list[int]:
        is_due = receiver.on_chunk(decode_chunk(upload.frame(index)), now)
        return upload.on_ack(receiver.bitmap(), now) if is_due else []

    shuffled(download.start(0.0), arrive)
    shuffled(upload.on_grant(window, 0.0), take)
    assert download.data == receiver.data == data
    assert (download.rerequests, download.duplicates) == (0, 0)
    assert (upload.resent, receiver.duplicates) == (0, 0)
