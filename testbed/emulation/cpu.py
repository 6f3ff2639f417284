"""A slow processor and slow storage, emulated by sleeping between steps of work.

The device needs `cpu / q` seconds for work that took `cpu` seconds of this machine's processor,
where q is its speed relative to this machine, and `bytes / rate` seconds to read from its storage:

    credit = wall - cpu / q - bytes / rate

Negative credit is a time deficit, which the thread sleeps. Positive credit means that this machine
was late because it was busy. Later steps may catch up at most `MAX_CREDIT_S`, so that bursts above
the device's speed stay short. Lateness beyond that is lost, and counted.

q may change while a section runs (heat, other work). The outstanding deficit then stands for the
same work at the new speed, so that the work done is the integral of q.
"""

from dataclasses import dataclass

MAX_CREDIT_S = 0.25
"""Lateness that later steps may catch up, seconds. With it, steps of 2 to 20 ms at q = 0.05 to
0.9 took 1.000 to 1.002 of their time on a quiet machine."""

MIN_SLEEP_S = 0.1
"""Shorter deficits are carried to the next step, because each sleep leaves the processor's caches
cold: with a sleep after every step of 1.6 ms, a slow device took 18 % more processor time per step
than a fast one. The end of a section settles every deficit; seconds."""


@dataclass(slots=True)
class PacedSection:
    """Time account of one compute section; it starts with zero credit.

    Readings of wall and processor time are seconds from any origin.
    """

    speed_ratio: float
    """q: speed of the device relative to this machine; 1 or more is never slowed."""
    storage_read_bytes_per_s: float | None
    """Rate of the device's storage; None is not slowed."""
    now: float
    """Wall time at the start, then of the last reading."""
    cpu: float
    """Processor time of the working thread at the start, then of the last reading."""
    min_sleep_s: float = MIN_SLEEP_S
    """Shorter deficits are carried to the next step."""
    credit_s: float = 0.0
    read_deficit_s: float = 0.0
    """Upper bound of the part of the deficit that storage caused, which does not depend on q."""
    wall_s: float = 0.0
    lost_s: float = 0.0
    """Lateness beyond `MAX_CREDIT_S`, which later steps cannot catch up."""

    def __post_init__(self) -> None:
        _check_speed(self.speed_ratio)
        rate = self.storage_read_bytes_per_s
        if rate is not None and rate <= 0.0:
            raise ValueError(f"storage_read_bytes_per_s must be > 0, got {rate}; fix the profile")

    def advance(self, now: float, cpu: float, read_bytes: int = 0) -> float:
        """Account for the work since the last reading; return the time to sleep now, seconds."""
        self._account(now, cpu, read_bytes)
        return -self.credit_s if self.credit_s <= -self.min_sleep_s else 0.0

    def set_speed(self, now: float, speed_ratio: float) -> None:
        """Change the speed of the device from `now` on.

        Raises:
            ValueError: The speed is not positive.
        """
        if speed_ratio == self.speed_ratio:
            return
        _check_speed(speed_ratio)
        self._account(now, self.cpu, 0)
        if self.credit_s < 0.0:
            read_s = min(self.read_deficit_s, -self.credit_s)
            work_s = (-self.credit_s - read_s) * self.speed_ratio / speed_ratio
            self.credit_s = -(read_s + work_s)
        self.speed_ratio = speed_ratio

    def finish(self, now: float, cpu: float) -> float:
        """Account for the last work; return the time to sleep until no deficit is left, seconds."""
        self._account(now, cpu, 0)
        return max(0.0, -self.credit_s)

    @property
    def late_s(self) -> float:
        """Time by which the section took longer than it would on the device."""
        return self.lost_s + max(0.0, self.credit_s)

    @property
    def contended_ratio(self) -> float:
        """`late_s` as a share of the section, 0 to 1."""
        return self.late_s / self.wall_s if self.wall_s > 0.0 else 0.0

    def _account(self, now: float, cpu: float, read_bytes: int) -> None:
        wall_s, cpu_s = now - self.now, cpu - self.cpu
        self.now, self.cpu = now, cpu
        self.wall_s += wall_s
        self.credit_s += wall_s - cpu_s / self.speed_ratio
        self.read_deficit_s = max(0.0, self.read_deficit_s - wall_s)
        if self.storage_read_bytes_per_s is not None:
            read_s = read_bytes / self.storage_read_bytes_per_s
            self.credit_s -= read_s
            self.read_deficit_s += read_s
        if self.credit_s > MAX_CREDIT_S:
            self.lost_s += self.credit_s - MAX_CREDIT_S
            self.credit_s = MAX_CREDIT_S


def _check_speed(speed_ratio: float) -> None:
    if not speed_ratio > 0.0:
        raise ValueError(f"speed_ratio must be > 0, got {speed_ratio}; fix the profile")


@dataclass(slots=True)
class RecentShare:
    """Effective speed of the device / its configured speed, averaged over recent sections."""

    time_constant_s: float = 5.0
    value: float = 1.0
    """1 until a section was late."""

    def add(self, section: PacedSection) -> None:
        """Add a finished section to the average, weighted by its length."""
        weight = section.wall_s / (section.wall_s + self.time_constant_s)
        self.value += weight * (1.0 - section.contended_ratio - self.value)
