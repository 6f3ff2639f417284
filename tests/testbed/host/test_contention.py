"""Contention of this machine: waits are charged to emulated devices when they delay them."""

import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.testbed.emulation.link import QUEUE_S
from fairbed.testbed.host.contention import (
    KEPT_PERIODS,
    READING_S,
    REFRESH_S,
    SHORT_S,
    ContentionMonitor,
    SchedulerWaits,
    WaitCounter,
    WaitTimeline,
    waits,
)

HAS_DELAYS = Path("/proc/self/schedstat").exists()

SPIN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_a_device_that_is_not_emulated_has_no_contention() -> None:
    monitor = ContentionMonitor(["a"], lambda name: 1.0, lambda name: [])
    assert monitor.waited_s("b") is None
    assert monitor.waited_s("a") == 1.0


def test_waits_are_counted_in_seconds_of_the_fleet() -> None:
    monitor = ContentionMonitor(["a"], lambda name: 3.0, lambda name: [], dilation=2.0)
    assert monitor.waited_s("a") == 1.5


def test_unknown_contention_counts_as_zero() -> None:
    monitor = ContentionMonitor(["a"], lambda name: None, lambda name: [])
    assert monitor.waited_s("a") == 0.0


class FakeMachine:
    """Processes whose waits a test sets; the clock advances by `pass_s`."""

    def __init__(self, dilation: float = 1.0) -> None:
        self.now = 0.0
        self.waits: dict[int, SchedulerWaits] = {}
        self.readings: list[tuple[float, int]] = []
        self.path = {"a": [1, 2], "b": [1, 3]}
        self.monitor = ContentionMonitor(
            ["a", "b"],
            lambda name: 0.0,
            lambda name: self.path[name],
            now=lambda: self.now,
            read=self._read,
            dilation=dilation,
            counted=lambda name: {"cell_wait_s": 3.0, "packets": 8} if name == "a" else {},
        )

    def pass_s(self, duration_s: float, **waited_s: float) -> None:
        """Let time pass in which processes, `p1` to `p3`, waited; then read them."""
        self.now += duration_s
        for name, wait_s in waited_s.items():
            before = self.waits.get(int(name[1:]), SchedulerWaits())
            self.waits[int(name[1:])] = replace(before, seconds=before.seconds + wait_s)
        self.monitor.read_path()

    def _read(self, pid: int) -> SchedulerWaits:
        self.readings.append((self.now, pid))
        return self.waits.get(pid, SchedulerWaits())


def test_a_whole_cohort_needs_one_reading_of_the_processes() -> None:
    machine = FakeMachine()
    for _ in range(20):
        machine.monitor.path_delay_s("a", [(0.0, 1.0)])
    machine.pass_s(READING_S)
    assert [at for at, _ in machine.readings] == [0.0] * 3 + [READING_S] * 3


def test_a_later_reading_makes_no_new_timelines() -> None:
    machine = FakeMachine()
    machine.pass_s(READING_S)
    tracemalloc.start()
    try:
        machine.pass_s(READING_S)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * 8 * KEPT_PERIODS / 2


def test_only_the_processes_on_the_path_of_a_device_delay_it() -> None:
    machine = FakeMachine()
    machine.pass_s(0.01)
    machine.pass_s(0.01, p1=4e-3, p3=6e-3)
    assert machine.monitor.path_delay_s("a", [(0.0, 1.0)]) == pytest.approx(2e-3)
    assert machine.monitor.path_delay_s("b", [(0.0, 1.0)]) == pytest.approx(5e-3)


def test_the_path_counts_while_bytes_of_the_device_are_on_it() -> None:
    machine = FakeMachine()
    machine.pass_s(0.01)
    for _ in range(100):  # the device computes
        machine.pass_s(0.01, p1=6e-3)
    machine.pass_s(0.01, p1=8e-3)
    now = machine.now
    assert machine.monitor.path_delay_s("a", [(-1.0, 0.01), (now - 0.01, now)]) == pytest.approx(
        4e-3
    )


def test_the_path_of_a_dilated_fleet_has_its_own_seconds() -> None:
    machine = FakeMachine(dilation=4.0)
    machine.pass_s(0.01)
    machine.pass_s(0.01, p1=8e-3)
    assert machine.monitor.path_delay_s("a", [(0.0, 0.0024)]) == 0.0
    assert machine.monitor.path_delay_s("a", [(0.0, 0.0050)]) == pytest.approx(1e-3)


def test_a_broker_that_was_started_again_is_read() -> None:
    machine = FakeMachine()
    machine.pass_s(0.01)
    machine.path = {"a": [7], "b": [7]}
    machine.pass_s(REFRESH_S)
    machine.pass_s(0.01, p7=8e-3)
    assert machine.monitor.path_delay_s("a", [(0.0, 2.0)]) == pytest.approx(4e-3)


def test_the_processes_are_read_while_the_context_lasts() -> None:
    was_read = threading.Event()

    def read(pid: int) -> SchedulerWaits:
        was_read.set()
        return SchedulerWaits()

    monitor = ContentionMonitor(["a"], lambda name: 0.0, lambda name: [1], read=read)
    with monitor.reading():
        assert was_read.wait(20.0)
    assert "testbed.contention" not in {thread.name for thread in threading.enumerate()}


STEP_S = 0.01
Step = tuple[float, float]
"""Time that a process ran, and that it waited, in `STEP_S`."""


def timeline(steps: Sequence[Step]) -> WaitTimeline:
    """Return a timeline with a reading every `STEP_S`, the first at 0."""
    found, total = WaitTimeline(), SchedulerWaits()
    found.add(0.0, total)
    for number, (ran_s, waited_s) in enumerate(steps, start=1):
        total = SchedulerWaits(total.seconds + waited_s, total.count + 1, total.ran_s + ran_s)
        found.add(number * STEP_S, total)
    return found


def test_of_waits_between_which_a_process_idled_the_longest_counts_half() -> None:
    found = timeline([(1e-3, 4.02e-3), (0.0, 0.0), (1e-3, 6.02e-3), (1e-3, 3.02e-3)])
    assert found.delay_s(0.0, 0.04) == pytest.approx(3e-3)
    assert found.delay_s(0.0, 0.02) == pytest.approx(2e-3)
    assert found.delay_s(0.011, 0.02) == 0.0


def test_waits_of_a_process_that_never_idles_add_up() -> None:
    found = timeline([(2e-3, 8.02e-3)] * 5)
    assert found.delay_s(0.0, 0.05) == pytest.approx(0.5 * 5 * 8e-3)


def test_a_link_is_idle_for_the_part_of_a_wait_that_exceeds_its_queue() -> None:
    found = timeline([(1e-3, 9.02e-3)] * 40)
    assert found.delay_s(0.0, 0.4) == pytest.approx(0.36 - QUEUE_S + QUEUE_S / 2)


def test_a_wait_that_is_counted_at_its_end_began_before() -> None:
    found = timeline([(0.0, 0.0)] * 19 + [(0.0, 0.15 + SHORT_S)])
    assert found.delay_s(0.0, 0.2) == pytest.approx(0.05 + QUEUE_S / 2)
    assert found.delay_s(0.0, 0.12) == pytest.approx(0.07 / 2, abs=SHORT_S)


def test_many_short_waits_delay_nothing() -> None:
    found, total = WaitTimeline(), SchedulerWaits()
    for number in range(1, 100):  # a relay that wakes up for every packet, on a quiet machine
        total = SchedulerWaits(number * 15 * 28e-6, number * 15, number * 1e-3)
        found.add(number * STEP_S, total)
    assert found.delay_s(0.0, 1.0) == 0.0


RECORDED = (
    (-0.0010, 0.00, 0.00, 0),
    (0.0075, 0.91, 1.55, 23),
    (0.0157, 2.49, 2.79, 45),
    (0.0240, 4.19, 3.58, 95),
    (0.0327, 6.37, 6.30, 165),
    (0.0420, 9.07, 7.97, 273),
    (0.0570, 10.86, 16.89, 340),
    (0.0652, 11.74, 20.13, 384),
    (0.0770, 12.74, 28.24, 421),
    (0.0856, 13.41, 32.01, 445),
    (0.0938, 15.06, 33.18, 524),
    (0.1020, 16.67, 34.57, 605),
    (0.1102, 18.54, 35.44, 718),
    (0.1188, 20.34, 36.72, 820),
    (0.1270, 21.59, 39.58, 869),
    (0.1353, 23.07, 40.34, 939),
    (0.1456, 24.26, 46.12, 972),
    (0.1687, 25.38, 57.40, 1014),
)
"""A relay beside a busy loop: instant after a dispatch in s, ms that it ran and waited so far, and
how often it ran."""

RECORDED_END_S, RECORDED_DELAY_S = 0.1574, 0.1459 - 0.1404
"""The model was verified at this instant. Its download took 145.9 ms, and 140.4 ms on the quiet
machine."""


def test_a_recorded_download_is_charged_what_it_was_delayed() -> None:
    found = WaitTimeline()
    for at, ran_ms, waited_ms, count in RECORDED:
        found.add(at, SchedulerWaits(1e-3 * waited_ms, count, 1e-3 * ran_ms))
    assert 1e-3 * RECORDED[-2][2] > 0.25 * RECORDED_END_S  # the sum of its waits
    assert found.delay_s(0.0, RECORDED_END_S) == pytest.approx(RECORDED_DELAY_S, abs=1e-3)


STEPS = st.lists(st.tuples(st.floats(0.0, 2e-3), st.floats(0.0, 8e-3)), min_size=1, max_size=60)
INSTANTS = st.floats(-0.1, 0.8)


@given(STEPS, INSTANTS, INSTANTS, INSTANTS)
def test_a_longer_span_has_no_shorter_delay(
    steps: list[Step], first: float, second: float, third: float
) -> None:
    found = timeline(steps)
    start, middle, end = sorted((first, second, third))
    parts = (found.delay_s(start, middle), found.delay_s(middle, end))
    whole_s = found.delay_s(start, end)
    assert 0.0 <= max(parts) <= whole_s + 1e-12
    assert whole_s <= min(end - start, sum(waited_s for _, waited_s in steps)) + 1e-12


@given(STEPS, st.integers(0, 59), st.floats(0.0, 5e-3))
def test_a_longer_wait_has_no_shorter_delay(steps: list[Step], at: int, more_s: float) -> None:
    at %= len(steps)
    longer = [*steps[:at], (steps[at][0], steps[at][1] + more_s), *steps[at + 1 :]]
    assert timeline(longer).delay_s(0.0, 1.0) >= timeline(steps).delay_s(0.0, 1.0) - 1e-12


def test_long_waits_add_up_and_short_ones_do_not() -> None:
    readings = {7: SchedulerWaits(100.0, 1000), 8: SchedulerWaits(5.0, 10)}
    watch = WaitCounter(lambda pid: readings[pid])
    watch.update([7, 8])
    assert watch.seconds == 0.0  # the first reading is the reference
    readings[7] = SchedulerWaits(100.0 + 3000 * SHORT_S, 4000)  # a relay without contention
    readings[8] = SchedulerWaits(5.0 + 0.3, 20)
    watch.update([7, 8])
    assert watch.seconds == pytest.approx(0.3, rel=1e-3)


def test_a_new_process_starts_from_zero() -> None:
    readings = {7: SchedulerWaits(100.0, 1000), 8: SchedulerWaits(1.0, 10)}
    watch = WaitCounter(lambda pid: readings[pid])
    watch.update([7])
    watch.update([8])
    readings[8] = SchedulerWaits(1.5, 10)
    watch.update([8])
    assert watch.seconds == pytest.approx(0.5)


@pytest.mark.skipif(not HAS_DELAYS, reason="the kernel does not count waits of threads")
def test_processes_that_share_a_core_keep_each_other_waiting() -> None:
    core = {min(os.sched_getaffinity(0))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", f"{SPIN}\nimport sys; print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, core),
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        assert sum(waits(process.pid).seconds for process in processes) > 0.15
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_an_ended_process_has_no_waits() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert waits(process.pid).seconds == 0.0


def test_counted_times_are_in_seconds_of_the_fleet_and_other_counts_as_they_are() -> None:
    monitor = FakeMachine(dilation=2.0).monitor
    assert monitor.counted("a") == {"cell_wait_s": 1.5, "packets": 8}
    assert monitor.counted("b") == {}


class FakeRemote:
    """A host whose processes and network delay every transfer by shares of it."""

    def host_delay_s(self, name: str, start: float, end: float) -> float:
        return 0.25 * (end - start)

    def network_delay_s(self, name: str, start: float, end: float) -> float:
        return 0.5 * (end - start)


def test_a_device_of_another_host_is_delayed_there_and_by_the_network() -> None:
    monitor = ContentionMonitor(
        ["a"], lambda name: 0.0, lambda name: [], dilation=2.0, remote=FakeRemote()
    )
    spans = [(0.0, 1.0), (2.0, 4.0)]
    assert monitor.path_delay_s("a", spans) == pytest.approx(0.75)
    assert monitor.network_delay_s("a", spans) == pytest.approx(1.5)


def test_without_other_hosts_no_network_delays() -> None:
    monitor = ContentionMonitor(["a"], lambda name: 0.0, lambda name: [])
    assert monitor.network_delay_s("a", [(0.0, 1.0)]) == 0.0


def test_a_wait_that_goes_on_counts_once() -> None:
    timeline = WaitTimeline()
    timeline.add_wait(1.0, 1.05)
    timeline.add_wait(1.0, 1.08)
    timeline.add_wait(2.0, 2.0 + 1e-5)  # too short to matter
    assert timeline.delay_s(0.0, 3.0) == pytest.approx(0.04)
    assert timeline.delay_s(1.5, 3.0) == 0.0


def test_the_newest_waits_are_kept_in_bounded_memory() -> None:
    """Issue #20: the memory of a coordinator grew by some kB a round on a busy machine."""
    timeline, count = WaitTimeline(), 4 * KEPT_PERIODS
    tracemalloc.start()
    try:
        for number in range(count):
            timeline.add_wait(number * STEP_S, number * STEP_S + 2e-3)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000
    oldest_s = (count - KEPT_PERIODS) * STEP_S
    assert timeline.delay_s(oldest_s, oldest_s + STEP_S) == pytest.approx(1e-3)
    assert timeline.delay_s(0.0, STEP_S) == 0.0
