"""Sensors of a real machine; no reader raises.

    free cores = min(idle cores of our affinity + own use,
                     quota - use by other processes, for every group with a quota)

averaged over some seconds. mu is the smaller of this and the engine's threads, times the clock
ratio. Files are read below an injected root, and CPU times come from an injected function, so that
a test can describe a machine as a folder.

`ThrottleReader` finds the causes of processor throttling:

Raspberry Pi    bits of the firmware, from `soc:firmware/get_throttled`; a newer kernel without that
                file reports under-voltage as an alarm of the sensor `rpi_volt`
any Linux       thermal cooling devices that limit the processor, on Jetson boards, too

It searches for files once, and reads them at each call.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import psutil

from fairbed.device_agent.cgroup import CpuQuota, cpu_quotas, memory_limit_bytes, read_text
from fairbed.device_agent.host import Host, UnlimitedPace

PI_BITS = {
    0: "under-voltage",
    1: "frequency-capped",
    2: "throttled",
    3: "soft-temperature-limit",
}
"""Current bits of the Raspberry Pi's firmware; bits 16 and up are the same since its start.
Source: raspberrypi/linux, issue 2367."""

COOLING = "cooling"
"""A cooling device limits the processor."""

_PI_FILE = "sys/devices/platform/soc/soc:firmware/get_throttled"
_LIMITERS = ("cpufreq", "processor", "cpu-")
"""Words in the type of a cooling device that limits the processor."""


@dataclass(slots=True)
class ThrottleReader:
    """Reads the throttling causes of one machine."""

    root: Path = Path("/")
    _pi: Path | None = None
    _alarms: list[Path] = field(default_factory=list)
    _limits: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        pi = self.root / _PI_FILE
        self._pi = pi if read_text(pi) is not None else None
        for folder in sorted((self.root / "sys/class/hwmon").glob("hwmon*")):
            if read_text(folder / "name") == "rpi_volt":
                self._alarms.append(folder / "in0_lcrit_alarm")
        for folder in sorted((self.root / "sys/class/thermal").glob("cooling_device*")):
            kind = (read_text(folder / "type") or "").lower()
            if any(word in kind for word in _LIMITERS):
                self._limits.append(folder / "cur_state")

    def causes(self) -> tuple[str, ...] | None:
        """Return the current causes; empty without throttling, None if they cannot be read."""
        found: set[str] = set()
        is_known = False
        if self._pi is not None:
            bits = _number(read_text(self._pi), base=16)
            is_known |= bits is not None
            found.update(pi_throttle_causes(bits or 0))
        for paths, word in ((self._alarms, PI_BITS[0]), (self._limits, COOLING)):
            for path in paths:
                state = _number(read_text(path), base=10)
                is_known |= state is not None
                if state:
                    found.add(word)
        return tuple(sorted(found)) if is_known else None


def pi_throttle_causes(bits: int) -> tuple[str, ...]:
    """Return the causes in the current bits of a Raspberry Pi's `get_throttled`."""
    return tuple(word for bit, word in PI_BITS.items() if bits >> bit & 1)


def _number(text: str | None, base: int) -> int | None:
    try:
        return int(text or "", base)
    except ValueError:
        return None


SMOOTHING_S = 2.0
"""Time constant of the average of free cores, seconds."""

MIN_INTERVAL_S = 0.2
"""Shortest interval, seconds: CPU counters have a resolution of 10 ms."""

MIN_FREE_CORES = 0.05
"""A training device always gets some CPU time, so mu stays above 0."""

BUSY_RATIO = 0.3
"""CPU use of the agent, in cores, from which its clock is recorded; idle cores are clocked down."""

_CPU_ZONES = ("cpu", "soc", "pkg", "core")
"""Words in the type of a thermal zone that measures the processor."""


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU counters at one time, seconds since any origin."""

    now: float
    idle_s: float
    """Idle time summed over the CPUs of our affinity."""
    own_s: float
    """CPU time of this process."""


CpuSource: TypeAlias = Callable[[Sequence[int]], CpuReading]
ProcessSource: TypeAlias = Callable[[], tuple[float, float]]
"""Returns now and the CPU time of this process, seconds since any origin."""

Now: TypeAlias = Callable[[], float]
Willing: TypeAlias = Callable[[], bool]


def read_cpu(cpus: Sequence[int]) -> CpuReading:
    """Return the counters of this machine, with the idle time of `cpus` only."""
    times = psutil.cpu_times(percpu=True)
    idle = sum(
        times[cpu].idle + getattr(times[cpu], "iowait", 0.0) for cpu in cpus if cpu < len(times)
    )
    return CpuReading(now=time.monotonic(), idle_s=idle, own_s=time.process_time())


def read_process() -> tuple[float, float]:
    """Return now and the CPU time of this process."""
    return time.monotonic(), time.process_time()


@dataclass(slots=True)
class FreeCores:
    """Moving average of free cores, from cumulative counters."""

    cores: float
    """Cores that this process may use."""
    _last: CpuReading | None = None
    _last_used_s: tuple[float | None, ...] = ()
    _average: float | None = None

    @property
    def value(self) -> float:
        """Current average; all cores before the first interval."""
        return self.cores if self._average is None else self._average

    def is_due(self, now: float) -> bool:
        """Return whether the interval is long enough for a new reading."""
        return self._last is None or now - self._last.now >= MIN_INTERVAL_S

    def update(self, reading: CpuReading, quotas: Sequence[tuple[float, float | None]]) -> float:
        """Return the average free cores after `reading`.

        Args:
            reading: Current counters.
            quotas: For each quota its cores and the CPU seconds used by its group.
        """
        used = tuple(used_s for _, used_s in quotas)
        last, last_used = self._last, self._last_used_s
        elapsed_s = reading.now - last.now if last is not None else 0.0
        if last is None or len(last_used) != len(used):
            self._last, self._last_used_s = reading, used
        elif elapsed_s >= MIN_INTERVAL_S:
            own = max(0.0, reading.own_s - last.own_s) / elapsed_s
            free = min(self.cores, max(0.0, reading.idle_s - last.idle_s) / elapsed_s + own)
            for (quota, used_s), before_s in zip(quotas, last_used, strict=True):
                if used_s is not None and before_s is not None:
                    others = max(0.0, (used_s - before_s) / elapsed_s - own)
                    free = min(free, quota - others)
            self._blend(max(free, 0.0), elapsed_s)
            self._last, self._last_used_s = reading, used
        return self.value

    def _blend(self, free: float, elapsed_s: float) -> None:
        if self._average is None:
            self._average = free
        else:
            self._average += (1.0 - math.exp(-elapsed_s / SMOOTHING_S)) * (free - self._average)


@dataclass(slots=True)
class RealSensors:
    """Sensors of the machine on which this process runs."""

    root: Path = Path("/")
    cpu_source: CpuSource = read_cpu
    process_source: ProcessSource = read_process
    now: Now = time.monotonic
    willing: Willing = lambda: True
    _cpus: list[int] = field(default_factory=list)
    _quotas: list[CpuQuota] = field(default_factory=list)
    _free: FreeCores = field(default_factory=lambda: FreeCores(cores=1.0))
    _busy_clock_ratio: float | None = None
    _last_process: tuple[float, float] | None = None
    _has_clock: bool = False
    _throttle: ThrottleReader = field(init=False)
    _zones: list[tuple[bool, Path]] = field(default_factory=list)
    """Of each thermal zone whether it is of the processor, and the file of its temperature."""

    def __post_init__(self) -> None:
        self._throttle = ThrottleReader(self.root)
        for folder in sorted((self.root / "sys/class/thermal").glob("thermal_zone*")):
            kind = (read_text(folder / "type") or "").lower()
            self._zones.append((any(word in kind for word in _CPU_ZONES), folder / "temp"))
        self._cpus = _affinity()
        self._quotas = cpu_quotas(self.root)
        allowed = min([float(len(self._cpus)), *(quota.cores for quota in self._quotas)])
        self._free = FreeCores(cores=allowed)
        self._has_clock = self._frequency_ratio("scaling_max_freq") is not None
        self.free_cores()

    def cores(self) -> int:
        """Return the cores that this agent may use, rounded up."""
        return max(1, math.ceil(self._free.cores))

    def free_cores(self) -> float:
        """Return the cores that are idle or used by this agent, averaged; all cores if unknown."""
        if not self._free.is_due(self.now()):
            return max(self._free.value, MIN_FREE_CORES)
        try:
            reading = self.cpu_source(self._cpus)
        except (OSError, RuntimeError, psutil.Error):
            return self._free.cores
        free = self._free.update(reading, [(q.cores, q.used_s()) for q in self._quotas])
        return max(free, MIN_FREE_CORES)

    def clock_ratio(self) -> float | None:
        """Return clock under load / nominal clock.

        An idle processor is clocked down. The clock is therefore recorded only if this process was
        busy since the previous call; the training thread calls once after each round. Before the
        first record, the result is the governor's limit.
        """
        if not self._has_clock:
            return None
        previous, current = self._last_process, self.process_source()
        self._last_process = current
        if previous is not None and current[0] > previous[0]:
            own_cores = (current[1] - previous[1]) / (current[0] - previous[0])
            if own_cores >= BUSY_RATIO:
                self._busy_clock_ratio = self._frequency_ratio("scaling_cur_freq")
        if self._busy_clock_ratio is None:
            return self._frequency_ratio("scaling_max_freq")
        return self._busy_clock_ratio

    def throttled(self) -> tuple[str, ...] | None:
        """Return the current causes of throttling; None if they cannot be read."""
        return self._throttle.causes()

    def memory_bytes(self) -> int:
        """Return the memory of the machine, or the lowest limit of its control groups."""
        try:
            total = int(psutil.virtual_memory().total)
        except (OSError, RuntimeError, psutil.Error):
            total = 0
        limit = memory_limit_bytes(self.root)
        if limit is None:
            return total
        return min(limit, total) if total else limit

    def temperature_celsius(self) -> float | None:
        """Return the hottest processor zone, or the hottest zone if no type names a processor."""
        zones: list[tuple[bool, float]] = []
        for is_of_processor, file in self._zones:
            value = _positive(read_text(file))
            if value is not None:
                zones.append((is_of_processor, value / 1000.0))
        return max(zones)[1] if zones else None

    def is_willing(self) -> bool:
        """Return whether the owner lets this device take part now; True without rules."""
        return self.willing()

    def board(self) -> str:
        """Return the name in the device tree (Raspberry Pi, Jetson), or an empty string."""
        return (read_text(self.root / "proc/device-tree/model") or "")[:120]

    def clock_now(self) -> float | None:
        """Return current clock / nominal clock, at any load."""
        return self._frequency_ratio("scaling_cur_freq")

    def _frequency_ratio(self, name: str) -> float | None:
        ratios = []
        for cpu in self._cpus:
            folder = self.root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
            current = _positive(read_text(folder / name))
            nominal = _positive(read_text(folder / "cpuinfo_max_freq"))
            if current is not None and nominal is not None:
                ratios.append(current / nominal)
        return sum(ratios) / len(ratios) if ratios else None


def mu_cores(free_cores: float, engine_threads: int, clock_ratio: float | None) -> float:
    """Return mu: the cores of this device that training can use, at nominal clock.

        mu = min(free cores, engine threads) * clock / nominal clock

    An unknown clock counts as nominal. The result is positive.

    Source:
        design.md, section 2; the 1/mu of RBCS-F's context vector.
    """
    share = min(free_cores, float(engine_threads))
    return max(share * (1.0 if clock_ratio is None else clock_ratio), MIN_FREE_CORES)


class MonotonicClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()


def _always() -> bool:
    return True


def real_host(willing: Willing = _always) -> Host:
    """Return the host of a real device; `willing` returns whether it may take part now."""
    return Host(clock=MonotonicClock(), pace=UnlimitedPace(), sensors=RealSensors(willing=willing))


def _affinity() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _positive(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0.0 else None
