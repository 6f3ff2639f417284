"""Sensors on machines described by folders."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairbed.device_agent import sensors
from fairbed.device_agent.cgroup import MAX_BYTES, cpu_quotas, memory_limit_bytes, read_text
from fairbed.device_agent.sensors import CpuReading, FreeCores, RealSensors, mu_cores

V2 = "0::/user/app\n"
V2_MOUNT = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
V1 = "4:memory:/box\n3:cpu,cpuacct:/box/app\n0::/\n"
V1_MOUNTS = (
    "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
)


class Machine:
    """A file system root with some of /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reading = CpuReading(now=0.0, idle_s=0.0, own_s=0.0)

    def file(self, path: str, text: str) -> "Machine":
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return self

    def cgroup(self, membership: str, mounts: str) -> "Machine":
        return self.file("proc/self/cgroup", membership).file("proc/self/mounts", mounts)

    def read_cpu(self, cpus: Sequence[int]) -> CpuReading:
        return self.reading

    def read_process(self) -> tuple[float, float]:
        return self.reading.now, self.reading.own_s

    def sensors(self) -> RealSensors:
        return RealSensors(self.root, self.read_cpu, self.read_process, lambda: self.reading.now)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine with four cores and nothing else."""
    monkeypatch.setattr(sensors, "_affinity", lambda: [0, 1, 2, 3])
    return Machine(tmp_path)


def test_a_small_file_is_read_whole_and_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "temp"
    path.write_text("47000\n")
    tracemalloc.start()
    try:
        assert read_text(path) == "47000"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_BYTES / 8
    for n in (100_000, MAX_BYTES, MAX_BYTES + 1):
        path.write_bytes(b"x" * n)
        assert read_text(path) == "x" * min(n, MAX_BYTES)


def test_a_machine_without_files_has_only_its_affinity(machine: Machine) -> None:
    real = machine.sensors()
    assert real.cores() == 4
    assert real.free_cores() == 4.0
    assert real.clock_ratio() is None
    assert real.temperature_celsius() is None
    assert real.board() == ""
    assert real.memory_bytes() > 0


@pytest.mark.parametrize(
    ("own", "parent", "cores"),
    [("150000 100000", "max 100000", 2), ("max 100000", "50000 100000", 1), ("max", "x y", 4)],
)
def test_the_tightest_quota_of_version_2_counts(
    machine: Machine, own: str, parent: str, cores: int
) -> None:
    machine.cgroup(V2, V2_MOUNT)
    machine.file("sys/fs/cgroup/user/app/cpu.max", own)
    machine.file("sys/fs/cgroup/user/cpu.max", parent)
    assert machine.sensors().cores() == cores


def test_in_a_container_the_quota_is_at_the_mount_point(machine: Machine) -> None:
    machine.cgroup("0::/host/path/of/us\n", V2_MOUNT)
    machine.file("sys/fs/cgroup/cpu.max", "25000 100000")
    machine.file("sys/fs/cgroup/memory.max", "1000000")
    assert [quota.cores for quota in cpu_quotas(machine.root)] == [0.25]
    assert machine.sensors().memory_bytes() == 1_000_000


def test_version_1_has_its_own_files(machine: Machine) -> None:
    machine.cgroup(V1, V1_MOUNTS)
    cpu = "sys/fs/cgroup/cpu,cpuacct/box"
    machine.file(f"{cpu}/cpu.cfs_quota_us", "200000").file(f"{cpu}/cpu.cfs_period_us", "100000")
    machine.file(f"{cpu}/app/cpu.cfs_quota_us", "-1").file(f"{cpu}/app/cpu.cfs_period_us", "100000")
    machine.file("sys/fs/cgroup/memory/memory.limit_in_bytes", str((1 << 63) - 4096))
    machine.file("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2000000")
    assert machine.sensors().cores() == 2
    assert memory_limit_bytes(machine.root) == 2_000_000


def test_own_use_counts_as_free() -> None:
    free = FreeCores(cores=4.0)
    free.update(CpuReading(now=0.0, idle_s=0.0, own_s=0.0), [])
    assert free.update(CpuReading(now=1.0, idle_s=1.0, own_s=2.0), []) == 3.0


def test_free_cores_follow_the_last_seconds() -> None:
    free = FreeCores(cores=4.0)
    free.update(CpuReading(now=0.0, idle_s=0.0, own_s=0.0), [])
    assert free.update(CpuReading(now=1.0, idle_s=4.0, own_s=0.0), []) == 4.0
    after = [free.update(CpuReading(now=t, idle_s=4.0, own_s=0.0), []) for t in (2.0, 3.0, 20.0)]
    assert 4.0 > after[0] > after[1] > after[2] >= 0.0
    assert after[2] < 0.05


def test_a_reading_within_the_shortest_interval_changes_nothing() -> None:
    free = FreeCores(cores=4.0)
    free.update(CpuReading(now=0.0, idle_s=0.0, own_s=0.0), [])
    assert free.update(CpuReading(now=0.01, idle_s=0.0, own_s=0.0), []) == 4.0


def test_quota_used_by_other_processes_is_not_free() -> None:
    free = FreeCores(cores=2.0)
    free.update(CpuReading(now=0.0, idle_s=0.0, own_s=0.0), [(2.0, 0.0)])
    assert free.update(CpuReading(now=1.0, idle_s=4.0, own_s=0.5), [(2.0, 1.5)]) == 1.0


def test_free_cores_read_the_use_of_the_group(machine: Machine) -> None:
    machine.cgroup(V2, V2_MOUNT).file("sys/fs/cgroup/user/cpu.max", "200000 100000")
    machine.file("sys/fs/cgroup/user/cpu.stat", "usage_usec 0\nuser_usec 0\n")
    real = machine.sensors()
    machine.file("sys/fs/cgroup/user/cpu.stat", "usage_usec 1500000\nuser_usec 0\n")
    machine.reading = CpuReading(now=1.0, idle_s=4.0, own_s=0.5)
    assert real.free_cores() == 1.0


def test_a_reader_that_fails_leaves_all_cores(machine: Machine) -> None:
    real = machine.sensors()

    def broken(cpus: Sequence[int]) -> CpuReading:
        raise OSError("gone")

    real.cpu_source = broken
    assert real.free_cores() == 4.0


def test_the_clock_counts_while_the_agent_is_busy(machine: Machine) -> None:
    for cpu in range(4):
        folder = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        machine.file(f"{folder}/cpuinfo_max_freq", "1500000")
        machine.file(f"{folder}/scaling_max_freq", "1200000")
        machine.file(f"{folder}/scaling_cur_freq", "600000")
    real = machine.sensors()
    assert real.clock_ratio() == pytest.approx(0.8), "idle: the cap"
    machine.reading = CpuReading(now=1.0, idle_s=0.0, own_s=0.9)
    assert real.clock_ratio() == pytest.approx(0.4), "busy: the clock"
    for cpu in range(4):
        machine.file(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", "300000")
    machine.reading = CpuReading(now=2.0, idle_s=0.0, own_s=0.9)
    assert real.clock_ratio() == pytest.approx(0.4), "idle again: the last busy clock"


def test_only_the_thermal_zones_of_the_processor_count(machine: Machine) -> None:
    zones = "sys/class/thermal/thermal_zone"
    machine.file(f"{zones}0/type", "battery").file(f"{zones}0/temp", "90000")
    machine.file(f"{zones}1/type", "cpu-thermal").file(f"{zones}1/temp", "61500")
    machine.file(f"{zones}2/type", "gpu").file(f"{zones}2/temp", "garbage")
    assert machine.sensors().temperature_celsius() == 61.5


def test_the_board_name_is_read(machine: Machine) -> None:
    machine.file("proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0")
    assert machine.sensors().board() == "Raspberry Pi 4 Model B Rev 1.4"


def test_this_machine_can_be_read() -> None:
    real = RealSensors()
    assert real.cores() >= 1
    assert real.free_cores() > 0.0
    assert real.memory_bytes() > 1 << 20


@pytest.mark.parametrize(
    ("free", "threads", "clock", "mu"),
    [(4.0, 2, None, 2.0), (0.5, 2, 0.5, 0.25), (0.0, 1, 1.0, 0.05), (2.0, 4, 0.0, 0.05)],
)
def test_mu_is_free_cores_at_most_the_threads_times_the_clock(
    free: float, threads: int, clock: float | None, mu: float
) -> None:
    assert mu_cores(free, threads, clock) == mu


def test_throttling_causes_are_read(machine: Machine) -> None:
    assert machine.sensors().throttled() is None
    machine.file("sys/class/thermal/cooling_device0/type", "cpufreq-cpu0")
    machine.file("sys/class/thermal/cooling_device0/cur_state", "3")
    assert machine.sensors().throttled() == ("cooling",)
