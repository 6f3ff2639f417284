"""`[noise]`: how devices, and their exchanges, deviate from their profiles and links.

    duration of a phase = that of profile and link * device level * factor of the exchange
    level, factor       = exp(sigma z), z standard normal, or F^-1(Phi(z)) for given quantiles

A device keeps its levels for the whole run: a slow copy of its model stays slow. Each exchange has
a factor of its own for the download, for all computing, and for the upload. Levels are speeds and
rates, so live runs and replays have the same; only replays have factors of exchanges.
"""

from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.random_streams import normals
from fairbed.coordinator.policy.config import Section
from fairbed.profiles.quantities import Quantiles, Share, normal_shares

Sigma: TypeAlias = Annotated[float, Meta(ge=0.0, le=2.0)]
Factor: TypeAlias = Annotated[float, Meta(ge=0.01, le=100.0)]
Spread: TypeAlias = Sigma | tuple[tuple[Share, Factor], ...]

Part: TypeAlias = Literal["download", "compute", "upload"]
PARTS: tuple[Part, ...] = ("download", "compute", "upload")

_LEVELS, _EXCHANGES = (60, 62, 64), (66, 68, 70)
"""Purposes of the random streams of `PARTS`; see `testbed.replay.world.phases.Purpose`."""


class PartNoise(Section, frozen=True, kw_only=True):
    """Deviations of one part of an exchange."""

    device: Spread = 0.0
    """Spread of a level that each device keeps: sigma of its logarithm, or quantiles
    `[[share, factor], ...]` of the factor on durations."""
    exchange: Spread = 0.0
    """Spread of the factor of each exchange, likewise; for replays only."""

    def __post_init__(self) -> None:
        for key in ("device", "exchange"):
            if isinstance(spread := getattr(self, key), tuple):
                try:
                    Quantiles(spread)
                except ValueError as exc:
                    raise ValueError(f"{key}: {exc}") from None


class NoiseConfig(Section, frozen=True, kw_only=True):
    """`[noise]`: deviations of devices, and of exchanges, from their profiles and links."""

    download: PartNoise = PartNoise()
    """Of the rate of the downlink."""
    compute: PartNoise = PartNoise()
    """Of the speed of the processor: training, evaluating, loading, decoding and encoding."""
    upload: PartNoise = PartNoise()
    """Of the rate of the uplink."""

    @property
    def varies_exchanges(self) -> bool:
        """Whether exchanges have factors of their own."""
        return any(getattr(self, part).exchange != 0.0 for part in PARTS)


def device_levels(noise: NoiseConfig, seed: int, rows: Ints) -> Floats:
    """Return the levels of devices: factors on the durations of `PARTS`, shape (3, K).

    Args:
        noise: Settings of the experiment.
        seed: The seed `traces`.
        rows: Rows of the devices in the fleet, shape (K,).
    """
    return np.stack(
        [
            _factors(getattr(noise, part).device, seed, 0, rows, purpose)
            for part, purpose in zip(PARTS, _LEVELS, strict=True)
        ]
    )


def exchange_factors(noise: NoiseConfig, seed: int, round_id: int, rows: Ints) -> Floats:
    """Return the factors of one exchange of each device, of the durations of `PARTS`, (3, K).

    Args:
        noise: Settings of the experiment.
        seed: The seed `traces`.
        round_id: The round of the dispatch.
        rows: Rows of the devices in the fleet, shape (K,).
    """
    return np.stack(
        [
            _factors(getattr(noise, part).exchange, seed, round_id, rows, purpose)
            for part, purpose in zip(PARTS, _EXCHANGES, strict=True)
        ]
    )


def _factors(spread: Spread, seed: int, round_id: int, rows: Ints, purpose: int) -> Floats:
    if spread == 0.0:
        return np.ones(len(rows))
    scores = normals(seed, round_id, rows, purpose)
    if isinstance(spread, tuple):
        return Quantiles(spread).at(normal_shares(scores))
    found: Floats = np.exp(spread * scores)
    return found
