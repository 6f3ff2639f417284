"""Which viewer gets a page, and when; what a viewer is refused."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.replication import (
    SCHEMA,
    Cursor,
    RowSource,
    decode_page,
    encode_cursor,
)
from fairbed.testbed.remote.relay import HOLD_S, IDLE_S, INTERVAL_S, MAX_VIEWERS, Relay
from fairbed.wire.messages import RowsPart, RowsRequest
from tests.coordinator.store.fake_run import FakeRun


class Place:
    """A relay of a run that has played three rounds."""

    def __init__(self, tmp_path: Path) -> None:
        self.run = FakeRun(tmp_path / "run")
        self.run.play(3)
        self.run.store.flush()
        self.reader = RunReader(self.run.folder)
        self.version = 1
        self.relay = Relay(RowSource(self.reader), lambda: self.version, "0.1.0")

    def ask(self, viewer: str, now_s: float, after: bytes = b"") -> RowsPart | None:
        request = RowsRequest(id=secrets.token_bytes(16), schema=SCHEMA, after=after)
        return self.relay.on_request(viewer, request, now_s)

    def serve(self, viewer: str, now_s: float) -> bytes:
        """Answer a viewer that is due; return the cursor after its page."""
        parts, has_more = self.relay.parts(self.relay.take(viewer), 10_000)
        self.relay.note_answer(viewer, now_s, has_more=has_more)
        return encode_cursor(decode_page(b"".join(part.body for part in parts)).cursor)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.reader.close()
    made.run.store.close()


def test_a_snapshot_is_sent_at_once_and_rows_once_a_second(place: Place) -> None:
    place.ask("alice", 10.0)
    assert place.relay.due(10.0) == ["alice"]
    after = place.serve("alice", 10.0)
    assert place.relay.due(10.0) == []
    place.version += 1
    place.ask("alice", 10.1, after)
    assert place.relay.due(10.0 + 0.9 * INTERVAL_S) == []
    assert place.relay.due(10.0 + INTERVAL_S) == ["alice"]


def test_without_new_rows_a_request_is_held(place: Place) -> None:
    place.ask("alice", 10.0)
    after = place.serve("alice", 10.0)
    place.ask("alice", 10.1, after)
    assert place.relay.due(10.1 + 0.9 * HOLD_S) == []
    assert place.relay.due(10.2 + HOLD_S) == ["alice"]
    assert place.relay.due(10.2, at_once=True) == ["alice"]  # the run is over


def test_a_newer_request_takes_the_place_of_an_older_one(place: Place) -> None:
    for now_s in range(100):
        place.ask("alice", float(now_s))
    assert place.relay.due(100.0) == ["alice"]
    place.serve("alice", 100.0)
    assert place.relay.due(200.0) == []


def test_the_viewer_that_waits_longest_is_the_first(place: Place) -> None:
    for at_s, name in enumerate(("carol", "alice", "bob")):
        place.ask(name, float(at_s))
    assert place.relay.due(5.0) == ["carol", "alice", "bob"]


def test_the_parts_of_a_page_are_no_larger_than_the_broker_accepts(place: Place) -> None:
    place.ask("alice", 0.0)
    parts, _ = place.relay.parts(place.relay.take("alice"), 1_000)
    assert len(parts) > 1
    assert [part.part for part in parts] == list(range(len(parts)))
    assert {part.parts for part in parts} == {len(parts)}
    assert max(len(part.body) for part in parts) == 1_000


def test_a_page_of_too_many_parts_is_refused(place: Place) -> None:
    place.ask("alice", 0.0)
    [part], has_more = place.relay.parts(place.relay.take("alice"), 10)
    assert "at most 128 parts" in part.problem
    assert not has_more


def test_a_viewer_of_another_version_is_told_which_one_to_install(place: Place) -> None:
    request = RowsRequest(id=bytes(16), schema=bytes(16))
    refusal = place.relay.on_request("alice", request, 0.0)
    assert refusal is not None
    assert refusal.id == request.id
    assert "pip install 'fairbed==0.1.0'" in refusal.problem
    assert place.relay.due(10.0) == []


def test_viewers_beyond_the_limit_are_refused_until_one_is_silent(place: Place) -> None:
    for number in range(MAX_VIEWERS):
        assert place.ask(f"v{number}", 0.0) is None
    refusal = place.ask("one-more", 1.0)
    assert refusal is not None
    assert refusal.problem == ("a run has at most 16 viewers on other machines; close one of them")
    assert place.ask("v3", IDLE_S) is None
    assert place.relay.forget_silent(IDLE_S + 1.0) == 1
    assert place.ask("one-more", IDLE_S + 2.0) is None


@pytest.mark.parametrize("after", [b"no cursor", bytes(512), encode_cursor(Cursor(run="x" * 200))])
def test_any_cursor_is_answered(place: Place, after: bytes) -> None:
    place.ask("alice", 0.0, after)
    parts, _ = place.relay.parts(place.relay.take("alice"), 100_000)
    [part] = parts
    assert part.problem.startswith("cursor: ") or decode_page(part.body).is_start
