"""Delay and loss of single packets; time and random numbers are arguments."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.backends.network.plan.delay import MEMORY, DelayLine, Impairment


def _delay_line(impairment: Impairment, seed: int = 0) -> DelayLine:
    rng = random.Random(seed)
    return DelayLine(impairment, rng.random, lambda: rng.gauss(0.0, 1.0))


def _dues(line: DelayLine, times: list[float]) -> list[float]:
    return [due for due in map(line.due, times) if due is not None]


airs = st.builds(
    Impairment,
    delay_s=st.floats(0.0, 1.0),
    jitter_s=st.floats(0.0, 0.3),
    loss_ratio=st.floats(0.0, 1.0),
)


@given(impairment=airs, steps=st.lists(st.floats(0.0, 0.5), max_size=50), seed=st.integers(0, 99))
def test_packets_keep_their_order_and_arrive_after_they_were_sent(
    impairment: Impairment, steps: list[float], seed: int
) -> None:
    line, now, last = _delay_line(impairment, seed), 5.0, 0.0
    for step in steps:
        now += step
        due = line.due(now)
        if due is not None:
            assert due >= max(now, last)
            last = due


def test_without_jitter_every_packet_has_the_same_delay() -> None:
    dues = _dues(_delay_line(Impairment(delay_s=0.25)), [1.0, 1.0, 2.0])
    assert dues == [1.25, 1.25, 2.25]


def test_a_shorter_delay_keeps_the_order_of_packets() -> None:
    line = _delay_line(Impairment(delay_s=0.5))
    assert line.due(1.0) == 1.5
    line.impairment = Impairment(delay_s=0.1)
    assert line.due(1.1) == 1.5
    assert line.due(2.0) == 2.1


def test_packets_far_apart_have_the_configured_jitter() -> None:
    jitter_s, delay_s = 0.01, 0.1
    times = [10.0 * n for n in range(4000)]
    dues = _dues(_delay_line(Impairment(delay_s=delay_s, jitter_s=jitter_s)), times)
    delays = [due - at for due, at in zip(dues, times, strict=True)]
    mean = sum(delays) / len(delays)
    spread = (sum((each - mean) ** 2 for each in delays) / len(delays)) ** 0.5
    assert mean == pytest.approx(delay_s, abs=3 * jitter_s / 4000**0.5)
    assert spread == pytest.approx(jitter_s, rel=0.05)


def test_a_dense_stream_has_the_mean_delay_and_not_the_largest() -> None:
    jitter_s, delay_s = 0.01, 0.1
    times = [1e-4 * n for n in range(200_000)]  # 20 s, 100 times the memory of the jitter
    dues = _dues(_delay_line(Impairment(delay_s=delay_s, jitter_s=jitter_s)), times)
    mean = sum(due - at for due, at in zip(dues, times, strict=True)) / len(times)
    sampling = 3 * jitter_s * (2 * MEMORY * jitter_s / 20.0) ** 0.5
    assert mean - delay_s == pytest.approx(2 * jitter_s / MEMORY, abs=sampling)


def test_consecutive_packets_have_similar_delays() -> None:
    line = _delay_line(Impairment(delay_s=0.1, jitter_s=0.01))
    dues = _dues(line, [1.0, 1.0 + 1e-6])
    assert dues[1] - dues[0] < 1e-3


@pytest.mark.parametrize("loss_ratio", [0.0, 0.01, 0.3, 1.0])
def test_the_configured_share_of_packets_is_lost(loss_ratio: float) -> None:
    n = 40_000
    arrived = len(_dues(_delay_line(Impairment(loss_ratio=loss_ratio)), [1.0] * n))
    deviation = (loss_ratio * (1 - loss_ratio) / n) ** 0.5
    assert 1 - arrived / n == pytest.approx(loss_ratio, abs=4 * deviation)


def test_the_same_seed_loses_the_same_packets() -> None:
    impairment = Impairment(delay_s=0.01, jitter_s=0.002, loss_ratio=0.2)
    times = [0.01 * n for n in range(500)]
    first, second, other = (
        list(map(_delay_line(impairment, seed).due, times)) for seed in (1, 1, 2)
    )
    assert first == second != other
