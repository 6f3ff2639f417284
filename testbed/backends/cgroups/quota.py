"""The file or files in which the kernel keeps the processor quota of one group.

Lifts a device's quota while the pace of a compute section holds it back instead.

    outside of sections     quota = q            the kernel holds back what the agent does besides
    inside                  quota = 2 q          the pace sleeps until the device would be done

The kernel counts the processor time that work takes, which half depends on the neighbours; the
pace charges what the same work always costs (docs/decisions/0009). With a quota of just q, work
that took 20 % more time than it is charged would end 20 % late.

The backend changes q meanwhile: it writes the gauge first, then the quota. So whoever leaves a
section looks at the gauge once more after having written the quota.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairbed.testbed.backends.cgroups.files import OpenFile, read, write, write_checked
from fairbed.testbed.emulation.quota import HEADROOM, CfsQuota, cfs_period_us, cfs_quota

NO_LIMIT = -1
"""The value of version 1."""


class Quota:
    """Caps the processor time of one group.

    Args:
        folder: The group.
        version: Of control groups there, 1 or 2.
        is_shared: Somebody else sets it too, and the period; it is looked up each time.
    """

    def __init__(self, folder: Path, version: int, *, is_shared: bool = False) -> None:
        self._version, self._is_shared = version, is_shared
        self._period_us: int | None = None
        self._max = folder / "cpu.max"
        self._period_file = folder / "cpu.cfs_period_us"
        self._amount_file = folder / "cpu.cfs_quota_us"
        self._quota_file = OpenFile(self._max if version == 2 else self._amount_file)

    def set(self, share: float | None) -> CfsQuota:
        """Give the group so many cores from now on; None is all there are.

        The period stays what the first share made it, unless a share is too small for it.

        Raises:
            ValueError: The share is less than the kernel can give.
            CgroupError: The kernel refused.
        """
        known = self._found_period_us() if self._is_shared else self._period_us
        quota = cfs_quota(share, known or cfs_period_us(1.0 if share is None else share))
        self._write(quota, is_new_period=quota.period_us != known)
        self._period_us = quota.period_us
        return quota

    def close(self) -> None:
        """Give back what was opened."""
        self._quota_file.close()

    def _found_period_us(self) -> int:
        return int(read(self._max if self._version == 2 else self._period_file).split()[-1])

    def _write(self, quota: CfsQuota, *, is_new_period: bool) -> None:
        if self._version == 2:
            text = "max" if quota.quota_us is None else str(quota.quota_us)
            self._quota_file.write(f"{text} {quota.period_us}")
            return
        if is_new_period:  # both must be legal together at every moment
            write(self._amount_file, str(NO_LIMIT))
            write_checked(self._period_file, str(quota.period_us))
        self._quota_file.write(str(NO_LIMIT if quota.quota_us is None else quota.quota_us))


class Headroom:
    """Where the process of a device gets more than its share for a while.

    Args:
        quota: Of the device.
        speed: Returns its present speed, in cores of this machine.
    """

    def __init__(self, quota: Quota, speed: Callable[[], float]) -> None:
        self._quota, self._speed = quota, speed
        self._lifted_for = 0.0
        """The speed that the quota was lifted for; 0 is not lifted."""

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Have headroom inside, and none afterwards.

        Raises:
            CgroupError: The kernel refused.
        """
        self.follow()
        try:
            yield
        finally:
            self._drop()

    def follow(self) -> None:
        """Lift the quota again if the speed has changed, which has set it to no more than that."""
        speed = self._speed()
        if speed != self._lifted_for:
            self._quota.set(HEADROOM * speed)
            self._lifted_for = speed

    def _drop(self) -> None:
        written = None
        while written != (speed := self._speed()):
            self._quota.set(speed)
            written = speed
        self._lifted_for = 0.0
