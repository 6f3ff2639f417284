"""Reads sensors and counters of this machine within a limit of processor time; never raises."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fairbed.device_agent.cgroup import read_text
from fairbed.device_agent.sensors import RealSensors, pi_throttle_causes
from fairbed.testbed.recording.analysis.readings import InterfaceCounters, Reading

BUDGET = 0.005
"""Share of a core that reading may take: half of the documented limit, to leave a margin."""

MIN_PERIOD_S = 0.25
MAX_PERIOD_S = 10.0

VCGENCMD = "vcgencmd"
VCGENCMD_EVERY_S = 10.0
VCGENCMD_TIMEOUT_S = 2.0
"""A Raspberry Pi program that takes about 10 ms per call; used if no file has the same values."""

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_IDLE_FIELDS = (3, 4)
"""Idle fields in the first line of /proc/stat: idle, and waiting for a disk."""
_COUNTED_FIELDS = 8
"""The later fields, of guests, are contained in the first ones."""


@dataclass(slots=True)
class MachineReader:
    """Reads the machine below `root`.

    Args:
        interface: Network interface; None is that of the default route.
        root: Folder with /proc and /sys.
        now: Returns monotonic seconds.
    """

    interface: str | None = None
    root: Path = Path("/")
    now: Callable[[], float] = time.monotonic
    sensors: RealSensors = field(default_factory=RealSensors)
    began_s: float = 0.0
    """Origin of the times of readings, on this machine's monotonic clock."""
    _program: str | None = None
    _queried_s: float = float("-inf")
    _reasons: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.sensors = RealSensors(root=self.root)
        self.interface = self.interface or default_interface(self.root)
        self.began_s = self.now()
        if self.sensors.throttled() is None:
            self._program = shutil.which(VCGENCMD)

    def read(self) -> Reading:
        """Return a reading of the machine at this instant."""
        counters = self._counters()
        return Reading(
            t_s=self.now() - self.began_s,
            busy_s=busy_s(self.root),
            own_s=own_s(),
            clock_ratio=self.sensors.clock_now(),
            celsius=self.sensors.temperature_celsius(),
            throttled=self._throttled(),
            down=None if counters is None else counters[0],
            up=None if counters is None else counters[1],
            is_linked=self._is_linked(),
            free_bytes=available_bytes(self.root),
        )

    def _counters(self) -> tuple[InterfaceCounters, InterfaceCounters] | None:
        return None if self.interface is None else counters_of(self.root, self.interface)

    def _is_linked(self) -> bool | None:
        if self.interface is None:
            return None
        state = read_text(self.root / f"sys/class/net/{self.interface}/carrier")
        if state is None:  # the file of an interface that is down cannot be read
            return None if read_text(self.root / "proc/net/dev") is None else False
        return state == "1"

    def _throttled(self) -> tuple[str, ...] | None:
        if self._program is None:
            return self.sensors.throttled()
        if self.now() - self._queried_s >= VCGENCMD_EVERY_S:
            self._queried_s = self.now()
            self._reasons = query_vcgencmd(self._program)
        return self._reasons


def sample(
    reader: MachineReader,
    duration_s: float,
    sleep: Callable[[float], None] = time.sleep,
    is_over: Callable[[], bool] = lambda: False,
) -> list[Reading]:
    """Read the machine repeatedly, at a rate within `BUDGET`.

        period = cost of a reading / BUDGET, within MIN_PERIOD_S to MAX_PERIOD_S

    Args:
        reader: Reads the machine.
        duration_s: Duration of the sampling.
        sleep: Waits for some seconds.
        is_over: Returns whether to end early.
    """
    ends_s = reader.now() + duration_s
    readings: list[Reading] = []
    cost_s, is_last = 0.0, False
    while not is_last:
        left_s = ends_s - reader.now()
        is_last = left_s <= 0.0 or is_over()
        before_s = own_s()
        readings.append(reader.read())
        cost_s = max(own_s() - before_s, cost_s / 2.0)
        if not is_last:
            period_s = min(max(cost_s / BUDGET, MIN_PERIOD_S), MAX_PERIOD_S)
            sleep(min(period_s, max(left_s, 0.0)))
    return readings


def own_s() -> float:
    """Return the processor time of this process and of its ended children, seconds."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def busy_s(root: Path) -> float | None:
    """Return the processor time that all cores have spent on work, seconds; None if unknown."""
    line = (read_text(root / "proc/stat") or "").partition("\n")[0].split()
    try:
        ticks = [int(text) for text in line[1 : 1 + _COUNTED_FIELDS]]
    except ValueError:
        return None
    if len(ticks) <= max(_IDLE_FIELDS):
        return None
    return _TICK_S * (sum(ticks) - sum(ticks[index] for index in _IDLE_FIELDS))


def available_bytes(root: Path) -> int | None:
    """Return the memory available to programs, bytes; None if unknown."""
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            try:
                return 1024 * int(line.split()[1])
            except (ValueError, IndexError):
                return None
    return None


def default_interface(root: Path) -> str | None:
    """Return the interface of the default route; None without one."""
    for line in (read_text(root / "proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000":
            return fields[0]
    return None


def counters_of(root: Path, interface: str) -> tuple[InterfaceCounters, InterfaceCounters] | None:
    """Return the counters of an interface, down and up; None if it does not exist."""
    for line in (read_text(root / "proc/net/dev") or "").splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == interface:
            try:
                numbers = [int(text) for text in rest.split()]
                down = InterfaceCounters(n_bytes=numbers[0], packets=numbers[1])
                return down, InterfaceCounters(n_bytes=numbers[8], packets=numbers[9])
            except (ValueError, IndexError):
                return None
    return None


def query_vcgencmd(program: str) -> tuple[str, ...] | None:
    """Return why the firmware of a Raspberry Pi throttles the processor; None if unknown."""
    try:
        done = subprocess.run(
            [program, "get_throttled"],
            capture_output=True,
            text=True,
            timeout=VCGENCMD_TIMEOUT_S,
            encoding="utf-8",
            errors="replace",
        )
        return pi_throttle_causes(int(done.stdout.strip().removeprefix("throttled="), 16))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
