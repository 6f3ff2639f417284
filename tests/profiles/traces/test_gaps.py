"""Gaps are cut, held or set to 0, and what was done is stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.profiles.traces import Trace
from fairbed.profiles.traces.gaps import GapRule, bridge_gaps


def trace(times: list[float], period_s: float, column: str = "down_bps") -> Trace:
    return Trace(np.array(times), {column: np.arange(1.0, len(times) + 1.0)}, period_s)


LOG = trace([0.0, 1.0, 2.0, 3.0, 1003.0, 1004.0], 1005.0)


def test_a_gap_is_cut_to_the_usual_time_between_rows() -> None:
    found, gaps = bridge_gaps(LOG, "cut")
    assert found.t_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert found.period_s == 6.0
    assert found.columns["down_bps"].tolist() == LOG.columns["down_bps"].tolist()
    assert str(gaps) == "1 gap of more than 10 s, 999 s in all: cut"


def test_a_gap_is_held_as_recorded() -> None:
    found, gaps = bridge_gaps(LOG, "hold")
    assert found is LOG
    assert str(gaps) == "1 gap of more than 10 s, 999 s in all: held the last values"


def test_a_gap_is_a_rate_of_zero_and_other_numbers_hold() -> None:
    two = Trace(LOG.t_s, {**LOG.columns, "delay_s": np.full(6, 0.02)}, LOG.period_s)
    found, gaps = bridge_gaps(two, "zero")
    assert found.t_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 1003.0, 1004.0]
    assert found.columns["down_bps"].tolist() == [1.0, 2.0, 3.0, 4.0, 0.0, 5.0, 6.0]
    assert found.columns["delay_s"].tolist() == [0.02] * 7
    assert str(gaps).endswith("set to a rate of 0")


def test_a_trace_without_a_rate_has_no_zero() -> None:
    clock = trace([0.0, 1.0, 2.0, 900.0], 901.0, "clock_ratio")
    with pytest.raises(ValueError, match=r"with a rate, got clock_ratio; take cut or hold$"):
        bridge_gaps(clock, "zero")


def test_the_last_row_does_not_last_as_long_as_a_gap_before_it() -> None:
    found, gaps = bridge_gaps(trace([0.0, 1.0, 2.0, 3.0, 500.0], 997.0), "cut")
    assert (found.t_s[-1], found.period_s) == (4.0, 5.0)
    assert gaps.count == 1
    stated, _ = bridge_gaps(trace([0.0, 1.0, 2.0, 3.0, 4.0], 600.0), "cut")
    assert stated.period_s == 600.0  # the file has `period_s`


def test_a_trace_that_is_always_sparse_has_no_gap() -> None:
    for sparse in (trace([0.0, 20.0, 35.0, 40.0], 60.0), trace([0.0, 900.0], 1000.0)):
        found, gaps = bridge_gaps(sparse, "cut")
        assert (found, gaps.count) == (sparse, 0)
    found, gaps = bridge_gaps(trace([0.0, 900.0], 910.0), "cut", 60.0)
    assert (gaps.count, found.period_s) == (1, 70.0)
    with pytest.raises(ValueError, match=r"^gaps must be longer than 0 s, got 0 s"):
        bridge_gaps(LOG, "cut", 0.0)


@given(
    st.lists(st.floats(0.5, 500.0), min_size=3, max_size=40),
    st.sampled_from(["cut", "zero"]),
    st.sampled_from([None, 2.0, 30.0]),
)
def test_values_hold_as_long_as_before_outside_of_gaps(
    steps_s: list[float], rule: GapRule, longest_s: float | None
) -> None:
    times = np.concatenate([[0.0], np.cumsum(steps_s)])
    before = trace(times.tolist(), float(times[-1]) + 0.5)
    after, gaps = bridge_gaps(before, rule, longest_s)
    assert (np.diff(after.t_s) > 0.0).all()
    kept = after.columns["down_bps"] > 0.0
    expected = np.minimum(before.durations_s, gaps.longest_s)
    lasting = after.durations_s[kept]
    ordinary = before.durations_s <= gaps.longest_s
    assert lasting[ordinary] == pytest.approx(before.durations_s[ordinary])
    assert (lasting <= expected + 1e-9).all()
    zero_s = after.durations_s[~kept].sum()
    lost_s = before.period_s - after.period_s
    assert lost_s + zero_s == pytest.approx(gaps.total_s, abs=1e-6)
