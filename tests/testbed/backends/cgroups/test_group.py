"""Real control groups: limits, counters, kills, and complete removal."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairbed.testbed.backends.cgroups.files import CgroupError, read
from fairbed.testbed.backends.cgroups.group import INNER, Group
from fairbed.testbed.backends.cgroups.places import CgroupPlaces
from fairbed.testbed.backends.cgroups.removal import members, sweep
from tests.testbed.backends.cgroups.conftest import MakeGroup

pytestmark = pytest.mark.alone

LIMIT_S = 30.0

SPIN = """
import os, sys, time
for path in sys.argv[2:]:
    with open(path, "w") as file:
        file.write("0")
started, cpu = time.monotonic(), time.process_time()
while time.process_time() - cpu < float(sys.argv[1]):
    pass
print((time.process_time() - cpu) / (time.monotonic() - started))
"""

MAKE = """
import json, sys
from fairbed.testbed.backends.cgroups.group import Group
from fairbed.testbed.backends.cgroups.places import find_places
group = Group(find_places(), sys.argv[1])
group.make()
print(json.dumps(group.sandbox().procs), flush=True)
sys.stdin.read()
"""

HOLD = """
import sys, time
for path in sys.argv[2:]:
    with open(path, "w") as file:
        file.write("0")
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
print("held", flush=True)
time.sleep(60)
"""


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script, *arguments], stdout=subprocess.PIPE, text=True
    )


def test_a_process_that_joins_gets_its_share_and_the_group_reports_it(
    make_group: MakeGroup,
) -> None:
    group = make_group("a")
    group.limit_cpu(0.2)
    with python(SPIN, "0.3", *group.sandbox().procs) as process:
        share = float(process.communicate(timeout=LIMIT_S)[0])
    usage = group.usage()
    assert share < 0.2 * 1.15  # more would not be throttled; less is contention
    assert usage.cpu_s >= 0.3
    assert usage.throttled_s > 0.0
    if usage.contended_s is not None:  # a busy machine keeps it from its share
        assert usage.contended_s * share / 0.3 == pytest.approx(1.0 - share / 0.2, abs=0.15)


@pytest.mark.full
def test_a_share_changes_while_the_process_runs(make_group: MakeGroup) -> None:
    slow, fast = make_group("slow"), make_group("fast")
    for group in (slow, fast):
        group.limit_cpu(0.05)
    with (
        python(SPIN, "0.2", *slow.sandbox().procs) as one,
        python(SPIN, "0.2", *fast.sandbox().procs) as other,
    ):
        fast.limit_cpu(0.8)
        assert float(other.communicate(timeout=LIMIT_S)[0]) > 2.0 * float(
            one.communicate(timeout=LIMIT_S)[0]
        )


def test_a_share_can_be_unlimited_and_fall_below_the_minimum_of_its_period(
    make_group: MakeGroup,
) -> None:
    group = make_group("a")
    folder = Path(group.sandbox().quota_folder)
    for share in (0.5, None, 0.02, 0.5, 1.0):
        group.limit_cpu(share)
        if group.sandbox().quota_version == 1:
            quota, period = (
                int(read(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period")
            )
            assert quota == -1 if share is None else quota / period == pytest.approx(share)


def test_the_period_follows_from_the_first_share_after_no_limit(make_group: MakeGroup) -> None:
    group = make_group("a")
    folder, version = Path(group.sandbox().quota_folder), group.sandbox().quota_version
    name = "cpu.max" if version == 2 else "cpu.cfs_period_us"
    periods = []
    for share in (1.0, 0.8, None, 0.8, 0.25, 1.0):
        group.limit_cpu(share)
        periods.append(int(read(folder / name).split()[-1]))
    assert periods == [100_000, 100_000, 100_000, 10_000, 10_000, 10_000]


def test_a_process_that_needs_more_memory_than_the_group_has_is_killed(
    make_group: MakeGroup,
) -> None:
    group = make_group("a")
    group.limit_memory(32 << 20)
    with python(HOLD, str(96 << 20), *group.sandbox().procs) as process:
        assert process.communicate(timeout=LIMIT_S)[0] == ""
    assert process.returncode == -9
    assert group.usage().memory_kills >= 1


def test_removing_kills_everything_inside(make_group: MakeGroup) -> None:
    group = make_group("a")
    with python(HOLD, "1", *group.sandbox().procs) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        group.remove()
        assert process.wait(LIMIT_S) == -9
    assert not any(Path(path).exists() for path in group.sandbox().procs)
    group.remove()  # may be repeated


def test_groups_that_a_command_made_inside_are_removed_too(make_group: MakeGroup) -> None:
    group = make_group("a")
    below = Path(group.sandbox().quota_folder) / "below"
    below.mkdir()
    with python(HOLD, "1", str(below / "cgroup.procs")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        group.remove()
        assert process.wait(LIMIT_S) == -9
    assert not below.parent.exists()


def test_an_impossible_limit_is_reported_in_one_line(make_group: MakeGroup) -> None:
    group = make_group("a")
    with pytest.raises(ValueError, match=r"at least 0\.01 of a core"):
        group.limit_cpu(0.001)
    group.remove()
    with pytest.raises(CgroupError, match="must be readable, got: No such file"):
        group.usage()
    with pytest.raises(CgroupError, match=r"must accept .*, got: No such file or directory"):
        group.limit_cpu(0.5)


def test_sweeping_removes_leftovers_and_skips_locked_groups(
    make_group: MakeGroup, places: CgroupPlaces
) -> None:
    neighbour = Path(make_group("b").sandbox().quota_folder)
    folder = neighbour.with_name(f"{neighbour.name}-left")
    with subprocess.Popen(
        [sys.executable, "-c", MAKE, folder.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as maker:
        assert maker.stdout is not None
        procs = json.loads(maker.stdout.readline())
        with python(HOLD, "1", *procs) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            leftovers = {neighbour.name, folder.name}
            assert sweep(places, leftovers.__contains__) == []  # because they are locked
            maker.kill()
            maker.wait(LIMIT_S)
            assert sweep(places, lambda found: False) == []
            places_of_processes = (folder, folder / INNER)  # versions 1 and 2
            held = [pid for each in places_of_processes for pid in members(each)]
            assert held == [process.pid]
            assert sweep(places, leftovers.__contains__) == [folder.name]
            assert process.wait(LIMIT_S) == -9
    assert neighbour.exists()


def test_a_hundred_groups_are_set_up_within_the_time_of_a_few_processes(
    make_group: MakeGroup,
) -> None:
    started = time.monotonic()
    for _ in range(20):
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
    twenty_processes_s = time.monotonic() - started
    started = time.monotonic()
    for number in range(100):
        group = make_group(f"device-{number}")
        group.limit_cpu(0.25)
        group.limit_memory(1 << 29)
    assert time.monotonic() - started < 3.0 * twenty_processes_s


def test_a_group_that_cannot_be_made_is_reported_with_advice(
    make_group: MakeGroup, places: CgroupPlaces
) -> None:
    folder = Path(make_group("a").sandbox().quota_folder)
    with pytest.raises(CgroupError, match="File exists; run as root, or use"):
        Group(places, folder.name).make()
    assert folder.exists()
