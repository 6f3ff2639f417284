"""Late exchanges: carried from table to table until they are merged or end."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.round import (
    Abandon,
    AcceptUpdate,
    Action,
    Arrived,
    Checked,
    DeviceFailed,
    DeviceLost,
    Event,
    GrantUpload,
    MarkLate,
    Offered,
    Round,
    Tick,
    VerifyUpdate,
)
from tests.coordinator.builders import offer
from tests.tiers import examples

DEADLINE_S, LATE_LIMIT_S = 60.0, 180.0
MAX_STALENESS = 2


def started(*devices: str, slots: int = 16, target_updates: int | None = None) -> Round:
    table = Round(
        id=1,
        attempt=0,
        deadline_s=DEADLINE_S,
        slots=slots,
        target_updates=target_updates or len(devices),
        late_limit_s=LATE_LIMIT_S,
        max_staleness=MAX_STALENESS,
    )
    for device in devices:
        table.dispatch(device, now=100.0)
    return table


def deliver(table: Round, device: str, now: float) -> None:
    table.on(Offered(device, offer(table.id)), now)
    table.on(Arrived(device, at=now, bytes_up=400, duplicates=0), now)
    table.on(Checked(device, None), now)


def round_with_a_straggler() -> Round:
    """Round 1: `a` and `b` are merged, `slow` stays open."""
    table = started("a", "b", "slow")
    deliver(table, "a", 105.0)
    deliver(table, "b", 106.0)
    assert table.on(Tick(), 160.0) == [MarkLate("slow", "no update within 60 s")]
    return table


def test_the_round_does_not_wait_for_late_devices() -> None:
    table = round_with_a_straggler()
    assert table.is_over
    assert not table.is_idle
    slow = table.exchanges["slow"]
    assert slow.is_open_late
    assert slow.state is ExchangeState.DISPATCHED


def test_a_late_update_enters_the_next_round_one_version_late() -> None:
    table = round_with_a_straggler().successor(version=1)
    assert table.id == 2
    assert list(table.carried) == ["slow"]
    table.dispatch("a", now=170.0)
    assert table.on(Offered("slow", offer(1)), 171.0) == [GrantUpload("slow")]
    arrived = Arrived("slow", at=172.0, bytes_up=400, duplicates=0)
    assert table.on(arrived, 172.0) == [VerifyUpdate("slow")]
    assert table.on(Checked("slow", None), 172.0) == [AcceptUpdate("slow")]
    slow = table.carried["slow"]
    assert (slow.round, slow.aggregated_round, slow.staleness) == (1, 2, 1)
    assert slow.tau_s == 72.0, "its whole time is measured"
    assert not table.is_over, "it does not count for this round"


def test_an_update_that_comes_late_while_its_round_is_open_is_not_stale() -> None:
    table = started("slow", "checked")
    table.on(Offered("checked", offer()), 130.0)
    table.on(Arrived("checked", at=159.0, bytes_up=400, duplicates=0), 159.0)
    table.on(Tick(), 160.0)
    assert table.exchanges["slow"].is_late
    assert not table.is_over
    deliver(table, "slow", 163.0)
    table.on(Checked("checked", None), 164.0)
    slow = table.exchanges["slow"]
    assert (slow.state, slow.staleness, slow.aggregated_round) == (ExchangeState.DONE, 0, 1)


def test_a_late_exchange_ends_at_its_limit() -> None:
    table = round_with_a_straggler().successor(version=1)
    assert table.wake_at() == 100.0 + LATE_LIMIT_S
    assert table.on(Tick(), 279.0) == []
    assert table.on(Tick(), 280.0) == [Abandon("slow", "no update within 180 s")]
    slow = table.carried["slow"]
    assert slow.state is ExchangeState.LATE
    assert slow.at_least_s == 180.0


def test_deadline_and_late_limit_may_pass_at_once() -> None:
    table = started("a")
    actions = table.on(Tick(), 1000.0)
    assert [type(action) for action in actions] == [MarkLate, Abandon]


def test_an_exchange_that_would_be_too_many_versions_late_ends() -> None:
    table = round_with_a_straggler()
    for version in (1, 2):
        table = table.successor(version)
        assert table.drop_stale(200.0) == []
    table = table.successor(version=3)
    assert table.drop_stale(201.0) == [
        Abandon("slow", "its update would be more than 2 versions late")
    ]
    assert table.carried["slow"].at_least_s == 101.0
    assert table.successor(version=4).carried == {}


def test_rounds_without_a_new_version_make_no_update_staler() -> None:
    table = round_with_a_straggler()
    for _ in range(20):
        table = table.successor(version=0)
        assert table.drop_stale(170.0) == []
    deliver(table, "slow", 171.0)
    assert table.carried["slow"].staleness == 0


def test_an_exchange_that_waits_for_a_slot_keeps_its_place_in_the_next_round() -> None:
    table = started("first", "slow", "a", slots=1, target_updates=1)
    table.on(Tick(), 160.0)
    table.on(Offered("first", offer()), 161.0)
    table.on(Offered("slow", offer()), 162.0)
    after = table.successor(version=0)
    assert [x.device for x in after.in_state(ExchangeState.QUEUED)] == ["slow"]
    after.dispatch("b", now=163.0)
    after.on(Offered("b", offer()), 164.0)
    after.on(Arrived("first", at=165.0, bytes_up=400, duplicates=0), 165.0)
    assert after.on(Checked("first", None), 166.0) == [AcceptUpdate("first"), GrantUpload("slow")]
    assert after.carried["slow"].tau_s is None


def test_enough_updates_cancel_exchanges_in_time_but_not_late_ones() -> None:
    table = started("a", "b", "slow", slots=1, target_updates=1)
    table.on(Offered("a", offer()), 101.0)
    table.on(Offered("b", offer()), 102.0)
    table.on(Arrived("a", at=150.0, bytes_up=400, duplicates=0), 150.0)
    assert table.on(Tick(), 165.0) == [MarkLate("slow", "no update within 60 s")]
    assert table.on(Checked("a", None), 167.0) == [
        AcceptUpdate("a"),
        Abandon("b", "enough updates had arrived"),
    ]
    assert table.exchanges["b"].at_least_s == 2.0, "without its wait for a slot"
    assert table.exchanges["slow"].is_open_late
    assert table.is_over


def test_an_outage_does_not_count_towards_the_late_limit() -> None:
    table = round_with_a_straggler()
    table.on_link_down(200.0)
    after = table.successor(version=1)
    assert after.wake_at() is None
    after.dispatch("a", now=210.0)
    assert after.exchanges["a"].is_disturbed
    after.on_link_up(300.0)
    assert after.wake_at() == 210.0 + DEADLINE_S + 90.0
    assert after.on(Tick(), 360.0) == [MarkLate("a", "no update within 60 s")]
    assert after.wake_at() == 100.0 + LATE_LIMIT_S + 100.0


def test_all_exchanges_end_when_the_run_is_over() -> None:
    table = round_with_a_straggler().successor(version=1)
    table.dispatch("a", now=200.0)
    actions = table.end_all("the run is over", 201.0)
    assert actions == [Abandon("slow", "the run is over"), Abandon("a", "the run is over")]
    assert table.carried["slow"].state is ExchangeState.LATE
    assert table.exchanges["a"].state is ExchangeState.CANCELLED
    assert table.is_idle


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (DeviceFailed("slow", "x"), ExchangeState.FAILED),
        (DeviceLost("slow", "x"), ExchangeState.LOST),
    ],
)
def test_a_late_device_may_fail_like_any_other(end: Event, state: ExchangeState) -> None:
    table = round_with_a_straggler().successor(version=1)
    assert table.on(end, 170.0) == [Abandon("slow", "x")]
    assert table.carried["slow"].state is state
    assert table.on(Offered("slow", offer(1)), 171.0) == []


class AnyRounds(RuleBasedStateMachine):
    """Rounds that follow each other at any time, with events in any order."""

    devices = ("a", "b", "c", "d", "e")

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.table = started(*self.devices[:3], slots=2, target_updates=2)
        self.ended: dict[int, tuple[Exchange, Exchange]] = {}
        self.merged: set[tuple[str, int]] = set()

    def check(self, actions: list[Action]) -> None:
        for action in actions:
            exchange = self.table.find(action.device)
            assert exchange is not None
            match action:
                case AcceptUpdate():
                    key = (exchange.device, exchange.round)
                    assert key not in self.merged, "an update is merged once"
                    self.merged.add(key)
                case MarkLate():
                    assert exchange.is_open_late
                case Abandon():
                    assert exchange.is_over

    def feed(self, event: Event) -> None:
        self.check(list(self.table.on(event, self.now)))

    @rule(seconds=st.floats(0.0, 90.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Tick())

    @rule(device=st.sampled_from(devices))
    def offered(self, device: str) -> None:
        self.feed(Offered(device, offer()))

    @rule(device=st.sampled_from(devices))
    def arrived(self, device: str) -> None:
        self.feed(Arrived(device, at=self.now, bytes_up=400, duplicates=0))

    @rule(device=st.sampled_from(devices), fault=st.sampled_from([None, None, "NaN"]))
    def checked(self, device: str, fault: str | None) -> None:
        self.feed(Checked(device, fault))

    @rule(device=st.sampled_from(devices))
    def failed(self, device: str) -> None:
        self.feed(DeviceFailed(device, "x"))

    @rule()
    def next_round(self) -> None:
        if not self.table.is_over:
            return
        before = self.table
        has_merged = bool(before.in_state(ExchangeState.DONE))
        self.table = before.successor(before.version + has_merged)
        busy = set(self.table.carried)
        assert busy == {x.device for x in before.all_exchanges() if x.state.is_open}
        self.check(list(self.table.drop_stale(self.now)))
        for device in sorted(set(self.devices) - busy)[:3]:
            self.table.dispatch(device, self.now)

    @invariant()
    def never_more_updates_in_memory_than_slots(self) -> None:
        granted, checking = ExchangeState.GRANTED, ExchangeState.CHECKING
        assert len(self.table.in_state(granted)) + len(self.table.in_state(checking)) <= 2

    @invariant()
    def a_slot_is_never_free_while_an_exchange_is_queued(self) -> None:
        in_memory = [
            *self.table.in_state(ExchangeState.GRANTED),
            *self.table.in_state(ExchangeState.CHECKING),
        ]
        assert len(in_memory) == 2 or not self.table.in_state(ExchangeState.QUEUED)

    @invariant()
    def a_device_is_in_one_place(self) -> None:
        open_ = [x.device for x in self.table.all_exchanges() if x.state.is_open]
        assert len(open_) == len(set(open_))

    @invariant()
    def nothing_open_is_older_than_allowed(self) -> None:
        for x in self.table.all_exchanges():
            if x.state.is_open:
                assert self.table.version - x.version <= MAX_STALENESS
            if x.state is ExchangeState.DONE:
                assert x.staleness is not None
                assert 0 <= x.staleness <= MAX_STALENESS

    @invariant()
    def only_late_exchanges_are_carried(self) -> None:
        assert all(x.is_late for x in self.table.carried.values())

    @invariant()
    def an_open_exchange_can_always_end(self) -> None:
        waiting = self.table.in_state(ExchangeState.CHECKING) or self.table.wake_at() is not None
        assert self.table.is_idle or waiting

    @invariant()
    def no_exchange_exceeds_its_late_limit(self) -> None:
        for x in self.table.all_exchanges():
            if x.state in (ExchangeState.DISPATCHED, ExchangeState.GRANTED):
                assert self.now - x.dispatched - x.queued_s(self.now) < LATE_LIMIT_S

    @invariant()
    def what_has_ended_stays_ended(self) -> None:
        for exchange, as_it_was in self.ended.values():
            assert exchange == replace(as_it_was, concurrent=exchange.concurrent)
        self.ended |= {id(x): (x, replace(x)) for x in self.table.all_exchanges() if x.is_over}


TestAnyRounds = AnyRounds.TestCase
TestAnyRounds.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)
