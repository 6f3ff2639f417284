"""The transitions of a round's table, and its invariants under any events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairbed.coordinator.state.exchange import ExchangeState
from fairbed.coordinator.state.round import (
    Abandon,
    AcceptUpdate,
    Arrived,
    BrokeProtocol,
    Checked,
    DeviceFailed,
    DeviceLost,
    Event,
    Excluded,
    GrantUpload,
    Offered,
    Round,
    Tick,
    VerifyUpdate,
)
from fairbed.wire.messages import MAX_CHUNK_BYTES, Manifest, Offer
from tests.coordinator.builders import offer
from tests.tiers import examples

DEADLINE_S = 60.0


def started(*devices: str, slots: int = 16, target_updates: int | None = None) -> Round:
    table = Round(
        id=1,
        attempt=0,
        deadline_s=DEADLINE_S,
        slots=slots,
        target_updates=target_updates or len(devices),
    )
    for device in devices:
        table.dispatch(device, now=100.0)
    return table


def arrived(device: str, at: float) -> Arrived:
    return Arrived(device, at=at, bytes_up=400, duplicates=0)


def test_the_next_round_may_have_another_deadline_and_size() -> None:
    table = started("a").successor(1)
    table.set_limits(5.0, target_updates=1)
    for device in ("a", "b"):
        table.dispatch(device, now=200.0)
    assert table.wake_at() == 205.0
    table.on(Tick(), 205.0)
    assert {x.state for x in table.exchanges.values()} == {ExchangeState.LATE}


def test_a_device_is_granted_checked_and_accepted() -> None:
    table = started("a")
    assert table.on(Offered("a", offer()), 103.0) == [GrantUpload("a")]
    assert table.on(arrived("a", at=104.0), 104.5) == [VerifyUpdate("a")]
    assert table.in_state(ExchangeState.CHECKING)
    assert table.on(Checked("a", None), 105.0) == [AcceptUpdate("a")]
    exchange = table.exchanges["a"]
    assert table.is_over
    assert (exchange.tau_wall_s, exchange.tau_s, exchange.upload_s) == (4.0, 4.0, 1.0)


def test_waiting_for_a_slot_is_not_the_devices_time() -> None:
    table = started("a", "b", slots=1)
    table.on(Offered("a", offer()), 101.0)
    assert table.on(Offered("b", offer()), 102.0) == []
    assert table.on(arrived("a", at=106.0), 106.0) == [VerifyUpdate("a")], "it still holds its slot"
    assert table.on(Checked("a", None), 107.0) == [AcceptUpdate("a"), GrantUpload("b")]
    table.on(arrived("b", at=109.0), 109.0)
    b = table.exchanges["b"]
    assert (b.tau_wall_s, b.queued_s(109.0), b.tau_s) == (9.0, 5.0, 4.0)


def test_limits_that_an_operator_changed_hold_for_the_whole_round() -> None:
    table = Round(id=1, attempt=0, deadline_s=DEADLINE_S, slots=16, target_updates=2)
    table.set_limits(20.0, target_updates=1)
    table.dispatch("a", now=100.0)
    assert table.wake_at() == 120.0
    table.on(Offered("a", offer()), 101.0)
    table.on(arrived("a", at=102.0), 102.0)
    table.on(Checked("a", None), 103.0)
    assert table.is_over, "one update is enough"


def test_no_deadline_passes_while_our_own_link_is_down() -> None:
    table = started("a", "b")
    table.on_link_down(now=130.0)
    assert table.wake_at() is None
    assert table.on(Tick(), 1000.0) == []
    table.on_link_up(now=1030.0)
    assert table.wake_at() == 100.0 + 900.0 + DEADLINE_S
    table.on(Offered("a", offer()), 1040.0)
    assert table.on(Tick(), 1059.9) == []
    assert [type(action) for action in table.on(Tick(), 1060.0)] == [Abandon, Abandon]


def test_an_outage_extends_a_deadline_only_by_what_it_cost_the_device() -> None:
    table = started("a", "b", slots=1)
    table.on(Offered("a", offer()), 101.0)
    table.on(Offered("b", offer()), 102.0)
    table.on(arrived("a", at=104.0), 104.0)
    table.on_link_down(now=105.0)
    table.on(Checked("a", None), 107.0)  # off the loop: it needs no link, and frees a slot for b
    table.on_link_down(now=108.0)
    table.on_link_up(now=115.0)
    table.on_link_up(now=116.0)
    assert table.wake_at() == 100.0 + DEADLINE_S + (107.0 - 102.0) + (115.0 - 107.0)


def large_offer(chunk_bytes: int) -> Offer:
    return offer(
        manifest=Manifest(id=bytes(16), kind="update", size_bytes=10**7, chunk_bytes=chunk_bytes)
    )


def test_bytes_in_flight_bound_the_uploads_of_fast_devices() -> None:
    table = started(*"abcdef")
    actions = [
        action
        for device in "abcdef"
        for action in table.on(Offered(device, large_offer(MAX_CHUNK_BYTES)), 101.0)
    ]
    assert actions == [GrantUpload(device) for device in "abcd"], "two chunks each: 7.9 of 8.4 MB"
    assert table.on(arrived("c", at=102.0), 102.0) == [VerifyUpdate("c"), GrantUpload("e")]


def test_slow_devices_upload_all_at_once() -> None:
    names = [f"d{i}" for i in range(16)]
    table = started(*names)
    actions = [
        action
        for name in names
        for action in table.on(Offered(name, large_offer(61 * 1024)), 101.0)
    ]
    assert actions == [GrantUpload(name) for name in names]


def test_the_deadline_counts_without_the_time_in_the_queue() -> None:
    table = started("a", "b", slots=1)
    table.on(Offered("a", offer()), 101.0)
    table.on(Offered("b", offer()), 110.0)
    table.on(arrived("a", at=129.0), 129.0)
    table.on(Checked("a", None), 130.0)
    assert table.wake_at() == 100.0 + DEADLINE_S + 20.0
    assert table.on(Tick(), 179.0) == []
    assert table.on(Tick(), 180.0) == [Abandon("b", "no update within 60 s")]
    assert table.exchanges["b"].state is ExchangeState.LATE


def test_a_queued_device_has_no_deadline() -> None:
    table = started("a", "b", slots=1)
    table.on(Offered("a", offer()), 101.0)
    table.on(Offered("b", offer()), 102.0)
    table.on(DeviceFailed("a", "x"), 103.0)
    assert table.exchanges["b"].state is ExchangeState.GRANTED


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (DeviceFailed("a", "out of memory"), ExchangeState.FAILED),
        (BrokeProtocol("a", "wrong shape"), ExchangeState.REJECTED),
        (DeviceLost("a", "gone"), ExchangeState.LOST),
        (Excluded("a"), ExchangeState.CANCELLED),
    ],
)
def test_an_exchange_can_end_before_it_arrives(event: Event, state: ExchangeState) -> None:
    table = started("a")
    actions = table.on(event, 101.0)
    assert [type(action) for action in actions] == [Abandon]
    assert table.exchanges["a"].state is state
    assert table.is_over


def test_a_bad_update_is_rejected_with_its_fault() -> None:
    table = started("a")
    table.on(Offered("a", offer()), 101.0)
    table.on(arrived("a", at=102.0), 102.0)
    assert table.on(Checked("a", "NaN at 3"), 103.0) == [Abandon("a", "NaN at 3")]
    assert table.exchanges["a"].state is ExchangeState.REJECTED


def test_the_round_ends_with_enough_updates_and_cancels_the_rest() -> None:
    table = started("a", "b", "c", target_updates=1)
    table.on(Offered("a", offer()), 101.0)
    table.on(arrived("a", at=102.0), 102.0)
    actions = table.on(Checked("a", None), 103.0)
    assert actions[0] == AcceptUpdate("a")
    assert {action.device for action in actions[1:]} == {"b", "c"}
    assert table.is_over


def test_unknown_devices_and_duplicates_change_nothing() -> None:
    table = started("a")
    first = offer()
    assert table.on(Offered("stranger", offer()), 101.0) == []
    table.on(Offered("a", first), 101.0)
    assert table.on(Offered("a", offer()), 102.0) == []
    assert table.exchanges["a"].offer is first
    assert table.on(Checked("a", None), 102.0) == []
    assert table.exchanges["a"].state is ExchangeState.GRANTED


def test_an_update_is_accepted_once() -> None:
    table = started("a", "b")
    table.on(Offered("a", offer()), 101.0)
    table.on(arrived("a", at=102.0), 102.0)
    assert table.on(Checked("a", None), 103.0) == [AcceptUpdate("a")]
    assert table.on(arrived("a", at=102.0), 104.0) == []
    assert table.on(Checked("a", None), 104.0) == []
    assert [x.device for x in table.ended] == ["a"]


class AnyRound(RuleBasedStateMachine):
    """Events in any order, at any time."""

    devices = ("a", "b", "c", "d", "e")

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.table = started(*self.devices, slots=2, target_updates=3)
        self.ended: dict[str, ExchangeState] = {}

    @property
    def in_memory(self) -> int:
        return len(self.table.in_state(ExchangeState.GRANTED)) + len(
            self.table.in_state(ExchangeState.CHECKING)
        )

    def feed(self, event: Event) -> None:
        self.table.on(event, self.now)

    @rule(seconds=st.floats(0.0, 40.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Tick())

    @rule(device=st.sampled_from(devices))
    def offered(self, device: str) -> None:
        self.feed(Offered(device, offer()))

    @rule(device=st.sampled_from(devices))
    def arrived(self, device: str) -> None:
        self.feed(arrived(device, self.now))

    @rule(device=st.sampled_from(devices), fault=st.sampled_from([None, "NaN"]))
    def checked(self, device: str, fault: str | None) -> None:
        self.feed(Checked(device, fault))

    @rule(device=st.sampled_from(devices))
    def failed(self, device: str) -> None:
        self.feed(DeviceFailed(device, "x"))

    @precondition(lambda self: not self.table.is_over)
    @rule(device=st.sampled_from(devices))
    def vanished(self, device: str) -> None:
        self.feed(DeviceLost(device, "x"))

    @invariant()
    def never_more_updates_in_memory_than_slots(self) -> None:
        assert self.in_memory <= 2

    @invariant()
    def a_slot_is_never_free_while_an_exchange_is_queued(self) -> None:
        assert self.in_memory == 2 or not self.table.in_state(ExchangeState.QUEUED)

    @invariant()
    def never_more_updates_than_wanted(self) -> None:
        assert len(self.table.in_state(ExchangeState.DONE)) <= 3

    @invariant()
    def what_has_ended_stays_ended(self) -> None:
        for device, state in self.ended.items():
            assert self.table.exchanges[device].state is state
        self.ended = {
            device: x.state for device, x in self.table.exchanges.items() if not x.state.is_open
        }

    @invariant()
    def an_open_exchange_can_always_end(self) -> None:
        waiting = self.table.in_state(ExchangeState.CHECKING) or self.table.wake_at() is not None
        assert self.table.is_over or waiting

    @invariant()
    def tau_is_wall_time_less_the_queue(self) -> None:
        for x in self.table.exchanges.values():
            if x.tau_s is not None and x.tau_wall_s is not None:
                assert x.tau_s == pytest.approx(x.tau_wall_s - x.queued_s(self.now))
                assert x.tau_s >= 0.0


TestAnyRound = AnyRound.TestCase
TestAnyRound.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
