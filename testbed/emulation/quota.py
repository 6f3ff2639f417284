"""Converts a processor share to a CFS bandwidth quota: running time per period.

    P = clamp(1 ms / q, 10 ms, 100 ms)     q < 0.9
    P = 100 ms                             q within 0.1 of a whole number
    P = 10 ms                              any other q
    quota = q P                            at least 1 ms, the kernel's minimum

with q in cores. Short periods keep short steps accurate: at q = 0.25 a step of 5 ms took 0.25 to
3.86 times its nominal time with P = 100 ms, and 1.00 with 10 ms. Near whole numbers short periods
lose budget at their ends: one busy thread got 0.904 of a core with 10 ms, 0.994 with 100 ms.
"""

import math

from msgspec import Struct

MIN_QUOTA_US = 1_000
"""The kernel's minimum (`min_cfs_quota_period`)."""

MIN_PERIOD_US = 10_000
MAX_PERIOD_US = 100_000

MIN_SHARE = MIN_QUOTA_US / MAX_PERIOD_US
"""Smallest share: 1 % of a core."""

WHOLE_MARGIN = 0.1
"""This close to a whole number of cores, the budget that short periods lose outweighs the accuracy
that they bring."""

HEADROOM = 2.0
"""Factor on a device's quota while its own pace slows it: the processor time of one step varied
from 1.8 to 3.4 ms with other load on the machine (docs/decisions/0005), but the pace charges its
calibrated cost."""


class CfsQuota(Struct, frozen=True):
    """The values that are written to the control group."""

    period_us: int
    quota_us: int | None
    """Processor time per period; None is not limited."""

    @property
    def share(self) -> float | None:
        """The share in cores; None is not limited."""
        return None if self.quota_us is None else self.quota_us / self.period_us


def cfs_period_us(smallest_share: float) -> int:
    """Return the period of a device, microseconds.

    Args:
        smallest_share: The smallest share that the device will have, in cores.

    Raises:
        ValueError: The share is below the kernel's minimum.
    """
    share = checked_share(smallest_share)
    nearest = round(share)
    if nearest >= 1 and abs(share - nearest) <= WHOLE_MARGIN:
        return MAX_PERIOD_US
    return min(max(math.ceil(MIN_QUOTA_US / share), MIN_PERIOD_US), MAX_PERIOD_US)


def cfs_quota(share: float | None, period_us: int) -> CfsQuota:
    """Return the quota of a share in a period, or in a longer one if the share needs it.

    Args:
        share: In cores; None is not limited.
        period_us: The current period of the device, microseconds.

    Raises:
        ValueError: The share is below the kernel's minimum.
    """
    if share is None:
        return CfsQuota(period_us, None)
    if round(checked_share(share) * period_us) < MIN_QUOTA_US:
        period_us = cfs_period_us(share)
    return CfsQuota(period_us, max(round(share * period_us), MIN_QUOTA_US))


def threads_for(largest_share: float) -> int:
    """Return how many threads a device's engine should use; more would busy-wait for each other.

    At half a core a matrix product reached 0.42 of its full rate with two threads, 0.50 with one.
    """
    return max(1, math.ceil(largest_share))


def checked_share(share: float) -> float:
    """Return the share, in cores.

    Raises:
        ValueError: The share is below the kernel's minimum.
    """
    if not (math.isfinite(share) and share >= MIN_SHARE):
        raise ValueError(
            f"processor share must be at least {MIN_SHARE:g} of a core, got {share:g}; use a "
            "faster profile, or a smaller dilation"
        )
    return share
