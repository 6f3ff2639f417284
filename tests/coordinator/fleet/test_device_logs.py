"""Log lines of devices, also of devices that try to harm with them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbed.coordinator.fleet.device_logs import BURST, DeviceLogs
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.store import LOG_LINES, LOG_TRIM_EVERY, Store
from fairbed.coordinator.store.tables import DeviceLogRow
from fairbed.wire.codec import decode_from_device, encode
from fairbed.wire.messages import LOG_INTERVAL_S, Hello, LogLine, LogLines
from tests.coordinator.builders import CAPABILITIES
from tests.coordinator.store.fake_run import make_store

BOOT = 7


class Receiver:
    """A run with devices `a` and `b`, whose clock a test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 50.0
        self.store: Store = make_store(folder)
        registry = Registry()
        for name in ("a", "b"):
            registry.join(name, Hello(boot=BOOT, capabilities=CAPABILITIES), self.now_s)
        self.registry = registry
        log = EventLog(self.store, lambda: self.now_s, lambda exc: pytest.fail(str(exc)))
        self.logs = DeviceLogs(registry, log)

    def receive(
        self, *texts: str, first: int = 0, device: str = "a", boot: int = BOOT, age_s: float = 0.0
    ) -> None:
        """Pass on a message, as it arrives from the network."""
        lines = tuple(LogLine(level="warning", age_s=age_s, text=text) for text in texts)
        message = decode_from_device(encode(LogLines(boot=boot, first=first, lines=lines)))
        assert isinstance(message, LogLines)
        self.logs.on_lines(device, message)

    def rows(self, device: str = "a") -> list[DeviceLogRow]:
        """Return the stored lines of a device."""
        self.store.flush()
        with RunReader(self.folder) as reader:
            return [row for _, row in reader.device_log(device, limit=10_000)]

    def texts(self, device: str = "a") -> list[str]:
        """Return their texts."""
        return [row.text for row in self.rows(device)]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(tmp_path / "run-1")
    yield made
    made.store.close()


def test_a_line_is_stored_with_its_instant_on_the_clock_of_the_run(receiver: Receiver) -> None:
    receiver.now_s += 12.0
    receiver.receive("link lost", first=4, age_s=2.5)
    receiver.now_s += LOG_INTERVAL_S
    receiver.receive("of an earlier run", first=5, age_s=100.0)
    first, second = receiver.rows()
    assert (first.at_s, first.number, first.level) == (9.5, 4, "warning")
    assert (first.device, first.text) == ("a", "link lost")
    assert second.at_s == pytest.approx(17.0 - 100.0)
    with RunReader(receiver.folder) as reader:
        assert [row.text for _, row in reader.device_log("a", until_s=9.0)] == ["of an earlier run"]


def test_a_message_that_arrives_twice_is_stored_once(receiver: Receiver) -> None:
    for _ in range(2):
        receiver.receive("one", "two")
        receiver.now_s += LOG_INTERVAL_S
    receiver.receive("three", first=2)
    assert receiver.texts() == ["one", "two", "three"]


def test_a_restarted_agent_counts_its_lines_from_zero(receiver: Receiver) -> None:
    receiver.receive("before", first=30)
    receiver.registry.join("a", Hello(boot=BOOT + 1, capabilities=CAPABILITIES), receiver.now_s)
    receiver.receive("after", boot=BOOT + 1)
    receiver.receive("late message of the old process", first=31)
    assert [(row.number, row.text) for row in receiver.rows()] == [(30, "before"), (0, "after")]


def test_lines_of_unknown_devices_are_ignored(receiver: Receiver) -> None:
    receiver.receive("hello", device="nobody")
    assert receiver.texts("nobody") == []


def test_a_line_cannot_control_a_terminal_or_look_like_several(receiver: Receiver) -> None:
    receiver.receive("a\x1b[2J\x07\r\nb WARNING forged\u202e\u2028c")
    assert receiver.texts() == ["a?[2J?? b WARNING forged??c"]
    assert receiver.texts("b") == []


def test_a_flood_is_dropped_with_one_warning_and_harms_no_other_device(receiver: Receiver) -> None:
    for i in range(500):
        receiver.receive(str(i), first=i)
    receiver.receive("quiet", device="b")
    assert receiver.texts() == [str(i) for i in range(BURST)]
    assert receiver.texts("b") == ["quiet"]
    receiver.now_s += LOG_INTERVAL_S
    receiver.receive("again", first=500)
    assert receiver.texts()[-1] == "again"
    with RunReader(receiver.folder) as reader:
        events = [event for _, event in reader.events()]
    assert [(event.device, event.kind) for event in events] == [("a", "flood")]


def test_the_newest_lines_of_each_device_are_kept(receiver: Receiver) -> None:
    receiver.receive("the only line", device="b")
    for i in range(0, 3 * (LOG_LINES + LOG_TRIM_EVERY), 8):
        receiver.receive(*(str(i + k) for k in range(8)), first=i)
        receiver.now_s += LOG_INTERVAL_S
    kept = receiver.texts()
    assert LOG_LINES <= len(kept) <= LOG_LINES + LOG_TRIM_EVERY
    assert kept == [str(i) for i in range(int(kept[0]), int(kept[0]) + len(kept))]
    assert receiver.texts("b") == ["the only line"]
