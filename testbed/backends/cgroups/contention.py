"""Throttled and contended time of a control group, from counters of the kernel. Pure."""

from dataclasses import dataclass

from fairbed.testbed.emulation.contention import ContentionEstimate
from fairbed.testbed.emulation.quota import MAX_PERIOD_US, CfsQuota
from fairbed.testbed.host.thread_times import ThreadWindow

EDGE_PERIODS = 2
"""Periods by which the counters of a window may be off at its edges."""


@dataclass(frozen=True, slots=True)
class GroupCounters:
    """Counters of the kernel for one group, since it was made, and of its threads."""

    now: float
    """Monotonic seconds."""
    cpu_s: float
    throttled_s: float
    """Sum over the processors: two of them are throttled for 2 s in a second."""
    periods: int
    """Periods of the quota in which the group was not idle."""
    pressure_s: float | None
    """Time for which threads were ready and none ran, mean of the processors in use; throttling is
    included. None is unknown."""
    threads: ThreadWindow | None
    """Since the previous reading; waits include throttling. None is unknown."""


class QuotaContention:
    """Computes throttled and contended time of a group from readings of its counters.

        unused    = max(periods * P, ready time of the busiest thread) - used / q
        throttled = throttled time of all processors / processors in use at the same time
        waited    = wait of the thread that waited longest - throttled, or pressure - throttled

    A group that used its quota in every period has lost nothing. The kernel does not count periods
    in which it did not run, idle or not. `emulation.contention` combines the bounds. Pressure
    includes threads that have ended; it is a mean of processors, unlike the waits of a thread.

    Args:
        before: The first reading, of a group that has just been made.
        processors: Processors that the group may use.
    """

    def __init__(self, before: GroupCounters, processors: int) -> None:
        self._before, self._processors = before, processors
        self._estimate = ContentionEstimate()
        self.throttled_s = 0.0
        """Mean of the processors in use."""
        self.contended_s: float | None = None
        """None is unknown."""

    def add(self, now: GroupCounters, share: float | None, period_s: float) -> None:
        """Add a reading.

        Args:
            now: The counters.
            share: Mean quota since the previous reading, in cores; None is not limited.
            period_s: Period of the quota, seconds.
        """
        before, self._before = self._before, now
        concurrency = 1.0 if now.threads is None else now.threads.concurrency
        throttled_s = (now.throttled_s - before.throttled_s) / min(concurrency, self._processors)
        self.throttled_s += throttled_s
        wall_s = now.now - before.now
        active_s = [wall_s] if share is None else [(now.periods - before.periods) * period_s]
        used_s = 0.0 if share is None else (now.cpu_s - before.cpu_s) / share
        waits = []
        if now.threads is not None:
            active_s.append(min(now.threads.ready_s, wall_s))
            waits.append(now.threads.waited_s)
        if now.pressure_s is not None and before.pressure_s is not None:
            waits.append(now.pressure_s - before.pressure_s)
        if waits:
            self._estimate.add(
                [active - used_s for active in active_s],
                [waited - throttled_s for waited in waits],
                EDGE_PERIODS * period_s,
            )
            self.contended_s = self._estimate.contended_s


def new_counters(now: float) -> GroupCounters:
    """Return the counters of a group that has just been made."""
    return GroupCounters(
        now=now, cpu_s=0.0, throttled_s=0.0, periods=0, pressure_s=0.0, threads=None
    )


class MeanShare:
    """Mean quota between two readings, in cores, over the time in which there was one."""

    def __init__(self, now: float) -> None:
        self._quota, self._since = CfsQuota(MAX_PERIOD_US, None), now
        self._core_s = self._limited_s = 0.0

    def set(self, now: float, quota: CfsQuota) -> None:
        """Set the quota from `now` on."""
        self._integrate(now)
        self._quota = quota

    def take(self, now: float) -> tuple[float | None, float]:
        """Return the mean since the last call, None if there is no limit, and the period, s."""
        self._integrate(now)
        mean = self._quota.share
        if mean is not None and self._limited_s > 0.0:
            mean = self._core_s / self._limited_s
        self._core_s = self._limited_s = 0.0
        return mean, self._quota.period_us * 1e-6

    def _integrate(self, now: float) -> None:
        if (share := self._quota.share) is not None:
            self._core_s += share * (now - self._since)
            self._limited_s += now - self._since
        self._since = now
