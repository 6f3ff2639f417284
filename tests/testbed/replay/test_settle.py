"""How a round ends: by the formula where nobody waits, else by the coordinator's own table."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.policy.config import RoundConfig
from fairbed.testbed.replay.settle import in_turn, settle
from fairbed.testbed.replay.world import Ended, Exchanges
from fairbed.wire.messages import MAX_CHUNK_BYTES

KB = 1024


def exchanges(
    ready_s: list[float],
    upload_s: list[float],
    upload: Callable[[int, float], float] | None = None,
    size: int = 40 * KB,
    chunk: int = 32 * KB,
) -> Exchanges:
    k = len(ready_s)
    zero_s: Floats = np.zeros(k)
    return Exchanges(
        signal_s=zero_s,
        download_s=zero_s,
        decode_s=zero_s,
        load_s=zero_s,
        evaluate_s=zero_s,
        train_s=np.array(ready_s, dtype=np.float64),
        encode_s=zero_s,
        upload_s=np.array(upload_s, dtype=np.float64),
        upload=upload or (lambda at, start_s: upload_s[at]),
        was_cold=np.zeros(k, dtype=np.bool_),
        bytes_down=np.full(k, size, dtype=np.int64),
        bytes_up=np.full(k, size, dtype=np.int64),
        chunk_bytes=np.full(k, chunk, dtype=np.int64),
        codec_down=("float32",) * k,
        codec_up="float32",
        steps=np.ones(k, dtype=np.int64),
    )


def same(one: Ended, other: Ended) -> None:
    assert one.outcome == other.outcome
    assert one.end_s == pytest.approx(other.end_s, abs=1e-12)
    assert one.has_trained.tolist() == other.has_trained.tolist()
    assert one.is_merged.tolist() == other.is_merged.tolist()
    np.testing.assert_allclose(one.queued_s, other.queued_s, atol=1e-12)


SECONDS = st.floats(0.01, 9.0)


@given(
    times=st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8, unique_by=sum),
    deadline_s=st.floats(0.5, 12.0),
    wanted=st.integers(1, 8),
)
def test_without_a_queue_the_formula_is_what_the_table_says(
    times: list[tuple[float, float]], deadline_s: float, wanted: int
) -> None:
    cohort = exchanges([ready for ready, _ in times], [upload for _, upload in times])
    rules = RoundConfig(deadline_s=deadline_s)
    same(settle(cohort, rules, wanted, slots=8), in_turn(cohort, rules, wanted, slots=8))


def test_who_finds_no_slot_waits_for_one_and_its_deadline_waits_with_it() -> None:
    cohort = exchanges([1.0, 1.5, 2.0], [4.0, 4.0, 4.0])
    ended = settle(cohort, RoundConfig(deadline_s=6.5), 3, slots=1)
    assert ended.outcome == ("done", "done", "done")
    assert ended.queued_s.tolist() == [0.0, 3.5, 7.0]
    assert ended.end_s == 13.0


def test_the_queue_is_in_the_order_of_the_offers() -> None:
    ended = settle(exchanges([3.0, 1.0, 2.0], [5.0, 5.0, 5.0]), RoundConfig(), 3, slots=1)
    assert ended.queued_s.tolist() == [8.0, 0.0, 4.0]


def test_an_upload_takes_what_it_takes_from_its_grant_on() -> None:
    asked = []

    def upload(at: int, start_s: float) -> float:
        asked.append((at, start_s))
        return 1.0

    ended = settle(exchanges([1.0, 1.0], [4.0, 4.0], upload), RoundConfig(), 2, slots=1)
    assert asked == [(1, 5.0)], "the first was granted at once"
    assert ended.upload_s.tolist() == [4.0, 1.0]
    assert ended.end_s == 6.0


def test_windows_of_large_updates_share_the_room_at_the_coordinator() -> None:
    large = exchanges([1.0] * 6, [10.0] * 6, size=64 << 20, chunk=MAX_CHUNK_BYTES)
    ended = settle(large, RoundConfig(), 6, slots=16)
    assert sorted(ended.queued_s.tolist())[:4] == [0.0] * 4
    assert sorted(ended.queued_s.tolist())[-1] == 10.0


def test_a_late_upload_gives_its_slot_to_the_next() -> None:
    ended = settle(exchanges([1.0, 2.0], [50.0, 1.0]), RoundConfig(deadline_s=10.0), 2, slots=1)
    assert ended.outcome == ("late", "done")
    assert ended.end_s == 11.0
    assert ended.has_trained.tolist() == [True, True]


def test_enough_updates_end_the_round_for_those_who_wait() -> None:
    ended = settle(exchanges([1.0, 2.0, 3.0], [5.0, 1.0, 1.0]), RoundConfig(), 1, slots=1)
    assert ended.outcome == ("done", "cancelled", "cancelled")
    assert ended.end_s == 6.0
    assert np.isnan(ended.upload_s[1])


def test_what_never_ends_is_late() -> None:
    never = exchanges([1.0, np.inf], [np.inf, 1.0])
    for ended in (settle(never, RoundConfig(), 2, 8), in_turn(never, RoundConfig(), 2, 8)):
        assert ended.outcome == ("late", "late")
        assert ended.end_s == 60.0


def test_who_is_gone_for_too_long_is_lost_and_not_waited_for() -> None:
    cohort = replace(exchanges([1.0, 2.0], [4.0, 99.0]), gone_s=np.array([np.inf, 20.0]))
    ended = settle(cohort, RoundConfig(), 2, slots=8)
    assert ended.outcome == ("done", "lost")
    assert (ended.end_s, ended.is_merged.tolist()) == (20.0, [True, False])


def test_nobody_is_a_void_round() -> None:
    ended = settle(exchanges([], []), RoundConfig(void_wait_s=2.5), 4, slots=2)
    assert (ended.outcome, ended.end_s) == ((), 2.5)
