"""The lines of its log that an agent keeps, and when it sends them to its coordinator."""

import logging
from collections.abc import Iterator

import anyio
import pytest

from fairbed.device_agent.config import SentLevel
from fairbed.device_agent.log import MAX_UNSENT, RecentLog
from fairbed.wire.codec import decode_from_device, encode
from fairbed.wire.messages import (
    LOG_INTERVAL_S,
    MAX_LOG_LINES,
    MAX_LOG_TEXT,
    Context,
    Hello,
    LogLines,
    Welcome,
)
from tests.device_agent.clock import ManualClock
from tests.device_agent.conftest import NAME, AgentSetup
from tests.device_agent.test_agent import SHARD, TASK, ZEROS
from tests.idle_time import LoopClock

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

AGENT = logging.getLogger("fairbed.device_agent.agent")
PAST_THE_END = 2.0 * LOG_INTERVAL_S


class Kept:
    """A log that keeps lines of level `level`, and its clock."""

    def __init__(self, level: SentLevel = "info") -> None:
        self.clock = ManualClock()
        self.log = RecentLog("pi-07", level, self.clock.now)

    def all(self) -> list[LogLines]:
        """Return all messages, each after the shortest interval."""
        messages = []
        while (message := self.log.take(boot=3)) is not None:
            messages.append(message)
            self.clock.now_s += LOG_INTERVAL_S
        return messages

    def texts(self) -> list[str]:
        """Return the texts of all lines."""
        return [line.text for message in self.all() for line in message.lines]


@pytest.fixture
def kept() -> Iterator[Kept]:
    AGENT.setLevel(logging.INFO)
    made = Kept()
    with made.log.attached():
        yield made
    AGENT.setLevel(logging.NOTSET)


def test_a_line_is_sent_with_level_and_age_and_without_the_name_of_the_device(kept: Kept) -> None:
    AGENT.info("%s round %d: %s", "pi-07", 3, "idle")
    kept.clock.now_s += 1.5
    AGENT.warning("%s: link lost: %s", "pi-07", "no\nroute")
    AGENT.critical("out of memory")
    message = kept.log.take(boot=17)
    assert message is not None
    assert (message.boot, message.first) == (17, 0)
    assert [(line.level, line.age_s, line.text) for line in message.lines] == [
        ("info", 1.5, "round 3: idle"),
        ("warning", 0.0, "link lost: no route"),
        ("error", 0.0, "out of memory"),
    ]


def test_lines_of_the_transport_and_of_plugins_are_not_kept(kept: Kept) -> None:
    for name in ("fairbed.wire.transport.client", "my_rule", "fairbed.testbed.backends", "root"):
        logging.getLogger(name).error("mqtt://user:secret@host is down")
    assert kept.log.take(boot=1) is None
    AGENT.info("kept")
    assert kept.texts() == ["kept"]


def test_a_line_that_cannot_be_formatted_does_not_end_the_agent(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    for text, value in (("%d", "no number"), ("%s", "text")):
        kept.log.handle(AGENT.makeRecord(AGENT.name, logging.INFO, "", 0, text, (value,), None))
    assert kept.texts() == ["text"]


@pytest.mark.parametrize(
    ("level", "texts"),
    [("off", []), ("error", ["c"]), ("warning", ["b", "c"]), ("info", ["a", "b", "c"])],
)
def test_the_owner_chooses_the_least_level(level: SentLevel, texts: list[str]) -> None:
    AGENT.setLevel(logging.DEBUG)
    made = Kept(level)
    with made.log.attached():
        for number, text in ((10, "z"), (20, "a"), (30, "b"), (40, "c")):
            AGENT.log(number, text)
    AGENT.warning("after the agent")
    AGENT.setLevel(logging.NOTSET)
    assert made.texts() == texts


def test_a_message_is_small_and_the_next_one_waits(kept: Kept) -> None:
    for i in range(MAX_LOG_LINES + 2):
        AGENT.info("%d %s", i, "x" * 300)
    first = kept.log.take(boot=1)
    assert first is not None
    assert len(first.lines) == MAX_LOG_LINES
    assert {len(line.text) for line in first.lines} == {MAX_LOG_TEXT}
    assert len(encode(first)) < 2_100
    assert decode_from_device(encode(first)) == first
    kept.clock.now_s += LOG_INTERVAL_S - 0.01
    assert kept.log.take(boot=1) is None
    kept.clock.now_s += 0.01
    second = kept.log.take(boot=1)
    assert second is not None
    assert (second.first, len(second.lines)) == (MAX_LOG_LINES, 2)


def test_the_oldest_lines_are_lost_and_the_numbers_show_it(kept: Kept) -> None:
    for i in range(MAX_UNSENT + 5):
        AGENT.info("line %d", i)
    messages = kept.all()
    assert messages[0].first == 5
    assert messages[0].lines[0].text == "line 5"
    assert sum(len(message.lines) for message in messages) == MAX_UNSENT
    assert messages[-1].lines[-1].text == f"line {MAX_UNSENT + 4}"


async def test_lines_leave_between_exchanges_and_only_for_a_coordinator_that_wants_them(
    setup: AgentSetup,
) -> None:
    setup.log = log = RecentLog(NAME, "info", LoopClock().now)

    def write(text: str) -> None:
        log.handle(AGENT.makeRecord(AGENT.name, logging.INFO, "", 0, text, (), None))

    async with setup.running() as (_, coordinator):
        write("before the coordinator")
        await coordinator.join(TASK, SHARD)
        hello = coordinator.seen[Hello][0]
        assert isinstance(hello, Hello)
        assert "log" in hello.capabilities.skills
        await anyio.sleep(PAST_THE_END)
        assert not coordinator.seen[LogLines]  # this coordinator did not ask
        task = await coordinator.publish_blob("task", TASK)
        shard = coordinator.offer_shard(SHARD)
        await coordinator.send(
            Welcome(boot=coordinator.boot, task=task, shard=shard, wants_log=True)
        )
        lines = await coordinator.expect(LogLines)
        assert (lines.boot, lines.lines[0].text) == (hello.boot, "before the coordinator")
        assert lines.lines[0].age_s > PAST_THE_END
        await anyio.sleep(PAST_THE_END)
        await coordinator.request_training(1, ZEROS, deadline_s=10.0 * PAST_THE_END)
        offer = await coordinator.expect_offer(1)
        sent, contexts = len(coordinator.seen[LogLines]), len(coordinator.seen[Context])
        write("during the exchange")
        await anyio.sleep(PAST_THE_END)
        assert len(coordinator.seen[Context]) > contexts + 10
        assert len(coordinator.seen[LogLines]) == sent
        await coordinator.grant(offer)
        await coordinator.receive(offer)
        last = await coordinator.expect(LogLines)
        assert [line.text for line in last.lines] == ["during the exchange"]


async def test_an_agent_whose_owner_sends_no_log_does_not_name_the_skill(setup: AgentSetup) -> None:
    async with setup.running() as (_, coordinator):
        await coordinator.join(TASK, SHARD)
        hello = coordinator.seen[Hello][0]
        assert isinstance(hello, Hello)
        assert "log" not in hello.capabilities.skills
