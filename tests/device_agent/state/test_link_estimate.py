"""The device's estimate of its link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.device_agent.state.link_estimate import MAX_AGE_S, MAX_BPS, PROBE_BYTES, LinkEstimate


def test_a_rate_is_bits_over_time_without_the_round_trip() -> None:
    link = LinkEstimate()
    link.on_round_trip(0.1)
    assert link.on_transfer("down", 125_000, 1.1, now=0.0)
    assert link.downlink_bps == pytest.approx(1e6)
    assert link.uplink_bps is None


def test_a_round_trip_longer_than_the_transfer_does_not_make_it_infinite() -> None:
    link = LinkEstimate()
    link.on_round_trip(5.0)
    link.on_transfer("up", 100_000, 1.0, now=0.0)
    assert link.uplink_bps == pytest.approx(8e6)


def test_the_round_trip_follows_the_shortest_at_once_and_longer_ones_slowly() -> None:
    link = LinkEstimate()
    for elapsed_s in (0.2, 0.1, 0.3):
        link.on_round_trip(elapsed_s)
    assert link.rtt_s == pytest.approx(0.2)


def test_small_transfers_are_ignored() -> None:
    link = LinkEstimate()
    assert not link.on_transfer("up", 4_000, 1.0, now=0.0)
    assert link.uplink_bps is None


def test_samples_are_averaged_as_time_per_bit() -> None:
    link = LinkEstimate()
    link.on_transfer("up", 125_000, 1.0, now=0.0)
    link.on_transfer("up", 125_000, 3.0, now=1.0)
    assert link.uplink_bps == pytest.approx(1e6 / 2.0)


def test_a_sample_replaces_one_that_is_too_old() -> None:
    link = LinkEstimate()
    link.on_transfer("up", 125_000, 1.0, now=0.0)
    link.on_transfer("up", 125_000, 2.0, now=MAX_AGE_S + 1.0)
    assert link.uplink_bps == pytest.approx(0.5e6)


def test_the_age_is_that_of_the_older_rate() -> None:
    link = LinkEstimate()
    link.on_transfer("up", 125_000, 1.0, now=0.0)
    assert link.age_s(10.0) is None
    link.on_transfer("down", 125_000, 1.0, now=5.0)
    assert link.age_s(10.0) == 10.0


def test_probes_unknown_and_then_old_directions_at_most_once_a_minute() -> None:
    link = LinkEstimate()
    assert link.due_probes(0.0) == ("down", "up")
    link.on_transfer("down", PROBE_BYTES, 0.1, now=0.0)
    assert link.due_probes(0.0) == ("up",)
    link.on_probe_sent(PROBE_BYTES, now=0.0)
    assert link.due_probes(1.0) == ()
    link.on_transfer("up", PROBE_BYTES, 0.1, now=1.0)
    assert link.next_probe_at(1.0) == MAX_AGE_S
    assert link.due_probes(MAX_AGE_S + 0.5) == ("down",)
    assert link.due_probes(MAX_AGE_S + 1.5) == ("down", "up")
    assert link.probe_bytes == PROBE_BYTES


def test_a_transfer_replaces_the_probe() -> None:
    link = LinkEstimate()
    link.on_transfer("down", 1_000_000, 1.0, now=0.0)
    link.on_transfer("up", 1_000_000, 1.0, now=30.0)
    assert link.next_probe_at(30.0) == MAX_AGE_S
    link.on_transfer("down", 1_000_000, 1.0, now=40.0)
    assert link.next_probe_at(40.0) == 30.0 + MAX_AGE_S


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 31), st.floats(0.0, 1e6), st.floats(0.0, 1e6)), max_size=20
    ),
    st.floats(0.0, 100.0),
)
def test_rates_stay_positive_and_finite(
    transfers: list[tuple[int, float, float]], round_trip_s: float
) -> None:
    link = LinkEstimate()
    link.on_round_trip(round_trip_s)
    for n_bytes, elapsed_s, now in sorted(transfers, key=lambda t: t[2]):
        link.on_transfer("down", n_bytes, elapsed_s, now)
        if link.downlink_bps is not None:
            assert 0.0 < link.downlink_bps <= MAX_BPS
