"""Each row of the round's table, and what must hold whatever happens."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairbed.coordinator.state.exchange import ExchangeState
from fairbed.coordinator.state.round import (
    Abandon,
    Accept,
    Arrived,
    Check,
    Checked,
    Event,
    Excluded,
    GaveUp,
    GrantUpload,
    Misbehaved,
    Offered,
    Round,
    Tick,
    Vanished,
)
from fairbed.wire.messages import MAX_CHUNK_BYTES, Manifest, Offer
from tests.coordinator.builders import offer
from tests.tiers import examples

DEADLINE_S = 60.0


def started(*devices: str, slots: int = 16, wanted: int | None = None) -> Round:
    played = Round(
        id=1, attempt=0, deadline_s=DEADLINE_S, slots=slots, wanted=wanted or len(devices)
    )
    for device in devices:
        played.dispatch(device, now=100.0)
    return played


def arrived(device: str, at: float) -> Arrived:
    return Arrived(device, at=at, bytes_up=400, duplicates=0)


def test_a_device_is_granted_checked_and_accepted() -> None:
    played = started("a")
    assert played.on(Offered("a", offer()), 103.0) == [GrantUpload("a")]
    assert played.on(arrived("a", at=104.0), 104.5) == [Check("a")]
    assert played.in_stage(ExchangeState.CHECKING)
    assert played.on(Checked("a", None), 105.0) == [Accept("a")]
    exchange = played.exchanges["a"]
    assert played.is_over
    assert (exchange.tau_wall_s, exchange.tau_s, exchange.upload_s) == (4.0, 4.0, 1.0)


def test_waiting_for_a_slot_is_not_the_devices_time() -> None:
    played = started("a", "b", slots=1)
    played.on(Offered("a", offer()), 101.0)
    assert played.on(Offered("b", offer()), 102.0) == []
    assert played.on(arrived("a", at=106.0), 106.0) == [Check("a")], "it still holds its slot"
    assert played.on(Checked("a", None), 107.0) == [Accept("a"), GrantUpload("b")]
    played.on(arrived("b", at=109.0), 109.0)
    b = played.exchanges["b"]
    assert (b.tau_wall_s, b.queued_s(109.0), b.tau_s) == (9.0, 5.0, 4.0)


def test_no_deadline_passes_while_our_own_link_is_down() -> None:
    played = started("a", "b")
    played.hold(now=130.0)
    assert played.wake_at() is None
    assert played.on(Tick(), 1000.0) == []
    played.go_on(now=1030.0)
    assert played.wake_at() == 100.0 + 900.0 + DEADLINE_S
    played.on(Offered("a", offer()), 1040.0)
    assert played.on(Tick(), 1059.9) == []
    assert [type(order) for order in played.on(Tick(), 1060.0)] == [Abandon, Abandon]


def test_an_outage_gives_back_only_what_it_took_from_a_device() -> None:
    played = started("a", "b", slots=1)
    played.on(Offered("a", offer()), 101.0)
    played.on(Offered("b", offer()), 102.0)
    played.on(arrived("a", at=104.0), 104.0)
    played.hold(now=105.0)
    played.on(Checked("a", None), 107.0)  # off the loop: it needs no link, and makes room for b
    played.hold(now=108.0)
    played.go_on(now=115.0)
    played.go_on(now=116.0)
    assert played.wake_at() == 100.0 + DEADLINE_S + (107.0 - 102.0) + (115.0 - 107.0)


def large_offer(chunk_bytes: int) -> Offer:
    return offer(
        manifest=Manifest(id=bytes(16), kind="update", size_bytes=10**7, chunk_bytes=chunk_bytes)
    )


def test_what_waits_in_the_broker_bounds_the_uploads_of_fast_devices() -> None:
    played = started(*"abcdef")
    orders = [
        order
        for device in "abcdef"
        for order in played.on(Offered(device, large_offer(MAX_CHUNK_BYTES)), 101.0)
    ]
    assert orders == [GrantUpload(device) for device in "abcd"], "two chunks each: 7.9 of 8.4 MB"
    assert played.on(arrived("c", at=102.0), 102.0) == [Check("c"), GrantUpload("e")]


def test_slow_devices_upload_all_at_once() -> None:
    names = [f"d{i}" for i in range(16)]
    played = started(*names)
    orders = [
        order for name in names for order in played.on(Offered(name, large_offer(61 * 1024)), 101.0)
    ]
    assert orders == [GrantUpload(name) for name in names]


def test_the_deadline_counts_without_the_time_in_the_queue() -> None:
    played = started("a", "b", slots=1)
    played.on(Offered("a", offer()), 101.0)
    played.on(Offered("b", offer()), 110.0)
    played.on(arrived("a", at=129.0), 129.0)
    played.on(Checked("a", None), 130.0)
    assert played.wake_at() == 100.0 + DEADLINE_S + 20.0
    assert played.on(Tick(), 179.0) == []
    assert played.on(Tick(), 180.0) == [Abandon("b", "no update within 60 s")]
    assert played.exchanges["b"].stage is ExchangeState.LATE


def test_a_queued_device_has_no_deadline() -> None:
    played = started("a", "b", slots=1)
    played.on(Offered("a", offer()), 101.0)
    played.on(Offered("b", offer()), 102.0)
    played.on(GaveUp("a", "x"), 103.0)
    assert played.exchanges["b"].stage is ExchangeState.GRANTED


@pytest.mark.parametrize(
    ("event", "stage"),
    [
        (GaveUp("a", "out of memory"), ExchangeState.FAILED),
        (Misbehaved("a", "wrong shape"), ExchangeState.REJECTED),
        (Vanished("a", "gone"), ExchangeState.LOST),
        (Excluded("a"), ExchangeState.CANCELLED),
    ],
)
def test_an_exchange_can_end_before_it_arrives(event: Event, stage: ExchangeState) -> None:
    played = started("a")
    orders = played.on(event, 101.0)
    assert [type(order) for order in orders] == [Abandon]
    assert played.exchanges["a"].stage is stage
    assert played.is_over


def test_a_bad_update_is_rejected_with_its_fault() -> None:
    played = started("a")
    played.on(Offered("a", offer()), 101.0)
    played.on(arrived("a", at=102.0), 102.0)
    assert played.on(Checked("a", "NaN at 3"), 103.0) == [Abandon("a", "NaN at 3")]
    assert played.exchanges["a"].stage is ExchangeState.REJECTED


def test_the_round_ends_with_enough_updates_and_calls_the_rest_off() -> None:
    played = started("a", "b", "c", wanted=1)
    played.on(Offered("a", offer()), 101.0)
    played.on(arrived("a", at=102.0), 102.0)
    orders = played.on(Checked("a", None), 103.0)
    assert orders[0] == Accept("a")
    assert {order.device for order in orders[1:]} == {"b", "c"}
    assert played.is_over


def test_strangers_and_repetitions_change_nothing() -> None:
    played = started("a")
    first = offer()
    assert played.on(Offered("stranger", offer()), 101.0) == []
    played.on(Offered("a", first), 101.0)
    assert played.on(Offered("a", offer()), 102.0) == []
    assert played.exchanges["a"].offer is first
    assert played.on(Checked("a", None), 102.0) == []
    assert played.exchanges["a"].stage is ExchangeState.GRANTED


class AnyRound(RuleBasedStateMachine):
    """Events in any order, at any time."""

    devices = ("a", "b", "c", "d", "e")

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.played = started(*self.devices, slots=2, wanted=3)
        self.ended: dict[str, ExchangeState] = {}

    @property
    def in_memory(self) -> int:
        return len(self.played.in_stage(ExchangeState.GRANTED)) + len(
            self.played.in_stage(ExchangeState.CHECKING)
        )

    def feed(self, event: Event) -> None:
        self.played.on(event, self.now)

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
    def gave_up(self, device: str) -> None:
        self.feed(GaveUp(device, "x"))

    @precondition(lambda self: not self.played.is_over)
    @rule(device=st.sampled_from(devices))
    def vanished(self, device: str) -> None:
        self.feed(Vanished(device, "x"))

    @invariant()
    def never_more_updates_in_memory_than_slots(self) -> None:
        assert self.in_memory <= 2

    @invariant()
    def a_slot_is_never_free_while_somebody_waits(self) -> None:
        assert self.in_memory == 2 or not self.played.in_stage(ExchangeState.QUEUED)

    @invariant()
    def never_more_updates_than_wanted(self) -> None:
        assert len(self.played.in_stage(ExchangeState.DONE)) <= 3

    @invariant()
    def what_has_ended_stays_ended(self) -> None:
        for device, stage in self.ended.items():
            assert self.played.exchanges[device].stage is stage
        self.ended = {
            device: x.stage for device, x in self.played.exchanges.items() if not x.stage.is_open
        }

    @invariant()
    def something_open_always_has_a_way_to_end(self) -> None:
        waiting = self.played.in_stage(ExchangeState.CHECKING) or self.played.wake_at() is not None
        assert self.played.is_over or waiting

    @invariant()
    def tau_is_wall_time_less_the_queue(self) -> None:
        for x in self.played.exchanges.values():
            if x.tau_s is not None and x.tau_wall_s is not None:
                assert x.tau_s == pytest.approx(x.tau_wall_s - x.queued_s(self.now))
                assert x.tau_s >= 0.0


TestAnyRound = AnyRound.TestCase
TestAnyRound.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
