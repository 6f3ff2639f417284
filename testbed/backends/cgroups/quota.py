"""The processor quota of one control group, and its increase during compute sections.

    outside of sections     quota = q            the kernel limits the other work of the agent
    inside                  quota = 2 q          the pace sleeps until the device would be done
    inside an evaluation    quota = 2 q e        e: its speed relative to that of training

The kernel counts the processor time that work takes, which depends on other load; the pace charges
the calibrated cost of the work (docs/decisions/0009). With a quota of q, work that takes 20 % more
time than its cost would end 20 % late.

The backend changes q meanwhile: it writes the gauge first, then the quota. So the end of a section
reads the gauge again after it has written the quota.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairbed.testbed.backends.cgroups.files import OpenFile, read, write, write_checked
from fairbed.testbed.emulation.quota import HEADROOM, CfsQuota, cfs_period_us, cfs_quota

NO_LIMIT = -1
"""Value of an unlimited quota in version 1."""


class Quota:
    """The processor quota of one group.

    Args:
        folder: The group.
        version: Version of the control group, 1 or 2.
        is_shared: Whether another process sets quota and period too; then `set` reads the period.
    """

    def __init__(self, folder: Path, version: int, *, is_shared: bool = False) -> None:
        self._version, self._is_shared = version, is_shared
        self._period_us: int | None = None
        self._max = folder / "cpu.max"
        self._period_file = folder / "cpu.cfs_period_us"
        self._amount_file = folder / "cpu.cfs_quota_us"
        self._quota_file = OpenFile(self._max if version == 2 else self._amount_file)

    def set(self, share: float | None) -> CfsQuota:
        """Limit the group to a share, in cores; None is not limited.

        The first share determines the period, also the first after no limit; it changes only if a
        share is too small for it.

        Raises:
            ValueError: The share is below the kernel's minimum.
            CgroupError: The kernel rejected the quota.
        """
        known = self._found_period_us() if self._is_shared else self._period_us
        quota = cfs_quota(share, known or cfs_period_us(1.0 if share is None else share))
        self._write(quota, is_new_period=quota.period_us != known)
        self._period_us = None if share is None else quota.period_us
        return quota

    def close(self) -> None:
        """Close the open file."""
        self._quota_file.close()

    def _found_period_us(self) -> int:
        return int(read(self._max if self._version == 2 else self._period_file).split()[-1])

    def _write(self, quota: CfsQuota, *, is_new_period: bool) -> None:
        if self._version == 2:
            text = "max" if quota.quota_us is None else str(quota.quota_us)
            self._quota_file.write(f"{text} {quota.period_us}")
            return
        if is_new_period:  # remove the limit first: the kernel checks quota and period together
            write(self._amount_file, str(NO_LIMIT))
            write_checked(self._period_file, str(quota.period_us))
        self._quota_file.write(str(NO_LIMIT if quota.quota_us is None else quota.quota_us))


class Headroom:
    """Raises the quota of a device during its compute sections.

    Args:
        quota: The quota of the device.
        speed: Returns the current speed of the device, in cores of this machine.
    """

    def __init__(self, quota: Quota, speed: Callable[[], float]) -> None:
        self._quota, self._speed = quota, speed
        self._lifted_for = 0.0
        """Speed for which the quota was raised; 0 is not raised."""
        self._faster = 1.0

    @contextmanager
    def lifted(self, faster: float = 1.0) -> Iterator[None]:
        """Raise the quota inside the context, and restore it at its end.

        Args:
            faster: Speed of the work in this section, relative to that of the device; 1 if lower.

        Raises:
            CgroupError: The kernel rejected the quota.
        """
        self._faster = max(1.0, faster)
        self.follow()
        try:
            yield
        finally:
            self._drop()

    def follow(self) -> None:
        """Raise the quota again if the speed has changed, which reset the quota to the speed."""
        speed = self._speed()
        if speed != self._lifted_for:
            self._quota.set(HEADROOM * speed * self._faster)
            self._lifted_for = speed

    def _drop(self) -> None:
        written = None
        while written != (speed := self._speed()):
            self._quota.set(speed)
            written = speed
        self._lifted_for = 0.0
