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

SLACK = 1e-9
"""For rounding."""

SHARE_OF_ONE_CORE = 0.25
"""Of a machine with so few cores that nothing would be left beside the reserve."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The processor demand of a fleet, in cores of this machine."""

    together: float
    """The devices that work at the same time, each at its full speed."""
    one_thread: float
    """The fastest thread of a device: no core of this machine may be slower."""

    @classmethod
    def of(cls, devices: Iterable[tuple[float, int]], at_once: int) -> "Demand":
        """Return the demand of a fleet.

        Args:
            devices: Speed of each emulated device in cores of this machine, and its threads.
            at_once: Devices that work at the same time; the fastest may be among them.
        """
        speeds = list(devices)
        fastest = sorted((speed for speed, _ in speeds), reverse=True)[:at_once]
        one_thread = max((speed / threads for speed, threads in speeds), default=0.0)
        return cls(together=sum(fastest), one_thread=one_thread)


def free_cores(cores: float) -> float:
    """Return the cores that devices may take of a machine that has `cores`."""
    return max(cores - RESERVE_CORES, SHARE_OF_ONE_CORE * cores)


def fitting_dilation(demand: Demand, cores: float) -> int:
    """Return the smallest whole dilation with which the fleet fits; 1 is no dilation."""
    needed = HEADROOM * demand.together / free_cores(cores)
    return max(1, math.ceil(needed - SLACK), math.ceil(demand.one_thread - SLACK))


def fits(demand: Demand, cores: float, dilation: float) -> bool:
    """Return whether a fleet fits into a machine, its time dilated so far."""
    return has_room(demand, cores, dilation) and demand.one_thread <= dilation + SLACK


def has_room(demand: Demand, cores: float, dilation: float) -> bool:
    """Return whether there are cores enough, however fast each is."""
    return HEADROOM * demand.together / free_cores(cores) <= dilation + SLACK
