"""Contended time from counters that were recorded on two cores, of groups of busy threads.

`recorded.json` has for each run the quota, the ratio of it that the group lost to other programs
(1 - processor time / quota, 0 where it pauses), and readings: seconds, processor time, throttled
time of all processors, periods, pressure (`full`), the wait and the ready time of the thread with
the longest since the reading before, and the threads that were ready at a time.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbed.testbed.backends.cgroups.contention import GroupCounters, QuotaContention
from fairbed.testbed.emulation.quota import cfs_period_us
from fairbed.testbed.host.thread_times import ThreadWindow

Run = dict[str, Any]

RUNS: list[Run] = json.loads(Path(__file__).with_name("recorded.json").read_text())

LIMIT = 0.05
"""A run is marked if it was contended for more."""


def readings(run: Run) -> list[GroupCounters]:
    split = ([*reading[:5], ThreadWindow(*reading[5:])] for reading in run["readings"])
    return [GroupCounters(*counters) for counters in split]


def contention(run: Run, found: list[GroupCounters]) -> QuotaContention:
    contention = QuotaContention(found[0], processors=2)
    for reading in found[1:]:
        contention.add(reading, run["share"], cfs_period_us(run["share"]) * 1e-6)
    return contention


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_wrong_runs_are_marked_and_right_ones_are_not(run: Run) -> None:
    found = readings(run)
    ratio = (contention(run, found).contended_s or 0.0) / found[-1].now
    assert (ratio > LIMIT) == (run["lost_ratio"] > LIMIT)
    assert ratio == pytest.approx(run["lost_ratio"], abs=0.05)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_either_measure_of_waits_is_enough(run: Run) -> None:
    for found in (
        [replace(reading, pressure_s=None) for reading in readings(run)],
        [replace(reading, threads=None) for reading in readings(run)],
    ):
        ratio = (contention(run, found).contended_s or 0.0) / found[-1].now
        assert (ratio > LIMIT) == (run["lost_ratio"] > LIMIT)


def test_throttled_time_is_that_of_a_processor_not_the_sum_of_them() -> None:
    (run,) = (run for run in RUNS if run["name"] == "two threads alone")
    found = readings(run)
    assert found[-1].throttled_s > 1.4 * found[-1].now
    assert contention(run, found).throttled_s == pytest.approx(0.75 * found[-1].now, rel=0.1)


def test_contention_is_unknown_where_the_kernel_counts_no_waits() -> None:
    found = [replace(one, pressure_s=None, threads=None) for one in readings(RUNS[0])]
    assert contention(RUNS[0], found).contended_s is None


def test_a_group_without_a_limit_is_contended_whenever_it_waits() -> None:
    before = GroupCounters(0.0, 0.0, 0.0, 0, 0.0, ThreadWindow())
    found = QuotaContention(before, processors=2)
    found.add(GroupCounters(2.0, 1.0, 0.0, 0, 0.7, ThreadWindow(0.8, 1.8)), None, 0.1)
    assert found.contended_s == pytest.approx(0.8)
