"""Power of an emulated device during the phases of an exchange, from the numbers of its profile."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

if TYPE_CHECKING:  # an agent reads no profile
    from fairbed.profiles import Profile

POWERS = ("idle_w", "train_w", "compute_w", "transmit_w")
"""The keys of `[energy]` in a profile."""


@dataclass(frozen=True, slots=True)
class PhasePower:
    """Power of the whole device by the kind of a phase, watts; None is unknown."""

    transfer_w: float | None
    """Download and upload."""
    compute_w: float | None
    """The phases between them."""


UNKNOWN = PhasePower(None, None)


def phase_power(profile: "Profile | None") -> PhasePower:
    """Return the power of a device by phase.

        transfer   transmit_w; without it idle_w
        compute    compute_w; without it idle_w + (train_w - idle_w) * engine_threads / cores

    `train_w` holds for all cores, and the power of a machine grows about linearly with its busy
    cores. Without `idle_w` it is known only for devices that train on all their cores. A lower
    clock, and other work, do not change it.

    Source:
        Fan, Weber, Barroso: Power provisioning for a warehouse-sized computer, ISCA 2007.
    """
    energy = None if profile is None else profile.energy
    if profile is None or energy is None:
        return UNKNOWN
    known = {key: getattr(energy, key) for key in POWERS}
    numbers = {key: np.float64(item.value) for key, item in known.items() if item is not None}
    powers = phase_powers(numbers, np.float64(profile.engine_threads / profile.cores))
    transfer_w, compute_w = (None if np.isnan(watts) else float(watts) for watts in powers)
    return PhasePower(transfer_w, compute_w)


def phase_power_range(profile: "Profile") -> tuple[PhasePower, PhasePower]:
    """Return the smallest and the largest power by phase that the sources of a profile state.

    Energy is proportional to power, so it has the same relative interval.
    """
    energy, found = profile.energy, []
    for end in (0, 1):
        powers = None if energy is None else energy
        if powers is not None:
            ends = {
                key: structs.replace(item, value=item.range[end], low=None, high=None)
                for key in POWERS
                if (item := getattr(powers, key)) is not None
            }
            powers = structs.replace(powers, **ends)
        found.append(phase_power(structs.replace(profile, energy=powers)))
    return found[0], found[1]


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
