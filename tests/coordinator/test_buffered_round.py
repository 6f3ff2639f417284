"""Asynchronous rounds: over when enough updates of any version have arrived."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairbed.coordinator.state.exchange import ExchangeState
from fairbed.coordinator.state.round import (
    Abandon,
    AcceptUpdate,
    Arrived,
    Checked,
    DeviceFailed,
    Event,
    Offered,
    Round,
    Tick,
)
from tests.coordinator.builders import offer
from tests.tiers import examples

DEADLINE_S = 60.0
MAX_STALENESS = 3


def started(*devices: str, target_updates: int = 2, slots: int = 16) -> Round:
    table = Round(
        id=1,
        attempt=0,
        deadline_s=DEADLINE_S,
        slots=slots,
        target_updates=target_updates,
        is_buffered=True,
        max_staleness=MAX_STALENESS,
    )
    table.begin(100.0)
    for device in devices:
        table.dispatch(device, now=100.0)
    return table


def is_over(table: Round) -> bool:
    return table.is_over


def deliver(table: Round, device: str, now: float) -> None:
    table.on(Offered(device, offer()), now)
    table.on(Arrived(device, at=now, bytes_up=400, duplicates=0), now)
    assert AcceptUpdate(device) in table.on(Checked(device, None), now)


def followed(table: Round, now: float) -> Round:
    after = table.successor(table.version + bool(table.in_state(ExchangeState.DONE)))
    after.drop_stale(now)
    after.begin(now)
    return after


def test_a_round_is_over_when_the_buffer_is_full_and_no_exchange_is_cancelled() -> None:
    table = started("a", "b", "c")
    deliver(table, "a", 110.0)
    assert not is_over(table)
    deliver(table, "b", 111.0)
    assert is_over(table)
    assert table.exchanges["c"].state is ExchangeState.DISPATCHED
    assert not table.exchanges["c"].is_late


def test_updates_of_all_versions_fill_the_buffer() -> None:
    table = started("a", "b", "slow")
    deliver(table, "a", 110.0)
    deliver(table, "b", 111.0)
    after = followed(table, 112.0)
    after.dispatch("a", now=112.0)
    after.dispatch("b", now=112.0)
    deliver(after, "slow", 120.0)
    deliver(after, "a", 121.0)
    assert is_over(after)
    assert [(x.device, x.staleness) for x in after.in_state(ExchangeState.DONE)] == [
        ("slow", 1),
        ("a", 0),
    ]


def test_a_device_may_train_again_in_the_round_in_which_its_late_exchange_ended() -> None:
    table = started("a", "b", "c", target_updates=2)
    deliver(table, "a", 110.0)
    deliver(table, "b", 111.0)
    after = followed(table, 112.0)
    deliver(after, "c", 113.0)
    after.dispatch("c", now=113.5)
    newest = after.find("c")
    assert newest is not None
    assert (newest.round, newest.state) == (2, ExchangeState.DISPATCHED)
    deliver(after, "c", 120.0)
    assert [(x.round, x.staleness) for x in after.in_state(ExchangeState.DONE)] == [(1, 1), (2, 0)]


def test_a_buffer_waits_until_the_deadline_of_its_round() -> None:
    table = started("a", "b")
    deliver(table, "a", 110.0)
    after = followed(table, 120.0)
    assert after.id == 2
    assert after.wake_at() == 160.0, "the deadline of b"
    after.dispatch("a", now=150.0)
    assert after.on(Tick(), 160.0) == [Abandon("b", "no update within 60 s")]
    assert not is_over(after)
    assert after.wake_at() == 180.0, "that of the round"
    assert after.on(Tick(), 180.0) == []
    assert is_over(after)
    assert after.exchanges["a"].state is ExchangeState.DISPATCHED


def test_an_outage_extends_the_deadline_of_the_round() -> None:
    table = started("a", "b")
    table.on_link_down(110.0)
    table.on_link_up(210.0)
    table.on(Tick(), 259.0)
    assert not is_over(table)
    table.on(Tick(), 260.0)
    assert is_over(table)


def test_a_round_without_open_exchanges_is_over() -> None:
    table = started("a", "b")
    table.on(DeviceFailed("a", "x"), 101.0)
    assert not is_over(table)
    table.on(DeviceFailed("b", "x"), 102.0)
    assert is_over(table)
    assert table.is_void
    assert started().is_void


@pytest.mark.parametrize("versions", [MAX_STALENESS, MAX_STALENESS + 1])
def test_an_exchange_that_is_too_stale_ends(versions: int) -> None:
    table = started("slow", "a", target_updates=1)
    for number in range(versions):
        deliver(table, "a", 101.0 + number)
        table = followed(table, 101.5 + number)
        table.dispatch("a", now=101.5 + number)
    slow = table.find("slow")
    assert slow is not None
    assert slow.is_over is (versions > MAX_STALENESS)


class AnyBufferedRounds(RuleBasedStateMachine):
    """A fleet that trains versions in any order and at any speed."""

    devices = ("a", "b", "c", "d", "e")
    concurrency = 3

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.table = started(target_updates=2, slots=2)
        self.merged: list[tuple[str, int]] = []
        self.refill()

    def refill(self) -> None:
        table = self.table
        exchanges = table.all_exchanges()
        barred = {x.device for x in exchanges if x.state.is_open or x.version == table.version}
        free = self.concurrency - table.open_count
        for device in [device for device in self.devices if device not in barred][:free]:
            table.dispatch(device, self.now)

    def feed(self, event: Event) -> None:
        for action in self.table.on(event, self.now):
            exchange = self.table.find(action.device)
            assert exchange is not None
            if isinstance(action, AcceptUpdate):
                self.merged.append((exchange.device, exchange.version))
        if self.table.is_over:
            self.table = followed(self.table, self.now)
        self.refill()

    @rule(seconds=st.floats(0.0, 50.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Tick())

    @rule(device=st.sampled_from(devices))
    def offered(self, device: str) -> None:
        self.feed(Offered(device, offer()))

    @rule(device=st.sampled_from(devices))
    def arrived(self, device: str) -> None:
        self.feed(Arrived(device, at=self.now, bytes_up=400, duplicates=0))

    @rule(device=st.sampled_from(devices), fault=st.sampled_from([None, None, None, "NaN"]))
    def checked(self, device: str, fault: str | None) -> None:
        self.feed(Checked(device, fault))

    @rule(device=st.sampled_from(devices))
    def failed(self, device: str) -> None:
        self.feed(DeviceFailed(device, "x"))

    @invariant()
    def never_more_at_work_than_allowed(self) -> None:
        assert self.table.open_count <= self.concurrency

    @invariant()
    def never_more_updates_in_memory_than_slots(self) -> None:
        granted, checking = ExchangeState.GRANTED, ExchangeState.CHECKING
        assert len(self.table.in_state(granted)) + len(self.table.in_state(checking)) <= 2

    @invariant()
    def a_version_takes_no_more_than_the_buffer(self) -> None:
        assert len(self.table.in_state(ExchangeState.DONE)) <= 2

    @invariant()
    def no_update_is_merged_twice_or_too_late(self) -> None:
        assert len(self.merged) == len(set(self.merged))
        for x in self.table.in_state(ExchangeState.DONE):
            assert x.staleness is not None
            assert 0 <= x.staleness <= MAX_STALENESS

    @invariant()
    def no_device_trains_a_version_twice(self) -> None:
        trained = [(x.device, x.version) for x in self.table.all_exchanges()]
        assert len(trained) == len(set(trained))

    @invariant()
    def an_open_exchange_can_always_end(self) -> None:
        waiting = self.table.in_state(ExchangeState.CHECKING) or self.table.wake_at() is not None
        assert self.table.is_over or waiting


TestAnyBufferedRounds = AnyBufferedRounds.TestCase
TestAnyBufferedRounds.settings = settings(
    max_examples=examples(20), stateful_step_count=30, deadline=None
)
