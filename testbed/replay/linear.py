"""The world of the RBCS-F paper: exchange times are linear in what is known, but for noise.

    tau_{t,n} = c_{t,n} . theta_n (1 + e),   c = [1/mu, s, M/B],   e uniform in +- noise

with mu, B and availability drawn anew for every device in every round. A round of the world depends
on its number and the seed alone, not on who was selected: policies that are compared share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.algorithms.arrays import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLaw:
    """How devices of one group come and go, and how fast they are."""

    theta: tuple[float, float, float]
    """Seconds of training on one core, seconds of a cold start, and seconds of transfer per
    nominal second (1 / spectral efficiency)."""
    mu: tuple[float, float]
    """Free cores, uniform between these."""
    bandwidth_bps: tuple[float, float]
    """Uniform between these, bit/s."""
    availability: float
    """Probability of being there, in each round."""
    noise: float
    """A time deviates by up to this share of itself, uniformly."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What chance decides in one round, for every device."""

    is_available: Bools
    """Shape (N,)."""
    inverse_mu: Floats
    """Per core, shape (N,)."""
    bandwidth_bps: Floats
    """Shape (N,)."""
    deviation: Floats
    """1 + e, shape (N,)."""


class LinearWorld:
    """All devices of a linear world.

    Args:
        laws: One a device, in the order of rows.
        update_bits: Size M of an update, bits.
        seed: Of all chance.
    """

    def __init__(self, laws: Sequence[LinearLaw], update_bits: float, seed: int) -> None:
        self.update_bits, self._seed = update_bits, seed
        self._theta = np.array([law.theta for law in laws], dtype=np.float64).reshape(-1, 3)
        self._mu = np.array([law.mu for law in laws], dtype=np.float64).reshape(-1, 2)
        self._bps = np.array([law.bandwidth_bps for law in laws], dtype=np.float64).reshape(-1, 2)
        self._availability = np.array([law.availability for law in laws], dtype=np.float64)
        self._noise = np.array([law.noise for law in laws], dtype=np.float64)

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self._theta)

    def weather(self, round_id: int) -> Weather:
        """Return what chance decides in a round, 1 for the first."""
        rng = np.random.default_rng(np.random.SeedSequence([self._seed, round_id]))
        there, mu, bps, noise = rng.random((4, len(self)))
        return Weather(
            is_available=there < self._availability,
            inverse_mu=1.0 / _between(self._mu, mu),
            bandwidth_bps=_between(self._bps, bps),
            deviation=1.0 + self._noise * (2.0 * noise - 1.0),
        )

    def parts_s(self, weather: Weather, is_cold: Bools) -> Floats:
        """Return what an exchange is expected to consist of, seconds, shape (N, 3).

        Training, cold start and transfer: their sum is c . theta.
        """
        transfer_s = self.update_bits / weather.bandwidth_bps
        context = np.stack([weather.inverse_mu, is_cold, transfer_s], axis=1)
        parts_s: Floats = context * self._theta
        return parts_s


def _between(limits: Floats, share: Floats) -> Floats:
    low, high = limits.T
    between: Floats = low + (high - low) * share
    return between
