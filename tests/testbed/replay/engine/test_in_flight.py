"""The end of a synchronous round: by its events, or by its closed form."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, Prediction
from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.coordinator.policy.selection import Selection
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.engine.engine import column
from fairbed.testbed.replay.engine.in_flight import GONE, InFlight, needs_no_events
from fairbed.testbed.replay.world.linear import LinearLaw, LinearWorld
from fairbed.testbed.replay.world.world import Exchanges, FleetSnapshot, LastRound, ReplayedExchange
from fairbed.wire.messages import MAX_CHUNK_BYTES

KB = 1024
DEADLINE_S = RoundConfig().deadline_s


class Uploading(LinearWorld):
    """Devices with upload slots; a later grant may have another upload time."""

    def __init__(self, slots: int | None, later_s: float | None = None) -> None:
        law = LinearLaw(
            theta=(1.0, 0.0, 0.0),
            mu=(1.0, 1.0),
            bandwidth_bps=(1e6, 1e6),
            availability=1.0,
            noise=0.0,
        )
        super().__init__([law] * 8, 1.0, 0)
        self.slots, self._later_s = slots, later_s
        self.grants: list[tuple[int, float]] = []
        self.pulled: list[int] = []
        self.over: list[int] = []

    def upload_s(self, exchange: ReplayedExchange, granted_s: float) -> float:
        """Return the other upload time, if there is one."""
        self.grants.append((exchange.row, granted_s))
        return exchange.upload_s if self._later_s is None else self._later_s

    def on_pulled(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Note the rows."""
        self.pulled += [x.row for x in exchanges]

    def on_over(self, exchanges: Sequence[ReplayedExchange]) -> None:
        """Note the rows."""
        self.over += [x.row for x in exchanges]


def planned(
    ready_s: list[float], upload_s: list[float], size: int = 40 * KB, chunk: int = 32 * KB
) -> Exchanges:
    """Return exchanges that offer at `ready_s` and upload for `upload_s`."""
    k = len(ready_s)
    zero_s: Floats = np.zeros(k)
    return Exchanges(
        started_s=0.0,
        signal_s=zero_s,
        download_s=zero_s,
        decode_s=zero_s,
        load_s=zero_s,
        evaluate_s=zero_s,
        train_s=np.array(ready_s, dtype=np.float64),
        personal_s=zero_s,
        encode_s=zero_s,
        upload_s=np.array(upload_s, dtype=np.float64),
        is_upload_seen=True,
        was_cold=np.zeros(k, dtype=np.bool_),
        bytes_down=np.full(k, size, dtype=np.int64),
        bytes_up=np.full(k, size, dtype=np.int64),
        chunk_bytes=np.full(k, chunk, dtype=np.int64),
        codec_down=("float32",) * k,
        codec_up="float32",
        steps=np.ones(k, dtype=np.int64),
    )


@dataclass(frozen=True)
class Round:
    """A synchronous round that is over."""

    exchanges: list[ReplayedExchange]
    end_s: float
    world: Uploading

    @property
    def outcome(self) -> list[str]:
        """Outcome of each exchange."""
        return [x.outcome for x in self.exchanges]


def a_round(
    of: Exchanges,
    wanted: int,
    slots: int | None,
    deadline_s: float = DEADLINE_S,
    later_s: float | None = None,
) -> Round:
    """Run a round of these exchanges."""
    rules = RoundConfig(deadline_s=deadline_s)
    config = Experiment(
        name="x", selection=SelectionConfig(per_round=wanted), round=rules
    ).coordinator()
    world = Uploading(slots, later_s)
    flight, k = InFlight(config, world), len(of.was_cold)
    flight.begin_round()
    snapshot: FleetSnapshot = world.observe(1, 0.0, LastRound.before_first(len(world)))
    flight.dispatch(of, a_choice(np.arange(k, dtype=np.int64), len(world)), snapshot)
    flight.run_round()
    flight.notify_world()
    return Round(flight.dispatched, flight.clock, world)


def a_choice(rows: Ints, n: int) -> Selection:
    nothing = np.zeros(n)
    return Selection(
        round=1,
        rows=rows,
        is_available=np.ones(n, dtype=np.bool_),
        context=np.zeros((n, CONTEXT)),
        prediction=Prediction(nothing, nothing, nothing),
        n_k=np.ones(n, dtype=np.int64),
        propensity=nothing,
    )


def eventful(of: Exchanges) -> Exchanges:
    """Return the same exchanges with devices that are lost much later: no closed form."""
    return replace(of, gone_s=np.full(len(of.was_cold), 1e9))


SECONDS = st.sampled_from([0.0, 0.5, 1.0, 2.0, np.inf]) | st.floats(0.0, 9.0)


@given(
    times=st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8),
    deadline_s=st.sampled_from([1.25, 3.3]) | st.floats(0.5, 12.0),
    wanted=st.integers(1, 8),
    slots=st.sampled_from([8, 100, None]),
)
def test_the_closed_form_equals_the_events(
    times: list[tuple[float, float]], deadline_s: float, wanted: int, slots: int | None
) -> None:
    """To the bit, ties included; a round with an event at the deadline has no closed form."""
    of = planned([ready for ready, _ in times], [upload for _, upload in times])
    assume(needs_no_events(of, deadline_s, slots))
    assert not needs_no_events(eventful(of), deadline_s, slots)
    one, other = (a_round(plan, wanted, slots, deadline_s) for plan in (of, eventful(of)))
    assert one.end_s == other.end_s
    for x, y in zip(one.exchanges, other.exchanges, strict=True):
        kept = [f.name for f in fields(x.entry) if f.name not in ("offer", "number")]
        assert [getattr(x.entry, f) for f in kept] == [getattr(y.entry, f) for f in kept]
        assert (x.has_offered, x.queued_s, x.over_s) == (y.has_offered, y.queued_s, y.over_s)
    assert sorted(one.world.pulled) == sorted(other.world.pulled)
    assert sorted(one.world.over) == sorted(other.world.over) == list(range(len(times)))


def test_a_closed_form_needs_slots_memory_and_no_lost_device() -> None:
    of = planned([1.0] * 6, [10.0] * 6)
    large = planned([1.0] * 6, [10.0] * 6, size=64 << 20, chunk=MAX_CHUNK_BYTES)
    assert needs_no_events(of, DEADLINE_S, None)
    assert needs_no_events(of, DEADLINE_S, 6)
    assert needs_no_events(large, DEADLINE_S, None)
    assert not needs_no_events(of, DEADLINE_S, 5)
    assert not needs_no_events(large, DEADLINE_S, 6)
    assert not needs_no_events(of, 11.0, 6), "an arrival exactly at the deadline"
    assert not needs_no_events(replace(of, gone_s=np.array([np.inf] * 5 + [9.0])), 60.0, 6)


def test_arrivals_at_one_instant_do_not_exceed_the_target() -> None:
    of = planned([1.0, 0.5, 1.0, 1.0], [1.0, 1.5, 1.0, 1.0])
    for one in (a_round(of, 2, None), a_round(eventful(of), 2, None)):
        assert one.outcome == ["done", "done", "cancelled", "cancelled"]
        assert one.end_s == 2.0


def test_a_device_without_a_slot_waits_and_its_deadline_waits_with_it() -> None:
    one = a_round(planned([1.0, 1.5, 2.0], [4.0, 4.0, 4.0]), 3, slots=1, deadline_s=6.5)
    assert one.outcome == ["done", "done", "done"]
    assert column(one.exchanges, "queued_s").tolist() == [0.0, 3.5, 7.0]
    assert one.end_s == 13.0


def test_the_queue_is_in_the_order_of_the_offers() -> None:
    one = a_round(planned([3.0, 1.0, 2.0], [5.0, 5.0, 5.0]), 3, slots=1)
    assert column(one.exchanges, "queued_s").tolist() == [8.0, 0.0, 4.0]


def test_the_duration_of_an_upload_is_that_of_its_grant() -> None:
    one = a_round(planned([1.0, 1.0], [4.0, 4.0]), 2, slots=1, later_s=1.0)
    assert one.world.grants == [(1, 5.0)], "the first was granted at once"
    assert column(one.exchanges, "upload_s").tolist() == [4.0, 1.0]
    assert one.end_s == 6.0


def test_large_updates_share_the_memory_of_the_coordinator() -> None:
    large = planned([1.0] * 6, [10.0] * 6, size=64 << 20, chunk=MAX_CHUNK_BYTES)
    queued_s = sorted(column(a_round(large, 6, slots=16).exchanges, "queued_s").tolist())
    assert queued_s[:4] == [0.0] * 4
    assert queued_s[-1] == 10.0


def test_a_late_upload_gives_its_slot_to_the_next() -> None:
    one = a_round(planned([1.0, 2.0], [50.0, 1.0]), 2, slots=1, deadline_s=10.0)
    assert one.outcome == ["late", "done"]
    assert one.end_s == 11.0
    assert [x.has_trained for x in one.exchanges] == [True, True]
    assert one.exchanges[0].over_s == 10.0, "it stops at its own deadline"


def test_enough_updates_end_the_round_for_those_that_wait() -> None:
    one = a_round(planned([1.0, 2.0, 3.0], [5.0, 1.0, 1.0]), 1, slots=1)
    assert one.outcome == ["done", "cancelled", "cancelled"]
    assert one.end_s == 6.0
    assert column(one.exchanges, "queued_s").tolist() == [0.0, 0.0, 0.0], "no upload was granted"


def test_an_exchange_that_never_ends_is_late() -> None:
    never = planned([1.0, np.inf], [np.inf, 1.0])
    for one in (a_round(never, 2, 8), a_round(eventful(never), 2, 8)):
        assert one.outcome == ["late", "late"]
        assert one.end_s == 60.0


def test_a_device_that_is_gone_for_too_long_is_lost() -> None:
    cohort = replace(planned([1.0, 2.0], [4.0, 99.0]), gone_s=np.array([np.inf, 20.0]))
    one = a_round(cohort, 2, slots=8)
    assert one.outcome == ["done", "lost"]
    assert one.exchanges[1].entry.reason == GONE
    assert (one.end_s, [x.is_done for x in one.exchanges]) == (20.0, [True, False])


def test_the_world_is_notified_of_downloads_that_ended_before_their_exchange() -> None:
    slow = replace(planned([1.0, 1.0], [1.0, 1.0]), download_s=np.array([0.5, 70.0]))
    one = a_round(slow, 2, slots=None)
    assert one.outcome == ["done", "late"]
    assert (one.world.pulled, sorted(one.world.over)) == ([0], [0, 1])


@pytest.mark.parametrize("mode", ["merge", "async"])
def test_exchanges_in_flight_are_restored_from_a_checkpoint(mode: str) -> None:
    late, buffered = RoundConfig(deadline_s=2.0, late="merge"), RoundConfig(mode="async", buffer=1)
    round_ = late if mode == "merge" else buffered
    config = Experiment(
        name="x", selection=SelectionConfig(per_round=3), round=round_
    ).coordinator()
    of = planned([1.0, 2.5, 2.25], [0.5, 1.0, 9.0])

    def begun() -> InFlight:
        flight, world = InFlight(config, Uploading(1)), Uploading(1)
        flight.begin_round()
        flight.table.begin(0.0)
        snapshot = world.observe(1, 0.0, LastRound.before_first(len(world)))
        flight.dispatch(of, a_choice(np.arange(3, dtype=np.int64), len(world)), snapshot)
        flight.run_round()
        while flight.clock < 2.6:
            flight.step(2.6)
        flight.notify_world()
        flight.open(flight.table.successor(1), flight.over)
        return flight

    whole, again = begun(), InFlight(config, Uploading(1))
    again.load_state(begun().to_state(), whole.now)
    for flight in (whole, again):
        flight.begin_round()
        while not flight.table.is_idle:
            flight.step()
    assert [x.entry for x in again.over] == [x.entry for x in whole.over]
    assert len(whole.over) == 2
    assert again.now == whole.now
