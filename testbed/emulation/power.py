"""Power of an emulated device during the phases of an exchange, from the numbers of its profile."""

from dataclasses import dataclass

from fairbed.profiles import Profile


@dataclass(frozen=True, slots=True)
class PhasePower:
    """Power of the whole device by the kind of a phase, watts; None is unknown."""

    transfer_w: float | None
    """Download and upload."""
    compute_w: float | None
    """The phases between them."""


UNKNOWN = PhasePower(None, None)


def phase_power(profile: Profile | None) -> PhasePower:
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
    idle_w, train_w, compute_w, transmit_w = (
        None if power is None else float(power.value)
        for power in (energy.idle_w, energy.train_w, energy.compute_w, energy.transmit_w)
    )
    share = profile.engine_threads / profile.cores
    if compute_w is None and share == 1.0:
        compute_w = train_w
    elif compute_w is None and train_w is not None and idle_w is not None:
        compute_w = idle_w + (train_w - idle_w) * share
    return PhasePower(idle_w if transmit_w is None else transmit_w, compute_w)
