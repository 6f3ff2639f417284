"""Processor demand of a fleet, and the time dilation at which it fits this machine.

A quota is only an upper limit: on a machine with too few cores every device becomes slower without
an error. With dilation k a second of the fleet lasts k seconds of the machine, and each device
needs 1 / k of its speed:

    1.05 * sum of the m largest speeds / k + 0.5 <= cores

where m devices work at the same time. One thread of a device, slowed k times, must also not be
faster than one core of the machine.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

RESERVE_CORES = 0.5
"""Cores for the broker, the coordinator and the processes that shape links."""

HEADROOM = 1.05
"""Factor on the demand: devices that together use all cores sometimes wait for each other."""

ROUNDING = 1e-9
"""Tolerance for floating-point rounding."""

SHARE_OF_ONE_CORE = 0.25
"""Least share of all cores that devices may use, for machines smaller than the reserve."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The processor demand of a fleet, in cores of this machine."""

    concurrent_cores: float
    """Total speed of the devices that work at the same time."""
    thread_cores: float
    """Speed of the fastest thread of any device; a core of this machine must be as fast."""

    @classmethod
    def of(cls, devices: Iterable[tuple[float, int]], n_concurrent: int) -> "Demand":
        """Return the demand of a fleet.

        Args:
            devices: Speed of each emulated device in cores of this machine, and its threads.
            n_concurrent: Number of devices that work at the same time; taken as the fastest ones.
        """
        speeds = list(devices)
        fastest = sorted((speed for speed, _ in speeds), reverse=True)[:n_concurrent]
        thread_cores = max((speed / threads for speed, threads in speeds), default=0.0)
        return cls(concurrent_cores=sum(fastest), thread_cores=thread_cores)


def free_cores(cores: float) -> float:
    """Return how many of a machine's `cores` the devices may use."""
    return max(cores - RESERVE_CORES, SHARE_OF_ONE_CORE * cores)


def fitting_dilation(demand: Demand, cores: float) -> int:
    """Return the smallest integer dilation at which the fleet fits; 1 is no dilation."""
    needed = HEADROOM * demand.concurrent_cores / free_cores(cores)
    return max(1, math.ceil(needed - ROUNDING), math.ceil(demand.thread_cores - ROUNDING))


def fits(demand: Demand, cores: float, dilation: float) -> bool:
    """Return whether a fleet fits a machine at a dilation."""
    return has_enough_cores(demand, cores, dilation) and demand.thread_cores <= dilation + ROUNDING


def has_enough_cores(demand: Demand, cores: float, dilation: float) -> bool:
    """Return whether the machine has enough cores in total, whatever the speed of one core."""
    return HEADROOM * demand.concurrent_cores / free_cores(cores) <= dilation + ROUNDING
