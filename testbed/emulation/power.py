"""Power of an emulated device during the phases of an exchange, from the numbers of its profile."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # an agent reads no profile
    from fairbed.profiles import Profile
    from fairbed.profiles.schema import Power

POWERS = ("idle_w", "train_w", "compute_w", "transmit_w")
"""The keys of `[energy]` in a profile."""


@dataclass(frozen=True, slots=True)
class PhasePower:
    """Power of the whole device by the kind of a phase, watts; None is unknown."""

    transfer_w: float | None
    """Download and upload."""
    compute_w: float | None
    """The phases between them."""
    transfer_range_w: tuple[float, float] | None = None
    """Least and greatest `transfer_w` by the sources of the profile; None if they state one."""
    compute_range_w: tuple[float, float] | None = None
    """The same of `compute_w`."""


UNKNOWN = PhasePower(None, None)


def phase_power(profile: "Profile | None") -> PhasePower:
    """Return the power of a device by phase.

        transfer   transmit_w; without it idle_w
        compute    compute_w; without it idle_w + (train_w - idle_w) * engine_threads / cores

    `train_w` holds for all cores, and the power of a machine grows about linearly with its busy
    cores. Without `idle_w` it is known only for devices that train on all their cores. A lower
    clock, and other work, do not change it. A range is the same rule with the least and the
    greatest numbers of the profile.

    Source:
        Fan, Weber, Barroso: Power provisioning for a warehouse-sized computer, ISCA 2007.
    """
    energy = None if profile is None else profile.energy
    if profile is None or energy is None:
        return UNKNOWN
    known = {key: item for key in POWERS if (item := getattr(energy, key)) is not None}
    share = np.float64(profile.engine_threads / profile.cores)
    stated, least, greatest = (
        phase_powers({key: np.float64(of(item)) for key, item in known.items()}, share)
        for of in (_value, _low, _high)
    )
    (transfer_w, transfer_range), (compute_w, compute_range) = (
        (None, None)
        if np.isnan(watts)
        else (float(watts), None if low == watts == high else (float(low), float(high)))
        for watts, low, high in zip(stated, least, greatest, strict=True)
    )
    return PhasePower(transfer_w, compute_w, transfer_range, compute_range)


def _value(power: "Power") -> float:
    return power.value


def _low(power: "Power") -> float:
    return power.range[0]


def _high(power: "Power") -> float:
    return power.range[1]


def phase_powers(
    numbers: Mapping[str, NDArray[np.float64] | np.float64],
    share: NDArray[np.float64] | np.float64,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return `transfer_w` and `compute_w` of devices by the rule of `phase_power`; NaN is unknown.

    Args:
        numbers: Those of `POWERS` that are known, watts, each of shape (N,).
        share: `engine_threads / cores`, shape (N,).
    """
    idle_w, train_w, compute_w, transmit_w = (
        np.asarray(numbers.get(key, np.full(np.shape(share), np.nan))) for key in POWERS
    )
    linear_w = np.where(share == 1.0, train_w, idle_w + (train_w - idle_w) * share)
    return (
        np.where(np.isnan(transmit_w), idle_w, transmit_w),
        np.where(np.isnan(compute_w), linear_w, compute_w),
    )
