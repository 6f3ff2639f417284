"""Where groups can be made, on folders that imitate other machines."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from fairbed.testbed.backends.cgroups import fleet
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


def refuse(*folders: Path) -> None:
    """Let groups contain processes, or lack a controller: the kernel enables none below them."""
    for folder in folders:
        (folder / "cgroup.subtree_control").unlink(missing_ok=True)


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
    refuse(own)
    places = find_places(tmp_path)
    assert places.cpu == places.memory == Place(2, top / "user.slice")
    assert places.accounting == places.unified == top / "user.slice"
    assert places.folders == [top / "user.slice"]
    assert places.tops == (top,)


def test_version_2_without_delegated_controllers_is_refused_with_one_line(tmp_path: Path) -> None:
    top = unified(tmp_path, "/box")
    refuse(top, top / "box")
    with pytest.raises(CgroupError) as caught:
        find_places(tmp_path)
    assert str(caught.value) == (
        "control groups: must delegate cpu and memory to this process, but none does from "
        f'{top}/box up; run as root, or use emulation.backend = "process"'
    )


def test_root_in_a_system_service_has_the_controllers_enabled_above_it(tmp_path: Path) -> None:
    """As on Debian 13, where `system.slice` hands on memory and pids only."""
    top = unified(tmp_path, "/system.slice/ci.service")
    for folder in (top, top / "system.slice"):
        (folder / "cgroup.subtree_control").write_text("memory pids\n")
    refuse(top / "system.slice", top / "system.slice/ci.service")
    assert find_places(tmp_path).folders == [top]
    assert (top / "cgroup.subtree_control").read_text() == "+cpu +memory"


def test_a_group_that_delegates_already_is_preferred_to_a_nearer_one_that_could(
    tmp_path: Path,
) -> None:
    top = unified(tmp_path, "/user.slice/user-0.slice/session-1.scope", "/user.slice")
    refuse(top / "user.slice/user-0.slice/session-1.scope")
    assert find_places(tmp_path).folders == [top / "user.slice"]
    assert (top / "user.slice/user-0.slice/cgroup.subtree_control").read_text() == ""


def test_a_service_with_a_delegated_subtree_stays_inside_it(tmp_path: Path) -> None:
    """As with `DelegateSubgroup=main`: processes are one level below the delegated group."""
    top = unified(tmp_path, "/system.slice/ci.service/main", "/", "/system.slice")
    service = top / "system.slice/ci.service"
    refuse(service / "main")
    found = find_places(tmp_path, is_delegated=service.__eq__)
    assert found.folders == [service]
    assert (service / "cgroup.subtree_control").read_text() == "+cpu +memory"


def test_a_delegated_group_with_processes_in_it_is_left_for_one_above(tmp_path: Path) -> None:
    top = unified(tmp_path, "/system.slice/ci.service", "/", "/system.slice")
    service = top / "system.slice/ci.service"
    refuse(service)
    assert find_places(tmp_path, is_delegated=service.__eq__).folders == [top / "system.slice"]


@pytest.mark.parametrize("identity", ["user", "user namespace"])
def test_a_user_is_advised_to_have_a_scope_delegated(tmp_path: Path, identity: str) -> None:
    top = unified(tmp_path, "/user.slice/user-1000.slice/session-1.scope")
    refuse(top, *(path.parent for path in top.rglob("cgroup.subtree_control")))
    is_mapped = identity == "user namespace"
    uid = 0 if is_mapped else 1000
    (tmp_path / "proc/self/status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    all_users = "         0       1000          1\n" if is_mapped else "0 0 4294967295\n"
    (tmp_path / "proc/self/uid_map").write_text(all_users)
    with pytest.raises(CgroupError) as caught:
        find_places(tmp_path)
    assert str(caught.value).partition("; ")[2] == (
        "put `systemd-run --user --scope -p Delegate=yes` in front of the command, or use "
        'emulation.backend = "process"'
    )


def test_root_of_a_container_is_advised_to_empty_its_root_group(tmp_path: Path) -> None:
    top = unified(tmp_path, "/")
    refuse(top)  # it has the processes of the container
    (top / "cgroup.type").write_text("domain\n")  # the root of the machine has no such file
    (top / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    with pytest.raises(CgroupError) as caught:
        find_places(tmp_path)
    assert str(caught.value).partition("; ")[2] == (
        f"move the processes of this container into a group of their own: mkdir {top}/init; "
        f"for p in $(cat {top}/cgroup.procs); do echo $p > {top}/init/cgroup.procs; done"
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


NEW_GROUP_V2 = {
    "cgroup.subtree_control": "",
    "cgroup.procs": "",
    "cgroup.threads": "",
    "cpu.max": "max 100000\n",
    "cpu.stat": CPU_STAT_V2,
    "cpu.pressure": PRESSURE,
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.events": "low 0\noom 2\noom_kill 1\n",
}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new folders in a group of version 2 have the files of a group."""
    mkdir = Path.mkdir

    def make(folder: Path, *arguments: Any, **options: Any) -> None:
        mkdir(folder, *arguments, **options)
        if (folder.parent / "cgroup.subtree_control").exists():
            for name, text in NEW_GROUP_V2.items():
                (folder / name).write_text(text)

    monkeypatch.setattr(Path, "mkdir", make)


@pytest.mark.usefixtures("kernel")
def test_a_group_of_version_2_hands_its_controllers_on_so_that_no_other_program_removes_them(
    tmp_path: Path,
) -> None:
    """When a service with Delegate= ends, systemd removes the controllers that it had enabled.

    The kernel refuses that as long as a group below hands a controller on.
    """
    top = unified(tmp_path, "/", "/")
    group = Group(find_places(tmp_path), "pi-1")
    group.make()
    folder = top / "pi-1"
    assert (folder / "cgroup.subtree_control").read_text() == "+cpu +memory"
    (inner,) = (path for path in folder.iterdir() if path.is_dir())
    assert group.sandbox().procs == (str(inner / "cgroup.procs"),)
    assert group.sandbox().quota_folder == str(folder)


@pytest.mark.usefixtures("kernel")
def test_a_group_of_version_2_writes_and_reads_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "CHECK_S", 0.0)
    top = unified(tmp_path, "/", "/")
    group = Group(find_places(tmp_path), "pi-1")
    group.make()
    folder = top / "pi-1"
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
    gone = "must limit the processor, but the limit is gone; another program has changed"
    for check in (group.usage, lambda: anyio.run(fleet.watch_limits, {"pi-1": group})):
        with pytest.raises(CgroupError, match=gone):
            check()


@pytest.mark.usefixtures("kernel")
def test_a_limit_that_the_kernel_ignores_is_an_error(tmp_path: Path) -> None:
    top = unified(tmp_path, "/", "/")
    group = Group(find_places(tmp_path), "pi-1")
    group.make()
    (top / "pi-1/cpu.max").unlink()
    (top / "pi-1/cpu.max").symlink_to("/dev/null")  # accepts every write and is empty
    with pytest.raises(CgroupError, match="must have the value '2500 10000', got ''"):
        group.limit_cpu(0.25)


def test_sweeping_finds_groups_wherever_they_were_made(tmp_path: Path) -> None:
    top = unified(tmp_path, "/", "/")
    for name in ("user.slice/job/left/processes", "left-not", "docker"):
        (top / name).mkdir(parents=True)
    assert sweep(find_places(tmp_path), lambda name: name == "left") == ["left"]
    assert not (top / "user.slice/job/left").exists()
    assert (top / "left-not").exists()
