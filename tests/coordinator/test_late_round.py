"""Late devices that go on: from table to table, until they are merged or given up."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.round import (
    Abandon,
    Accept,
    Arrived,
    Check,
    Checked,
    Event,
    GaveUp,
    GoesOn,
    GrantUpload,
    Offered,
    Order,
    Round,
    Tick,
    Vanished,
)
from tests.coordinator.builders import offer
from tests.tiers import examples

DEADLINE_S, PATIENCE_S = 60.0, 180.0
MAX_STALENESS = 2


def started(*devices: str, slots: int = 16, wanted: int | None = None) -> Round:
    played = Round(
        id=1,
        attempt=0,
        deadline_s=DEADLINE_S,
        slots=slots,
        wanted=wanted or len(devices),
        patience_s=PATIENCE_S,
        max_staleness=MAX_STALENESS,
    )
    for device in devices:
        played.dispatch(device, now=100.0)
    return played


def deliver(played: Round, device: str, now: float) -> None:
    played.on(Offered(device, offer(played.id)), now)
    played.on(Arrived(device, at=now, bytes_up=400, duplicates=0), now)
    played.on(Checked(device, None), now)


def round_with_a_straggler() -> Round:
    """Round 1: `a` and `b` are merged, `slow` goes on."""
    played = started("a", "b", "slow")
    deliver(played, "a", 105.0)
    deliver(played, "b", 106.0)
    assert played.on(Tick(), 160.0) == [GoesOn("slow", "no update within 60 s")]
    return played


def test_the_round_does_not_wait_for_who_is_late() -> None:
    played = round_with_a_straggler()
    assert played.is_over
    assert not played.is_idle
    slow = played.exchanges["slow"]
    assert slow.goes_on
    assert slow.stage is ExchangeState.ASKED


def test_a_late_update_enters_the_next_round_one_version_late() -> None:
    played = round_with_a_straggler().successor(version=1)
    assert played.id == 2
    assert list(played.carried) == ["slow"]
    played.dispatch("a", now=170.0)
    assert played.on(Offered("slow", offer(1)), 171.0) == [GrantUpload("slow")]
    arrived = Arrived("slow", at=172.0, bytes_up=400, duplicates=0)
    assert played.on(arrived, 172.0) == [Check("slow")]
    assert played.on(Checked("slow", None), 172.0) == [Accept("slow")]
    slow = played.carried["slow"]
    assert (slow.round, slow.aggregated_round, slow.staleness) == (1, 2, 1)
    assert slow.tau_s == 72.0, "all of its time is known in the end"
    assert not played.is_over, "it counts beside those of its round"


def test_an_update_that_comes_late_while_its_round_is_open_is_not_stale() -> None:
    played = started("slow", "checked")
    played.on(Offered("checked", offer()), 130.0)
    played.on(Arrived("checked", at=159.0, bytes_up=400, duplicates=0), 159.0)
    played.on(Tick(), 160.0)
    assert played.exchanges["slow"].is_late
    assert not played.is_over
    deliver(played, "slow", 163.0)
    played.on(Checked("checked", None), 164.0)
    slow = played.exchanges["slow"]
    assert (slow.stage, slow.staleness, slow.aggregated_round) == (ExchangeState.DONE, 0, 1)


def test_patience_has_an_end_too() -> None:
    played = round_with_a_straggler().successor(version=1)
    assert played.wake_at() == 100.0 + PATIENCE_S
    assert played.on(Tick(), 279.0) == []
    assert played.on(Tick(), 280.0) == [Abandon("slow", "no update within 180 s")]
    slow = played.carried["slow"]
    assert slow.stage is ExchangeState.LATE
    assert slow.at_least_s == 180.0


def test_deadline_and_patience_may_pass_at_once() -> None:
    played = started("a")
    orders = played.on(Tick(), 1000.0)
    assert [type(order) for order in orders] == [GoesOn, Abandon]


def test_what_would_be_too_many_versions_late_is_given_up() -> None:
    played = round_with_a_straggler()
    for version in (1, 2):
        played = played.successor(version)
        assert played.drop_stale(200.0) == []
    played = played.successor(version=3)
    assert played.drop_stale(201.0) == [
        Abandon("slow", "its update would be more than 2 versions late")
    ]
    assert played.carried["slow"].at_least_s == 101.0
    assert played.successor(version=4).carried == {}


def test_rounds_that_leave_the_model_alone_make_nobody_older() -> None:
    played = round_with_a_straggler()
    for _ in range(20):
        played = played.successor(version=0)
        assert played.drop_stale(170.0) == []
    deliver(played, "slow", 171.0)
    assert played.carried["slow"].staleness == 0


def test_who_waits_for_a_slot_keeps_its_place_in_the_next_round() -> None:
    played = started("first", "slow", "a", slots=1, wanted=1)
    played.on(Tick(), 160.0)
    played.on(Offered("first", offer()), 161.0)
    played.on(Offered("slow", offer()), 162.0)
    after = played.successor(version=0)
    assert [x.device for x in after.in_stage(ExchangeState.QUEUED)] == ["slow"]
    after.dispatch("b", now=163.0)
    after.on(Offered("b", offer()), 164.0)
    after.on(Arrived("first", at=165.0, bytes_up=400, duplicates=0), 165.0)
    assert after.on(Checked("first", None), 166.0) == [Accept("first"), GrantUpload("slow")]
    assert after.carried["slow"].tau_s is None


def test_enough_updates_call_off_who_is_in_time_but_not_who_goes_on() -> None:
    played = started("a", "b", "slow", slots=1, wanted=1)
    played.on(Offered("a", offer()), 101.0)
    played.on(Offered("b", offer()), 102.0)
    played.on(Arrived("a", at=150.0, bytes_up=400, duplicates=0), 150.0)
    assert played.on(Tick(), 165.0) == [GoesOn("slow", "no update within 60 s")]
    assert played.on(Checked("a", None), 167.0) == [
        Accept("a"),
        Abandon("b", "enough updates had arrived"),
    ]
    assert played.exchanges["b"].at_least_s == 2.0, "its wait for a slot was not its own"
    assert played.exchanges["slow"].goes_on
    assert played.is_over


def test_an_outage_is_nobodys_patience() -> None:
    played = round_with_a_straggler()
    played.hold(200.0)
    after = played.successor(version=1)
    assert after.wake_at() is None
    after.dispatch("a", now=210.0)
    assert after.exchanges["a"].is_disturbed
    after.go_on(300.0)
    assert after.wake_at() == 210.0 + DEADLINE_S + 90.0
    assert after.on(Tick(), 360.0) == [GoesOn("a", "no update within 60 s")]
    assert after.wake_at() == 100.0 + PATIENCE_S + 100.0


def test_everybody_is_given_up_when_the_run_is_over() -> None:
    played = round_with_a_straggler().successor(version=1)
    played.dispatch("a", now=200.0)
    orders = played.give_up("the run is over", 201.0)
    assert orders == [Abandon("slow", "the run is over"), Abandon("a", "the run is over")]
    assert played.carried["slow"].stage is ExchangeState.LATE
    assert played.exchanges["a"].stage is ExchangeState.CANCELLED
    assert played.is_idle


@pytest.mark.parametrize(
    ("end", "stage"),
    [(GaveUp("slow", "x"), ExchangeState.FAILED), (Vanished("slow", "x"), ExchangeState.LOST)],
)
def test_a_late_device_may_fail_like_any_other(end: Event, stage: ExchangeState) -> None:
    played = round_with_a_straggler().successor(version=1)
    assert played.on(end, 170.0) == [Abandon("slow", "x")]
    assert played.carried["slow"].stage is stage
    assert played.on(Offered("slow", offer(1)), 171.0) == []


class AnyRounds(RuleBasedStateMachine):
    """Rounds that follow each other at any time, with events in any order."""

    devices = ("a", "b", "c", "d", "e")

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.played = started(*self.devices[:3], slots=2, wanted=2)
        self.ended: dict[int, tuple[Exchange, Exchange]] = {}
        self.merged: set[tuple[str, int]] = set()

    def obey(self, orders: list[Order]) -> None:
        for order in orders:
            exchange = self.played.find(order.device)
            assert exchange is not None
            match order:
                case Accept():
                    key = (exchange.device, exchange.round)
                    assert key not in self.merged, "nobody is merged twice"
                    self.merged.add(key)
                case GoesOn():
                    assert exchange.goes_on
                case Abandon():
                    assert exchange.is_over

    def feed(self, event: Event) -> None:
        self.obey(list(self.played.on(event, self.now)))

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
    def gave_up(self, device: str) -> None:
        self.feed(GaveUp(device, "x"))

    @rule()
    def next_round(self) -> None:
        if not self.played.is_over:
            return
        before = self.played
        has_merged = bool(before.in_stage(ExchangeState.DONE))
        self.played = before.successor(before.version + has_merged)
        busy = set(self.played.carried)
        assert busy == {x.device for x in before.everybody() if x.stage.is_open}
        self.obey(list(self.played.drop_stale(self.now)))
        for device in sorted(set(self.devices) - busy)[:3]:
            self.played.dispatch(device, self.now)

    @invariant()
    def never_more_updates_in_memory_than_slots(self) -> None:
        granted, checking = ExchangeState.GRANTED, ExchangeState.CHECKING
        assert len(self.played.in_stage(granted)) + len(self.played.in_stage(checking)) <= 2

    @invariant()
    def a_slot_is_never_free_while_somebody_waits(self) -> None:
        in_memory = [
            *self.played.in_stage(ExchangeState.GRANTED),
            *self.played.in_stage(ExchangeState.CHECKING),
        ]
        assert len(in_memory) == 2 or not self.played.in_stage(ExchangeState.QUEUED)

    @invariant()
    def a_device_is_in_one_place(self) -> None:
        open_ = [x.device for x in self.played.everybody() if x.stage.is_open]
        assert len(open_) == len(set(open_))

    @invariant()
    def nothing_open_is_older_than_allowed(self) -> None:
        for x in self.played.everybody():
            if x.stage.is_open:
                assert self.played.version - x.version <= MAX_STALENESS
            if x.stage is ExchangeState.DONE:
                assert x.staleness is not None
                assert 0 <= x.staleness <= MAX_STALENESS

    @invariant()
    def only_who_is_late_outlives_its_round(self) -> None:
        assert all(x.is_late for x in self.played.carried.values())

    @invariant()
    def something_open_always_has_a_way_to_end(self) -> None:
        waiting = self.played.in_stage(ExchangeState.CHECKING) or self.played.wake_at() is not None
        assert self.played.is_idle or waiting

    @invariant()
    def nobody_outlives_its_patience(self) -> None:
        for x in self.played.everybody():
            if x.stage in (ExchangeState.ASKED, ExchangeState.GRANTED):
                assert self.now - x.dispatched - x.queued_s(self.now) < PATIENCE_S

    @invariant()
    def what_has_ended_stays_ended(self) -> None:
        for exchange, as_it_was in self.ended.values():
            assert exchange == replace(as_it_was, companions=exchange.companions)
        self.ended |= {id(x): (x, replace(x)) for x in self.played.everybody() if x.is_over}


TestAnyRounds = AnyRounds.TestCase
TestAnyRounds.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)
