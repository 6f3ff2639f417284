"""The file or files in which the kernel keeps the processor quota of one group."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from testbed.backends.cgroups.files import write, write_checked
from testbed.emulation.quota import CfsQuota, cfs_period_us, cfs_quota

NO_LIMIT = -1
"""How version 1 says it."""


class QuotaAddress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the quota of a device is."""

    folder: str
    version: Literal[1, 2]


class Quota:
    """Caps the processor time of one group.

    Args:
        address: Where it is.
        period_us: As the group has it; None if it is not known.
    """

    def __init__(self, address: QuotaAddress, period_us: int | None = None) -> None:
        self._folder, self._version = Path(address.folder), address.version
        self._period_us = period_us

    def set(self, share: float | None) -> CfsQuota:
        """Give the group so many cores from now on; None is all there are.

        The period stays what the first share made it, unless a share is too small for it.

        Raises:
            ValueError: The share is less than the kernel can give.
            CgroupError: The kernel refused.
        """
        known = self._period_us
        quota = cfs_quota(share, known or cfs_period_us(1.0 if share is None else share))
        self._write(quota, is_new_period=quota.period_us != known)
        self._period_us = quota.period_us
        return quota

    def _write(self, quota: CfsQuota, *, is_new_period: bool) -> None:
        if self._version == 2:
            text = "max" if quota.quota_us is None else str(quota.quota_us)
            write_checked(self._folder / "cpu.max", f"{text} {quota.period_us}")
            return
        amount = self._folder / "cpu.cfs_quota_us"
        if is_new_period:  # both must be legal together at every moment
            write(amount, str(NO_LIMIT))
            write_checked(self._folder / "cpu.cfs_period_us", str(quota.period_us))
        write_checked(amount, str(NO_LIMIT if quota.quota_us is None else quota.quota_us))
