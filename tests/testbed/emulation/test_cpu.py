"""Pacing is exact in simulated time."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.cpu import MAX_CREDIT_S, MIN_SLEEP_S, PacedSection, RecentShare

speed_ratios = st.floats(0.01, 1.0)
steps = st.lists(st.floats(0.0, 0.2), min_size=1, max_size=60)


def start(q: float, rate: float | None = None, now: float = 0.0, cpu: float = 0.0) -> PacedSection:
    return PacedSection(speed_ratio=q, storage_read_bytes_per_s=rate, now=now, cpu=cpu)


def run(section: PacedSection, cpu_s: Iterable[float], late_s: Iterable[float] = ()) -> float:
    """Run steps that need `cpu_s` each and are held up by `late_s`; return the wall time."""
    started = now = section.now
    cpu = section.cpu
    late = iter(late_s)
    for step_s in cpu_s:
        cpu += step_s
        now += step_s + next(late, 0.0)
        now += section.advance(now, cpu)
    now += section.finish(now, cpu)
    section.advance(now, cpu)
    return now - started


@given(speed_ratios, steps)
def test_a_section_takes_the_time_of_the_slow_device(q: float, cpu_s: list[float]) -> None:
    section = start(q)
    assert run(section, cpu_s) == pytest.approx(sum(cpu_s) / q, abs=1e-9)
    assert section.contended_ratio == pytest.approx(0.0, abs=1e-6)


@given(speed_ratios, steps)
def test_a_section_is_never_faster_than_the_device(q: float, cpu_s: list[float]) -> None:
    section = start(q)
    now = cpu = 0.0
    for step_s in cpu_s:
        now, cpu = now + step_s, cpu + step_s
        now += section.advance(now, cpu)
        assert now >= cpu / q - MIN_SLEEP_S - 1e-9


@given(speed_ratios, steps, st.lists(st.floats(0.0, 1.0), max_size=60))
def test_lateness_is_caught_up_or_counted(
    q: float, cpu_s: list[float], late_s: list[float]
) -> None:
    section = start(q)
    wall_s = run(section, cpu_s, late_s)
    ideal_s = sum(cpu_s) / q
    assert wall_s >= ideal_s - 1e-9
    assert section.contended_ratio * wall_s == pytest.approx(wall_s - ideal_s, abs=1e-6)
    assert 0.0 <= section.contended_ratio <= 1.0


@given(st.lists(st.floats(0.0, 0.1), min_size=1, max_size=40), st.floats(0.3, 100.0))
def test_a_long_pause_gives_only_the_capped_credit(cpu_s: list[float], pause_s: float) -> None:
    q = 0.25
    section = start(q)
    section.advance(pause_s, 0.0)
    now, cpu = pause_s, 0.0
    for step_s in cpu_s:
        now, cpu = now + step_s, cpu + step_s
        now += section.advance(now, cpu)
    now += section.finish(now, cpu)
    assert now - pause_s >= sum(cpu_s) / q - MAX_CREDIT_S - 1e-9


def test_every_section_starts_without_credit() -> None:
    q = 0.5
    first = start(q)
    run(first, [0.1], [5.0])
    second = start(q, now=first.now, cpu=first.cpu)
    assert run(second, [0.1]) == pytest.approx(0.2)


@given(st.floats(1.0, 50.0), steps)
def test_a_device_faster_than_this_machine_is_not_slowed(q: float, cpu_s: list[float]) -> None:
    assert run(start(q), cpu_s) == pytest.approx(sum(cpu_s))


def test_a_device_faster_than_this_machine_counts_as_contended() -> None:
    section = start(4.0)
    run(section, [0.5, 0.5])
    assert section.contended_ratio == pytest.approx(0.75)


@given(st.integers(0, 10**9), st.floats(1e5, 1e9))
def test_reading_takes_the_time_of_the_slow_storage(n_bytes: int, rate: float) -> None:
    section = start(0.5, rate)
    read_s = 1e-4  # this machine is faster
    sleep_s = section.advance(read_s, 0.0, n_bytes)
    sleep_s += section.finish(read_s + sleep_s, 0.0)
    assert sleep_s == pytest.approx(max(0.0, n_bytes / rate - read_s), abs=1e-6)


def test_short_deficits_add_up_before_a_sleep() -> None:
    section = start(0.5)
    step_s = MIN_SLEEP_S * 0.3
    sleeps = []
    now = cpu = 0.0
    for _ in range(16):
        now, cpu = now + step_s, cpu + step_s
        sleeps.append(section.advance(now, cpu))
        now += sleeps[-1]
    assert [sleep for sleep in sleeps if sleep] == pytest.approx([MIN_SLEEP_S * 1.2] * 4)


@pytest.mark.parametrize("q", [0.0, -1.0])
def test_the_speed_ratio_must_be_positive(q: float) -> None:
    with pytest.raises(ValueError, match=r"speed_ratio must be > 0, got"):
        start(q)


def test_the_storage_rate_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"storage_read_bytes_per_s must be > 0, got 0.0"):
        start(1.0, 0.0)


def test_the_recent_share_follows_contention() -> None:
    share = RecentShare()
    punctual = start(0.5)
    run(punctual, [1.0])
    share.add(punctual)
    assert share.value == pytest.approx(1.0)
    contended = start(0.5)
    run(contended, [10.0], [20.0 + 10.0])  # twice as long as the device needs
    share.add(contended)
    assert 0.5 < share.value < 0.7


@given(st.lists(st.tuples(st.floats(0.0, 0.1), speed_ratios), min_size=1, max_size=40))
def test_the_work_done_is_the_integral_of_a_changing_speed(
    pieces: list[tuple[float, float]],
) -> None:
    section = start(1.0)
    now = cpu = worked = 0.0
    for cpu_s, q in pieces:
        section.set_speed(now, q)
        cpu += cpu_s
        now += cpu_s
        now += section.finish(now, cpu)  # at this speed to the end
        section.advance(now, cpu)
        worked += cpu_s / q
    assert now == pytest.approx(worked)


def test_a_deficit_becomes_longer_on_a_slower_device() -> None:
    section = start(0.5)
    assert section.advance(1.0, 1.0) == pytest.approx(1.0)  # a second of sleep at 0.5
    section.set_speed(1.5, 0.25)
    assert section.finish(1.5, 1.0) == pytest.approx(1.0)  # half of it left, at half the speed


def test_the_deficit_of_storage_does_not_depend_on_the_clock() -> None:
    section = start(0.5, rate=1e6)
    section.advance(0.0, 0.0, 1_000_000)
    section.set_speed(0.25, 0.05)
    assert section.finish(0.25, 0.0) == pytest.approx(0.75)


def test_a_speed_must_stay_positive() -> None:
    section = start(0.5)
    with pytest.raises(ValueError, match=r"speed_ratio must be > 0, got 0.0"):
        section.set_speed(0.0, 0.0)


def test_the_same_speed_again_changes_nothing() -> None:
    section = start(0.5)
    section.advance(0.01, 0.01)
    credit_s = section.credit_s
    section.set_speed(0.5, 0.5)
    assert (section.now, section.credit_s) == (0.01, credit_s)
    section.set_speed(0.5, 0.25)
    assert section.now == 0.5
