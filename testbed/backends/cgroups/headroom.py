"""Lifts a device's quota while the pace of a compute section holds it back instead.

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

from testbed.backends.cgroups.quota import Quota
from testbed.emulation.quota import HEADROOM


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
