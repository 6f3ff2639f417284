"""Delays that this machine adds to an exchange, and the share of exchanges that they spoil. Pure.

An exchange whose delays are over 5 % of its time is untimed. The delays come from short work
that no quota slows, such as the messages of all devices that start a round together. So they hardly
depend on the time dilation k, while the exchange lasts k times as long on this machine:

    D                 delays of an exchange in seconds of this machine: log-normal
    median of D       FIXED_S + (QUEUED_S m + OTHERS_S r) / cores
    share untimed     mean over devices of P(D > 0.05 k tau)

m devices work at the same time, beside r threads of other programs; tau is the time of the
exchange, which a replay predicts. The constants are fitted to runs of small models on one machine
of two cores (`fairbed bench dilation`, docs/emulation.md). Larger models, evaluations, and programs
that begin later add delays that are unknown before the run.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.records.rows import CONTENDED_RATIO_LIMIT

Floats = NDArray[np.float64]

FIXED_S = 1.0e-3
"""Median delay of an exchange that is alone, seconds."""

QUEUED_S = 1.75e-3
"""What each further device per core adds to it, seconds."""

OTHERS_S = 1.3e-3
"""What each other runnable thread per core adds to it, seconds."""

SIGMA = 0.65
"""Standard deviation of the logarithm of the delay."""

UNTIMED_TARGET = 0.05
"""Largest predicted share of untimed exchanges at which a dilation suffices."""

LARGEST_AUTO = 64
"""Largest dilation that is chosen for the sake of short exchanges: a run takes so many times as
long, also for devices whose exchanges need none."""


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """Predicted times of exchanges of the emulated devices, without delays of this machine."""

    cold_s: Floats
    """Seconds of the fleet, shape (R, N): at R instants, of N devices; NaN is unknown."""
    warm_s: Floats
    """The same of a device that has kept session, data and connection from the round before."""
    warm_share: float
    """Share of exchanges whose device has."""

    @property
    def is_known(self) -> bool:
        """Whether the time of any exchange is known."""
        return bool(np.isfinite(self.cold_s).any())

    @property
    def shortest_s(self) -> float:
        """The shortest one, seconds."""
        times_s = self.warm_s if self.warm_share > 0.0 else self.cold_s
        return float(np.nanmin(times_s))


@dataclass(frozen=True, slots=True)
class MachineDelay:
    """The delay that a machine adds to an exchange: log-normal, in seconds of the machine."""

    median_s: float
    sigma: float = SIGMA

    @classmethod
    def of(cls, n_concurrent: int, cores: float, others: float = 0.0) -> "MachineDelay":
        """Return the delay on a machine.

        Args:
            n_concurrent: Devices that work at the same time, at least 1.
            cores: Cores of the machine.
            others: Threads of other programs that run or wait for a core.
        """
        return cls(FIXED_S + (QUEUED_S * n_concurrent + OTHERS_S * others) / cores)

    def quantile_s(self, normal: float) -> float:
        """Return the delay that is so many standard deviations above the median, seconds."""
        return self.median_s * math.exp(normal * self.sigma)

    def untimed_share(self, times: ExchangeTimes, dilation: float) -> float:
        """Return the share of exchanges that become untimed, 0 to 1; NaN if no time is known."""
        if not times.is_known:
            return math.nan
        shares = (self._mean_share(t, dilation) for t in (times.cold_s, times.warm_s))
        cold, warm = shares
        return (1.0 - times.warm_share) * cold + times.warm_share * warm

    def sufficient_dilation(self, times: ExchangeTimes, least: int) -> int:
        """Return the smallest integer dilation with which few exchanges become untimed.

        Args:
            times: Predicted times.
            least: Smallest dilation with which the fleet fits into the machine.

        Returns:
            From `least` on, and at most `LARGEST_AUTO` if `least` is below that.
        """
        most = max(least, LARGEST_AUTO)
        if not times.is_known:
            return least
        return next(
            (k for k in range(least, most) if self.untimed_share(times, k) <= UNTIMED_TARGET), most
        )

    def _mean_share(self, times_s: Floats, dilation: float) -> float:
        allowed_s = CONTENDED_RATIO_LIMIT * dilation * times_s[np.isfinite(times_s)]
        above = np.log(np.maximum(allowed_s, 1e-9) / self.median_s) / self.sigma
        return float(np.mean([0.5 * math.erfc(z / math.sqrt(2.0)) for z in above.tolist()]))
