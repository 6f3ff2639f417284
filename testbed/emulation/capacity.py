"""Whether a fleet fits into this machine, and the time dilation with which it does.

A quota is an upper limit: a machine with too few cores makes every device slower, unnoticed. With
dilation k a second of the fleet lasts k seconds of the machine, which then needs only 1 / k of the
speed of each device:

    1.05 * sum of the m largest speeds / k + 0.5 <= cores

where m devices work at the same time. And no single thread of a device may be faster than a core
of the machine, k times slower.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

RESERVE_CORES = 0.5
"""For the broker, the coordinator and the processes that shape links."""

HEADROOM = 1.05
"""Devices that use all cores sometimes wait for each other."""

ROUNDING = 1e-9
"""For rounding."""

SHARE_OF_ONE_CORE = 0.25
"""Of a machine with so few cores that nothing would be left beside the reserve."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The processor demand of a fleet, in cores of this machine."""

    concurrent_cores: float
    """The devices that work at the same time, each at its full speed."""
    thread_cores: float
    """The fastest thread of a device: no core of this machine may be slower."""

    @classmethod
    def of(cls, devices: Iterable[tuple[float, int]], n_concurrent: int) -> "Demand":
        """Return the demand of a fleet.

        Args:
            devices: Speed of each emulated device in cores of this machine, and its threads.
            n_concurrent: Devices that work at the same time; the fastest may be among them.
        """
        speeds = list(devices)
        fastest = sorted((speed for speed, _ in speeds), reverse=True)[:n_concurrent]
        thread_cores = max((speed / threads for speed, threads in speeds), default=0.0)
        return cls(concurrent_cores=sum(fastest), thread_cores=thread_cores)


def free_cores(cores: float) -> float:
    """Return the cores that devices may take of a machine that has `cores`."""
    return max(cores - RESERVE_CORES, SHARE_OF_ONE_CORE * cores)


def fitting_dilation(demand: Demand, cores: float) -> int:
    """Return the smallest whole dilation with which the fleet fits; 1 is no dilation."""
    needed = HEADROOM * demand.concurrent_cores / free_cores(cores)
    return max(1, math.ceil(needed - ROUNDING), math.ceil(demand.thread_cores - ROUNDING))


def fits(demand: Demand, cores: float, dilation: float) -> bool:
    """Return whether a fleet fits into a machine, its time dilated so far."""
    return has_enough_cores(demand, cores, dilation) and demand.thread_cores <= dilation + ROUNDING


def has_enough_cores(demand: Demand, cores: float, dilation: float) -> bool:
    """Return whether there are cores enough, however fast each is."""
    return HEADROOM * demand.concurrent_cores / free_cores(cores) <= dilation + ROUNDING
