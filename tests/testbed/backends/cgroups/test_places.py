"""Where groups can be made, on folders that imitate other machines."""

from pathlib import Path

import pytest

from fairbed.testbed.backends.cgroups.files import CgroupError
from fairbed.testbed.backends.cgroups.group import Group
from fairbed.testbed.backends.cgroups.places import Place, find_places
from fairbed.testbed.backends.cgroups.removal import sweep

CPU_STAT_V2 = """usage_usec 1500000
user_usec 1000000
system_usec 500000
nr_periods 700
nr_throttled 400
throttled_usec 4000000
"""

PRESSURE = """some avg10=0.00 avg60=0.00 avg300=0.00 total=5000000
full avg10=0.00 avg60=0.00 avg300=0.00 total=4250000
"""


def machine(root: Path, own: str, mounts: str) -> None:
    """Write the files by which a process finds its groups and mounts."""
    folder = root / "proc/self"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(own)
    (folder / "mounts").write_text(mounts)


def unified(root: Path, path: str, *enabled_at: str) -> Path:
    """Make a tree of version 2; return its mount point."""
    top = root / "sys/fs/cgroup"
    machine(root, f"0::{path}\n", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    folder = top
    folder.mkdir(parents=True)
    for part in ("", *path.strip("/").split("/")):
        folder = folder / part
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text("")
    for name in enabled_at:
        (top / name.strip("/") / "cgroup.subtree_control").write_text("cpu io memory pids\n")
    return top


def test_version_2_is_used_at_the_nearest_group_that_delegates_its_controllers(
    tmp_path: Path,
) -> None:
    top = unified(tmp_path, "/user.slice/user-0.slice/session-1.scope", "/", "/user.slice")
    own = top / "user.slice/user-0.slice/session-1.scope"
    (own / "cgroup.subtree_control").unlink()  # the kernel refuses to enable controllers
    places = find_places(tmp_path)
    assert places.cpu == places.memory == Place(2, top / "user.slice")
    assert places.accounting == places.unified == top / "user.slice"
    assert places.folders == [top / "user.slice"]
    assert places.tops == (top,)


def test_version_2_without_delegated_controllers_is_refused_with_one_line(tmp_path: Path) -> None:
    top = unified(tmp_path, "/box")
    (top / "box/cgroup.subtree_control").unlink()
    with pytest.raises(CgroupError) as caught:
        find_places(tmp_path)
    assert str(caught.value) == (
        "control groups: must delegate cpu and memory to this process, but none does from "
        f'{top}/box up; run as root, or use emulation.backend = "process"'
    )


def test_no_control_groups_at_all_is_one_line(tmp_path: Path) -> None:
    machine(tmp_path, "", "")
    with pytest.raises(CgroupError, match="delegate cpu and memory to this process, but none"):
        find_places(tmp_path)


def test_version_1_is_used_below_the_own_group_of_each_controller(tmp_path: Path) -> None:
    base = tmp_path / "sys/fs/cgroup"
    for name in ("cpu,cpuacct", "memory/jobs/one", "unified"):
        (base / name).mkdir(parents=True)
    machine(
        tmp_path,
        "4:memory:/jobs/one\n2:cpu,cpuacct:/\n0::/\n",
        "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
        "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
    )
    places = find_places(tmp_path)
    assert places.cpu == Place(1, base / "cpu,cpuacct")
    assert places.memory == Place(1, base / "memory/jobs/one")
    assert places.accounting == base / "cpu,cpuacct"
    assert places.unified == base / "unified"
    assert places.tops == (base / "cpu,cpuacct", base / "memory", base / "unified")


def test_version_1_without_accounting_is_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    machine(tmp_path, "1:cpu,memory:/\n", "cgroup /c cgroup rw,cpu,memory 0 0\n")
    with pytest.raises(CgroupError, match="cpuacct is not mounted"):
        find_places(tmp_path)


def test_a_group_of_version_2_writes_and_reads_its_own_files(tmp_path: Path) -> None:
    top = unified(tmp_path, "/", "/")
    group = Group(find_places(tmp_path), "pi-1")
    group.make()
    folder = top / "pi-1"
    for name, text in {
        "cpu.max": "max 100000\n",
        "memory.max": "max\n",
        "memory.swap.max": "max\n",
        "cpu.stat": CPU_STAT_V2,
        "cgroup.threads": "",
        "cpu.pressure": PRESSURE,
        "memory.events": "low 0\noom 2\noom_kill 1\n",
    }.items():
        (folder / name).write_text(text)
    group.limit_cpu(0.25)
    assert (folder / "cpu.max").read_text() == "2500 10000"
    group.limit_cpu(None)
    assert (folder / "cpu.max").read_text() == "max 10000"
    group.limit_memory((64 << 20) + 1)
    assert (folder / "memory.max").read_text() == str(64 << 20)
    assert (folder / "memory.swap.max").read_text() == "0"
    group.limit_cpu(0.25)
    usage = group.usage()
    assert (usage.cpu_s, usage.throttled_s, usage.memory_kills) == (1.5, 4.0, 1)
    assert usage.contended_s == pytest.approx(0.25)  # 4 s of the pressure are throttling
    (folder / "cpu.stat").write_text("usage_usec 1500000\n")
    with pytest.raises(CgroupError, match="must limit the processor, but the limit is gone"):
        group.usage()
    assert group.sandbox().procs == (str(folder / "cgroup.procs"),)


def test_a_limit_that_the_kernel_ignores_is_an_error(tmp_path: Path) -> None:
    top = unified(tmp_path, "/", "/")
    group = Group(find_places(tmp_path), "pi-1")
    group.make()
    (top / "pi-1/cpu.max").symlink_to("/dev/null")  # accepts every write and is empty
    with pytest.raises(CgroupError, match="must have the value '2500 10000', got ''"):
        group.limit_cpu(0.25)


def test_sweeping_finds_groups_wherever_they_were_made(tmp_path: Path) -> None:
    top = unified(tmp_path, "/", "/")
    for name in ("user.slice/job/left", "left-not", "docker"):
        (top / name).mkdir(parents=True)
    assert sweep(find_places(tmp_path), lambda name: name == "left") == ["left"]
    assert not (top / "user.slice/job/left").exists()
    assert (top / "left-not").exists()
