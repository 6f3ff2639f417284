"""What a device can cause at will writes a bounded number of lines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunReader, event_log
from fairbed.coordinator.store.event_log import REPEAT_S, REPORTED_BURST, EventLog
from fairbed.coordinator.store.tables import EventRow
from tests.coordinator.store.fake_run import make_store


class Place:
    """An event log whose clock a test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, 50.0
        self.store = make_store(folder)
        self.log = EventLog(self.store, lambda: self.now_s, lambda exc: pytest.fail(str(exc)))

    def events(self) -> list[EventRow]:
        self.store.flush()
        with RunReader(self.folder) as reader:
            return [row for _, row in reader.events()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "run-1")
    yield made
    made.store.close()


def test_one_line_per_kind_and_device_then_their_number(place: Place) -> None:
    for number in range(500):
        place.log.warn("bad message", str(number), device="a")
        place.log.warn("flood", str(number), device="a")
        place.log.warn("bad message", str(number), device="b")
    assert [(row.kind, row.device, row.text) for row in place.events()] == [
        ("bad message", "a", "0"),
        ("flood", "a", "0"),
        ("bad message", "b", "0"),
    ]
    place.now_s += REPEAT_S
    place.log.warn("bad message", "later", device="a")
    assert place.events()[-1].text == "later (499 more since the last line)"
    place.log.report_omitted()
    assert [(row.kind, row.device, row.text) for row in place.events()[-2:]] == [
        ("refusals", "b", "not listed one by one: bad message 499"),
        ("refusals", "a", "not listed one by one: flood 499"),
    ]


def test_any_number_of_names_shares_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_KINDS", 20)
    for number in range(20 + 500):
        place.log.warn("bad message", "no", device=f"n{number}")
    rows = place.events()
    assert len(rows) == 20 + 1
    place.log.report_omitted()
    assert [(row.device, row.text) for row in place.events()[len(rows) :]] == [
        (None, "not listed one by one: bad message 499")
    ]


def test_events_that_a_device_causes_are_bounded(place: Place) -> None:
    """A device that joins and leaves all the time wrote 105 MB a minute."""
    for _ in range(10_000):
        place.log.report("joined", "4 cores", device="a")
        place.log.report("left", "the device disconnected", device="a")
        place.now_s += 0.01
    place.log.report("joined", "4 cores", device="b")
    rows = place.events()
    assert REPORTED_BURST <= len(rows) - 1 <= REPORTED_BURST + 11
    assert "left out before" in rows[-2].text
    assert (rows[-1].device, rows[-1].text) == ("b", "4 cores")
