"""Contention of this machine: waits are counted for emulated devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairbed.testbed.host.contention import (
    READING_S,
    SHORT_S,
    ContentionMonitor,
    SchedulerWaits,
    WaitCounter,
    waits,
)

HAS_DELAYS = Path("/proc/self/schedstat").exists()

SPIN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_a_device_that_is_not_emulated_has_no_contention() -> None:
    watch = ContentionMonitor(["a"], lambda name: 1.0, lambda: [])
    assert watch.waiting("b") is None
    assert watch.waiting("a") is not None


def test_waits_are_counted_in_seconds_of_the_fleet() -> None:
    waiting = ContentionMonitor(["a"], lambda name: 3.0, lambda: [], dilation=2.0).waiting("a")
    assert waiting is not None
    assert (waiting.device_s, waiting.path_s) == (1.5, 0.0)


def test_unknown_contention_counts_as_zero() -> None:
    waiting = ContentionMonitor(["a"], lambda name: None, lambda: []).waiting("a")
    assert waiting is not None
    assert waiting.device_s == 0.0


def test_a_whole_cohort_needs_one_reading_of_the_processes() -> None:
    looks, now = [], [0.0]

    def path() -> list[int]:
        looks.append(now[0])
        return []

    watch = ContentionMonitor(["a"], lambda name: 0.0, path, now=lambda: now[0])
    for _ in range(20):
        watch.waiting("a")
    now[0] += READING_S
    watch.waiting("a")
    assert looks == [0.0, READING_S]


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
