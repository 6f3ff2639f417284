"""Impairment of a link: delay, jitter and loss of packets.

    due = max(last due, now + max(0, delay + jitter x))       packets keep their order

x is standard normal and correlated in time: an Ornstein-Uhlenbeck process with a correlation time
of `MEMORY` times the jitter. Packets that are far apart have independent delays, and consecutive
packets have similar ones. With independent draws, each packet of a fast stream would wait for the
most delayed packet before it, so that the stream always had the largest delays.

    x(t + s) = x(t) e^(-s / T) + z sqrt(1 - e^(-2 s / T)),   T = MEMORY jitter,   z standard normal

Source:
    Gillespie, Phys. Rev. E 54 (1996), eq. 1.9a (exact update of the process).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, sqrt

from msgspec import Struct

MEMORY = 20.0
"""Correlation time / jitter. Keeping the order of packets then raises the mean delay of a dense
stream by about 2 / MEMORY of the jitter."""


class Impairment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delay, jitter and loss of a link, the same in both directions."""

    delay_s: float = 0.0
    """One way, seconds."""
    jitter_s: float = 0.0
    """Standard deviation of the delay."""
    loss_ratio: float = 0.0
    """Share of packets lost in each direction, 0 to 1."""


NO_IMPAIRMENT = Impairment()
"""Neither delay nor loss."""


@dataclass(slots=True)
class DelayLine:
    """One direction of a link. Times are seconds on one monotonic clock."""

    impairment: Impairment
    uniform: Callable[[], float]
    """Returns numbers from 0 to 1."""
    normal: Callable[[], float]
    """Returns standard normal numbers."""
    last_due: float = 0.0
    _x: float | None = None
    """None is before the first packet."""
    _x_at: float = 0.0

    def due(self, now: float) -> float | None:
        """Return when a packet that is sent now arrives; None if it is lost."""
        impairment = self.impairment
        if impairment.loss_ratio > 0.0 and self.uniform() < impairment.loss_ratio:
            return None
        delay_s = impairment.delay_s
        if impairment.jitter_s > 0.0:
            delay_s = max(0.0, delay_s + impairment.jitter_s * self._correlated_normal(now))
        self.last_due = max(self.last_due, now + delay_s)
        return self.last_due

    def _correlated_normal(self, now: float) -> float:
        z = self.normal()
        if self._x is None:
            self._x = z
        else:
            kept = exp((self._x_at - now) / (MEMORY * self.impairment.jitter_s))
            self._x = self._x * kept + z * sqrt(1.0 - kept * kept)
        self._x_at = now
        return self._x
